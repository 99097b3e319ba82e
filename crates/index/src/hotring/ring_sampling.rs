//! A sample of the rings, for statistics: how long they are, and how many heads are hot.

use std::sync::Mutex;

use amalgam_op::IgnorePoison;

use crate::Statistics;

/// The largest number of rings in a sample.
pub(super) const RINGS: usize = 1024;
/// The length that longer rings are counted under.
const LONGEST: usize = 16;

/// Lengths and heads of the rings that were visited so far.
#[derive(Default)]
pub(super) struct RingSample {
    /// Number of rings by length.
    lengths: [u64; LONGEST + 1],
    /// Rings of two items or more whose head item was read since the last sweep.
    hot_heads: u64,
    /// Rings of the table when the sample began; a sample of another table is void.
    pub(super) rings: usize,
    /// The next ring to visit.
    pub(super) next: usize,
}

impl RingSample {
    /// An empty sample of a table of `rings` rings.
    pub(super) fn new(rings: usize) -> Self {
        Self { rings, ..Self::default() }
    }

    /// Adds a ring of `length` items, whose head item was read since the last sweep if `is_hot`.
    pub(super) fn add(&mut self, length: usize, is_hot: bool) {
        self.lengths[length.min(LONGEST)] += 1;
        self.hot_heads += u64::from(is_hot && length > 1);
    }
}

/// The last complete sample; None before the first one.
#[derive(Default)]
pub(super) struct LastSample(Mutex<Option<RingSample>>);

impl LastSample {
    pub(super) fn fill(&self, statistics: &mut Statistics) {
        let last = self.0.lock().ignore_poison();
        if let Some(sample) = &*last {
            statistics.length_histogram = sample.lengths.to_vec();
            statistics.hot_heads = sample.hot_heads;
        }
    }

    pub(super) fn publish(&self, sample: RingSample) {
        *self.0.lock().ignore_poison() = Some(sample);
    }
}
