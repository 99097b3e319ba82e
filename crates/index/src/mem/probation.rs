//! Quick demotion, as in S3-FIFO (Yang et al., SOSP 2023): a new item that is not read soon leaves
//! before the CLOCK hand comes round to it.
//!
//! A slot whose item was evicted is filled with a new item at once, so the order of evictions is
//! that of arrivals. A class lists the slots that its evictions free; once the list holds a tenth
//! of the class's items, the oldest slots are examined before the hand moves. An item that was read
//! since it was written stays, and the hand decides from then on. One that was not leaves, unless
//! its key was evicted a short while ago, which *ghosts* remember. To store and to read an item
//! costs nothing more than with CLOCK.
//!
//! Items that were stored before the class evicted by this policy, or where nothing was evicted for
//! them, are in no list, and older than those that are. They count as on probation until the hand
//! has passed as many slots, in which it takes what was never read. Otherwise what happened to be
//! there first would stay for as long as few new items are read.
//!
//! A ghost is a few bits of the key's hash, so that about one key in 32 looks like one that was
//! evicted and stays. That is for the better: of items that are read in a loop too long for the
//! memory, some should stay (Qureshi et al., ISCA 2007).
//!
//! The share is fixed. One that follows the returns of ghosts, as in ARC (Megiddo and Modha, FAST
//! 2003), missed more in simulations of real traces; where a tenth is wrong, another policy is
//! better, which `amalgam_sketch`'s trial finds. Its `candidate.rs` has the same constants.
//!
//! The policy may change at any time. Probation begins with empty lists, and leaves nothing behind.
//!
//! Thread safety: lists are locked, by evictions only. Ghosts are atomics; one that is lost or
//! stale makes a decision worse and nothing wrong.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_op::IgnorePoison;

use super::{ItemRef, Memory};
use crate::Eviction;

/// One in this many items of a class may be on probation.
const SHARE: u64 = 10;
/// Items per set of ghosts when the number of sets is chosen.
const ITEMS_PER_SET: usize = 20;
/// It is chosen anew when there are fewer or more items per set than this: an item has half a byte
/// of ghosts at most, and a quarter at least.
const FITTING_ITEMS: RangeInclusive<usize> = 16..=32;
/// The smallest number of sets.
const LEAST_SETS: usize = 64;
/// The bits of a ghost, of which a set holds as many as fit a word.
const GHOST_BITS: u32 = 8;
const GHOST_MASK: u64 = (1 << GHOST_BITS) - 1;
/// The entries by which a list grows; their memory is charged to the limit.
const LIST_GROWTH: usize = 512;

/// The items of a class that are on probation.
#[derive(Default)]
pub(super) struct Probation {
    /// Slots that were filled after an eviction, oldest first.
    slots: VecDeque<ItemRef>,
    charged_bytes: usize,
    /// The slots of the class when they were counted last.
    counted_slots: u64,
    /// Slots that were not filled after an eviction and that the hand has not passed since.
    unlisted_slots: u64,
}

impl Probation {
    /// Whether the hand is to examine items on probation that are not listed: if there are any, and
    /// more than the share of `items` is on probation. `slots` is how many the class has now.
    pub(super) fn is_hand_due(&mut self, items: u64, slots: u64) -> bool {
        let added = slots.saturating_sub(self.counted_slots);
        self.counted_slots = slots;
        self.unlisted_slots = (self.unlisted_slots + added).min(slots);
        let are_many = (self.slots.len() as u64 + self.unlisted_slots) * SHARE > items;
        self.unlisted_slots > 0 && are_many
    }

    /// Tells that the hand examined this many slots.
    pub(super) fn hand_examined(&mut self, slots: u64) {
        self.unlisted_slots = self.unlisted_slots.saturating_sub(slots);
    }

    /// Takes the oldest slot, if more than the share of `items` is listed.
    pub(super) fn take_due(&mut self, items: u64) -> Option<ItemRef> {
        let is_due = self.slots.len() as u64 * SHARE > items;
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

/// The keys evicted lately, in sets that the hash chooses; the newest of a set in the lowest bits.
#[derive(Default)]
pub(super) struct Ghosts(RwLock<Box<[AtomicU64]>>);

impl Ghosts {
    /// The bytes of the ghosts, all charged.
    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        self.0.read().ignore_poison().len() * 8
    }

    /// Gives the memory back.
    fn forget(&self, memory: &Memory) {
        let mut ghosts = self.0.write().ignore_poison();
        memory.release_charge(ghosts.len() * 8);
        *ghosts = Box::default();
    }

    /// Remembers the key with this hash, evicted now.
    pub(super) fn remember(&self, hash: u64) {
        let sets = self.0.read().ignore_poison();
        let Some(set) = set_of(&sets, hash) else { return };
        let word = set.load(Ordering::Relaxed);
        set.store(word << GHOST_BITS | ghost(hash), Ordering::Relaxed);
    }

    /// Whether the key with this hash was evicted a short while ago (or, for one key in 32, another
    /// key that looks the same); forgets it then.
    pub(super) fn recall(&self, hash: u64) -> bool {
        let sets = self.0.read().ignore_poison();
        let Some(set) = set_of(&sets, hash) else { return false };
        let word = set.load(Ordering::Relaxed);
        let mut shifts = (0..u64::BITS).step_by(GHOST_BITS as usize);
        let found = shifts.find(|shift| word >> shift & GHOST_MASK == ghost(hash));
        let Some(shift) = found else { return false };
        set.store(word & !(GHOST_MASK << shift), Ordering::Relaxed);
        true
    }

    /// Adapts the number of ghosts to that of items; forgets them all if it changes. Called by
    /// maintenance.
    pub(super) fn resize(&self, memory: &Memory) {
        let items = memory.items() as usize;
        let held = self.0.read().ignore_poison().len();
        let sets = (items / ITEMS_PER_SET).max(LEAST_SETS);
        let fits =
            |held: usize| held == sets || held > 0 && FITTING_ITEMS.contains(&(items / held));
        if fits(held) {
            return;
        }
        // Held from the charge on, so that each set is charged once.
        let mut ghosts = self.0.write().ignore_poison();
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

/// A ghost's bits: never 0, as an empty place of a set.
fn ghost(hash: u64) -> u64 {
    (hash >> 20 & GHOST_MASK).max(1)
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
        Ghosts(RwLock::new((0..sets).map(|_| AtomicU64::new(0)).collect()))
    }

    #[test]
    fn a_key_evicted_lately_is_recalled_once() {
        let ghosts = ghosts(64);
        assert!(!ghosts.recall(hash(1)));
        ghosts.remember(hash(1));
        assert!(ghosts.recall(hash(1)) && !ghosts.recall(hash(1)));
        // Others came since.
        ghosts.remember(hash(1));
        (2..4000).for_each(|number| ghosts.remember(hash(number)));
        assert!(!ghosts.recall(hash(1)));
        let looks_known = (10_000..20_000).filter(|number| ghosts.recall(hash(*number))).count();
        assert!((100..500).contains(&looks_known), "{looks_known} of 10,000");
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
        assert_eq!(probation.take_due(1000), None);
        assert_eq!(probation.take_due(999), Some(slot(1)));
        assert_eq!(probation.take_due(999), None);
    }
}
