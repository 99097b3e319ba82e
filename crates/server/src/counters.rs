//! What each worker counts, and the sums that `stats` shows.
//!
//! A counter is written by one worker with plain loads and stores and read by others at any time.
//! `stats reset` does not write: it remembers the sums so far and later ones are shown above them.
//!
//! Invariant: whoever has an answer, or has seen its connection closed, finds what led to it
//! counted when it asks through another worker. So a turn's counts are published before its answers
//! go out, and what a worker counts outside of requests goes straight to its counters. Bytes
//! written are known after they were sent, and alone lag behind.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. To be called by its one writer.
    #[inline]
    pub fn add(&self, count: u64) {
        // Relaxed, and no read-modify-write: there is one writer, and readers want no order.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// The number now.
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

        /// Sums of counters, or what a worker counted of the requests of one turn.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$text])* pub $name: u64,)* }

        impl Counters {
            /// Adds what was counted, and empties it. To be called by the one writer.
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
    /// Keys asked for by any read.
    cmd_get,
    /// Stores that reached the index.
    cmd_set,
    /// `flush_all`.
    cmd_flush,
    /// Touches, gets with a touch included.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Reads that found an item.
    get_hits,
    /// Reads that found none.
    get_misses,
    /// Reads that found an item that had expired.
    get_expired,
    /// Reads that found an item that was flushed.
    get_flushed,
    /// Deletes that found none.
    delete_misses,
    /// Deletes that removed an item.
    delete_hits,
    /// Increments of nothing.
    incr_misses,
    /// Increments.
    incr_hits,
    /// Decrements of nothing.
    decr_misses,
    /// Decrements.
    decr_hits,
    /// `cas` of nothing.
    cas_misses,
    /// `cas` that stored.
    cas_hits,
    /// `cas` with another id.
    cas_badval,
    /// Touches that found an item.
    touch_hits,
    /// Touches of nothing.
    touch_misses,
    /// Stores refused for their size.
    store_too_large,
    /// Stores refused for want of memory.
    store_no_memory,
    /// Authentications tried.
    auth_cmds,
    /// Authentications refused.
    auth_errors,
    /// Bytes received.
    bytes_read,
    /// Bytes sent.
    bytes_written,
    /// Turns in which a connection had more requests than `-R` lets it run at once.
    conn_yields,
    /// Connections closed because nothing came for the idle timeout.
    idle_kicks,
    /// Requests refused for want of buffer memory.
    read_buf_oom,
    /// Requests with more answers in a turn than `read_buf_mem_limit` leaves room for.
    answers_refused,
    /// Connections taken up.
    connections_opened,
    /// Connections ended.
    connections_closed,
}

impl Counts {
    /// Commands on items; each key of a get is one.
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
    /// Counters for so many workers.
    pub fn new(workers: usize) -> Self {
        let workers = (0..workers).map(|_| Counters::default()).collect();
        Self { workers, before_reset: Mutex::default() }
    }

    /// The counters of one worker, which alone may add to them.
    pub fn of_worker(&self, worker: usize) -> &Counters {
        &self.workers[worker]
    }

    /// Sums since the start.
    pub fn totals(&self) -> Counts {
        let mut counts = Counts::default();
        self.workers.iter().for_each(|counters| counts.add(counters));
        counts
    }

    /// Sums since the last reset; connections are never reset.
    pub fn sums(&self) -> Counts {
        let before = self.before_reset.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.totals().less(&before)
    }

    /// Connections open now.
    pub fn connections(&self) -> u64 {
        let total = self.totals();
        // The workers' counters are read one after the other, so a closing may be seen early.
        total.connections_opened.saturating_sub(total.connections_closed)
    }

    /// Counts from zero again.
    pub fn reset(&self) {
        let total = self.totals();
        let kept = Counts { connections_opened: 0, connections_closed: 0, ..total };
        *self.before_reset.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = kept;
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
