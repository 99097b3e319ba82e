//! Tests with a whole event loop and clients that the same thread drives.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::channel;

use amalgam_cluster::chunks::ClientId;
use amalgam_cluster::node::{Node, NodeSettings};
use amalgam_cluster::wire::{Control, FrameReader, encode_frame};
use amalgam_index::model::Model;
use amalgam_index::{Configuration, Engine};
use rustix::event::epoll::Event;

use super::super::{EVENTS, TICK_MS};
use super::*;
use crate::handshake::{Credentials, Handshake, Identity};
use crate::membership::{Embedded, Membership};
use crate::node_engines::{Engines, NodeEngines};
use crate::node_state::NodeState;

/// More than a node reads at once, and far more than it handles in a turn.
const REQUESTS: u64 = 30_000;
/// Far more turns than all of them take.
const TURNS_MAX: usize = 100_000;

/// A client that does not wait; the loop and it are driven by one thread.
struct Caller {
    stream: TcpStream,
    to_send: Vec<u8>,
    sent: usize,
    frames: FrameReader,
    answered: u64,
}

impl Caller {
    /// Has a client admitted by a loop.
    fn admit<S: ChunkStore>(event_loop: &mut EventLoop<S>, events: &mut Vec<Event>) -> Self {
        let address = event_loop.listener.local_addr().expect("it listens");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_nonblocking(true).expect("an option");
        let (mut out, mut buffer) = (Vec::new(), [0; 1_024]);
        let identity = Identity::new(0, None, &Credentials::default());
        let mut handshake = Handshake::start(identity, true, &mut out).expect("a nonce");
        for _ in 0..TURNS_MAX {
            stream.write_all(&out).expect("there is room for it");
            out.clear();
            event_loop.turn(events).expect("it turns");
            match stream.read(&mut buffer) {
                Ok(count) => {
                    let fed = handshake.feed(&buffer[..count], &mut out).expect("it is admitted");
                    if fed.is_some() {
                        stream.write_all(&out).expect("there is room for it");
                        let (to_send, frames) = (Vec::new(), FrameReader::default());
                        return Self { stream, to_send, sent: 0, frames, answered: 0 };
                    }
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        panic!("it is not admitted");
    }

    fn ask(&mut self, requests: u64) {
        for number in 0..requests {
            let packet = Packet::Control(Control::GetClock);
            encode_frame(number, &packet, &mut self.to_send).expect("it is short");
        }
    }

    /// Sends what the socket takes, and takes the answers that have come.
    fn go_on(&mut self) {
        let mut buffer = [0; 1 << 16];
        match self.stream.write(&self.to_send[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("closed after {} answers", self.answered),
                Ok(count) => self.frames.feed(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error} after {} answers", self.answered),
            }
        }
        while let Some((number, packet)) = self.frames.next_frame().expect("a frame") {
            assert_eq!(number, self.answered, "in order, each once");
            assert!(matches!(packet, Packet::Control(Control::Clock(_))), "{packet:?}");
            self.answered += 1;
        }
    }
}

/// Calls `act` with the event loop of a node that is alone.
fn with_loop(act: impl FnOnce(&mut EventLoop<Box<dyn ChunkStore + '_>>)) {
    let membership = Embedded::new(1, 2, 600_000);
    let joined = membership.join("one", "127.0.0.1:1", "").expect("there is room");
    let state = NodeState::new(membership.snapshot().expect("it is here")).expect("memory");
    let state = Arc::new(state);
    let open = || (Model::open(&Configuration::default()).expect("memory"), 64 << 20);
    let engines = Engines::new(open(), open(), false, false);
    let clock = Arc::clone(&state);
    let store = engines.store(Box::new(move || clock.clock.moment()));
    let node = Node::new(joined.peer, NodeSettings::default(), Vec::new(), ClientId(1), store);
    let identity = Identity::new(0, Some(joined.peer), &Credentials::default());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let (proposals, _received) = channel();
    let mut event_loop = EventLoop::new(state, node, joined.peer, identity, listener, proposals)
        .expect("descriptors");
    act(&mut event_loop);
}

#[test]
fn a_turn_handles_a_bounded_number_of_a_clients_requests() {
    with_loop(|event_loop| {
        let mut events = Vec::with_capacity(EVENTS);
        let mut greedy = Caller::admit(event_loop, &mut events);
        let mut modest = Caller::admit(event_loop, &mut events);
        greedy.ask(REQUESTS);
        let (mut turns, mut has_waited) = (0_u64, false);
        while greedy.answered < REQUESTS {
            greedy.go_on();
            event_loop.turn(&mut events).expect("it turns");
            turns += 1;
            greedy.go_on();
            assert!(greedy.answered <= turns * OPERATIONS_A_CLIENT as u64, "after {turns} turns");
            assert!(turns < TURNS_MAX as u64, "only {} are answered", greedy.answered);
            if !event_loop.client_share.waiting.is_empty() {
                // Nothing more may arrive, and the rest is handled all the same.
                assert_eq!(event_loop.wait_ms(0), 0);
                has_waited = true;
            }
            if modest.to_send.is_empty() && !event_loop.client_share.waiting.is_empty() {
                modest.ask(1);
            }
            modest.go_on();
            if modest.answered == 0 && greedy.sent == greedy.to_send.len() {
                assert!(greedy.answered < REQUESTS, "the other waits until all are answered");
            }
        }
        assert!(has_waited && modest.answered == 1 && event_loop.client_share.waiting.is_empty());
        event_loop.next_tick_ms = TICK_MS;
        assert_eq!(event_loop.wait_ms(0), TICK_MS, "it does not spin");
    });
}

/// More clients than share one turn, each with far more than its part of several turns.
const GREEDY: usize = 20;
const REQUESTS_OF_EACH: u64 = 4_000;

#[test]
fn a_turn_handles_a_bounded_number_of_all_clients_requests_and_each_has_its_turn() {
    with_loop(|event_loop| {
        let mut events = Vec::with_capacity(EVENTS);
        let admit = |_| Caller::admit(event_loop, &mut events);
        let mut callers: Vec<Caller> = (0..GREEDY).map(admit).collect();
        let mut modest = Caller::admit(event_loop, &mut events);
        callers.iter_mut().for_each(|caller| caller.ask(REQUESTS_OF_EACH));
        modest.ask(1);
        let (mut turns, mut has_waited) = (0_u64, false);
        while callers.iter().any(|caller| caller.answered < REQUESTS_OF_EACH) {
            callers.iter_mut().for_each(Caller::go_on);
            modest.go_on();
            event_loop.turn(&mut events).expect("it turns");
            turns += 1;
            callers.iter_mut().for_each(Caller::go_on);
            modest.go_on();
            let answered: u64 = callers.iter().map(|caller| caller.answered).sum();
            assert!(answered <= turns * OPERATIONS_A_TURN as u64, "{answered} in {turns} turns");
            assert!(turns < TURNS_MAX as u64, "only {answered} are answered");
            has_waited |= event_loop.client_share.operations_left == 0;
            // All others may come first, once.
            let first_round = GREEDY.div_ceil(OPERATIONS_A_TURN / OPERATIONS_A_CLIENT) as u64;
            assert!(modest.answered == 1 || turns <= 2 * first_round, "not in {turns} turns");
        }
        assert!(has_waited && modest.answered == 1);
        assert!(event_loop.client_share.waiting.is_empty() && event_loop.wait_ms(0) > 0);
    });
}

#[test]
fn what_is_copied_for_clients_uses_a_turn_up() {
    let mut share = ClientShare::default();
    share.begin_turn();
    share.charge_copy(COPIED_BYTES_A_TURN - 1);
    assert!(share.may_read(1));
    share.charge_copy(2);
    assert!(!share.may_read(2) && share.operations_left == OPERATIONS_A_TURN);
    share.begin_turn();
    assert_eq!((share.take(), share.take()), (Some(2), None));
    assert!(share.may_read(3) && !share.may_read(2), "one that went on is not read from twice");
}
