//! Removal of every dead item, so that the count of flushes may go on.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_index::{Cursor, Found, Index, Sink, Worker};
use amalgam_op::{Get, Key, Op, Verb};

use crate::clock::Clock;

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
#[derive(Default)]
pub struct Crawler {
    /// One is asked for, or runs.
    pub is_wanted: AtomicBool,
    /// How many were asked for.
    pub starts: AtomicU64,
    /// Items looked at.
    pub checked: AtomicU64,
    /// Items removed.
    pub reclaimed: AtomicU64,
}

/// Removes every item that is dead when it starts.
pub fn sweep<I: Index>(index: &I, clock: &Clock, crawler: &Crawler) {
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
            }
            ControlFlow::Continue(())
        });
        crawler.checked.fetch_add(checked, Ordering::Relaxed);
        crawler.reclaimed.fetch_add(dead.len() as u64, Ordering::Relaxed);
        for key in dead.drain(..) {
            let key = Key::new(&key, index.seed());
            worker.apply(&Op { key, verb }, &now, &mut Nowhere);
        }
        worker.quiesce();
    }
    clock.end_sweep(target);
}
