//! The engine with items: reads without what measurements leave out.

use std::cell::Cell;
use std::ops::ControlFlow;

use amalgam_op::{HashSeed, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use super::Memc3;
use super::cuckoo::Spot;
use crate::{Configuration, Engine, Found, PathSearch, Sink, Store as _, Tuning, Worker};

thread_local! {
    static POINTERS: Cell<u64> = const { Cell::new(0) };
    static LAST_POINTER: Cell<u64> = const { Cell::new(0) };
}

/// Called for every pointer from the table to an item that is followed. To look at the same item
/// again is no further dereference: it is in the cache.
pub(super) fn note_pointer(reference: u64) {
    if LAST_POINTER.replace(reference) != reference {
        POINTERS.set(POINTERS.get() + 1);
    }
}

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

/// A table of one size.
fn open(slots: usize, disabled: &[&str], evicts: bool) -> Memc3 {
    let disabled = disabled.iter().map(|name| (*name).to_owned()).collect();
    let tuning = Tuning { slots_per_bucket: Some(slots), disabled, ..fixed(BUCKETS) };
    open_with(tuning, evicts)
}

fn fixed(buckets: usize) -> Tuning {
    Tuning { buckets: Some(buckets), grows: false, ..Tuning::default() }
}

fn open_with(tuning: Tuning, evicts: bool) -> Memc3 {
    Memc3::open(&Configuration { evicts, tuning, ..Configuration::default() }).expect("it opens")
}

/// A table that is 95 % full, and how many keys it holds: the numbers from 0 on.
fn filled(slots: usize, disabled: &[&str]) -> (Memc3, u64) {
    let index = open(slots, disabled, false);
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

/// Looks `numbers` up, so many at once. Returns hits and pointers followed, each a lookup.
fn look_up(index: &Memc3, numbers: std::ops::Range<u64>, at_once: usize) -> (f64, f64) {
    let mut worker = index.worker();
    let lookups = (numbers.end - numbers.start) as f64;
    let names: Vec<_> = numbers.map(u64::to_le_bytes).collect();
    let mut hits = Hits::default();
    let before = POINTERS.get();
    for names in names.chunks(at_once) {
        let keys: Vec<_> = names.iter().map(|name| Key::new(name, index.seed())).collect();
        assert_eq!(worker.get_batch(&keys, &NOW, &mut hits), keys.len());
    }
    (hits.0 as f64 / lookups, (POINTERS.get() - before) as f64 / lookups)
}

#[test]
fn reads_answer_the_same_whatever_is_left_out() {
    for disabled in [&["tag"][..], &["optimistic"], &["trust"], &["tag", "optimistic"]] {
        let (index, keys) = filled(8, disabled);
        let (hits, pointers) = look_up(&index, 0..keys, 64);
        assert_eq!(hits, 1.0, "without {disabled:?}");
        assert_eq!(look_up(&index, keys..2 * keys, 64).0, 0.0, "without {disabled:?}");
        // Without tags every item of the buckets is compared.
        assert_eq!(pointers > 2.1, disabled.contains(&"tag"), "{pointers} without {disabled:?}");
    }
}

/// The paper's count for buckets as printed (section 3.1), one by one and in batches; with 16 bits
/// of tag hardly any pointer is followed in vain.
#[cfg(not(miri))]
#[test]
fn lookups_follow_few_pointers() {
    for (slots, most_in_vain) in [(4, 0.04), (8, 0.001)] {
        let (index, keys) = filled(slots, &[]);
        for at_once in [1, 64] {
            let (hits, pointers) = look_up(&index, 0..keys, at_once);
            assert_eq!(hits, 1.0, "{slots} slots");
            assert!((1.0..=1.0 + most_in_vain).contains(&pointers), "a hit follows {pointers}");
            let (hits, pointers) = look_up(&index, keys..2 * keys, at_once);
            assert_eq!(hits, 0.0, "{slots} slots");
            assert!(pointers <= most_in_vain, "a miss follows {pointers}");
            assert_eq!(pointers > 0.01, slots == 4, "{pointers}: one-byte tags do collide");
        }
    }
}

/// More hints than are kept, of keys that are there and of others, and writes without a hint.
#[test]
fn hints_change_nothing() {
    let (index, keys) = filled(8, &[]);
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
    for (slots, evicts) in [(4, false), (8, false), (4, true), (8, true)] {
        let index = open(slots, &[], evicts);
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
        assert!(held >= capacity * 9 / 10 && held <= capacity, "{held} of {capacity}, {slots}");
        let found = (look_up(&index, numbers.clone(), 64).0 * (numbers.end as f64)).round() as u64;
        assert_eq!(found, held, "{slots} slots, evicts: {evicts}");
        assert_eq!(stored, if evicts { numbers.end } else { held }, "{slots} slots");
    }
}

/// Keys that share both buckets have no path to anywhere else: one more than there are slots is
/// refused, or takes the place of another; a table that may grow does not, as it would not help.
#[test]
fn keys_that_share_both_buckets_end_in_a_clear_answer() {
    const BUCKETS: u64 = 16;
    const ROOM: usize = 2 * 8;
    for (grows, evicts) in [(false, false), (true, false), (false, true), (true, true)] {
        let index = open_with(Tuning { grows, ..fixed(BUCKETS as usize) }, evicts);
        let shares_both = |number: &u64| {
            let spot = Spot::of::<8>(index.seed().hash(&number.to_le_bytes()));
            let mut buckets = spot.buckets.map(|bucket| bucket % BUCKETS);
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
        let index = open_with(Tuning { stripes, ..fixed(1 << 14) }, false);
        index.statistics().memory.index - (1 << 14) * 64
    };
    assert_eq!(counters(None), 8192 * 8);
    assert_eq!(counters(Some(512)), 512 * 8);
    let held = |max_displacements| {
        let paths = Some(PathSearch::Walks(1));
        let index = open_with(Tuning { paths, max_displacements, ..fixed(64) }, false);
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
        assert!(Memc3::open(&configuration).is_err(), "{configuration:?}");
    }
}
