//! The workers' counters, and the sums that `stats` shows.
//!
//! Thread safety: a counter is written by one worker with plain loads and stores, and read by other
//! threads at any time. `stats reset` writes no counter: it remembers the sums so far, which are
//! subtracted from then on.
//!
//! Invariant: a client that has received an answer, or has seen its connection closed, finds the
//! request counted when it asks through another worker. So a batch's counts are published before
//! its answers are sent, and what a worker counts outside of requests goes straight to its
//! counters. Only the bytes written lag: they are known after sending.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_op::IgnorePoison;

/// A counter that one thread writes.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. Requires: called by its one writer.
    #[inline]
    pub fn add(&self, count: u64) {
        // Relaxed, and no read-modify-write: there is one writer, and readers need no order.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// The current count; wraps.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// One worker's counters.
        #[derive(Default)]
        #[repr(align(128))]
        pub struct Counters { $($(#[$text])* pub $name: Counter,)* }

        /// Sums of counters, or a worker's counts of one batch.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$text])* pub $name: u64,)* }

        impl Counters {
            /// Adds the counts and resets them to zero. Requires: called by the one writer.
            pub fn publish(&self, counts: &mut Counts) {
                $(if counts.$name != 0 {
                    self.$name.add(counts.$name);
                })*
                *counts = Counts::default();
            }
        }

        impl Counts {
            fn add(&mut self, counters: &Counters) {
                $(self.$name = self.$name.wrapping_add(counters.$name.get());)*
            }

            fn less(&self, before: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(before.$name),)* }
            }
        }
    };
}

counters! {
    /// Keys in reads of any kind.
    cmd_get,
    /// Stores that were executed.
    cmd_set,
    /// `flush_all`.
    cmd_flush,
    /// Touches, including gets with a touch.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Reads that found an item.
    get_hits,
    /// Reads that found no live item.
    get_misses,
    /// Reads that found an expired item.
    get_expired,
    /// Reads that found a flushed item.
    get_flushed,
    /// Deletes that found no item.
    delete_misses,
    /// Deletes that removed an item.
    delete_hits,
    /// Increments that found no item.
    incr_misses,
    /// Increments that found an item.
    incr_hits,
    /// Decrements that found no item.
    decr_misses,
    /// Decrements that found an item.
    decr_hits,
    /// `cas` that found no item.
    cas_misses,
    /// `cas` that stored.
    cas_hits,
    /// `cas` that found an item with another CAS id.
    cas_badval,
    /// Touches that found an item.
    touch_hits,
    /// Touches that found no item.
    touch_misses,
    /// Stores refused because the item was too large.
    store_too_large,
    /// Stores refused because there was no memory.
    store_no_memory,
    /// Attempts to authenticate.
    auth_cmds,
    /// Failed attempts to authenticate.
    auth_errors,
    /// Bytes received.
    bytes_read,
    /// Bytes sent.
    bytes_written,
    /// Batches in which a connection had more requests than `-R` allows.
    conn_yields,
    /// Connections closed because of the idle timeout.
    idle_kicks,
    /// Connections closed because their answers stood still for too long.
    send_timeout_kicks,
    /// Connections closed because the buffers were full.
    buffers_full_kicks,
    /// Requests refused because there was no buffer memory.
    read_buf_oom,
    /// Requests refused because a batch had more answers than `read_buf_mem_limit` allows.
    responses_refused,
    /// Connections opened.
    connections_opened,
    /// Connections closed, or turned into watchers.
    connections_closed,
}

impl Counts {
    /// Commands on items; each key of a get counts as one.
    pub fn commands(&self) -> u64 {
        let deletes = self.delete_hits + self.delete_misses;
        let changes = self.incr_hits + self.incr_misses + self.decr_hits + self.decr_misses;
        self.cmd_get + self.cmd_set + self.cmd_touch + deletes + changes
    }
}

/// The counters of all workers.
pub struct AllCounters {
    workers: Box<[Counters]>,
    before_reset: Mutex<Counts>,
}

impl AllCounters {
    /// Zeroed counters for a number of workers.
    pub fn new(workers: usize) -> Self {
        let workers = (0..workers).map(|_| Counters::default()).collect();
        Self { workers, before_reset: Mutex::default() }
    }

    /// The counters of one worker. Only that worker may add to them.
    pub fn of_worker(&self, worker: usize) -> &Counters {
        &self.workers[worker]
    }

    /// Sums since the start.
    pub fn totals(&self) -> Counts {
        let mut counts = Counts::default();
        self.workers.iter().for_each(|counters| counts.add(counters));
        counts
    }

    /// Sums since the last reset; the counts of connections are never reset.
    pub fn sums(&self) -> Counts {
        let before = self.before_reset.lock().ignore_poison();
        self.totals().less(&before)
    }

    /// Open connections.
    pub fn connections(&self) -> u64 {
        let total = self.totals();
        // The counters are read one after the other, so a close may be seen before its open.
        total.connections_opened.saturating_sub(total.connections_closed)
    }

    /// Makes [`AllCounters::sums`] start from zero again.
    pub fn reset(&self) {
        let total = self.totals();
        let kept = Counts { connections_opened: 0, connections_closed: 0, ..total };
        *self.before_reset.lock().ignore_poison() = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_workers_and_since_the_reset() {
        let counters = AllCounters::new(2);
        let mut counts = Counts { get_hits: 3, connections_opened: 1, ..Counts::default() };
        counters.of_worker(0).publish(&mut counts);
        assert_eq!(counts, Counts::default());
        counters.of_worker(1).get_hits.add(4);
        assert_eq!(counters.sums().get_hits, 7);
        counters.reset();
        counters.of_worker(1).get_hits.add(1);
        assert_eq!(counters.sums().get_hits, 1);
        assert_eq!(counters.connections(), 1);
    }
}
