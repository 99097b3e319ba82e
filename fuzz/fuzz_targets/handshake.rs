//! Handshakes between two sides that know the token, with somebody between them who does not and
//! changes, drops and adds bytes: neither side takes the other for somebody else.
#![no_main]

use amalgam_cluster::ids::NodeId;
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::Hello;
use amalgam_fuzz::memory;
use amalgam_fuzz::script::Script;
use amalgam_node::Credentials;
use amalgam_node::fuzzing::{Handshake, Identity};
use libfuzzer_sys::fuzz_target;

/// The first version whose proofs cover the hellos.
const WHOLE_HELLO_SINCE: u16 = 7;

/// A side, what the other sent it, and what came out.
struct Side {
    me: Option<Peer>,
    handshake: Handshake,
    met: Option<Hello>,
    is_closed: bool,
}

impl Side {
    fn new(choice: u8, is_dialer: bool, out: &mut Vec<u8>) -> Self {
        let node = NodeId::new(u16::from(is_dialer)).expect("a node");
        let me = (choice & 1 == 0).then_some(Peer { node, incarnation: 3 });
        let mut credentials = Credentials::from(if choice & 2 == 0 { "secret" } else { "wrong" });
        if choice & 4 != 0 {
            credentials.operator_token = "operator".to_owned();
        }
        let cluster = u64::from(me.is_some());
        let identity = Identity::new(cluster, me, &credentials);
        let handshake = Handshake::start(identity, is_dialer, out).expect("it starts");
        Self { me, handshake, met: None, is_closed: false }
    }

    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.is_closed || self.met.is_some() {
            return;
        }
        match self.handshake.feed(bytes, out) {
            Ok(None) => {}
            Ok(Some((hello, _))) => self.met = Some(hello),
            Err(_) => self.is_closed = true,
        }
    }
}

/// What arrives of `bytes`.
fn on_the_way(script: &mut Script<'_>, bytes: Vec<u8>) -> Vec<u8> {
    let mut bytes = bytes;
    for _ in 0..script.byte().unwrap_or(0) % 8 {
        let at = script.number() % (bytes.len() + 1);
        match script.byte().unwrap_or(0) % 4 {
            0 => bytes.truncate(at),
            1 => drop(bytes.splice(at..at, script.bytes().iter().copied())),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let mask = script.byte().unwrap_or(0);
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= mask);
            }
        }
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let choice = script.byte().unwrap_or(0);
    let (mut to_acceptor, mut to_dialer) = (Vec::new(), Vec::new());
    let mut dialer = Side::new(choice & 7, true, &mut to_acceptor);
    // Only nodes are dialed.
    let mut acceptor = Side::new(choice >> 3 & 6, false, &mut to_dialer);
    let has_same_token = choice & 2 == choice >> 3 & 2;
    let mut was_changed = false;
    memory::within(64 << 10, || {
        for _ in 0..3 {
            let (sent, answered) = (to_acceptor.clone(), to_dialer.clone());
            to_acceptor = on_the_way(&mut script, to_acceptor.clone());
            to_dialer = on_the_way(&mut script, to_dialer.clone());
            was_changed |= sent != to_acceptor || answered != to_dialer;
            let (mut from_acceptor, mut from_dialer) = (Vec::new(), Vec::new());
            for byte in to_acceptor.chunks(1) {
                acceptor.feed(byte, &mut from_acceptor);
            }
            dialer.feed(&to_dialer, &mut from_dialer);
            (to_acceptor, to_dialer) = (from_dialer, from_acceptor);
        }
    });
    let is_operator = dialer.me.is_none() && choice & 4 != 0;
    if let Some(hello) = acceptor.met {
        let may_meet = has_same_token || is_operator && choice >> 3 & 4 != 0;
        assert!(may_meet, "a side without the token was let in");
        if hello.version >= WHOLE_HELLO_SINCE {
            assert_eq!(hello.from, dialer.me, "the dialer is who it says");
            assert_eq!(acceptor.handshake.is_operator(), is_operator, "and in no other role");
        }
    }
    if let Some(hello) = dialer.met.filter(|hello| hello.version >= WHOLE_HELLO_SINCE) {
        assert_eq!(hello.from, acceptor.me);
    }
    // Two nodes, and nobody between them who changes anything.
    let are_nodes = dialer.me.is_some() && acceptor.me.is_some();
    if are_nodes && has_same_token && !was_changed {
        assert!(dialer.met.is_some() && acceptor.met.is_some(), "they belong together");
    }
});
