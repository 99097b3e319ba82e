//! Chunks that move while clients read and write them: no operation fails, no read is stale, no
//! acknowledged write is lost, at most one node serves an id, and a wrong cache costs a retry
//! (DXRAM, sections 2.2 and 3.3).

use amalgam_sim::{ChunkNode, Faults, Mutant, World, seeds};

/// Chunks have no backups here, so no node crashes.
const FAULTS: Faults = Faults { crashes: false, ..Faults::ALL };

/// Number of nodes that serve each chunk.
fn servers(world: &World<ChunkNode>) -> impl Iterator<Item = usize> {
    world
        .observed
        .chunks
        .iter()
        .map(|id| world.processes().filter(|node| node.node().chunks().serves(*id)).count())
}

fn run(seed: u64, mutant: Mutant) -> World<ChunkNode> {
    let mut world = World::new(seed, 3 + seed as usize % 6, FAULTS, mutant);
    for _ in 0..100 {
        world.run(150);
        assert!(servers(&world).all(|servers| servers <= 1), "seed {seed}: two serve a chunk");
    }
    world.settle();
    assert_eq!(world.crashes, 0, "seed {seed}: nobody may lose chunks");
    world
}

#[test]
fn chunks_move_while_clients_read_and_write() {
    let (mut reads, mut retries, mut requests) = (0, 0, 0);
    for seed in seeds(200, 25) {
        let mut world = run(seed, Mutant::None);
        world.read_all();
        assert_eq!(world.waiting(), 0, "seed {seed}: everybody is answered");
        assert_eq!(world.observed.wrong_answers, Vec::<String>::new(), "seed {seed}");
        assert_eq!(world.observed.history.violations(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(world.observed.locks.violations(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(world.observed.oracle.violations, Vec::<String>::new(), "seed {seed}");
        assert!(servers(&world).all(|servers| servers == 1), "seed {seed}: all are served");
        let moves = world.processes().map(|node| node.node().chunks().moves());
        assert!(moves.into_iter().all(|moves| moves == (0, 0)), "seed {seed}: moves end");
        for node in world.processes() {
            let statistics = node.node().client().statistics();
            retries += statistics.misdirected;
            requests += statistics.requests;
        }
        reads += world.observed.history.reads();
    }
    println!("{reads} reads, {requests} requests, {retries} of them to a wrong node");
    assert!(reads > 10_000 && retries > 1_000, "the seeds reach too little");
}

#[test]
fn a_move_that_leaves_writes_behind_is_noticed() {
    let is_noticed = |seed| {
        let world = run(seed, Mutant::LostLastPage);
        !world.observed.wrong_answers.is_empty() || !world.observed.history.violations().is_empty()
    };
    assert!((200..210).any(is_noticed));
}
