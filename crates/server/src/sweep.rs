//! Removal of every dead item, so that the count of flushes may go on.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_index::{Cursor, Found, Sink, Store, Worker};
use amalgam_op::{Get, ItemView, Key, Op, Verb};

use crate::clock::Clock;
use crate::statistics::CLASSES;

/// Buckets looked at between two quiescent states.
const SLICE_BUCKETS: usize = 256;

struct Nowhere;

impl Sink for Nowhere {
    fn hit(&mut self, _: usize, _: &Found<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Sweeps that operators ask for (`lru_crawler crawl`), and what they found.
pub struct Crawler {
    /// One is asked for, or runs.
    pub is_wanted: AtomicBool,
    /// How many were asked for.
    pub starts: AtomicU64,
    /// Items looked at.
    pub checked: AtomicU64,
    /// Items removed, by memcached's class of them.
    reclaimed: [AtomicU64; CLASSES as usize],
}

impl Default for Crawler {
    fn default() -> Self {
        Self {
            is_wanted: AtomicBool::new(false),
            starts: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            reclaimed: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Crawler {
    /// Items of a class that sweeps removed.
    pub fn reclaimed_of(&self, class: u32) -> u64 {
        self.reclaimed.get(class as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Items that sweeps removed.
    pub fn reclaimed(&self) -> u64 {
        (0..CLASSES).map(|class| self.reclaimed_of(class)).sum()
    }

    /// Counts what is looked at and removed from zero again.
    pub fn reset(&self) {
        self.checked.store(0, Ordering::Relaxed);
        self.reclaimed.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// Removes every item that is dead when it starts. `class_of` says which class an item is of.
pub fn sweep<I: Store>(
    index: &I,
    clock: &Clock,
    crawler: &Crawler,
    class_of: impl Fn(&ItemView<'_>) -> u32,
) {
    let target = clock.begin_sweep();
    let mut worker = index.worker();
    let mut dead: Vec<Vec<u8>> = Vec::new();
    let mut cursor = Some(Cursor::START);
    // A read that finds a dead item removes it; one that leaves the recency bits alone is enough.
    let verb = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
    while let Some(from) = cursor {
        let now = clock.now();
        let mut checked = 0;
        cursor = worker.scan(from, SLICE_BUCKETS, &mut |item| {
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
        for key in dead.drain(..) {
            let key = Key::new(&key, index.seed());
            worker.apply(&Op { key, verb }, &now, &mut Nowhere);
        }
        worker.quiesce();
    }
    clock.end_sweep(target);
}
