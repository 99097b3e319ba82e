//! The engine with items, and its variants.

use std::ops::ControlFlow;

use amalgam_op::{HashSeed, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use super::ablation::{Only, Standard, Variant};
use super::cuckoo::BucketPair;
use super::engine::Memc3Engine;
use super::item_table::pointer_count;
use crate::{Configuration, Engine, Found, PathSearch, Sink, Store as _, Tuning, Worker};

const NOW: Now = Now::at(1000);
const BUCKETS: usize = if cfg!(miri) { 16 } else { 4096 };

#[derive(Default)]
struct Hits(u64);

impl Sink for Hits {
    fn hit(&mut self, _position: usize, _found: &Found<'_>) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// The engine as it is served, and with the paper's buckets.
type Eight = Memc3Engine<8, Standard>;
type Four = Memc3Engine<4, Standard>;

/// A table of one size.
fn open<E: Engine>(evicts: bool) -> E {
    open_with(fixed(BUCKETS), evicts)
}

fn fixed(buckets: usize) -> Tuning {
    Tuning { buckets: Some(buckets), grows: false, ..Tuning::default() }
}

fn open_with<E: Engine>(tuning: Tuning, evicts: bool) -> E {
    E::open(&Configuration { evicts, tuning, ..Configuration::default() }).expect("it opens")
}

/// A table that is 95 % full, and how many keys it holds: the numbers from 0 on.
fn filled<E: Engine>() -> (E, u64) {
    let index = open::<E>(false);
    let keys = index.statistics().slots * 95 / 100;
    let mut worker = index.worker();
    (0..keys).for_each(|number| store(&mut worker, index.seed(), number, StoreMode::Set));
    drop(worker);
    (index, keys)
}

/// Stores a number under itself, which must succeed.
fn store(worker: &mut impl Worker, seed: &HashSeed, number: u64, mode: StoreMode) {
    let outcome = try_to_store(worker, seed, number, mode);
    assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?} of {number}");
}

fn try_to_store(
    worker: &mut impl Worker,
    seed: &HashSeed,
    number: u64,
    mode: StoreMode,
) -> Outcome {
    let name = number.to_le_bytes();
    let verb = Verb::Store(Store::new(mode, &name, 0, 0));
    worker.apply(&Op { key: Key::new(&name, seed), verb }, &NOW, &mut Hits::default())
}

/// Looks `numbers` up, `at_once` in a call. Returns hits a lookup and pointers followed a lookup.
fn look_up<E: Engine>(index: &E, numbers: std::ops::Range<u64>, at_once: usize) -> (f64, f64) {
    let mut worker = index.worker();
    let lookups = (numbers.end - numbers.start) as f64;
    let names: Vec<_> = numbers.map(u64::to_le_bytes).collect();
    let mut hits = Hits::default();
    let before = pointer_count::get();
    for names in names.chunks(at_once) {
        let keys: Vec<_> = names.iter().map(|name| Key::new(name, index.seed())).collect();
        assert_eq!(worker.get_batch(&keys, &NOW, &mut hits), keys.len());
    }
    (hits.0 as f64 / lookups, (pointer_count::get() - before) as f64 / lookups)
}

fn answers_of_a_variant_are_right<V: Variant>() {
    let (index, keys) = filled::<Memc3Engine<8, V>>();
    let (hits, pointers) = look_up(&index, 0..keys, 64);
    assert_eq!(hits, 1.0);
    assert_eq!(look_up(&index, keys..2 * keys, 64).0, 0.0);
    // Without tags every item of the buckets is compared.
    assert_eq!(pointers < 2.1, V::HAS_TAGS, "{pointers}");
}

#[test]
fn all_variants_answer_the_same() {
    answers_of_a_variant_are_right::<Only<false, true, true>>();
    answers_of_a_variant_are_right::<Only<true, false, true>>();
    answers_of_a_variant_are_right::<Only<true, true, false>>();
    answers_of_a_variant_are_right::<Only<false, false, true>>();
}

/// The paper's count for buckets as printed (section 3.1), one by one and in batches; with 16 bits
/// of tag hardly any pointer is followed in vain.
#[cfg(not(miri))]
#[test]
fn lookups_follow_few_pointers() {
    fn check<E: Engine>(max_in_vain: f64, misses_follow_some: bool) {
        let (index, keys) = filled::<E>();
        for at_once in [1, 64] {
            let (hits, pointers) = look_up(&index, 0..keys, at_once);
            assert_eq!(hits, 1.0);
            assert!((1.0..=1.0 + max_in_vain).contains(&pointers), "a hit follows {pointers}");
            let (hits, pointers) = look_up(&index, keys..2 * keys, at_once);
            assert_eq!(hits, 0.0);
            assert!(pointers <= max_in_vain, "a miss follows {pointers}");
            assert_eq!(pointers > 0.01, misses_follow_some, "{pointers}");
        }
    }
    // One-byte tags collide.
    check::<Four>(0.04, true);
    check::<Eight>(0.001, false);
}

/// More hints than are kept, of keys that are there and of others, and writes without a hint.
#[test]
fn hints_change_nothing() {
    let (index, keys) = filled::<Eight>();
    let mut worker = index.worker();
    for start in (0..keys + 40).step_by(20) {
        for number in start..start + 20 {
            worker.prefetch(&Key::new(&number.to_le_bytes(), index.seed()));
        }
        for number in start..(start + 30).min(keys) {
            store(&mut worker, index.seed(), number, StoreMode::Replace);
        }
    }
    drop(worker);
    assert_eq!(look_up(&index, 0..keys, 64).0, 1.0);
}

/// A table that is full and stays so refuses, or evicts where it may; either way each insert ends,
/// and what was stored and not evicted is found.
#[test]
fn a_full_table_refuses_or_evicts() {
    for evicts in [false, true] {
        fill_beyond_capacity::<Four>(evicts);
        fill_beyond_capacity::<Eight>(evicts);
    }
}

fn fill_beyond_capacity<E: Engine>(evicts: bool) {
    let index = open::<E>(evicts);
    let mut worker = index.worker();
    let capacity = index.statistics().slots;
    let numbers = 0..capacity + capacity / 4;
    let is_stored = |number: &u64| {
        let outcome = try_to_store(&mut worker, index.seed(), *number, StoreMode::Set);
        let is_refused = matches!(outcome, Outcome::OutOfMemory);
        assert!(matches!(outcome, Outcome::Stored(_)) || is_refused && !evicts, "{outcome:?}");
        !is_refused
    };
    let stored = numbers.clone().filter(is_stored).count() as u64;
    drop(worker);
    let held = index.statistics().items;
    assert!(held >= capacity * 9 / 10 && held <= capacity, "{held} of {capacity}");
    let found = (look_up(&index, numbers.clone(), 64).0 * (numbers.end as f64)).round() as u64;
    assert_eq!(found, held, "evicts: {evicts}");
    assert_eq!(stored, if evicts { numbers.end } else { held });
}

/// Keys that share both buckets have no path to anywhere else: one more than there are slots is
/// refused, or takes the place of another; a table that may grow does not, as it would not help.
#[test]
fn keys_that_share_both_buckets_end_in_a_clear_answer() {
    const BUCKETS: u64 = 16;
    const ROOM: usize = 2 * 8;
    for (grows, evicts) in [(false, false), (true, false), (false, true), (true, true)] {
        let index = open_with::<Eight>(Tuning { grows, ..fixed(BUCKETS as usize) }, evicts);
        let shares_both = |number: &u64| {
            let pair = BucketPair::of::<8>(index.seed().hash(&number.to_le_bytes()));
            let mut buckets = pair.buckets.map(|bucket| bucket % BUCKETS);
            buckets.sort_unstable();
            buckets == [2, 9]
        };
        let numbers: Vec<_> = (0..).filter(shares_both).take(3 * ROOM).collect();
        let mut worker = index.worker();
        for (place, number) in numbers.iter().enumerate() {
            match try_to_store(&mut worker, index.seed(), *number, StoreMode::Set) {
                Outcome::Stored(_) => assert!(evicts || place < ROOM, "{place} in {ROOM} slots"),
                Outcome::OutOfMemory => assert!(!evicts && place >= ROOM, "{place} is refused"),
                other => panic!("{other:?} of {place}"),
            }
        }
        drop(worker);
        let is_found = |number: &&u64| look_up(&index, **number..**number + 1, 1).0 == 1.0;
        assert_eq!(numbers.iter().filter(is_found).count(), ROOM, "{grows} {evicts}");
        assert_eq!(index.statistics().expansions, 0, "growth would not part them");
    }
}

#[test]
fn stripes_and_displacements_can_be_chosen() {
    let counters = |stripes| {
        let index = open_with::<Eight>(Tuning { stripes, ..fixed(1 << 14) }, false);
        index.statistics().memory.index - (1 << 14) * 64
    };
    assert_eq!(counters(None), 8192 * 8);
    assert_eq!(counters(Some(512)), 512 * 8);
    let held = |max_displacements| {
        let paths = Some(PathSearch::Walks(1));
        let index = open_with::<Eight>(Tuning { paths, max_displacements, ..fixed(64) }, false);
        let mut worker = index.worker();
        let mut store = |number: &u64| {
            let outcome = try_to_store(&mut worker, index.seed(), *number, StoreMode::Set);
            matches!(outcome, Outcome::Stored(_))
        };
        (0..).take_while(&mut store).count()
    };
    assert!(held(Some(1)) < held(None), "a longer way finds more room");
    for tuning in [
        Tuning { stripes: Some(100), ..fixed(64) },
        Tuning { stripes: Some(0), ..fixed(64) },
        Tuning { max_displacements: Some(1 << 20), ..fixed(64) },
    ] {
        let configuration = Configuration { tuning, ..Configuration::default() };
        assert!(Eight::open(&configuration).is_err(), "{configuration:?}");
    }
}
