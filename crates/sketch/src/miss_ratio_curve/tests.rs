//! Tests of the simulated caches: their invariants, and curves of loads that can be computed.

use super::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub(super) const BYTES: u32 = 1000;

pub(super) fn hash(number: u64) -> u64 {
    // A bijection that mixes all bits (splitmix64).
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

pub(super) fn item(bytes: u32) -> SampledItem {
    SampledItem { bytes, expiry_seconds: 0 }
}

/// A simulation around a cache of this many items of [`BYTES`] each.
pub(super) fn around(items: u64) -> MissRatioCurve {
    MissRatioCurve::new((items * u64::from(BYTES)) as f64)
}

/// Reads a key, and stores it where the present size misses it.
pub(super) fn look_aside(curve: &mut MissRatioCurve, number: u64, bytes: u32) {
    let hash = hash(number);
    let is_sampled = hash < curve.threshold();
    let at = curve.keys.find(hash);
    let held = at.map_or(0, |at| curve.entries[usize::from(at)].held);
    let is_hit = held >> PRESENT & 1 != 0;
    // Misses of keys that are not sampled are not known here: those of the others stand for
    // them.
    let weight = (u64::MAX / curve.threshold()) as f64;
    curve.requests += 1.0;
    if !is_sampled {
        return;
    }
    if is_hit {
        curve.access(Access { hash, kind: AccessKind::Hit(item(bytes)) });
    } else {
        curve.misses += weight;
        curve.access(Access { hash, kind: AccessKind::Miss });
        curve.access(Access { hash, kind: AccessKind::Store(item(bytes)) });
    }
}

pub(super) fn check(curve: &MissRatioCurve) {
    let known = curve.keys.positions();
    assert_eq!(known.len(), curve.keys.count());
    assert!(known.iter().all(|at| curve.entries[usize::from(*at)].held != 0));
    assert!(curve.entries.len() <= MOST_KEYS);
    for (size, cache) in curve.caches.iter().enumerate() {
        let mut bytes = 0;
        for (class, queue) in cache.queues.iter().enumerate() {
            let (mut at, mut before, mut queued) = (queue.first, NONE, 0);
            while at != NONE {
                let entry = &curve.entries[usize::from(at)];
                assert_eq!((entry.links[size].previous, usize::from(entry.class)), (before, class));
                assert!(entry.held >> size & 1 != 0);
                assert_eq!(curve.keys.hash(at).and_then(|hash| curve.keys.find(hash)), Some(at));
                queued += u64::from(entry.bytes);
                (before, at) = (at, entry.links[size].next);
            }
            assert_eq!((before, queued), (queue.last, queue.bytes));
            assert_eq!(queue.first != NONE, cache.classes >> class & 1 != 0);
            bytes += queued;
        }
        assert_eq!(bytes, cache.bytes);
        assert!(bytes <= cache.limit);
    }
}

#[test]
fn uniform_reads_miss_what_does_not_fit() {
    const KEYS: u64 = 400_000;
    let mut curve = around(KEYS / 8);
    let mut random = SmallRng::seed_from_u64(3);
    for round in 0..6 {
        if round == 3 {
            curve.forget_reads();
        }
        (0..KEYS).for_each(|_| look_aside(&mut curve, random.random_range(0..KEYS), BYTES));
    }
    check(&curve);
    let Curve::Known(ratios) = curve.estimate().curve else { panic!("enough reads") };
    for (quarters, ratio) in QUARTERS.iter().zip(ratios) {
        let truth = 1.0 - f64::from(*quarters) / 4.0 / 8.0;
        assert!((ratio - truth).abs() < 0.01, "{quarters} quarters: {ratio}, not {truth}");
    }
}

#[test]
fn a_loop_hits_only_where_all_of_it_fits() {
    const KEYS: u64 = 800_000;
    let mut curve = around(KEYS * 9 / 10);
    (0..5).for_each(|_| (0..KEYS).for_each(|number| look_aside(&mut curve, number, BYTES)));
    curve.forget_reads();
    (0..KEYS).for_each(|number| look_aside(&mut curve, number, BYTES));
    let Curve::Known(ratios) = curve.estimate().curve else { panic!("enough reads") };
    assert!(ratios[..=PRESENT].iter().all(|ratio| *ratio > 0.99), "{ratios:?}");
    assert!(ratios[PRESENT + 1..].iter().all(|ratio| *ratio == 0.0), "{ratios:?}");
}

#[test]
fn random_requests_keep_the_invariants() {
    let (mut curve, mut trial) = (around(100_000), Trial::new(1e8));
    let mut random = SmallRng::seed_from_u64(5);
    for step in 0..400_000_u32 {
        let hash = hash(random.random_range(0..60_000)) % trial.threshold();
        let bytes = 1 << random.random_range(4..14);
        let expiry_seconds = if step % 3 == 0 { step / 1000 + 3 } else { 0 };
        let item = SampledItem { bytes, expiry_seconds };
        let kind = match random.random_range(0..10) {
            0..3 => AccessKind::Hit(item),
            3..5 => AccessKind::Miss,
            5..9 => AccessKind::Store(item),
            _ => AccessKind::Delete,
        };
        trial.access(Access { hash, kind });
        trial.advance(step / 1000);
        curve.access(Access { hash: hash % curve.threshold(), kind });
        curve.advance(step / 1000);
        if step % 40_000 == 0 {
            let memory_bytes = f64::from(random.random_range(1..200_u32)) * 1e6;
            curve.resize(memory_bytes);
            trial.resize(memory_bytes);
        }
        if step % 10_000 == 0 {
            check(&curve);
            trial.check();
        }
    }
    check(&curve);
    curve.forget_items();
    trial.forget_items();
    check(&curve);
    trial.check();
    assert_eq!((curve.estimate().sampled_keys, trial.sampled_keys()), (0, 0));
}

#[test]
fn the_rate_falls_as_keys_are_added_and_memory_stays_fixed() {
    let mut curve = around(10_000_000);
    (0..4_000_000).for_each(|number| look_aside(&mut curve, number, BYTES));
    check(&curve);
    let Estimate { sampled_keys, rate, .. } = curve.estimate();
    assert!((MOST_KEYS / 3..=MOST_KEYS).contains(&sampled_keys), "{sampled_keys} keys");
    let keys = sampled_keys as f64 / rate;
    assert!((3.9e6..4.1e6).contains(&keys), "{keys} keys in all, not 4 million");
    let bytes = curve.entries.capacity() * size_of::<Entry>();
    assert!(bytes <= MOST_KEYS * size_of::<Entry>());
    assert!(MissRatioCurve::most_bytes() <= 1 << 20, "{}", MissRatioCurve::most_bytes());
}

#[test]
fn deleted_and_expired_items_are_missed_at_all_sizes() {
    let mut curve = around(1_000_000);
    let store = |curve: &mut MissRatioCurve, hash, expiry_seconds| {
        let item = SampledItem { bytes: BYTES, expiry_seconds };
        curve.access(Access { hash, kind: AccessKind::Store(item) });
    };
    store(&mut curve, 1, 0);
    store(&mut curve, 2, 10);
    store(&mut curve, 3, 20);
    curve.access(Access { hash: 1, kind: AccessKind::Delete });
    curve.advance(10);
    let is_known = |curve: &MissRatioCurve, hash| curve.keys.find(hash).is_some();
    assert!(!is_known(&curve, 1) && !is_known(&curve, 2) && is_known(&curve, 3));
    curve.advance(20);
    assert_eq!(curve.keys.count(), 0);
    (1..=3).for_each(|hash| curve.access(Access { hash, kind: AccessKind::Miss }));
    assert_eq!(curve.reads[0], 3.0);
}

#[test]
fn a_simulation_that_does_not_fit_is_not_shown() {
    let mut curve = around(100_000);
    (0..600_000).for_each(|number| look_aside(&mut curve, number % 200_000, BYTES));
    assert!(matches!(curve.estimate().curve, Curve::Known(_)));
    curve.misses *= 0.5;
    assert_eq!(curve.estimate().curve, Curve::Unfit);
}

#[test]
fn counts_fade_within_the_hour() {
    let mut curve = around(1_000_000);
    (0..800_000).for_each(|number| look_aside(&mut curve, number, BYTES));
    let before = curve.estimate();
    curve.advance(3600);
    let after = curve.estimate();
    assert!(matches!(before.curve, Curve::Known(_)));
    assert_eq!(after.curve, Curve::TooFew);
    assert!(after.sampled_reads * 60.0 < before.sampled_reads);
    assert_eq!(after.sampled_keys, before.sampled_keys);
}

/// A client that stores what it did not find does not make the item younger where there was
/// memory for it.
#[test]
fn a_store_after_a_miss_fills_the_sizes_that_lack_the_item() {
    let mut curve = around(0);
    curve.resize(3.0 * f64::from(1 << FIRST_SHIFT) * f64::from(BYTES));
    let mut play = |hash, kind| curve.access(Access { hash, kind });
    (1..=4).for_each(|hash| play(hash, AccessKind::Store(item(BYTES))));
    play(1, AccessKind::Miss);
    play(1, AccessKind::Store(item(BYTES)));
    let held = |curve: &MissRatioCurve, hash| {
        curve.keys.find(hash).map_or(0, |at| curve.entries[usize::from(at)].held)
    };
    // The present size holds three items, half of it one.
    assert_eq!(held(&curve, 1), 0b1111_1110);
    let largest = &curve.caches[SIZES - 1].queues[usize::from(class_of(BYTES))];
    assert_eq!(curve.keys.hash(largest.first), Some(1), "as old as before");
}
