//! A sample of the rings, for statistics: how long they are, and how many heads are hot.

use std::sync::Mutex;

use super::engine::{HotRingWorker, Strategy};
use super::walk::tour;
use crate::Statistics;

/// Rings of a sample, at most.
const RINGS: usize = 1024;
/// Rings that one step looks at.
const SLICE: usize = 64;
/// Longer rings count as this long.
const LONGEST: usize = 16;

/// What a sample of rings has shown.
#[derive(Default)]
pub(super) struct Sample {
    /// Rings by their lengths.
    lengths: [u64; LONGEST + 1],
    /// Rings of two items or more whose head item was read since the last sweep.
    hot_heads: u64,
    /// How many rings the table had.
    rings: usize,
    /// The next ring.
    next: usize,
}

/// The last sample that is complete.
#[derive(Default)]
pub(super) struct Survey(Mutex<Option<Sample>>);

impl Survey {
    pub(super) fn fill(&self, statistics: &mut Statistics) {
        let last = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(sample) = &*last {
            statistics.length_histogram = sample.lengths.to_vec();
            statistics.hot_heads = sample.hot_heads;
        }
    }

    fn publish(&self, sample: Sample) {
        *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(sample);
    }
}

impl<S: Strategy> HotRingWorker<'_, S> {
    /// Looks at a few more rings; a whole sample is published.
    pub(super) fn survey(&self, sample: &mut Sample) {
        let guard = self.pool.pin();
        let items = self.items(&guard);
        let table = self.index.tables.current(&guard);
        if sample.rings != table.len() {
            *sample = Sample { rings: table.len(), ..Sample::default() };
        }
        let stride = table.len().div_ceil(RINGS);
        for _ in 0..SLICE {
            if sample.next >= table.len() {
                self.index.growth.survey().publish(std::mem::take(sample));
                return;
            }
            let (mut length, mut is_hot) = (0, false);
            tour(&items, (sample.next as u64) << table.shift(), |step| {
                if length == 0 {
                    is_hot = items.item(step.node).header().is_recent();
                }
                length += 1;
            });
            sample.lengths[length.min(LONGEST)] += 1;
            sample.hot_heads += u64::from(is_hot && length > 1);
            sample.next += stride;
        }
    }
}
