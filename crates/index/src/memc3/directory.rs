//! The cuckoo table as in the paper, for callers that have their own items: one writer at a time,
//! readers that validate all that they read, and a fixed size. Measurements compare with it; the
//! engine itself is [`super::Memc3`].
//!
//! A *name* (48 bits, not 0) stands for an item. As the paper reuses memory at once, an item may be
//! overwritten while it is read; then the reader reads again.
//!
//! Invariants:
//! 1. A name is taken out of the table, or exchanged, under its key's two stripes, which are marked
//!    as moving. So a release fence precedes the stores that overwrite the item afterwards, and a
//!    reader that saw one of these stores sees the mark or a later version when it validates
//!    (`Stripes::is_unchanged`).
//! 2. A reader whose validation fails in all rounds locks both stripes; no item that it finds then
//!    can leave the table, and so be overwritten, before it is done.
//!
//! Linearization points: a read, any moment between its two looks at the counters; a write, its
//! one store to the word of its key.

use std::io;

use super::cuckoo::{BucketPair, Cuckoo, Insertion, ItemHashes, OPTIMISTIC_ROUNDS, STRIPES, View};
use super::path::{MAX_DISPLACEMENTS, PathFinder};
use super::table::Table;
use super::word::Word;
use crate::PathSearch;
use crate::sync::spin;

/// A cuckoo table of names for callers that keep their own items.
pub struct Directory<const SLOTS: usize> {
    cuckoo: Cuckoo<SLOTS>,
    search: PathSearch,
}

/// The path search of the one writer of a [`Directory`].
pub struct Paths(PathFinder);

/// The items of a table that never grows, which never asks for a hash.
struct Fixed;

impl ItemHashes for Fixed {
    fn hash(&self, _reference: u64) -> u64 {
        unreachable!("only growth asks for hashes")
    }

    fn prefetch(&self, _reference: u64) {}
}

impl<const SLOTS: usize> Directory<SLOTS> {
    /// A table of at least `slots` slots: a power of two.
    ///
    /// # Errors
    ///
    /// If the system refuses the memory.
    pub fn new(slots: usize, search: PathSearch) -> io::Result<Self> {
        let table = Table::unlimited(slots.div_ceil(SLOTS).next_power_of_two())?;
        Ok(Self { cuckoo: Cuckoo::new(table, STRIPES), search })
    }

    /// The path search for the writer.
    pub fn paths(&self) -> Paths {
        Paths(PathFinder::new(self.search, MAX_DISPLACEMENTS, 1))
    }

    /// The number of slots in the table.
    pub fn slots(&self) -> usize {
        self.view().root.table.slots()
    }

    /// Bytes of the table and its counters.
    pub fn bytes(&self) -> usize {
        self.view().root.table.bytes() + self.cuckoo.stripe_bytes()
    }

    fn view(&self) -> View<'_, SLOTS> {
        // SAFETY: the table never grows, so no layer is ever dropped before the table is.
        unsafe { self.cuckoo.view() }
    }

    /// The result of `read` for the item of a key; None if the key is not in the table. `read` is
    /// called with names that may be the key's and returns None if the item has another key. It
    /// reads by atomic loads, and its result is dropped if the item may have been overwritten
    /// meanwhile.
    #[inline]
    pub fn read<R>(&self, hash: u64, mut read: impl FnMut(u64) -> Option<R>) -> Option<R> {
        let pair = BucketPair::of::<SLOTS>(hash);
        let view = self.view();
        let mut look = || {
            let mut found = None;
            view.search_pair(&pair, &mut |word| {
                found = read(word.reference());
                found.is_some()
            });
            found
        };
        for round in 0..OPTIMISTIC_ROUNDS {
            if let Some(snapshot) = view.stripes.begin_read(pair.buckets) {
                let found = look();
                if view.stripes.is_unchanged(pair.buckets, snapshot) {
                    return found;
                }
            }
            spin(round);
        }
        let _held = view.stripes.lock_both(pair.buckets);
        look()
    }

    /// Adds a name for a key that has none. Returns false if no path to an empty slot was found.
    /// The caller is the only writer.
    pub fn insert(&self, hash: u64, name: u64, paths: &mut Paths) -> bool {
        let pair = BucketPair::of::<SLOTS>(hash);
        let word = Word::new(pair.tag, name);
        let inserted = self.view().insert(&pair, word, |_| false, &Fixed, &mut paths.0);
        matches!(inserted, Insertion::Done)
    }

    /// Replaces `old` by `new`, or unlinks it if `new` is None. Returns whether `old` was in the
    /// table; if so, its item may be overwritten at once. The caller is the only writer.
    pub fn exchange(&self, hash: u64, old: u64, new: Option<u64>) -> bool {
        let pair = BucketPair::of::<SLOTS>(hash);
        let view = self.view();
        let new = new.map_or(Word::EMPTY, |new| Word::new(pair.tag, new));
        let old = Word::new(pair.tag, old);
        let mut held = view.stripes.lock_both(pair.buckets);
        let Some(place) = view.search_pair(&pair, &mut |word| word == old) else { return false };
        held.begin_move();
        view.put(&place, new, &held);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::op::HashSeed;

    #[test]
    fn names_come_and_go() {
        let directory = Directory::<4>::new(64, PathSearch::Walks(2)).expect("memory");
        let (mut paths, seed) = (directory.paths(), HashSeed::new(1));
        let hash = |key: u64| seed.hash(&key.to_le_bytes());
        let find =
            |key: u64| directory.read(hash(key), |name| (name % 1000 == key).then_some(name));
        let stored = (1..=64).take_while(|key| directory.insert(hash(*key), *key, &mut paths));
        let stored = stored.count() as u64;
        assert!(stored > 48, "{stored} of 64 slots");
        assert!((1..=stored).all(|key| find(key) == Some(key)));
        assert_eq!(find(stored + 1), None);
        assert!(directory.exchange(hash(3), 3, Some(1003)));
        assert_eq!(find(3), Some(1003));
        assert!(!directory.exchange(hash(3), 3, None), "it has another name now");
        assert!(directory.exchange(hash(3), 1003, None));
        assert_eq!(find(3), None);
    }

    /// One writer names two items in turns for each key and overwrites the one that it unnamed; the
    /// words of an item read by name always belong together.
    #[test]
    fn what_is_read_was_never_overwritten_meanwhile() {
        const KEYS: u64 = 8;
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let directory = Directory::<4>::new(64, PathSearch::Walks(2)).expect("memory");
        let seed = HashSeed::new(1);
        let hash = |key: u64| seed.hash(&key.to_le_bytes());
        // Name n is item n - 1: its key, then twice the same number. One item has no name.
        let items: Vec<[AtomicU64; 3]> = (0..=KEYS).map(|_| Default::default()).collect();
        let write = |name: u64, key: u64, number: u64| {
            let words = [key, number, number];
            for (word, value) in items[name as usize - 1].iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
        };
        let mut paths = directory.paths();
        let mut names: Vec<u64> = (1..=KEYS).collect();
        for key in 0..KEYS {
            write(names[key as usize], key, 0);
            assert!(directory.insert(hash(key), names[key as usize], &mut paths));
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = [0; KEYS as usize];
                while !is_over.load(Ordering::Relaxed) {
                    for key in 0..KEYS {
                        let read = |name: u64| {
                            let item = &items[name as usize - 1];
                            let words = item.each_ref().map(|word| word.load(Ordering::Relaxed));
                            (words[0] == key).then_some(words)
                        };
                        let [_, one, two] = directory.read(hash(key), read).expect("it is there");
                        assert_eq!(one, two, "half of a value was overwritten");
                        assert!(one >= last[key as usize], "an older value came back");
                        last[key as usize] = one;
                    }
                }
            });
            let mut free = KEYS + 1;
            for number in 1..=ROUNDS {
                let key = number % KEYS;
                write(free, key, number);
                assert!(directory.exchange(hash(key), names[key as usize], Some(free)));
                std::mem::swap(&mut free, &mut names[key as usize]);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
