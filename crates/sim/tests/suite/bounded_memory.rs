//! A client's cache of owners stays within its limit, however many ids it looks up (invariant 3 of
//! the locator).

use amalgam_cluster::ids::{ChunkId, Creator, IdRange, NodeId};
use amalgam_cluster::overlay::{Locator, Message, OverlayCommand, OverlaySettings, Peer};
use amalgam_cluster::ranges::{LIMIT_BYTES_MIN, Placement, Range};
use amalgam_sim::Random;

/// The largest memory of the cache while a client looks up ids that each moved alone.
fn most_cached(bound_bytes: usize) -> usize {
    let peer = |number: u64| {
        let node = NodeId::new(number as u16).expect("a node");
        Peer { node, incarnation: 1 }
    };
    let mut random = Random::new(1);
    let mut locator = Locator::new(peer(0), OverlaySettings::default(), bound_bytes, vec![peer(1)]);
    let (mut out, mut answers, mut most) = (Vec::new(), Vec::new(), 0);
    for now_ms in 0..100_000 {
        let creator = Creator::from(peer(random.below(50)).node);
        let id = ChunkId::new(creator, random.below(1 << 24)).expect("an id");
        let token = locator.look_up(id, now_ms, &mut out);
        assert!(matches!(out.pop(), Some(OverlayCommand::Send(..))), "it asks");
        let owner = peer(random.below(50));
        let placement = Placement::new(owner.node, &[]).expect("one node");
        let range = Range { ids: IdRange::single(id), placement };
        let found = Some((range, owner.incarnation));
        let message = Message::Found { token, id, epoch: 1, found, is_certain: true };
        locator.on_message(&message, now_ms, &mut out, &mut answers);
        assert_eq!(locator.find(id).map(|(owner, _)| owner), Some(owner));
        answers.clear();
        most = most.max(locator.cached_bytes());
    }
    most
}

#[test]
fn the_cache_of_owners_is_bounded() {
    for bound_bytes in [LIMIT_BYTES_MIN, 4 * LIMIT_BYTES_MIN] {
        let most = most_cached(bound_bytes);
        assert!((bound_bytes / 4..=bound_bytes).contains(&most), "{most} of {bound_bytes} bytes");
    }
}

#[test]
fn a_cache_without_a_bound_is_noticed() {
    assert!(most_cached(1 << 40) > 4 * LIMIT_BYTES_MIN);
}
