//! Counters that each worker keeps for itself; readers sum them over all workers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Memory;
use crate::Statistics;

/// One worker's counters. One thread at a time writes them, so a relaxed load and store suffice. A
/// counter that also goes down may wrap in one worker; the sum over all workers at one moment is
/// right.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) items: AtomicU64,
    pub(super) items_total: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) waiting_bytes: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) reclaimed: AtomicU64,
    pub(super) evicted_unfetched: AtomicU64,
    pub(super) expired_unfetched: AtomicU64,
    pub(super) out_of_memory: AtomicU64,
    /// Items filled and not retired, by size class.
    pub(super) class_items: Box<[AtomicU64]>,
}

impl Counters {
    pub(super) fn new(classes: usize) -> Self {
        let class_items = (0..classes).map(|_| AtomicU64::default()).collect();
        Self { class_items, ..Self::default() }
    }
}

/// Adds to a counter that only the calling thread writes.
#[inline]
pub(super) fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
}

/// Subtracts from a counter that only the calling thread writes.
#[inline]
pub(super) fn subtract(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_sub(number), Ordering::Relaxed);
}

impl Memory {
    /// The sum over all workers, which are read one after the other: if an item was counted in by a
    /// worker after it was read, and out by another before, the sum is below zero, and 0 is
    /// returned.
    pub(super) fn sum(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let values = self.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed));
        let values = values.map(u64::cast_signed);
        values.fold(0, i64::wrapping_add).max(0).cast_unsigned()
    }

    /// The number of items that are filled and not retired.
    pub fn items(&self) -> u64 {
        self.sum(|counters| &counters.items)
    }

    /// The number of items of one size class that are filled and not retired.
    pub(super) fn items_of(&self, class: usize) -> u64 {
        self.sum(|counters| &counters.class_items[class])
    }

    /// The number of pages of one size class.
    pub(super) fn pages_of(&self, class: usize) -> u32 {
        self.class_states[class].pages.load(Ordering::Relaxed)
    }

    /// Whether a size class without items holds pages.
    pub(super) fn has_empty_class(&self) -> bool {
        (0..self.classes.count()).any(|class| self.pages_of(class) > 0 && self.items_of(class) == 0)
    }

    /// The part of an engine's statistics that this module knows.
    pub fn index_statistics(&self) -> Statistics {
        Statistics {
            items: self.items(),
            items_total: self.sum(|counters| &counters.items_total),
            evictions: self.sum(|counters| &counters.evictions),
            reclaimed: self.sum(|counters| &counters.reclaimed),
            evicted_unfetched: self.sum(|counters| &counters.evicted_unfetched),
            expired_unfetched: self.sum(|counters| &counters.expired_unfetched),
            out_of_memory: self.sum(|counters| &counters.out_of_memory),
            memory: self.statistics(),
            ..Statistics::default()
        }
    }
}
