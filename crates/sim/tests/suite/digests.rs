//! Once faults end, all holders of a segment have equal metadata, every request is answered, and
//! lookups return the owner of the committed edits (invariant 7 of the overlay).

use std::collections::BTreeMap;

use amalgam_cluster::ids::{Creator, NodeId};
use amalgam_cluster::overlay::{GROUP_MEMBERS, Summary, position};
use amalgam_sim::{Faults, MetadataNode, Mutant, World, seeds};

fn digests(world: &World<MetadataNode>) -> BTreeMap<Creator, Vec<(NodeId, u64, u64)>> {
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

/// A complete run.
fn run(seed: u64, mutant: Mutant) -> World<MetadataNode> {
    let mut world = World::new(seed, 5 + seed as usize % 8, Faults::ALL, mutant);
    world.run(15_000);
    world.settle();
    world
}

/// Differences between the holders' metadata and what was committed.
fn differences(world: &World<MetadataNode>) -> Vec<String> {
    let digests = digests(world);
    let mut differences = Vec::new();
    for truth in world.observed.oracle.truth().summaries() {
        let group = world.view().groups.get(position(truth.creator)).expect("somebody");
        let held = digests.get(&truth.creator).map_or(&[][..], Vec::as_slice);
        let is_same = |(_, sequence, digest): &(NodeId, u64, u64)| {
            (*sequence, *digest) == (truth.version.sequence, truth.digest)
        };
        if held.len() != group.members.len() || !held.iter().all(is_same) {
            differences.push(format!("{truth:?} against {held:?}"));
        }
    }
    differences
}

#[test]
fn replicas_converge_and_lookups_are_right() {
    for seed in seeds(100, 30) {
        let mut world = run(seed, Mutant::None);
        assert_eq!(world.waiting(), 0, "seed {seed}: everybody is answered");
        assert_eq!(differences(&world), Vec::<String>::new(), "seed {seed}");
        world.look_up_all();
        assert_eq!(world.waiting(), 0, "seed {seed}: every lookup is answered");
        for (id, owner) in &world.observed.located {
            let (_, range) = world.observed.oracle.truth().find(*id);
            let truth = range.map(|range| range.placement.owner());
            assert_eq!(*owner, truth, "seed {seed}: owner of {id}");
        }
        let ids = world.observed.located.len();
        assert!(ids >= 5 * 200, "all ids were looked up");
    }
}

/// Damages replicas at equal versions. Returns the differences that remain, and the number of
/// reports to leaders.
fn damage(seed: u64, mutant: Mutant) -> (Vec<String>, usize) {
    let mut world = run(seed, mutant);
    assert!(world.damage_replicas() > 0, "seed {seed}: somebody owns something");
    world.run(20);
    assert!(!differences(&world).is_empty(), "seed {seed}: it is damaged");
    world.run(3_000);
    (differences(&world), world.observed.oracle.violations.len())
}

#[test]
fn a_damaged_replica_is_found_and_repaired() {
    for seed in seeds(600, 10) {
        let (differences, told) = damage(seed, Mutant::None);
        assert_eq!(differences, Vec::<String>::new(), "seed {seed}");
        assert!(told > 0, "seed {seed}: nobody may pass over it in silence");
    }
}

#[test]
fn comparing_counts_only_is_noticed() {
    let found = (0..500).find(|seed| !damage(*seed, Mutant::ComparesCountsOnly).0.is_empty());
    println!("ComparesCountsOnly: found by seed {found:?}");
    assert!(found.is_some());
}

#[test]
fn there_are_enough_super_peers() {
    for nodes in [1, 2, 3, 5, 60] {
        let mut world: World<MetadataNode> = World::new(7, nodes, Faults::NONE, Mutant::None);
        world.run(5_000);
        let wanted = amalgam_cluster::overlay::OverlaySettings::default().supers_wanted(nodes);
        assert_eq!(world.view().supers().count(), wanted, "{nodes} nodes");
        assert!(
            world
                .view()
                .groups
                .all(0..1 << 16, |group| group.members.len() == wanted.min(GROUP_MEMBERS))
        );
    }
}
