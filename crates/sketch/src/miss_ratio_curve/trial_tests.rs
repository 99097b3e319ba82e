//! Tests of the comparison of policies: which one it finds better for loads of known kinds.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::tests::{BYTES, around, check, hash, item, look_aside};
use super::*;

/// Items that fit the present size.
const ITEMS: u64 = 60_000;

/// Reads of popular keys, of which more are popular than fit, and one of a new key after each.
struct Scan {
    random: SmallRng,
    next: u64,
}

impl Scan {
    fn new() -> Self {
        Self { random: SmallRng::seed_from_u64(7), next: 1 << 40 }
    }

    fn play(&mut self, curve: &mut MissRatioCurve, rounds: u64) {
        for _ in 0..rounds {
            // The product of two draws is small more often than large.
            let draw = self.random.random::<f64>() * self.random.random::<f64>();
            look_aside(curve, (draw * ITEMS as f64 * 2.0) as u64, BYTES);
            look_aside(curve, self.next, BYTES);
            self.next += 1;
        }
    }
}

/// Reads of new keys, each of which is read again once, after 0.45 times as many others as fit, as
/// the prefixes of conversations are.
fn converse(curve: &mut MissRatioCurve, from: u64, rounds: u64) {
    for number in from..from + rounds {
        look_aside(curve, number, BYTES);
        look_aside(curve, number.saturating_sub(ITEMS * 45 / 100), BYTES);
    }
}

fn better(curve: &MissRatioCurve) -> Option<Policy> {
    check(curve);
    curve.trial().expect("it compares").better()
}

#[test]
fn the_better_policy_follows_the_load() {
    let mut curve = around(ITEMS).with_trial();
    let mut scan = Scan::new();
    assert_eq!(better(&curve), None);
    scan.play(&mut curve, 12 * ITEMS);
    assert_eq!(better(&curve), Some(Policy::Probation));
    let ratio = curve.trial().and_then(Trial::ratio).expect("it missed");
    assert!((0.7..0.99).contains(&ratio), "{ratio}");
    converse(&mut curve, 1 << 41, 12 * ITEMS);
    assert_eq!(better(&curve), Some(Policy::Clock));
    scan.play(&mut curve, 40 * ITEMS);
    assert_eq!(better(&curve), Some(Policy::Probation));
}

#[test]
fn a_load_that_both_policies_serve_alike_changes_nothing() {
    let mut curve = around(ITEMS).with_trial();
    // All fits; and then, nothing is ever read again.
    (0..8 * ITEMS).for_each(|number| look_aside(&mut curve, number % (ITEMS / 2), BYTES));
    assert_eq!(better(&curve), None);
    (0..8 * ITEMS).for_each(|number| look_aside(&mut curve, number + ITEMS, BYTES));
    assert_eq!(better(&curve), None);
    assert_eq!(curve.trial().and_then(Trial::ratio), Some(1.0));
}

/// Few reads that differ by chance are no reason to change, nor are many that differ little.
#[test]
fn a_difference_must_be_larger_than_chance_and_worth_a_change() {
    let trial = |both, clock, probation| Trial { both, clock, probation, ..Trial::default() };
    assert_eq!(trial(100.0, 5.0, 0.0).better(), None);
    assert_eq!(trial(100.0, 10.0, 0.0).better(), Some(Policy::Probation));
    assert_eq!(trial(100.0, 0.0, 10.0).better(), Some(Policy::Clock));
    assert_eq!(trial(20_000.0, 400.0, 250.0).better(), None);
    assert_eq!(trial(10_000.0, 400.0, 250.0).better(), Some(Policy::Probation));
    assert_eq!(trial(0.0, 0.0, 0.0).better(), None);
}

#[test]
fn what_was_found_fades_and_memory_stays_fixed() {
    let mut curve = around(ITEMS).with_trial();
    Scan::new().play(&mut curve, 12 * ITEMS);
    curve.advance(36_000);
    assert_eq!(better(&curve), None);
    curve.resize(1e12);
    (0..4_000_000).for_each(|number| look_aside(&mut curve, number, BYTES));
    check(&curve);
    assert!(Trial::most_bytes() <= 512 << 10, "{}", Trial::most_bytes());
    // An item that was stored anew may be another length.
    let hash = hash(1 << 50) % curve.threshold();
    for bytes in [100, 100_000, 50] {
        curve.access(Access { hash, kind: AccessKind::Store(item(bytes)) });
        check(&curve);
    }
    curve.access(Access { hash, kind: AccessKind::Delete });
    curve.forget_items();
    check(&curve);
    assert_eq!(curve.estimate().sampled_keys, 0);
}
