//! Requests that arrive at a super peer that is not responsible.

use super::super::edit::{FailoverGrant, ReplicaSet};
use super::super::proposal::Proposal;
use super::super::view::Member;
use super::*;
use crate::ids::NodeId;
use crate::ranges::Range;

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

/// So that a leader that stands still does not hide the keys of owners that do not.
#[test]
fn a_follower_answers_a_repeated_lookup() {
    let mut own = super_peer();
    let creator = Creator::from(peer(ASKER).node);
    let id = ChunkId::new(creator, 3).expect("an id");
    let owner = ReplicaSet::of_owner(peer(ASKER)).placement;
    let range = Range { ids: IdRange::single(id), placement: owner };
    let term = |number| Term { number, leader: peer(OTHER) };
    let hold = |own: &mut SuperPeer, number| {
        let version = Version { term: term(number), sequence: 4 };
        let (last_requests, to_recover) = Default::default();
        let (ranges, incarnations) = (vec![range], vec![peer(ASKER)]);
        own.catalog.install(&Snapshot {
            creator,
            version,
            ranges,
            last_requests,
            incarnations,
            to_recover,
        });
        let at = position(creator);
        own.promise(at..at + 1, term(number));
    };
    let found = Some((range, 1));
    let found = Message::Found { token: 5, id, epoch: 4, found, is_certain: false };
    let asked = |own: &mut SuperPeer, hops| {
        let [look_up, _] = requests(ASKER, hops);
        let answers = answers(own, ASKER, look_up);
        answers.contains(&OverlayCommand::Send(peer(ASKER), found.clone()))
    };
    assert!(!asked(&mut own, 1), "it has no replica");
    hold(&mut own, 1);
    assert!(!asked(&mut own, 0) && asked(&mut own, 1) && asked(&mut own, HOPS_MAX));
    // Another leader has begun to take over: it may decide without this node.
    hold(&mut own, 2);
    assert!(!asked(&mut own, 1));
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

/// Super peers 10, 20 and 30 and the ordinary peer 15, as seen by 10.
fn watcher() -> SuperPeer {
    let mut view = View { revision: 7, ..View::default() };
    for (number, is_super) in [(ME, true), (ASKER, false), (OTHER, true), (30, true)] {
        view.members.insert(peer(number).node, Member { incarnation: 1, is_super });
    }
    let mut own = SuperPeer::new(peer(ME), OverlaySettings::default());
    own.on_view(&view, &mut Vec::new());
    own
}

/// A round of probes, which these peers answer. Returns those that were probed and voted against.
fn probe(own: &mut SuperPeer, now_ms: u64, answer: &[u16]) -> (Vec<Peer>, Vec<Peer>) {
    let (mut out, mut probed, mut votes) = (Vec::new(), Vec::new(), Vec::new());
    own.watch_members(now_ms, &mut out);
    for command in out {
        match command {
            OverlayCommand::Send(to, Message::Probe { .. }) => probed.push(to),
            OverlayCommand::Propose(Proposal::VoteOut { voter, member }) if voter == peer(ME) => {
                votes.push(member);
            }
            other => panic!("{other:?}"),
        }
    }
    for number in answer {
        own.on_message(peer(*number), Message::Alive { revision: 7 }, &mut Vec::new());
    }
    (probed, votes)
}

#[test]
fn a_watcher_votes_against_a_member_that_is_silent_while_others_are_heard() {
    let mut own = watcher();
    let probes = u64::from(OverlaySettings::default().silent_probes());
    let all = [ASKER, OTHER, 30].map(peer).to_vec();
    assert_eq!(probe(&mut own, 0, &[ASKER, OTHER, 30]), (all.clone(), Vec::new()));
    assert_eq!(probe(&mut own, 999, &[]), Default::default(), "it is not time yet");
    for round in 1..=probes {
        let heard = [OTHER, 30];
        assert_eq!(probe(&mut own, round * 1_000, &heard), (all.clone(), Vec::new()), "{round}");
    }
    let now_ms = 1_000 * (probes + 1);
    assert_eq!(probe(&mut own, now_ms, &[OTHER]), (all.clone(), vec![peer(ASKER)]));
    // One of the other watchers is silent too: two of three are heard, and so on.
    for round in 1..probes {
        let (_, votes) = probe(&mut own, now_ms + round * 1_000, &[OTHER]);
        assert_eq!(votes, [peer(ASKER)], "{round}");
    }
    // It hears nobody: it is itself cut off.
    for round in probes..probes + 10 {
        let (_, votes) = probe(&mut own, now_ms + round * 1_000, &[]);
        assert!(round < probes + 3 || votes.is_empty(), "{round}: {votes:?}");
    }
    // An answer ends it.
    let now_ms = now_ms + 1_000 * (probes + 10);
    probe(&mut own, now_ms, &[ASKER, OTHER, 30]);
    assert_eq!(probe(&mut own, now_ms + 1_000, &[]), (all, Vec::new()));
}

#[test]
fn a_member_that_never_answered_may_be_reading_its_log() {
    let mut own = watcher();
    let probes = u64::from(OverlaySettings::default().silent_probes());
    let votes_at = (0..).find(|round| {
        let (_, votes) = probe(&mut own, round * 1_000, &[OTHER, 30]);
        assert!(votes.is_empty() || votes == [peer(ASKER)], "{votes:?}");
        !votes.is_empty()
    });
    assert_eq!(votes_at, Some(40 * probes));
}

#[test]
fn a_member_that_does_not_answer_becomes_no_super_peer() {
    let mut view = View { revision: 7, ..View::default() };
    for (number, is_super) in [(ME, true), (ASKER, false), (16, false), (OTHER, true)] {
        view.members.insert(peer(number).node, Member { incarnation: 1, is_super });
    }
    let mut own = SuperPeer::new(peer(ME), OverlaySettings::default());
    own.on_view(&view, &mut Vec::new());
    let promotes = |own: &SuperPeer| {
        let mut out = Vec::new();
        own.promote(&mut out);
        out
    };
    assert_eq!(promotes(&own), [], "it does not know whether anybody answers");
    // The first choice does not, so the second is asked.
    for round in 0..3 {
        assert_eq!(promotes(&own), []);
        probe(&mut own, round * 1_000, &[ASKER, OTHER]);
    }
    assert_eq!(promotes(&own), [OverlayCommand::Propose(Proposal::Promote(peer(ASKER)))]);
}

/// Nobody serves what a dead node owned until its successor knows.
#[test]
fn new_owners_are_told_as_soon_as_a_removal_is_committed() {
    let mut own = super_peer();
    let creator = Creator::from(peer(5).node);
    let ids = IdRange::single(ChunkId::new(creator, 3).expect("an id"));
    let set = ReplicaSet::new(peer(ASKER), &[peer(OTHER)]).expect("two nodes");
    let (last_requests, to_recover) = Default::default();
    own.catalog.install(&Snapshot {
        creator,
        version: Version { term: Term { number: 1, leader: peer(ME) }, sequence: 4 },
        ranges: vec![Range { ids, placement: set.placement }],
        last_requests,
        incarnations: vec![peer(ASKER), peer(OTHER)],
        to_recover,
    });
    let mut view = own.view.clone();
    view.revision += 1;
    view.members.remove(&peer(ASKER).node);
    let mut out = Vec::new();
    own.on_view(&view, &mut out);
    own.on_tick(1_000, &mut out);
    let version = out.iter().find_map(|command| match command {
        OverlayCommand::Send(_, Message::Append { version, .. }) => Some(*version),
        _ => None,
    });
    let version = version.expect("the removal");
    let is_grant = |command: &OverlayCommand| {
        matches!(command, OverlayCommand::Send(_, Message::GrantFailover(_)))
    };
    assert!(!out.iter().any(is_grant), "one of two members does not commit it");
    let (epoch, source, holders) = (version.sequence, peer(ASKER), vec![peer(OTHER)]);
    let grant = FailoverGrant { ids, epoch, source, holders };
    assert_eq!(
        answers(&mut own, OTHER, Message::Appended { creator, version }),
        [OverlayCommand::Send(peer(OTHER), Message::GrantFailover(grant))]
    );
}
