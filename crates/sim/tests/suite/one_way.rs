//! A node that others cannot reach, although its lease is renewed, is voted out by a majority of
//! the super peers that watch it, and its keys are available again: with whatever faults, nothing
//! is lost, and no read is stale. One that a majority reaches stays.

use amalgam_sim::{Faults, Mutant, ReplicatedChunkNode, Report, Run, Scenario, World, seeds};

/// All faults but rot and hanging disks, and one-way cuts.
fn one_way() -> Scenario {
    Scenario { one_way: true, ..Scenario::default() }
}

#[test]
fn nothing_is_lost_when_members_are_voted_out() {
    let mut sum = Report::default();
    for seed in seeds(0, 20) {
        assert_eq!(sum.run(seed, &one_way()), Vec::<String>::new(), "seed {seed}");
    }
    let (cuts, removed) =
        (sum.get("race: a node cut off in one direction"), sum.get("race: a member voted out"));
    println!("{cuts} cuts, {removed} members voted out");
    assert!(cuts > 10 && removed > 5, "the seeds reach too little: {cuts}, {removed}");
}

#[test]
fn the_keys_of_a_node_that_nobody_reaches_are_available_again() {
    for (seed, is_inbound) in seeds(0, 6).zip([true, false].into_iter().cycle()) {
        let faults = Faults { one_way: true, ..Faults::NONE };
        let mut world: World<ReplicatedChunkNode> = World::new(seed, 5, faults, Mutant::None);
        world.spares_last_holder = true;
        world.faults_end();
        world.run(6_000);
        let peers: Vec<_> = world.view().peers().collect();
        let cut = peers[seed as usize % peers.len()];
        world.cut_one_way(cut.node, is_inbound, 60_000);
        // Silence, a lease, the failover, and the time that an operation waits before it is tried
        // again.
        world.run(12_000);
        assert!(!world.view().has(cut), "seed {seed}: it is a member");
        world.observed.is_settling = true;
        world.run(3_000);
        world.read_all_without(cut.node);
        assert_eq!(world.waiting_without(cut.node), 0, "seed {seed}: {:?}", world.unanswered());
        assert_eq!(world.observed.wrong_answers, Vec::<String>::new(), "seed {seed}");
        assert_eq!(world.observed.history.violations(), Vec::<String>::new(), "seed {seed}");
        let members = peers.len() - 1;
        let stay = peers.iter().filter(|peer| world.view().has(**peer)).count();
        assert_eq!(stay, members, "seed {seed}: the others stay");
        println!("seed {seed}: {} reads", world.observed.history.reads());
    }
}

#[test]
fn votes_without_a_majority_are_noticed() {
    assert!(Run::seed_that_finds(&one_way(), Mutant::VotesWithoutMajority).is_some());
}

#[test]
fn a_failover_before_the_lease_has_ended_is_noticed() {
    assert!(Run::seed_that_finds(&one_way(), Mutant::RemovesBeforeLeaseEnds).is_some());
}
