//! Clients that take more of a node than their share.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use amalgam_cluster::ids::{ChunkId, Creator, NodeId};
use amalgam_cluster::overlay::Message;
use amalgam_cluster::wire::{CLIENT_FRAME_BYTES_MAX, FrameReader, Packet, encode_frame};
use amalgam_index::model::Model;

use super::*;
use crate::event_loop::CLIENT_BYTES_MAX;
use crate::handshake::Handshake;
use crate::{ClusterClient, Embedded};

const PATIENCE: Duration = Duration::from_secs(60);
/// Twice as many as the buffers of all clients have room for.
const CLIENTS: usize = 2 * CLIENT_BYTES_MAX / CLIENT_FRAME_BYTES_MAX;

/// A connection that is admitted as a client.
fn admitted(node: &RunningNode) -> TcpStream {
    admitted_as(node, None)
}

/// A connection that is admitted as a node's, or as a client's.
fn admitted_as(node: &RunningNode, me: Option<Peer>) -> TcpStream {
    let mut stream = TcpStream::connect(node.address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    let cluster = node.state.snapshot().cluster;
    let identity = Identity::new(cluster, me, &node.credentials);
    let (mut out, mut buffer) = (Vec::new(), [0; 1_024]);
    let mut handshake = Handshake::start(identity, true, &mut out).expect("a nonce");
    loop {
        stream.write_all(&out).expect("it reads");
        out.clear();
        let count = stream.read(&mut buffer).expect("it answers");
        if handshake.feed(&buffer[..count], &mut out).expect("it is admitted").is_some() {
            return stream;
        }
    }
}

fn nth(number: usize) -> NodeId {
    NodeId::new(number as u16).expect("a node")
}

/// Whether the node has not closed a connection.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("an option");
    stream.read(&mut [0; 64]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// A node forwards lookups of clients, and remembers whose they are until they are answered.
#[test]
fn lookups_that_nobody_answers_make_room_for_others() {
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(3, 4, 600_000));
    let nodes = ["one", "two"].map(|name| {
        let name = name.to_owned();
        let configuration = NodeConfiguration { name, threads: 1, ..NodeConfiguration::default() };
        RunningNode::start::<Model>(&configuration, Arc::clone(&membership)).expect("it starts")
    });
    nodes.iter().for_each(|node| node.wait_until_ready(PATIENCE).expect("all is served"));
    for node in &nodes {
        let mut client = admitted(node);
        let look_up = |token: u64, hops, creator| {
            let creator = Creator::new(creator).expect("a creator");
            let id = ChunkId::new(creator, 1 << 40).expect("an id that nobody owns");
            let origin = node.peer();
            let packet = Packet::Overlay(Message::LookUp { origin, token, id, hops });
            let mut frame = Vec::new();
            encode_frame(0, &packet, &mut frame).expect("it is short");
            frame
        };
        // Forwarded too often, if the node does not lead the id's segment: nobody answers.
        let lost = (0..80_000_u64).flat_map(|token| look_up(token, 200, token as u16 % 9_000));
        client.write_all(&lost.collect::<Vec<u8>>()).expect("it reads");
        let asked = (0..16_u16).map(|number| 1_000_000 + u64::from(number));
        for (token, number) in asked.clone().zip(0..) {
            client.write_all(&look_up(token, 0, number * 4_000)).expect("it reads");
        }
        let mut missing: Vec<u64> = asked.collect();
        let (mut frames, mut buffer) = (FrameReader::default(), vec![0; 1 << 16]);
        while !missing.is_empty() {
            let count = client.read(&mut buffer).expect("it answers");
            frames.feed(&buffer[..count]);
            while let Some((_, packet)) = frames.next_frame().expect("a frame") {
                if let Packet::Overlay(Message::Found { token, .. }) = packet {
                    missing.retain(|one| *one != token);
                }
            }
        }
    }
}

#[test]
fn clients_with_frames_that_never_end_share_a_bound() {
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(3, 4, 600_000));
    let configuration = NodeConfiguration { threads: 1, ..NodeConfiguration::default() };
    let node = RunningNode::start::<Model>(&configuration, membership).expect("it starts");
    node.wait_until_ready(PATIENCE).expect("all is served");
    let stranger = |number: usize| Peer { node: nth(number + 100), incarnation: 1 };
    let member = node.peer();
    // Clients, nodes that are no members, and connections in a member's name.
    for (who, most, least) in [
        (&(|_| None) as &dyn Fn(usize) -> Option<Peer>, CLIENTS / 2, CLIENTS / 4),
        (&|number| Some(stranger(number)), CLIENTS / 2, CLIENTS / 4),
        (&|_| Some(member), 1, 1),
    ] {
        // A request, or another packet, as far as its first bytes tell, of which the end does not
        // come.
        let length = CLIENT_FRAME_BYTES_MAX as u32;
        let mut frame = [&length.to_le_bytes()[..], &[7; 8], &[3]].concat();
        frame.resize(CLIENT_FRAME_BYTES_MAX - 100, 0);
        let mut clients: Vec<TcpStream> =
            (0..CLIENTS).map(|number| admitted_as(&node, who(number))).collect();
        for client in &mut clients {
            // The node may close it at any byte.
            let _ = client.write_all(&frame);
        }
        let end = Instant::now() + PATIENCE;
        let open = || clients.iter().filter(|client| is_open(client)).count();
        while open() > most {
            assert!(Instant::now() < end, "{} frames are kept", open());
            std::thread::sleep(STOP_TICK);
        }
        assert!(open() >= least, "no more are closed than need be");
    }
    let address = node.address().to_string();
    let mut client = ClusterClient::connect(&[address], "", 1 << 20).expect("it is admitted");
    let chunk = client.create(b"a value").expect("it serves");
    assert_eq!(client.get(chunk), Ok(b"a value".to_vec()));
}
