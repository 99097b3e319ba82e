//! The slot memory as it is, one bucket of two slots, in every interleaving that loom explores.
//!
//! The thread that loom runs first writes, and the one that it spawns reads. The other way round it
//! would explore one interleaving: of the accesses to a word it remembers the last, and a writer
//! looks at a locator before it stores to it, which hides the reads that went before. Each test
//! therefore names what its reader may see, and all of it must have been seen. They fail if the
//! store of a locator or its second load is relaxed, if overwriting clears a slot on the way, if a
//! writer takes no lock, and if a reader believes its compare without the item's key.
//!
//! Behind each reference stands an item that is written once, before its slot is taken: loom ends
//! a test whose reader may see it unwritten. What a reader finds is the item of the locator that
//! it loaded; it glances, confirms the key and else looks carefully, as the engine's readers do.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use amalgam_op::Expiry;

use super::layout::{Locator, Pattern, Terms};
use super::slots::Slots;
use crate::simd::Scalar;
use crate::sync::AtomicU64;

const SLOTS: usize = 2;
/// Items that a test may write. A reference is 8 times the item's number, and none is 0.
const ITEMS: usize = 6;
/// Keys differ in one byte of their one stripe, and have the same check byte: 0, so that the first
/// slot is the one that a full bucket gives up.
const A: &[u8] = b"a";
const B: &[u8] = b"b";
const C: &[u8] = b"c";

fn pattern(key: &[u8]) -> Pattern {
    Pattern::new(key, 0)
}

struct Model {
    slots: Slots<SLOTS>,
    items: Vec<UnsafeCell<&'static [u8]>>,
}

// SAFETY: an item is written before its reference is published and read afterwards; loom checks
// just that.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

impl Model {
    /// A bucket with these keys, whose items are the first ones.
    fn new(keys: &[&'static [u8]]) -> Arc<Self> {
        let bucket = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        let items = (0..ITEMS).map(|_| UnsafeCell::new(&b""[..])).collect();
        let model = Arc::new(Self { slots: Slots::new(Box::new([bucket])), items });
        keys.iter().enumerate().for_each(|(item, key)| model.set(key, item));
        model
    }

    fn write_item(&self, key: &'static [u8], item: usize) -> Locator {
        // SAFETY: each test writes an item once, before anybody learns of it.
        self.items[item].with_mut(|place| unsafe { *place = key });
        Locator::new(&pattern(key), 8 * (item as u64 + 1))
    }

    fn is_item_of(&self, locator: Locator, key: &[u8]) -> bool {
        let item = locator.reference() / 8 - 1;
        // SAFETY: published by the store that the locator was loaded from.
        self.items[item as usize].with(|place| unsafe { *place } == key)
    }

    fn find(&self, key: &[u8]) -> Option<(usize, Locator)> {
        self.slots.find::<Scalar>(0, &pattern(key), |locator| self.is_item_of(locator, key))
    }

    /// The item of a key, as a reader finds it.
    fn get(&self, key: &[u8]) -> Option<usize> {
        let locator = self.slots.optimistic_probe::<Scalar>(0, pattern(key).tag, || pattern(key));
        if locator.is_free() {
            return None;
        }
        let locator = match self.is_item_of(locator, key) {
            true => locator,
            false => self.find(key)?.1,
        };
        Some((locator.reference() / 8 - 1) as usize)
    }

    /// As the engine's insert and replace: the item first, then under the lock. A full bucket
    /// gives up the slot that the key's check points at.
    fn set(&self, key: &'static [u8], item: usize) {
        let locator = self.write_item(key, item);
        let terms = Terms::new(Expiry::NEVER, item);
        let held = self.slots.lock(0);
        match self.find(key) {
            Some((slot, _)) => held.overwrite(slot, locator, terms),
            None => {
                let victim = pattern(key).check() % SLOTS;
                let slot = held.free_slot().unwrap_or_else(|| {
                    held.give_up(victim);
                    victim
                });
                held.take(slot, &pattern(key), locator, terms);
            }
        }
    }

    fn delete(&self, key: &[u8]) {
        let held = self.slots.lock(0);
        if let Some((slot, _)) = self.find(key) {
            held.give_up(slot);
        }
    }

    /// Slots that hold the key.
    fn count(&self, key: &[u8]) -> usize {
        let held = self.slots.lock(0);
        held.taken().filter(|(_, locator)| self.is_item_of(*locator, key)).count()
    }
}

/// What `run` came to, in all interleavings.
fn explore<R: Ord + Send + 'static>(run: impl Fn() -> R + Sync + Send + 'static) -> BTreeSet<R> {
    let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
    let all = outcomes.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 20_000;
    builder.check(move || {
        let outcome = run();
        all.lock().expect("nobody panicked").insert(outcome);
    });
    std::mem::take(&mut outcomes.lock().expect("nobody panicked"))
}

/// Writes while another thread reads. What was read is one of `outcomes`, and each of them occurs.
fn beside<R: Ord + Clone + Debug + Send + 'static>(
    keys: &'static [&'static [u8]],
    write: fn(&Model),
    read: fn(&Model) -> R,
    outcomes: &[R],
) {
    let seen = explore(move || {
        let model = Model::new(keys);
        let other = model.clone();
        let reader = thread::spawn(move || read(&other));
        write(&model);
        reader.join().expect("it ends")
    });
    assert_eq!(seen, outcomes.iter().cloned().collect());
}

/// Point 2 of `slots`: overwriting keeps locator and stripes matching at every moment.
#[test]
fn a_key_is_found_while_it_is_overwritten() {
    beside(&[A], |model| model.set(A, 1), |model| model.get(A), &[Some(0), Some(1)]);
}

/// Point 2: changes of the neighbouring slot never hide a key.
#[test]
fn a_key_is_found_while_its_neighbour_goes_and_comes() {
    let write = |model: &Model| {
        model.delete(B);
        model.set(B, 2);
    };
    let outcomes = [Some(0), None, Some(2)].map(|neighbour| (Some(1), neighbour));
    beside(&[B, A], write, |model| (model.get(A), model.get(B)), &outcomes);
}

/// Points 1 and 3: a slot that changes its key between two loads of a reader shows one or the other
/// with its own item, or neither.
#[test]
fn a_slot_that_changes_its_key_is_never_torn() {
    let write = |model: &Model| {
        model.delete(A);
        model.set(B, 1);
    };
    let outcomes = [(None, Some(0)), (None, None), (Some(1), None)];
    beside(&[A], write, |model| (model.get(B), model.get(A)), &outcomes);
}

/// A key that pushes another out of a full bucket: the third is found all the while, the victim
/// with its own item or not at all.
#[test]
fn an_eviction_hides_nobody_else() {
    let read = |model: &Model| (model.get(A), model.get(B), model.get(C));
    let outcomes = [(Some(0), None), (Some(0), Some(2)), (None, None), (None, Some(2))];
    let outcomes = outcomes.map(|(victim, new)| (Some(1), victim, new));
    beside(&[B, A], |model| model.set(C, 2), read, &outcomes);
}

/// The stores of a set are seen in the order in which they were made: who sees the second key sees
/// the first.
#[test]
fn sets_are_seen_in_order() {
    let write = |model: &Model| {
        model.set(A, 0);
        model.set(B, 1);
    };
    let outcomes = [(None, None), (None, Some(0)), (Some(1), Some(0))];
    beside(&[], write, |model| (model.get(B), model.get(A)), &outcomes);
}

/// Point 4: two inserts of one key leave one slot, and both of different keys are there.
#[test]
fn two_writers_of_one_bucket_take_turns() {
    let run = |other: &'static [u8]| {
        explore(move || {
            let model = Model::new(&[]);
            let beside = model.clone();
            let writer = thread::spawn(move || beside.set(A, 0));
            model.set(other, 1);
            writer.join().expect("it ends");
            assert_eq!((model.count(A), model.count(other)), (1, 1));
            (model.get(A), model.find(other).map(|(slot, _)| slot))
        })
    };
    assert_eq!(run(A), [(Some(0), Some(0)), (Some(1), Some(0))].into());
    assert_eq!(run(B), [(Some(0), Some(0)), (Some(0), Some(1))].into());
}
