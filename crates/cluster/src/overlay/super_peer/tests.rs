//! Requests that arrive at a super peer that is not responsible.

use super::super::edit::ReplicaSet;
use super::super::view::Member;
use super::*;
use crate::ids::NodeId;

fn peer(number: u16) -> Peer {
    Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 }
}

/// Leads all positions but the next ten.
const ME: u16 = 10;
/// Leads the ten positions up to itself.
const OTHER: u16 = 20;
/// An ordinary peer in the other's segment.
const ASKER: u16 = 15;

fn super_peer() -> SuperPeer {
    let mut view = View { revision: 7, ..View::default() };
    for (number, is_super) in [(ME, true), (ASKER, false), (OTHER, true)] {
        view.members.insert(peer(number).node, Member { incarnation: 1, is_super });
    }
    let term = |leader| Term { number: 1, leader };
    for leader in [ME, OTHER].map(peer) {
        let group = Group { term: term(leader), members: view.wanted_group(leader) };
        for part in view.segment(leader).expect("it is a super peer").parts() {
            view.groups.assign(part, Some(group.clone()));
        }
    }
    let mut own = SuperPeer::new(peer(ME), OverlaySettings::default());
    for part in view.segment(peer(ME)).expect("it is a super peer").parts() {
        own.promise(part, term(peer(ME)));
    }
    own.on_view(&view, &mut Vec::new());
    own
}

/// A lookup of an id of a creator, and a claim of it.
fn requests(creator: u16, hops: u8) -> [Message; 2] {
    let id = ChunkId::new(Creator::from(peer(creator).node), 3).expect("an id");
    let request = RequestId { peer: peer(ASKER), sequence: 1 };
    let change = Change::Claim(ReplicaSet::of_owner(peer(ASKER)));
    let edit = Edit { request, ids: IdRange::single(id), change };
    [Message::LookUp { origin: peer(ASKER), token: 5, id, hops }, Message::Change { edit, hops }]
}

fn answers(own: &mut SuperPeer, from: u16, message: Message) -> Vec<OverlayCommand> {
    let mut out = Vec::new();
    own.on_message(peer(from), message, &mut out);
    out.retain(|command| !matches!(command, OverlayCommand::Log(_)));
    out
}

#[test]
fn a_misdirected_request_is_forwarded_and_its_sender_corrected() {
    let mut own = super_peer();
    let super_peers = vec![peer(ME), peer(OTHER)];
    let list = OverlayCommand::Send(peer(ASKER), Message::SuperPeers { revision: 7, super_peers });
    for hops in 0..HOPS_MAX {
        let later = requests(ASKER, hops + 1);
        for (message, handed_on) in requests(ASKER, hops).into_iter().zip(later) {
            let expected = [list.clone(), OverlayCommand::Send(peer(OTHER), handed_on)];
            assert_eq!(answers(&mut own, ASKER, message), expected, "after {hops} hops");
        }
    }
    // Two that take each other for the leader do not forward a request for ever.
    for hops in [HOPS_MAX, u8::MAX] {
        for message in requests(ASKER, hops) {
            let only = std::slice::from_ref(&list);
            assert_eq!(answers(&mut own, OTHER, message), only, "after {hops} hops");
        }
    }
}

#[test]
fn an_own_request_is_answered_however_often_it_was_forwarded() {
    let mut own = super_peer();
    let [look_up, change] = requests(1, HOPS_MAX);
    let found = answers(&mut own, OTHER, look_up);
    let [OverlayCommand::Send(to, Message::Found { token: 5, .. })] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(to, peer(ASKER));
    // The group must hold it before it is answered.
    let appended = answers(&mut own, OTHER, change);
    let [OverlayCommand::Send(to, Message::Append { .. })] = appended[..] else {
        panic!("{appended:?}")
    };
    assert_eq!(to, peer(OTHER));
}
