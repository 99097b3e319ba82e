//! Once faults end, all who hold an arc hold the same, every question is answered, and lookups name
//! the owner that the committed edits name (invariant 6 of the overlay).

use std::collections::BTreeMap;

use amalgam_cluster::ids::{Creator, NodeId};
use amalgam_cluster::overlay::{Summary, position};
use amalgam_sim::{Editor, Faults, Planted, World, seeds};

fn digests(world: &World<Editor>) -> BTreeMap<Creator, Vec<(NodeId, u64, u64)>> {
    let mut digests: BTreeMap<Creator, Vec<_>> = BTreeMap::new();
    for super_peer in world.super_peers() {
        let Some(own) = super_peer.view().supers().find(|peer| super_peer.is(*peer)) else {
            continue;
        };
        for Summary { creator, version, digest } in super_peer.catalog().summaries() {
            let group = world.view().groups.get(position(creator)).expect("somebody holds it");
            if group.members.contains(&own) {
                let held = (own.node, version.sequence, digest);
                digests.entry(creator).or_default().push(held);
            }
        }
    }
    digests
}

#[test]
fn replicas_converge_and_lookups_are_right() {
    for seed in seeds(100, 30) {
        let mut world: World<Editor> =
            World::new(seed, 5 + seed as usize % 8, Faults::ALL, Planted::Nothing);
        world.run(15_000);
        world.calm();
        assert_eq!(world.waiting(), 0, "seed {seed}: everybody is answered");
        let digests = digests(&world);
        for truth in world.common.ledger.truth().summaries() {
            let group = world.view().groups.get(position(truth.creator)).expect("somebody");
            let held = &digests[&truth.creator];
            assert_eq!(held.len(), group.members.len(), "seed {seed}: all members hold it");
            let is_same = |(_, sequence, digest): &(NodeId, u64, u64)| {
                (*sequence, *digest) == (truth.version.sequence, truth.digest)
            };
            assert!(held.iter().all(is_same), "seed {seed}: {truth:?} against {held:?}");
        }
        world.look_up_all();
        assert_eq!(world.waiting(), 0, "seed {seed}: every lookup is answered");
        for (id, owner) in &world.common.located {
            let (_, range) = world.common.ledger.truth().find(*id);
            let truth = range.map(|range| range.placement.owner());
            assert_eq!(*owner, truth, "seed {seed}: owner of {id}");
        }
        let ids = world.common.located.len();
        assert!(ids >= 5 * 200, "all ids were looked up");
    }
}

#[test]
fn there_are_enough_super_peers() {
    for nodes in [1, 2, 3, 5, 60] {
        let mut world: World<Editor> = World::new(7, nodes, Faults::NONE, Planted::Nothing);
        world.run(5_000);
        let wanted = amalgam_cluster::overlay::Settings::default().supers_wanted(nodes);
        assert_eq!(world.view().supers().count(), wanted, "{nodes} nodes");
        assert!(world.view().groups.all(0..1 << 16, |group| group.members.len() == wanted.min(3)));
    }
}
