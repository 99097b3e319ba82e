//! Acknowledged writes survive everything: nodes crash and lose what their disks had not synced,
//! all at once at times; they pause past their lease and between two readings of their clocks; they
//! are partitioned, and the coordinator is away; messages are lost, repeated and late. The history
//! of each chunk is linearizable, and every run comes to its end (steps 5 to 25 of the cluster's
//! protocol).
//!
//! The mutants, defects that other systems had, are found within few seeds.

use amalgam_sim::{Mutant, Report, Run, Scenario, from_environment, seeds};

#[test]
fn acknowledged_writes_are_never_lost() {
    let first = from_environment("AMALGAM_SEED", 0);
    let seeds = seeds(first, from_environment("AMALGAM_SEEDS", 80));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let mut sum = Report::default();
    std::thread::scope(|scope| {
        let part = |thread| {
            let seeds = seeds.clone().skip(thread).step_by(threads);
            scope.spawn(move || {
                let mut sum = Report::default();
                for seed in seeds {
                    let wrong = sum.run(seed, &Scenario::default());
                    wrong.iter().take(3).for_each(|wrong| println!("seed {seed}: {wrong}"));
                }
                sum
            })
        };
        for part in (0..threads).map(part).collect::<Vec<_>>() {
            sum.add(&part.join().expect("a run does not panic"));
        }
    });
    print!("{sum}");
    assert_eq!(sum.get("failed"), 0, "seeds with violations");
    let seeds = sum.get("seeds");
    let (writes, crashes) = (sum.get("writes acknowledged"), sum.get("crashes"));
    assert!(writes >= 1_000 * seeds && crashes >= 5 * seeds, "the seeds reach too little");
    for race in [
        "all processes killed at once",
        "all nodes lost power at once",
        "all nodes stopped again during recovery",
        "a backup back with all its replicas",
    ] {
        let times = sum.get(&format!("race: {race}"));
        assert!(10 * times >= seeds, "{race}: {times} times are too few");
    }
}

#[test]
fn nothing_is_lost_in_any_scenario() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut writes = 0;
    for file in std::fs::read_dir(folder).expect("it is there") {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let scenario = Scenario::parse(&text).expect("a scenario");
        // Two nodes cost little, and have no majority without one of them.
        for seed in seeds(0, if scenario.nodes == 2 { 100 } else { 4 }) {
            let run = Run::execute(seed, Mutant::None, &scenario);
            assert_eq!(run.violations, Vec::<String>::new(), "seed {seed} of {}", path.display());
            writes += run.acknowledged;
        }
    }
    assert!(writes > 10_000, "only {writes} writes were acknowledged");
}

/// All faults but power loss, and a rotting disk.
fn rot() -> Scenario {
    Scenario { power: false, rot: true, ..Scenario::default() }
}

#[test]
fn chunks_lost_on_one_disk_are_fetched_from_another() {
    let mut sum = Report::default();
    for seed in seeds(0, 10) {
        assert_eq!(sum.run(seed, &rot()), Vec::<String>::new(), "seed {seed}");
    }
    let times = sum.get("race: a new owner that fetched unreadable chunks");
    assert!(times > 0, "none did in {} seeds", sum.get("seeds"));
}

/// The first seed that finds a mutant.
#[test]
fn puts_that_do_not_reach_backups_are_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::NoReplication).is_some());
}

#[test]
fn backups_whose_errors_are_ignored_are_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::IgnoredReplicationErrors).is_some());
}

#[test]
fn owners_without_fencing_are_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::NoFencing).is_some());
}

#[test]
fn a_copy_without_its_last_buffer_is_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::LostLastBuffer).is_some());
}

#[test]
fn unreconciled_replicas_are_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::UnreconciledReplicas).is_some());
}

#[test]
fn silent_holders_are_noticed() {
    assert!(Run::seed_that_finds(&rot(), Mutant::SilentHolders).is_some());
}

/// All faults but rot, and disks that hang.
fn hangs() -> Scenario {
    Scenario { hangs: true, ..Scenario::default() }
}

#[test]
fn writes_that_wait_for_a_disk_are_not_acknowledged() {
    let mut sum = Report::default();
    for seed in seeds(0, 10) {
        assert_eq!(sum.run(seed, &hangs()), Vec::<String>::new(), "seed {seed}");
    }
    for race in
        ["a disk that hung while writes waited", "all nodes stopped while writes waited for a disk"]
    {
        assert!(sum.get(&format!("race: {race}")) > 0, "{race}: {sum}");
    }
}

#[test]
fn acknowledgements_before_writing_are_noticed() {
    assert!(Run::seed_that_finds(&hangs(), Mutant::AcknowledgesBeforeWriting).is_some());
}

#[test]
fn refusals_of_executed_writes_are_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::RefusesAfterExecuting).is_some());
}

#[test]
fn reused_incarnations_are_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::ReusedIncarnation).is_some());
}

#[test]
fn a_join_over_a_live_incarnation_is_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::JoinsOverLiveIncarnation).is_some());
}

#[test]
fn moved_chunks_that_are_not_recovered_are_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::WrongSource).is_some());
}

#[test]
fn metadata_that_no_majority_holds_is_noticed() {
    assert!(Run::seed_that_finds(&Scenario::default(), Mutant::CommitsWithoutMajority).is_some());
}
