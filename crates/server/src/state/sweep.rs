//! Sweeps: the removal of every dead item, so that the flush generation may go on.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_index::{Cursor, NullSink, Store, Worker};
use amalgam_op::{Get, ItemView, Key, Op, Verb};

use crate::compat::slab_classes::CLASSES;
use crate::state::clock::Clock;

/// Buckets scanned between two quiescent states.
const SLICE_BUCKETS: usize = 256;

/// Sweeps that operators request (`lru_crawler crawl`), and their statistics. Shared by all
/// threads.
pub struct Crawler {
    /// Whether a sweep is requested or runs.
    pub is_requested: AtomicBool,
    /// The number of requests.
    pub starts: AtomicU64,
    /// Items examined by sweeps.
    pub checked: AtomicU64,
    /// Items removed by sweeps, by memcached's slab class.
    reclaimed: [AtomicU64; CLASSES as usize],
}

impl Default for Crawler {
    fn default() -> Self {
        Self {
            is_requested: AtomicBool::new(false),
            starts: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            reclaimed: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Crawler {
    /// Items of a slab class that sweeps removed.
    pub fn reclaimed_of(&self, class: u32) -> u64 {
        self.reclaimed.get(class as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Items that sweeps removed.
    pub fn reclaimed(&self) -> u64 {
        (0..CLASSES).map(|class| self.reclaimed_of(class)).sum()
    }

    /// Resets the counts of examined and removed items.
    pub fn reset(&self) {
        self.checked.store(0, Ordering::Relaxed);
        self.reclaimed.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// A sweep under way: removes every item that is dead when it begins. The thread that runs it does
/// other things between two steps.
pub struct Sweep<'s, S: Store + 's> {
    worker: S::Worker<'s>,
    cursor: Cursor,
    /// What [`Clock::begin_sweep`] returned.
    target: u64,
    dead: Vec<Vec<u8>>,
}

impl<'s, S: Store> Sweep<'s, S> {
    /// Begins a sweep. Requires: none is under way.
    pub fn begin(index: &'s S, clock: &Clock) -> Self {
        let target = clock.begin_sweep();
        Self { worker: index.worker(), cursor: Cursor::START, target, dead: Vec::new() }
    }

    /// Sweeps some buckets. `class_of` returns an item's slab class. Returns whether the sweep is
    /// over; this must not be called again then.
    pub fn step(
        &mut self,
        index: &S,
        clock: &Clock,
        crawler: &Crawler,
        class_of: impl Fn(&ItemView<'_>) -> u32,
    ) -> bool {
        let now = clock.now();
        let (mut checked, dead) = (0, &mut self.dead);
        let next = self.worker.scan(self.cursor, SLICE_BUCKETS, &mut |item| {
            checked += 1;
            if !now.is_live(item.expiry, item.generation) {
                dead.push(item.key.to_vec());
                if let Some(count) = crawler.reclaimed.get(class_of(item) as usize) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            ControlFlow::Continue(())
        });
        crawler.checked.fetch_add(checked, Ordering::Relaxed);
        // A read that finds a dead item removes it. A quiet one is not recorded.
        let verb = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
        for key in self.dead.drain(..) {
            let key = Key::new(&key, index.seed());
            self.worker.apply(&Op { key, verb }, &now, &mut NullSink);
        }
        self.worker.quiesce();
        match next {
            Some(cursor) => self.cursor = cursor,
            None => clock.end_sweep(self.target),
        }
        next.is_none()
    }
}
