//! A cluster of some tens of nodes goes through what `scale` does with a thousand: racks that lose
//! power lose nothing, and a seed always gives the same run.

use amalgam_sim::{ScaleNode, World};

const NODES: usize = 40;
const RACKS: usize = 8;
const CHUNKS_A_NODE: usize = 20;

/// A cluster with chunks in three copies, each in a rack of its own.
fn cluster(seed: u64) -> World<ScaleNode> {
    let mut world = World::large(seed, NODES, 2);
    world.run(2_000);
    assert_eq!(world.view().members.len(), NODES, "all have joined");
    world.set_racks(RACKS);
    world.run(8_000);
    world.create_chunks(CHUNKS_A_NODE);
    world.run(5_000);
    assert_eq!(world.unfinished(), 0, "all chunks are created");
    assert_eq!(world.observed.chunks.len(), NODES * CHUNKS_A_NODE);
    world.observed.scale.operations_percent = 5;
    world
}

#[test]
fn racks_that_lose_power_lose_nothing() {
    let mut world = cluster(1);
    let dead: Vec<_> = world.rack(0).into_iter().chain(world.rack(1)).collect();
    assert_eq!(dead.len(), NODES / RACKS * 2);
    world.kill(&dead, false, None);
    assert_eq!(world.groups_without_majority(), 0, "the seed leaves the metadata a majority");
    world.run(1_000);
    assert!(world.unserved() > 0, "their chunks are not served before their leases end");
    world.run(9_000);
    assert_eq!(world.unserved(), 0, "others serve them");
    world.start_again(&dead);
    world.run(5_000);
    assert_eq!(world.view().members.len(), NODES, "they are back");
    world.observed.is_settling = true;
    assert!(world.read_each(20_000), "{:?}", world.unanswered());
    assert_eq!(world.violations(), Vec::<String>::new());
    assert!(world.observed.history.reads() >= NODES * CHUNKS_A_NODE);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let [one, same, other] = [2, 2, 3].map(|seed| cluster(seed).fingerprint());
    assert_eq!(one, same);
    assert_ne!(one, other);
}
