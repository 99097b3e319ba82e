//! A simulated cache that evicts as the engines do, by one of their policies: a candidate of the
//! [`Trial`](super::Trial).
//!
//! A class queues its items in the order in which CLOCK's hand meets them. With probation it also
//! lists those that are new, oldest first. Once more than the share of its
//! items is listed, the oldest of the list is examined before the hand moves: an item that was read
//! stays, and so does one whose key was evicted lately; others leave. Keys are known for a while
//! after their items were evicted, as *ghosts*.
//!
//! Items are named by their position in the caller's table, which owns their keys.

use super::keys::NONE;
use super::policy::{Policy, Reads};
use super::{CLASSES, Cache, Links, Queue};

/// The most items.
pub(super) const MOST_KEYS: usize = 6000;

// What follows is as in `amalgam_index::mem`'s probation, whose misses this cache foretells: a
// change of the one is a change of the other.

/// One in this many items of a class may be on probation.
const SHARE: u32 = 10;
/// A key is remembered for this many evictions in a cache of [`GHOST_ITEMS`] items.
const GHOSTS: u32 = 8;
const GHOST_ITEMS: u32 = 20;
/// One key in this many looks like one that is remembered.
const LOOK_ALIKES: u32 = 32;

/// The orders in which items are linked.
const QUEUE: usize = 0;
const LIST: usize = 1;

/// In place of the class of an item that is held: that of one whose eviction is remembered, which
/// a list of this number holds.
const GHOST: u8 = CLASSES as u8;
/// That of an item that is neither held nor remembered.
const NO_CLASS: u8 = u8::MAX;

/// What is known of an item.
#[derive(Clone, Copy)]
struct Slot {
    links: [Links; 2],
    bytes: u32,
    /// The count of evictions when the item was evicted last; 0 if that was long ago, or never.
    ghost: u32,
    class: u8,
    is_listed: bool,
    reads: Reads,
}

/// An item that is not held and was not evicted.
const UNKNOWN: Slot = Slot {
    links: [Links { previous: NONE, next: NONE }; 2],
    bytes: 0,
    ghost: 0,
    class: NO_CLASS,
    is_listed: false,
    reads: Reads::NONE,
};

/// The simulated cache.
pub(super) struct Candidate {
    policy: Policy,
    cache: Cache,
    slots: Vec<Slot>,
    /// The items on probation of each class, and the ghosts.
    lists: [Queue; CLASSES + 1],
    /// The number of items of each class, and of those listed.
    items: [u32; CLASSES],
    listed: [u32; CLASSES],
    all_items: u32,
    evictions: u32,
    /// Items that were looked up among the ghosts, modulo [`LOOK_ALIKES`].
    recalls: u32,
}

impl Candidate {
    /// An empty cache that may hold nothing yet.
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            cache: Cache::EMPTY,
            slots: Vec::with_capacity(MOST_KEYS),
            lists: [Queue::EMPTY; CLASSES + 1],
            items: [0; CLASSES],
            listed: [0; CLASSES],
            all_items: 0,
            evictions: 0,
            recalls: 0,
        }
    }

    /// Bytes of a cache, at most.
    pub(super) const fn most_bytes() -> usize {
        size_of::<Self>() + MOST_KEYS * size_of::<Slot>()
    }

    /// Panics if the cache contradicts itself.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut bytes = 0;
        let ghosts = self.slots.iter().filter(|slot| slot.class == GHOST);
        let mut oldest = self.lists[usize::from(GHOST)].first;
        for ghost in ghosts {
            assert!(ghost.ghost != 0 && !ghost.is_listed && oldest != NONE);
            oldest = self.slots[usize::from(oldest)].links[LIST].next;
        }
        assert_eq!(oldest, NONE);
        for class in 0..CLASSES {
            for (order, queue) in [&self.cache.queues[class], &self.lists[class]].iter().enumerate()
            {
                let (mut at, mut before, mut queued, mut count) = (queue.first, NONE, 0, 0);
                while at != NONE {
                    let slot = &self.slots[usize::from(at)];
                    assert_eq!((slot.links[order].previous, slot.class), (before, class as u8));
                    assert!(order == QUEUE || slot.is_listed);
                    queued += u64::from(slot.bytes);
                    count += 1;
                    (before, at) = (at, slot.links[order].next);
                }
                assert_eq!((before, queued), (queue.last, queue.bytes));
                let counted = if order == QUEUE { &self.items } else { &self.listed };
                assert_eq!(counted[class], count);
            }
            let queue = &self.cache.queues[class];
            assert_eq!(queue.first != NONE, self.cache.classes >> class & 1 != 0);
            bytes += queue.bytes;
        }
        assert_eq!(bytes, self.cache.bytes);
        assert!(bytes <= self.cache.limit);
        let held = self.slots.iter().filter(|slot| slot.class < GHOST).count();
        assert_eq!(held, self.all_items as usize);
        assert!(self.slots.len() <= MOST_KEYS);
    }

    /// Whether the item is held.
    pub(super) fn holds(&self, at: u16) -> bool {
        self.slots.get(usize::from(at)).is_some_and(|slot| slot.class < GHOST)
    }

    /// Whether the item is held, or its eviction remembered.
    pub(super) fn knows(&self, at: u16) -> bool {
        self.slots.get(usize::from(at)).is_some_and(|slot| slot.class != NO_CLASS)
    }

    /// Changes the bytes that the cache may hold. [`Self::evict`] then gets it there.
    pub(super) fn set_limit(&mut self, bytes: u64) {
        self.cache.limit = bytes;
    }

    /// Marks an item as read, if it is held. Returns whether it is.
    pub(super) fn read(&mut self, at: u16) -> bool {
        let is_held = self.holds(at);
        if is_held {
            self.slots[usize::from(at)].reads.add();
        }
        is_held
    }

    /// Stores an item, in place of what was held of its key, as the newest. [`Self::evict`] then
    /// has to make room for it.
    pub(super) fn store(&mut self, at: u16, class: u8, bytes: u32) {
        if self.slots.len() <= usize::from(at) {
            self.slots.resize(usize::from(at) + 1, UNKNOWN);
        }
        let was_listed = self.slots[usize::from(at)].is_listed;
        let was_held = self.holds(at);
        self.take_out(at);
        let slot = &mut self.slots[usize::from(at)];
        (slot.class, slot.bytes, slot.reads) = (class, bytes, Reads::NONE);
        self.cache.bytes += u64::from(bytes);
        self.items[usize::from(class)] += 1;
        self.all_items += 1;
        self.append(QUEUE, at);
        let is_new = was_listed || !was_held;
        if is_new && self.policy == Policy::Probation {
            self.slots[usize::from(at)].is_listed = true;
            self.listed[usize::from(class)] += 1;
            self.append(LIST, at);
        }
    }

    /// Whether an item had to leave so far.
    pub(super) fn has_evicted(&self) -> bool {
        self.evictions > 0
    }

    /// Takes an item out of the cache and of its memory, if it is known.
    pub(super) fn forget(&mut self, at: u16) {
        self.take_out(at);
        self.slots.get_mut(usize::from(at)).into_iter().for_each(|slot| slot.ghost = 0);
    }

    /// Evicts items while more is held than the limit allows. Returns one that is not known any
    /// more, if there is one.
    pub(super) fn evict(&mut self) -> Option<u16> {
        loop {
            if let forgotten @ Some(_) = self.forget_oldest() {
                return forgotten;
            }
            if self.cache.bytes <= self.cache.limit {
                return None;
            }
            let class = self.cache.next_donor();
            let (at, is_new) = self.next_victim(class);
            let slot = self.slots[usize::from(at)];
            if is_new {
                self.unlist(at);
                if self.recall(at) || slot.reads.is_some() {
                    self.cache.turns_left += 1;
                    continue;
                }
            }
            self.cache.count_passed(class, u64::from(slot.bytes));
            if !is_new && self.slots[usize::from(at)].reads.spare(self.policy) {
                self.detach(QUEUE, at);
                self.append(QUEUE, at);
                self.cache.turns_left += 1;
                continue;
            }
            self.take_out(at);
            if is_new {
                self.fill_place(class, slot.links[QUEUE].next);
            }
            self.remember(at);
        }
    }

    /// The item of a class to examine next, and whether that ends its time in the list.
    fn next_victim(&self, class: usize) -> (u16, bool) {
        if self.listed[class] * SHARE > self.items[class] {
            (self.lists[class].first, true)
        } else {
            (self.cache.queues[class].first, false)
        }
    }

    /// Moves the newest item of a class before `next`: the engines fill the slot of an evicted item
    /// with a new one, so that the hand comes to it when it would have come to the old one.
    fn fill_place(&mut self, class: usize, next: u16) {
        let newest = self.cache.queues[class].last;
        if next == NONE || next == newest {
            return;
        }
        self.detach(QUEUE, newest);
        let previous = self.slots[usize::from(next)].links[QUEUE].previous;
        self.slots[usize::from(newest)].links[QUEUE] = Links { previous, next };
        self.slots[usize::from(next)].links[QUEUE].previous = newest;
        match previous {
            NONE => self.cache.queues[class].first = newest,
            previous => self.slots[usize::from(previous)].links[QUEUE].next = newest,
        }
        let bytes = u64::from(self.slots[usize::from(newest)].bytes);
        self.cache.queues[class].bytes += bytes;
        self.cache.classes |= 1 << class;
    }

    /// Remembers that an item was evicted.
    fn remember(&mut self, at: u16) {
        self.evictions = self.evictions % (1 << 30) + 1;
        let slot = &mut self.slots[usize::from(at)];
        (slot.class, slot.ghost) = (GHOST, self.evictions);
        self.append(LIST, at);
    }

    /// Forgets the item that was evicted longest ago, if it was long ago.
    fn forget_oldest(&mut self) -> Option<u16> {
        let oldest = self.lists[usize::from(GHOST)].first;
        if oldest == NONE || self.is_recent(self.slots[usize::from(oldest)].ghost) {
            return None;
        }
        self.forget(oldest);
        Some(oldest)
    }

    /// Whether the item's key was evicted a short while before it came back, or looks so.
    fn recall(&mut self, at: u16) -> bool {
        self.recalls = (self.recalls + 1) % LOOK_ALIKES;
        let ghost = std::mem::take(&mut self.slots[usize::from(at)].ghost);
        ghost != 0 && self.is_recent(ghost) || self.recalls == 0
    }

    fn is_recent(&self, ghost: u32) -> bool {
        self.evictions.wrapping_sub(ghost) < self.ghosts()
    }

    /// The number of evictions for which a key is remembered.
    fn ghosts(&self) -> u32 {
        match self.policy {
            Policy::Probation => self.all_items * GHOSTS / GHOST_ITEMS,
            Policy::Clock | Policy::GClock => 0,
        }
    }

    fn unlist(&mut self, at: u16) {
        if std::mem::take(&mut self.slots[usize::from(at)].is_listed) {
            self.listed[usize::from(self.slots[usize::from(at)].class)] -= 1;
            self.detach(LIST, at);
        }
    }

    /// Takes an item out of the cache, if it is held, or of the list of ghosts.
    fn take_out(&mut self, at: u16) {
        if !self.holds(at) {
            if self.knows(at) {
                self.detach(LIST, at);
                self.slots[usize::from(at)].class = NO_CLASS;
            }
            return;
        }
        self.unlist(at);
        self.detach(QUEUE, at);
        let slot = &mut self.slots[usize::from(at)];
        let class = std::mem::replace(&mut slot.class, NO_CLASS);
        self.cache.bytes -= u64::from(slot.bytes);
        self.items[usize::from(class)] -= 1;
        self.all_items -= 1;
    }

    fn append(&mut self, order: usize, at: u16) {
        let slot = &mut self.slots[usize::from(at)];
        let class = usize::from(slot.class);
        let queue = match order {
            QUEUE => &mut self.cache.queues[class],
            _ => &mut self.lists[class],
        };
        queue.bytes += u64::from(slot.bytes);
        let previous = std::mem::replace(&mut queue.last, at);
        slot.links[order] = Links { previous, next: NONE };
        match previous {
            NONE => queue.first = at,
            previous => self.slots[usize::from(previous)].links[order].next = at,
        }
        if order == QUEUE {
            self.cache.classes |= 1 << class;
        }
    }

    fn detach(&mut self, order: usize, at: u16) {
        let slot = self.slots[usize::from(at)];
        let class = usize::from(slot.class);
        let queue = match order {
            QUEUE => &mut self.cache.queues[class],
            _ => &mut self.lists[class],
        };
        queue.bytes -= u64::from(slot.bytes);
        let Links { previous, next } = slot.links[order];
        match previous {
            NONE => queue.first = next,
            previous => self.slots[usize::from(previous)].links[order].next = next,
        }
        match next {
            NONE => queue.last = previous,
            next => self.slots[usize::from(next)].links[order].previous = previous,
        }
        if order == QUEUE && queue.first == NONE {
            self.cache.classes &= !(1 << class);
        }
    }
}
