//! Every id has at most one owner: leaders of all terms commit one and the same sequence of edits,
//! and answers are of committed edits only (DXRAM, section 2.2; invariants 2 and 3 of the overlay).

use amalgam_sim::{Editor, Faults, Planted, World, seeds};

fn run(seed: u64, planted: Planted) -> World<Editor> {
    let mut world = World::new(seed, 4 + seed as usize % 6, Faults::ALL, planted);
    world.run(20_000);
    world.calm();
    world
}

#[test]
fn leaders_commit_one_sequence_of_edits() {
    let (mut edits, mut takeovers, mut crashes) = (0, 0, 0);
    for seed in seeds(0, 40) {
        let world = run(seed, Planted::Nothing);
        assert_eq!(world.common.ledger.violations, Vec::<String>::new(), "seed {seed}");
        edits += world.common.ledger.edits;
        takeovers += world.common.ledger.takeovers;
        crashes += world.crashes;
    }
    println!("{edits} edits, {takeovers} takeovers, {crashes} crashes");
    assert!(edits > 10_000 && takeovers > 400 && crashes > 100, "the seeds reach too little");
}

fn is_noticed(planted: Planted) -> bool {
    (0..20).any(|seed| !run(seed, planted).common.ledger.violations.is_empty())
}

#[test]
fn replication_whose_failures_are_ignored_is_noticed() {
    assert!(is_noticed(Planted::UnheldBatches));
}

#[test]
fn a_leader_that_does_not_ask_the_old_group_is_noticed() {
    assert!(is_noticed(Planted::NoSeal));
}
