//! Every id has at most one owner: leaders of all terms commit one sequence of edits, and only
//! committed edits are answered (DXRAM, section 2.2; invariants 2 and 3 of the overlay).

use amalgam_sim::{Faults, MetadataNode, Mutant, World, seeds};

fn run(seed: u64, mutant: Mutant) -> World<MetadataNode> {
    let mut world = World::new(seed, 4 + seed as usize % 6, Faults::ALL, mutant);
    world.run(20_000);
    world.settle();
    world
}

#[test]
fn leaders_commit_one_sequence_of_edits() {
    let (mut edits, mut takeovers, mut crashes) = (0, 0, 0);
    for seed in seeds(0, 40) {
        let world = run(seed, Mutant::None);
        assert_eq!(world.observed.oracle.violations, Vec::<String>::new(), "seed {seed}");
        edits += world.observed.oracle.edits;
        takeovers += world.observed.oracle.takeovers;
        crashes += world.crashes;
    }
    println!("{edits} edits, {takeovers} takeovers, {crashes} crashes");
    assert!(edits > 10_000 && takeovers > 400 && crashes > 100, "the seeds reach too little");
}

fn is_noticed(mutant: Mutant) -> bool {
    (0..20).any(|seed| !run(seed, mutant).observed.oracle.violations.is_empty())
}

#[test]
fn replication_whose_failures_are_ignored_is_noticed() {
    assert!(is_noticed(Mutant::CommitsWithoutMajority));
}

#[test]
fn a_leader_that_does_not_ask_the_old_group_is_noticed() {
    assert!(is_noticed(Mutant::NoSeal));
}
