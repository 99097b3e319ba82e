//! Locks exclude other clients for their lease, whichever owners die meanwhile, and a change with
//! the token of a lock that has ended is not executed.

use amalgam_sim::{Mutant, Report, Run, Scenario, seeds};

/// All faults but rot, and contended locks.
fn locks() -> Scenario {
    Scenario { locks: true, ..Scenario::default() }
}

/// All faults but power loss, a rotting disk, and contended locks.
fn rot() -> Scenario {
    Scenario { power: false, rot: true, ..locks() }
}

#[test]
fn locks_outlive_their_owners_and_tokens_fence() {
    let mut sum = Report::default();
    for seed in seeds(0, 10) {
        assert_eq!(sum.run(seed, &locks()), Vec::<String>::new(), "seed {seed}");
    }
    for race in ["a change refused for its token", "a lock sent to backups in place"] {
        let times = sum.get(&format!("race: {race}"));
        assert!(times > 10, "{race}: {times} times are too few");
    }
}

#[test]
fn locks_lost_on_one_disk_are_fetched_from_another() {
    let mut sum = Report::default();
    for seed in seeds(0, 10) {
        assert_eq!(sum.run(seed, &rot()), Vec::<String>::new(), "seed {seed}");
    }
    let times = sum.get("race: a new owner that fetched an unreadable lock");
    assert!(times > 0, "none did in {} seeds", sum.get("seeds"));
}

#[test]
fn locks_that_do_not_reach_backups_are_noticed() {
    assert!(Run::seed_that_finds(&locks(), Mutant::UnreplicatedLocks).is_some());
}

#[test]
fn tokens_that_are_not_checked_are_noticed() {
    assert!(Run::seed_that_finds(&locks(), Mutant::UncheckedTokens).is_some());
}
