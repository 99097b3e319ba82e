//! Tests of the comparison of policies: which one it finds better for loads of known kinds.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::tests::{BYTES, hash, item};
use super::trial::Missed;
use super::*;

/// Items that fit the present size.
const ITEMS: u64 = 60_000;

/// A comparison in a cache of [`ITEMS`] items.
fn trial() -> Trial {
    Trial::new((ITEMS * u64::from(BYTES)) as f64)
}

/// Reads a key, and stores it where a CLOCK cache misses it.
fn look_aside(trial: &mut Trial, number: u64) {
    let hash = hash(number);
    let kind = if trial.holds(hash) { AccessKind::Hit(item(BYTES)) } else { AccessKind::Miss };
    trial.access(Access { hash, kind });
    if matches!(kind, AccessKind::Miss) {
        trial.access(Access { hash, kind: AccessKind::Store(item(BYTES)) });
    }
}

/// Reads of popular keys, of which more are popular than fit, and one of a new key after each.
struct Scan {
    random: SmallRng,
    next: u64,
}

impl Scan {
    fn new() -> Self {
        Self { random: SmallRng::seed_from_u64(7), next: 1 << 40 }
    }

    fn play(&mut self, trial: &mut Trial, rounds: u64) {
        for _ in 0..rounds {
            // The product of two draws is small more often than large.
            let draw = self.random.random::<f64>() * self.random.random::<f64>();
            look_aside(trial, (draw * ITEMS as f64 * 2.0) as u64);
            look_aside(trial, self.next);
            self.next += 1;
        }
    }
}

/// Reads of new keys, each of which is read again once, after 0.45 times as many others as fit, as
/// the prefixes of conversations are.
fn converse(trial: &mut Trial, from: u64, rounds: u64) {
    for number in from..from + rounds {
        look_aside(trial, number);
        look_aside(trial, number.saturating_sub(ITEMS * 45 / 100));
    }
}

/// The policies that are better than each.
fn better(trial: &Trial) -> [Option<Policy>; 3] {
    trial.check();
    Policy::ALL.map(|policy| trial.better_than(policy))
}

#[test]
fn the_better_policy_follows_the_load() {
    let mut trial = trial();
    let mut scan = Scan::new();
    assert_eq!(better(&trial), [None; 3]);
    scan.play(&mut trial, 12 * ITEMS);
    assert_eq!(better(&trial)[0], Some(Policy::Probation));
    let ratio = trial.ratio(Policy::Probation).expect("it missed");
    assert!((0.7..0.99).contains(&ratio), "{ratio}");
    converse(&mut trial, 1 << 41, 12 * ITEMS);
    assert!(better(&trial)[2].is_some());
    scan.play(&mut trial, 40 * ITEMS);
    assert_eq!(better(&trial)[0], Some(Policy::Probation));
}

#[test]
fn a_load_that_both_policies_serve_alike_changes_nothing() {
    let mut trial = trial();
    // All fits; and then, nothing is ever read again.
    (0..8 * ITEMS).for_each(|number| look_aside(&mut trial, number % (ITEMS / 2)));
    assert_eq!(better(&trial), [None; 3]);
    (0..8 * ITEMS).for_each(|number| look_aside(&mut trial, number + ITEMS));
    assert_eq!(better(&trial), [None; 3]);
    assert_eq!(Policy::ALL.map(|policy| trial.ratio(policy)), [Some(1.0); 3]);
}

/// Few reads that differ by chance are no reason to change, nor are many that differ little.
#[test]
fn a_difference_must_be_larger_than_chance_and_worth_a_change() {
    // Reads that all policies missed, and those that each missed alone.
    let better = |all, alone: [f64; 3]| {
        let mut missed = Missed::default();
        missed.0[0] = all;
        [missed.0[0b110], missed.0[0b101], missed.0[0b011]] = alone;
        Policy::ALL.map(|policy| missed.better_than(policy))
    };
    let [clock, gclock, probation] = Policy::ALL.map(Some);
    assert_eq!(better(0.0, [0.0; 3]), [None; 3]);
    assert_eq!(better(100.0, [24.0, 22.0, 60.0]), [None, None, gclock]);
    assert_eq!(better(100.0, [60.0, 22.0, 24.0]), [gclock, None, None]);
    assert_eq!(better(100.0, [60.0, 30.0, 22.0]), [probation, probation, None]);
    assert_eq!(better(100.0, [20.0, 30.0, 40.0]), [None, clock, clock]);
    assert_eq!(better(20_000.0, [15.0, 0.0, 0.0]), [None; 3]);
    assert_eq!(better(10_000.0, [15.0, 0.0, 0.0]), [gclock, None, None]);
}

#[test]
fn what_was_found_fades_and_memory_stays_fixed() {
    let mut trial = trial();
    Scan::new().play(&mut trial, 12 * ITEMS);
    trial.advance(36_000);
    assert_eq!(better(&trial), [None; 3]);
    trial.resize(1e12);
    (0..4_000_000).for_each(|number| look_aside(&mut trial, number));
    trial.check();
    assert!(Trial::most_bytes() <= 512 << 10, "{}", Trial::most_bytes());
    // An item that was stored anew may be another length.
    let hash = hash(1 << 50) % trial.threshold();
    for bytes in [100, 100_000, 50] {
        trial.access(Access { hash, kind: AccessKind::Store(item(bytes)) });
        trial.check();
    }
    trial.access(Access { hash, kind: AccessKind::Delete });
    trial.forget_items();
    trial.check();
    assert_eq!(trial.sampled_keys(), 0);
}
