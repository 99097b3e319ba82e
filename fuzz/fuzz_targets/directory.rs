//! The state of a cluster, as etcd and the nodes' copies of it hold it. What is read is written
//! back the same, and goes on: members join, leave and are removed.
#![no_main]

use amalgam_cluster::coordinator::Proposal;
use amalgam_cluster::overlay::{Group, Peer, Term};
use amalgam_fuzz::memory;
use amalgam_fuzz::script::Script;
use amalgam_node::ClusterState;
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Changes the state as nodes do. Each change has a revision of its own.
fn change(state: &mut ClusterState, script: &mut Script<'_>) -> Option<()> {
    let action = script.byte()?;
    let name = NAMES[usize::from(action >> 4) % NAMES.len()];
    let before = state.coordinator.view().clone();
    let peer = state.coordinator.names().get(name).copied();
    let peers: Vec<Peer> = state.coordinator.names().values().copied().collect();
    let has_changed = match (action % 8, peer) {
        (0 | 1, _) => {
            let last = peer.map_or(0, |peer| peer.incarnation);
            let joined = state.join(name, ("here:1", if action & 1 == 0 { "" } else { "r" }), 0);
            joined.is_ok_and(|joined| {
                assert!(joined.peer.incarnation > last, "incarnations ascend");
                true
            })
        }
        (2, Some(peer)) => state.coordinator.leave(peer).is_ok(),
        (3, Some(peer)) => {
            let was_member = before.has(peer);
            state.coordinator.end(peer);
            was_member
        }
        (4, Some(peer)) => state.coordinator.propose(&Proposal::Promote(peer), 0).is_ok(),
        (5 | 6, Some(peer)) => {
            let Some(segment) = before.segment(peer) else { return Some(()) };
            let replaces = before.groups_of(segment);
            let number = u64::from(script.byte().unwrap_or(0));
            let term = Term { number, leader: peer };
            let proposal = if action % 8 == 5 {
                let group = Group { term, members: peers.clone() };
                Proposal::Regroup { segment, group, replaces }
            } else {
                Proposal::Claim { segment, term, replaces }
            };
            state.coordinator.propose(&proposal, 0).is_ok()
        }
        _ => return Some(()),
    };
    let view = state.coordinator.view();
    if has_changed {
        assert!(view.revision > before.revision, "a change has a revision of its own");
    } else {
        assert_eq!(*view, before, "what is refused changes nothing");
    }
    let nodes: std::collections::BTreeSet<_> = peers.iter().map(|peer| peer.node).collect();
    if nodes.len() == peers.len() {
        let now: Vec<_> = state.coordinator.names().values().map(|peer| peer.node).collect();
        let distinct: std::collections::BTreeSet<_> = now.iter().collect();
        assert_eq!(distinct.len(), now.len(), "no two names have one node id");
    }
    Some(())
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let choice = script.byte().unwrap_or(0);
    let mut state = if choice & 1 == 0 {
        ClusterState::new(7, 8, 1_000)
    } else {
        let bytes = script.bytes();
        let read = memory::within(64 * bytes.len() + 4096, || ClusterState::from_bytes(bytes));
        let Ok(read) = read else { return };
        read
    };
    while change(&mut state, &mut script).is_some() {}
    let bytes = state.to_bytes();
    let again = ClusterState::from_bytes(&bytes).expect("it was just written");
    assert_eq!(again.to_bytes(), bytes);
    assert_eq!(again.snapshot(), state.snapshot());
    assert_eq!(again.coordinator.names(), state.coordinator.names());
});
