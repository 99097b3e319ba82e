//! What was acknowledged is there, whatever happens: nodes crash and lose what their disks had not
//! synced, stand still past their lease and between two looks at their clocks, are cut off, and the
//! coordinator is away; messages are lost, repeated and late. The history of each chunk is
//! linearizable, and every run comes to its end (steps 5 to 25 of the cluster's protocol).
//!
//! And defects that others had are found: each of them, in few seeds.

use amalgam_sim::{Planted, Reached, TRIAL_MS, Trial, seeds};

fn from_environment(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

/// What many runs came to.
#[derive(Default)]
struct Sum {
    seeds: u64,
    /// Runs with less than 1,000 writes.
    short: u64,
    acknowledged: usize,
    reads: usize,
    crashes: u64,
    reached: Reached,
    failed: u64,
}

impl Sum {
    fn run(&mut self, seed: u64) {
        let trial = Trial::run(seed, Planted::Nothing);
        if !trial.wrong.is_empty() {
            self.failed += 1;
            let shown: Vec<&String> = trial.wrong.iter().take(3).collect();
            println!("seed {seed}: {} things wrong: {shown:#?}", trial.wrong.len());
        }
        self.seeds += 1;
        self.short += u64::from(trial.acknowledged < 1_000);
        self.acknowledged += trial.acknowledged;
        self.reads += trial.reads;
        self.crashes += trial.crashes;
        self.reached.add(&trial.reached);
    }

    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.short += other.short;
        self.acknowledged += other.acknowledged;
        self.reads += other.reads;
        self.crashes += other.crashes;
        self.failed += other.failed;
        self.reached.add(&other.reached);
    }
}

#[test]
fn what_was_acknowledged_is_never_lost() {
    let first = from_environment("AMALGAM_SEED", 0);
    let seeds = seeds(first, from_environment("AMALGAM_SEEDS", 200));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        let part = |thread| {
            let seeds = seeds.clone().skip(thread).step_by(threads);
            scope.spawn(move || {
                let mut sum = Sum::default();
                seeds.for_each(|seed| sum.run(seed));
                sum
            })
        };
        for part in (0..threads).map(part).collect::<Vec<_>>() {
            sum.add(&part.join().expect("a run does not panic"));
        }
    });
    let Sum { seeds, short, acknowledged, reads, crashes, reached, failed } = sum;
    println!(
        "{seeds} seeds of {} s, {short} of them with less than 1,000 writes",
        TRIAL_MS / 1_000
    );
    println!("{acknowledged} writes acknowledged, {reads} reads, {crashes} lives ended");
    print!("{reached}");
    assert_eq!(failed, 0, "seeds with something wrong");
    let is_enough = acknowledged as u64 >= 1_000 * seeds && crashes >= 5 * seeds;
    assert!(is_enough, "the seeds reach too little");
}

/// How many seeds it takes until a defect is found.
fn seeds_to_find(planted: Planted) -> Option<u64> {
    let most = from_environment("AMALGAM_MUTANT_SEEDS", 100);
    let found = (0..most).find(|seed| !Trial::run(*seed, planted).wrong.is_empty());
    println!("{planted:?}: found by seed {found:?}");
    found
}

#[test]
fn puts_that_do_not_reach_backups_are_noticed() {
    assert!(seeds_to_find(Planted::NoReplication).is_some());
}

#[test]
fn backups_whose_errors_are_ignored_are_noticed() {
    assert!(seeds_to_find(Planted::IgnoredErrors).is_some());
}

#[test]
fn owners_without_a_fence_are_noticed() {
    assert!(seeds_to_find(Planted::NoFencing).is_some());
}

#[test]
fn a_copy_without_its_last_buffer_is_noticed() {
    assert!(seeds_to_find(Planted::LostBuffer).is_some());
}

#[test]
fn lives_that_are_not_told_apart_are_noticed() {
    assert!(seeds_to_find(Planted::SameLife).is_some());
}

#[test]
fn moved_chunks_that_are_not_recovered_are_noticed() {
    assert!(seeds_to_find(Planted::WrongHeritage).is_some());
}

#[test]
fn metadata_that_no_majority_holds_is_noticed() {
    assert!(seeds_to_find(Planted::UnheldBatches).is_some());
}
