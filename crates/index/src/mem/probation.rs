//! Quick demotion, as in S3-FIFO (Yang et al., SOSP 2023): a new item that is not read soon leaves
//! before the CLOCK hand comes round to it.
//!
//! A slot whose item was evicted is filled with a new item at once, so the order of evictions is
//! that of arrivals. A class lists the slots that its evictions free; once the list holds the share
//! of the class's items that may be on probation, the oldest slots are examined before the hand
//! moves. An item that was read since it was written stays, and the hand decides from then on. One
//! that was not leaves, unless its key was evicted a short while ago. To store and to read an item
//! costs nothing more than with CLOCK.
//!
//! The share adapts, as in ARC (Megiddo and Modha, FAST 2003). *Ghosts* remember the keys that were
//! evicted lately, and whether their items were ever read. If keys of the one kind return more
//! often than those of the other, that kind of victim was worth more, and its part of the memory
//! grows: the share, for items never read. Where most items may be on probation, the policy is
//! CLOCK.
//!
//! `amalgam_sketch`'s `candidate.rs` simulates this policy with the same constants.
//!
//! The policy may change at any time. Probation begins with empty lists, and leaves nothing behind.
//!
//! Thread safety: lists are locked, by evictions only. Ghosts and counts are atomics; one that is
//! lost or stale makes a decision worse and nothing wrong.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use amalgam_op::IgnorePoison;

use super::{ItemRef, Memory};
use crate::Eviction;

/// Shares are given in units of 1/WHOLE of a class's items.
const WHOLE: u64 = 1024;
/// The share at first.
const FIRST_SHARE: u32 = 102;
/// The smallest share.
const LEAST_SHARE: u32 = 32;
/// The largest share: the hand passes most items before their probation ends. Some probations must
/// end, as returns are seen there alone.
const MOST_SHARE: u32 = 768;
/// Items per set of ghosts when the number of sets is chosen.
const ITEMS_PER_SET: usize = 20;
/// It is chosen anew when there are fewer or more items per set than this: an item has half a byte
/// of ghosts at most, and a fifth at least.
const FITTING_ITEMS: RangeInclusive<usize> = 16..=40;
/// The smallest number of sets.
const LEAST_SETS: usize = 64;
/// The number of ghosts in a set, and the bits of each.
const WAYS: u32 = 5;
const GHOST_BITS: u32 = 12;
/// The entries by which a list grows; their memory is charged to the limit.
const LIST_GROWTH: usize = 512;

/// Slots of a class that were filled after an eviction, oldest first.
#[derive(Default)]
pub(super) struct Probation {
    slots: VecDeque<ItemRef>,
    charged_bytes: usize,
}

impl Probation {
    /// Takes the oldest slot, if more than the share of `items` is listed.
    pub(super) fn take_due(&mut self, items: u64, share: u32) -> Option<ItemRef> {
        let is_due = self.slots.len() as u64 * WHOLE > items * u64::from(share);
        if is_due { self.slots.pop_front() } else { None }
    }

    /// Lists a slot whose item was evicted, if there is memory for the list and the policy is still
    /// in force.
    pub(super) fn push(&mut self, slot: ItemRef, memory: &Memory) {
        // Checked under the list's lock: see `Memory::set_eviction`.
        if !memory.uses_probation() {
            return;
        }
        if self.slots.len() == self.slots.capacity() {
            let bytes = LIST_GROWTH * size_of::<ItemRef>();
            // Pages take the last of the memory, so that a free one may have to go for the list.
            let is_charged = memory.try_charge(bytes)
                || memory.discard_free_pages(bytes) >= bytes && memory.try_charge(bytes);
            if !is_charged {
                return;
            }
            self.slots.reserve_exact(LIST_GROWTH);
            self.charged_bytes += bytes;
        }
        self.slots.push_back(slot);
    }
}

impl Memory {
    /// The policy in force.
    pub fn eviction(&self) -> Eviction {
        // Relaxed: any policy may choose the next victim. That nothing stays behind follows from
        // the locks in `set_eviction`.
        Eviction::ALL[usize::from(self.eviction.load(Ordering::Relaxed))]
    }

    pub(super) fn uses_probation(&self) -> bool {
        self.eviction() == Eviction::Probation
    }

    /// Changes the policy, while any thread may evict. No item leaves for it. Probation begins with
    /// empty lists, and gives the memory of lists and ghosts back when it ends. Locks each list and
    /// the ghosts, one after the other.
    pub fn set_eviction(&self, policy: Eviction) {
        let before = self.eviction.swap(policy as u8, Ordering::Relaxed);
        if policy == Eviction::Probation || before != Eviction::Probation as u8 {
            return;
        }
        // A thread that saw the former policy adds to a list, or to the ghosts, under the lock of
        // these: before they are emptied here, or else it sees the new policy and adds nothing.
        for class in 0..self.class_states.len() {
            let probation = std::mem::take(&mut *self.lock_probation(class));
            self.release_charge(probation.charged_bytes);
        }
        self.ghosts.forget(self);
    }

    /// The bytes charged for lists and ghosts.
    #[cfg(test)]
    pub(super) fn probation_bytes(&self) -> usize {
        let lists = (0..self.class_states.len()).map(|class| {
            let list = self.lock_probation(class);
            assert!(list.charged_bytes >= list.slots.len() * size_of::<ItemRef>());
            list.charged_bytes
        });
        lists.sum::<usize>() + self.ghosts.held_bytes()
    }
}

/// The kind of an evicted item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// Never read.
    New = 0,
    /// Read at some time.
    Old = 1,
}

/// The keys evicted lately, and the share that follows from those that return.
pub(super) struct Ghosts {
    sets: RwLock<Box<[AtomicU64]>>,
    share: AtomicU32,
    /// Evictions and returns of each kind of victim; both are halved at times.
    evicted: [AtomicU64; 2],
    returned: [AtomicU64; 2],
}

impl Default for Ghosts {
    fn default() -> Self {
        Self {
            sets: RwLock::default(),
            share: AtomicU32::new(FIRST_SHARE),
            evicted: Default::default(),
            returned: Default::default(),
        }
    }
}

impl Ghosts {
    /// The share of a class's items that is on probation.
    pub(super) fn share(&self) -> u32 {
        self.share.load(Ordering::Relaxed)
    }

    /// The bytes of the ghosts, all charged.
    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        self.sets.read().ignore_poison().len() * 8
    }

    /// Gives the memory back, and forgets what was learned.
    fn forget(&self, memory: &Memory) {
        let mut ghosts = self.sets.write().ignore_poison();
        memory.release_charge(ghosts.len() * 8);
        *ghosts = Box::default();
        self.share.store(FIRST_SHARE, Ordering::Relaxed);
        let counts = self.evicted.iter().chain(&self.returned);
        counts.for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Remembers the key with this hash, evicted now.
    pub(super) fn remember(&self, hash: u64, victim: Victim) {
        self.evicted[victim as usize].fetch_add(1, Ordering::Relaxed);
        let sets = self.sets.read().ignore_poison();
        let Some(set) = set_of(&sets, hash) else { return };
        let word = set.load(Ordering::Relaxed);
        set.store(word << GHOST_BITS | ghost(hash, victim), Ordering::Relaxed);
    }

    /// Whether the key with this hash was evicted a short while ago (or, for one key in 200,
    /// another key that looks the same); forgets it then.
    pub(super) fn recall(&self, hash: u64) -> bool {
        let sets = self.sets.read().ignore_poison();
        let Some(set) = set_of(&sets, hash) else { return false };
        let word = set.load(Ordering::Relaxed);
        for way in 0..WAYS {
            let shift = way * GHOST_BITS;
            let found = word >> shift & ((1 << GHOST_BITS) - 1);
            for victim in [Victim::New, Victim::Old] {
                if found == ghost(hash, victim) {
                    self.returned[victim as usize].fetch_add(1, Ordering::Relaxed);
                    set.store(word & !(found << shift), Ordering::Relaxed);
                    return true;
                }
            }
        }
        false
    }

    /// Adapts the number of ghosts to that of items (and forgets them all if it changes), and the
    /// share to the returns. Called by maintenance.
    pub(super) fn adapt(&self, memory: &Memory) {
        self.resize(memory);
        self.follow_returns();
    }

    fn follow_returns(&self) {
        let sum = |counts: &[AtomicU64; 2]| counts.each_ref().map(|c| c.load(Ordering::Relaxed));
        let (evicted, returned) = (sum(&self.evicted), sum(&self.returned));
        // A decision needs as many evictions as there are ghosts, so that keys had time to return.
        let ghosts = self.sets.read().ignore_poison().len() as u64 * u64::from(WAYS);
        if evicted[0] + evicted[1] < ghosts.max(1) {
            return;
        }
        // Rates of return, compared without a division; one more eviction than there were keeps a
        // kind without victims from being judged by nothing.
        let new = returned[0] * (evicted[1] + 1);
        let old = returned[1] * (evicted[0] + 1);
        let share = self.share();
        let share = if new > old + old / 8 {
            share + share / 4
        } else if old > new + new / 8 {
            share - share / 4
        } else {
            share
        };
        self.share.store(share.clamp(LEAST_SHARE, MOST_SHARE), Ordering::Relaxed);
        for counts in [&self.evicted, &self.returned] {
            // A count made between load and store is lost.
            counts.iter().for_each(|c| c.store(c.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
    }

    fn resize(&self, memory: &Memory) {
        let items = memory.items() as usize;
        let held = self.sets.read().ignore_poison().len();
        let sets = (items / ITEMS_PER_SET).max(LEAST_SETS);
        let fits =
            |held: usize| held == sets || held > 0 && FITTING_ITEMS.contains(&(items / held));
        if fits(held) {
            return;
        }
        // Held from the charge on, so that each set is charged once.
        let mut ghosts = self.sets.write().ignore_poison();
        let held = ghosts.len();
        if fits(held) || !memory.uses_probation() {
            return;
        }
        if sets > held && !memory.try_charge((sets - held) * 8) {
            return;
        }
        if sets < held {
            memory.release_charge((held - sets) * 8);
        }
        *ghosts = (0..sets).map(|_| AtomicU64::new(0)).collect();
    }
}

/// A ghost's bits: never 0, which an empty way holds.
fn ghost(hash: u64, victim: Victim) -> u64 {
    (hash >> 20 & 0x7FF).max(1) << 1 | victim as u64
}

fn set_of(sets: &[AtomicU64], hash: u64) -> Option<&AtomicU64> {
    // The product's high bits depend on all bits of the hash.
    let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    sets.get(mixed as usize % sets.len().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number << 40
    }

    fn ghosts(sets: usize) -> Ghosts {
        let ghosts = Ghosts::default();
        *ghosts.sets.write().expect("no panic") = (0..sets).map(|_| AtomicU64::new(0)).collect();
        ghosts
    }

    #[test]
    fn a_key_evicted_lately_is_recalled_once() {
        let ghosts = ghosts(64);
        assert!(!ghosts.recall(hash(1)));
        ghosts.remember(hash(1), Victim::New);
        assert!(ghosts.recall(hash(1)) && !ghosts.recall(hash(1)));
        // Others came since.
        ghosts.remember(hash(1), Victim::Old);
        (2..2000).for_each(|number| ghosts.remember(hash(number), Victim::New));
        assert!(!ghosts.recall(hash(1)));
    }

    #[test]
    fn the_share_follows_the_victims_that_return() {
        for (returning, is_larger) in [(Victim::New, true), (Victim::Old, false)] {
            let ghosts = ghosts(64);
            for number in 0..600 {
                let victim = if number % 2 == 0 { Victim::New } else { Victim::Old };
                ghosts.remember(hash(number), victim);
                assert!(victim != returning || ghosts.recall(hash(number)));
            }
            ghosts.follow_returns();
            assert!(if is_larger {
                ghosts.share() > FIRST_SHARE
            } else {
                ghosts.share() < FIRST_SHARE
            });
        }
    }

    #[test]
    fn new_items_wait_until_their_share_is_full() {
        let eviction = Eviction::Probation;
        let configuration = crate::Configuration { eviction, ..Default::default() };
        let memory = Memory::new(&configuration, super::super::SlotLayout::Plain);
        let memory = memory.expect("a valid configuration");
        let mut probation = Probation::default();
        let slot = |number: u64| ItemRef::from_bits(number * 64).expect("not 0");
        (1..=100).for_each(|number| probation.push(slot(number), &memory));
        assert_eq!(probation.take_due(1000, 102), Some(slot(1)));
        assert_eq!(probation.take_due(1000, 102), None);
        assert_eq!(probation.take_due(1000, 51), Some(slot(2)));
    }
}
