//! Real threads on a table so small that keys make way for each other all the time.
//!
//! The engine's own reads look twice, which hides nearly every fault of the one look that counts;
//! so readers here ask [`View::validated_lookup`] alone. Without the marks of a move, or without
//! validation, a key is missed within a second.

use std::sync::atomic::AtomicBool;

use amalgam_op::HashSeed;

use super::*;
use crate::mem::{Memory, SlotLayout};
use crate::{Configuration, PathSearch};

const SLOTS: usize = 4;
const BUCKETS: usize = 16;
/// Keys that are always there, in 64 slots, and the number of other keys that each writer has in
/// the table at a time. A new one seldom fits where the last one left.
const PRESENT: u64 = 50;
const NEIGHBOURS: u64 = 1000;
const AT_A_TIME: u64 = 5;
/// About a minute of it.
const TURNS: usize = if cfg!(miri) { 100 } else { 2_000_000 };

struct Numbers(HashSeed);

impl Numbers {
    /// Item `n` has the number `n` as its key; no reference is 0.
    fn pair(&self, number: u64) -> BucketPair {
        BucketPair::of::<SLOTS>(self.hash(number + 1))
    }

    fn word(&self, number: u64) -> Word {
        Word::new(self.pair(number).tag, number + 1)
    }
}

impl ItemHashes for Numbers {
    fn hash(&self, reference: u64) -> u64 {
        self.0.hash(&reference.to_le_bytes())
    }

    fn prefetch(&self, _reference: u64) {}
}

struct Race {
    cuckoo: Cuckoo<SLOTS>,
    numbers: Numbers,
}

impl Race {
    fn view(&self) -> View<'_, SLOTS> {
        // SAFETY: this table does not grow, so no layer is ever dropped.
        unsafe { self.cuckoo.view() }
    }

    fn find(&self, number: u64) -> Option<SlotSnapshot<'_, SLOTS>> {
        let is_wanted = |word: Word| word.reference() == number + 1;
        self.view().validated_lookup(&self.numbers.pair(number), is_wanted)
    }

    fn insert(&self, number: u64, paths: &mut PathFinder) -> bool {
        let pair = self.numbers.pair(number);
        let is_same_key = |word: Word| word.reference() == number + 1;
        let word = self.numbers.word(number);
        let insertion = self.view().insert(&pair, word, is_same_key, &self.numbers, paths);
        matches!(insertion, Insertion::Done)
    }

    fn remove(&self, number: u64) {
        while let Some(place) = self.find(number) {
            if self.view().exchange(&place, Word::EMPTY, || true) {
                break;
            }
        }
    }

    fn read_until(&self, stop: &AtomicBool) -> u64 {
        let mut reads = 0;
        while !stop.load(Ordering::Relaxed) {
            for number in 0..PRESENT {
                assert!(self.find(number).is_some(), "missed {number} after {reads} reads");
                reads += 1;
            }
        }
        reads
    }

    /// A writer with neighbours of its own. Returns how many of them found room.
    fn write(&self, writer: u64, turns: usize) -> usize {
        let mut paths = PathFinder::new(PathSearch::Walks(1), 32, writer + 1);
        let first = PRESENT + writer * NEIGHBOURS;
        let mut done = 0;
        for turn in 0..turns as u64 {
            self.remove(first + (turn + NEIGHBOURS - AT_A_TIME) % NEIGHBOURS);
            done += usize::from(self.insert(first + turn % NEIGHBOURS, &mut paths));
        }
        (first..first + NEIGHBOURS).for_each(|number| self.remove(number));
        done
    }
}

struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writers that make room displace the present keys; readers find each of them every time.
#[test]
fn a_present_key_is_found_while_others_displace_it() {
    let effort = std::env::var("AMALGAM_EFFORT").ok().and_then(|text| text.parse().ok());
    let turns = TURNS * effort.unwrap_or(1_usize).max(1);
    for (writers, stripes) in [(1, BUCKETS), (2, BUCKETS), (2, 2)] {
        let memory = Memory::new(&Configuration::default(), SlotLayout::Plain).expect("memory");
        let table = Table::new(BUCKETS, &memory).expect("memory");
        let numbers = Numbers(HashSeed::new(7));
        let race = Race { cuckoo: Cuckoo::new(table, stripes), numbers };
        let mut paths = PathFinder::new(PathSearch::BreadthFirst, 32, 1);
        (0..PRESENT).for_each(|number| assert!(race.insert(number, &mut paths)));
        let stop = AtomicBool::new(false);
        let (reads, done) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| race.read_until(&stop));
            let _stop = Stop(&stop);
            let writers: Vec<_> = (0..writers)
                .map(|writer| {
                    let race = &race;
                    scope.spawn(move || race.write(writer, turns))
                })
                .collect();
            let done: usize = writers.into_iter().map(|one| one.join().expect("it ends")).sum();
            stop.store(true, Ordering::Relaxed);
            (reader.join().expect("no key is missed"), done)
        });
        assert!(reads > 0 && done > turns / 4, "{reads} reads, {done} inserts");
        (0..PRESENT).for_each(|number| assert!(race.find(number).is_some()));
    }
}
