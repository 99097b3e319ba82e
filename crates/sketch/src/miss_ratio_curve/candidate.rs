//! A simulated cache that evicts as the engines do, by one of their policies: a candidate of the
//! [`Trial`](super::Trial).
//!
//! A class queues its items in the order in which CLOCK's hand meets them. With probation it also
//! lists those that came since the cache was full, oldest first. Once more than the share of its
//! items is listed, the oldest of the list is examined before the hand moves: an item that was read
//! stays, and so does one whose key was evicted lately; others leave. The share follows from the
//! keys that return, by the rule of `amalgam_index::mem`'s probation.
//!
//! Items are named by their position in the caller's table, which owns their keys.

use super::keys::NONE;
use super::policy::{Policy, Reads};
use super::{CLASSES, Cache, Links, Queue};

/// The most items.
pub(super) const MOST_KEYS: usize = 6000;

// What follows is as in `amalgam_index::mem`'s probation, whose misses this cache foretells: a
// change of the one is a change of the other.

/// Shares are given in units of 1/WHOLE of a class's items.
const WHOLE: u64 = 1024;
/// The share at first, and its bounds.
const FIRST_SHARE: u32 = 102;
const LEAST_SHARE: u32 = 32;
const MOST_SHARE: u32 = 768;
/// Keys are remembered for this many evictions for each [`GHOST_ITEMS`] items.
const GHOSTS: u64 = 5;
const GHOST_ITEMS: u64 = 20;
/// A decision on the share needs at least this many evictions.
const LEAST_EVICTIONS: f64 = 64.0;

/// The orders in which items are linked.
const QUEUE: usize = 0;
const LIST: usize = 1;

/// No class: the item is not held.
const NO_CLASS: u8 = u8::MAX;

/// What is known of an item.
#[derive(Clone, Copy)]
struct Slot {
    links: [Links; 2],
    bytes: u32,
    /// The count of evictions when the item was evicted, and its kind in the lowest bit; 0 for one
    /// that was not.
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
    lists: [Queue; CLASSES],
    /// The number of items of each class, and of those listed.
    items: [u32; CLASSES],
    listed: [u32; CLASSES],
    all_items: u32,
    evictions: u32,
    share: u32,
    /// Evictions and returns of items that were never read, and of others; both are halved at
    /// times.
    evicted: [f64; 2],
    returned: [f64; 2],
}

impl Candidate {
    /// An empty cache that may hold nothing yet.
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            cache: Cache::EMPTY,
            slots: Vec::with_capacity(MOST_KEYS),
            lists: [Queue::EMPTY; CLASSES],
            items: [0; CLASSES],
            listed: [0; CLASSES],
            all_items: 0,
            evictions: 0,
            share: FIRST_SHARE,
            evicted: [0.0; 2],
            returned: [0.0; 2],
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
        let held = self.slots.iter().filter(|slot| slot.class != NO_CLASS).count();
        assert_eq!(held, self.all_items as usize);
        assert!(self.slots.len() <= MOST_KEYS);
    }

    /// Whether the item is held.
    pub(super) fn holds(&self, at: u16) -> bool {
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
        let is_new = was_listed || !was_held && self.evictions > 0;
        if is_new && self.policy == Policy::Probation {
            self.slots[usize::from(at)].is_listed = true;
            self.listed[usize::from(class)] += 1;
            self.append(LIST, at);
        }
    }

    /// Forgets that an item was evicted.
    pub(super) fn forget_ghost(&mut self, at: u16) {
        self.slots.get_mut(usize::from(at)).into_iter().for_each(|slot| slot.ghost = 0);
    }

    /// Evicts one item if more is held than the limit allows, and returns it.
    pub(super) fn evict(&mut self) -> Option<u16> {
        while self.cache.bytes > self.cache.limit {
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
            self.remember(at, slot.reads.is_some());
            return Some(at);
        }
        None
    }

    /// The item of a class to examine next, and whether that ends its time in the list.
    fn next_victim(&self, class: usize) -> (u16, bool) {
        let listed = u64::from(self.listed[class]);
        let is_due = listed * WHOLE > u64::from(self.items[class]) * u64::from(self.share);
        if is_due {
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
    fn remember(&mut self, at: u16, was_read: bool) {
        self.evictions = self.evictions % (1 << 30) + 1;
        self.slots[usize::from(at)].ghost = self.evictions << 1 | u32::from(was_read);
        self.evicted[usize::from(was_read)] += 1.0;
        let ghosts = self.ghosts() as f64;
        if self.evicted[0] + self.evicted[1] >= ghosts.max(LEAST_EVICTIONS) {
            self.follow_returns();
        }
    }

    /// Whether the item's key was evicted a short while before it came back.
    fn recall(&mut self, at: u16) -> bool {
        let ghosts = self.ghosts();
        let ghost = std::mem::take(&mut self.slots[usize::from(at)].ghost);
        let since = self.evictions.wrapping_sub(ghost >> 1);
        let is_known = ghost != 0 && u64::from(since) <= ghosts;
        if is_known {
            self.returned[(ghost & 1) as usize] += 1.0;
        }
        is_known
    }

    /// The number of evictions for which a key is remembered.
    fn ghosts(&self) -> u64 {
        u64::from(self.all_items) * GHOSTS / GHOST_ITEMS
    }

    fn follow_returns(&mut self) {
        let new = self.returned[0] * (self.evicted[1] + 1.0);
        let old = self.returned[1] * (self.evicted[0] + 1.0);
        if new > old * 1.125 {
            self.share += self.share / 4;
        } else if old > new * 1.125 {
            self.share -= self.share / 4;
        }
        self.share = self.share.clamp(LEAST_SHARE, MOST_SHARE);
        self.evicted.iter_mut().chain(&mut self.returned).for_each(|count| *count /= 2.0);
    }

    fn unlist(&mut self, at: u16) {
        if std::mem::take(&mut self.slots[usize::from(at)].is_listed) {
            self.listed[usize::from(self.slots[usize::from(at)].class)] -= 1;
            self.detach(LIST, at);
        }
    }

    /// Takes an item out of the cache, if it is held.
    pub(super) fn take_out(&mut self, at: u16) {
        if !self.holds(at) {
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
        let queues = if order == QUEUE { &mut self.cache.queues } else { &mut self.lists };
        let queue = &mut queues[class];
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
        let queues = if order == QUEUE { &mut self.cache.queues } else { &mut self.lists };
        let queue = &mut queues[class];
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
