//! Named items behave as on one server: exactly one `add` of a key is stored, and every
//! acknowledged `incr` counts once, while messages are lost, repeated or late, and keys and whole
//! partitions move between nodes. With backups this holds although nodes crash
//! (`scenarios/items.toml`).

use amalgam_sim::{
    Faults, ItemNode, ItemWorkload, Mutant, ReplicatedItemNode, Run, Scenario, WorkloadNode, World,
    seeds,
};

/// There are no backups here, so no node crashes.
const FAULTS: Faults = Faults { crashes: false, ..Faults::ALL };

/// All answers are those of one server, and counters show what was counted.
fn check<const REPLICATED: bool>(
    world: &mut World<WorkloadNode<ItemWorkload<REPLICATED>>>,
    seed: u64,
) {
    world.settle();
    assert_eq!(world.waiting(), 0, "seed {seed}: everybody is answered");
    world.read_items();
    let names = &world.observed.items;
    assert_eq!(world.observed.wrong_answers, Vec::<String>::new(), "seed {seed}");
    assert_eq!(names.violations(), Vec::<String>::new(), "seed {seed}");
    assert_eq!(world.observed.oracle.violations, Vec::<String>::new(), "seed {seed}");
}

#[test]
fn adds_are_stored_once_and_increments_count_once() {
    let (mut answered, mut keys, mut moves) = (0, 0, 0);
    for seed in seeds(300, 20) {
        let mut world: World<ItemNode> = World::new(seed, 4, FAULTS, Mutant::None);
        world.run(8_000);
        check(&mut world, seed);
        let names = &world.observed.items;
        answered += names.answered;
        keys += names.stored.len();
        moves += names.moves;
    }
    println!("{answered} operations, {keys} keys that were added, {moves} moves");
    assert!(answered > 2_500 && keys > 300 && moves > 100, "the seeds reach too little");
}

/// There are no backups, so a leaving node must hand over everything.
#[test]
fn a_leaving_node_hands_everything_over() {
    for seed in seeds(600, 10) {
        let mut world: World<ItemNode> = World::new(seed, 4, FAULTS, Mutant::None);
        world.run(5_000);
        for place in [1, 2] {
            assert!(world.leave(place, 60_000), "seed {seed}: it stays");
            world.run(4_000);
        }
        let counted = world.observed.items.counters();
        check(&mut world, seed);
        assert!(counted > 20, "seed {seed}: {counted} counters are too few");
        assert_eq!(world.processes().count(), 4, "seed {seed}: they came back");
    }
}

/// The node that leaves last has everything in its own log, as the replicas of the one that left
/// before it count for nothing. It stays if that one is back before.
#[test]
fn the_last_to_leave_loses_nothing() {
    for seed in seeds(700, 10) {
        let mut world: World<ReplicatedItemNode> = World::new(seed, 2, Faults::NONE, Mutant::None);
        world.run(5_000);
        for _ in 0..2 {
            assert!(world.leave(0, 60_000), "seed {seed}: it stays");
        }
        let counted = world.observed.items.counters();
        world.run(4_000);
        check(&mut world, seed);
        assert!(counted > 10, "seed {seed}: {counted} counters are too few");
    }
}

/// Without replication, the items of crashed nodes are missed.
#[test]
fn items_that_do_not_reach_backups_are_noticed() {
    let scenario = Scenario { items: true, seconds: 8, ..Scenario::default() };
    let mut seeds = seeds(0, 5);
    let found = seeds.find(|seed| {
        let run = Run::execute(*seed, Mutant::NoReplication, &scenario);
        run.violations.iter().any(|wrong| wrong.contains("gone") || wrong.contains("not"))
    });
    println!("found by seed {found:?}");
    assert!(found.is_some());
}

/// A move may miss an item that another thread writes while the move's scan passes it.
#[test]
fn moves_that_do_not_wait_for_other_threads_are_noticed() {
    let finds = |seed: &u64| {
        let mut world: World<ItemNode> =
            World::new(*seed, 4, FAULTS, Mutant::MovesWhileOthersWrite);
        world.run(8_000);
        world.settle();
        world.read_items();
        let observed = &world.observed;
        !(observed.wrong_answers.is_empty() && observed.items.violations().is_empty())
    };
    let found = seeds(0, 100).find(finds);
    println!("found by seed {found:?}");
    assert!(found.is_some());
}

/// A thread that runs before the node's after a pause, when the lease has ended and another node
/// has changed items, may not answer what it reads.
#[test]
fn reads_that_nothing_checks_are_noticed() {
    let scenario = Scenario { items: true, seconds: 5, ..Scenario::default() };
    assert!(Run::seed_that_finds(&scenario, Mutant::AnswersWithoutCheck).is_some());
}

fn cache() -> Scenario {
    Scenario { items: true, cache: true, seconds: 12, ..Scenario::default() }
}

fn full_cache() -> Scenario {
    Scenario { full_logs: true, ..cache() }
}

/// Engines evict items, and nodes hear of most evictions.
#[test]
fn a_cache_shows_the_last_value_or_nothing() {
    let mut written = 0;
    for seed in seeds(0, 40) {
        let run = Run::execute(seed, Mutant::None, &cache());
        assert_eq!(run.violations, Vec::<String>::new(), "seed {seed}");
        written += run.acknowledged;
    }
    assert!(written > 40 * 100, "only {written} writes were acknowledged");
}

#[test]
fn deleted_items_that_come_back_from_backups_are_noticed() {
    for mutant in [Mutant::DeletesOnlyWhatIsThere, Mutant::KeepsRemovedItems] {
        assert!(Run::seed_that_finds(&cache(), mutant).is_some(), "{mutant:?}");
    }
}

/// Backups forget what does not fit into their logs, and clients are refused nothing for it.
#[test]
fn a_cache_whose_backups_are_full_shows_the_last_value_or_nothing() {
    let (mut written, mut forgotten) = (0, 0);
    for seed in seeds(0, 20) {
        let run = Run::execute(seed, Mutant::None, &full_cache());
        assert_eq!(run.violations, Vec::<String>::new(), "seed {seed}");
        written += run.acknowledged;
        let mut counts = run.coverage.iter();
        let count = counts.find(|(what, _)| *what == "an item forgotten by a backup");
        forgotten += count.map_or(0, |(_, times)| times);
    }
    println!("{written} writes, {forgotten} items forgotten");
    assert!(written > 20 * 100, "only {written} writes were acknowledged");
    assert!(forgotten > 20 * 50, "only {forgotten} items were forgotten");
}

#[test]
fn full_backups_that_hand_out_older_values_are_noticed() {
    assert!(Run::seed_that_finds(&full_cache(), Mutant::KeepsOldValuesWhenFull).is_some());
}
