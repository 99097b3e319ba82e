//! An engine that stores nothing, to measure the driver's own cost.

use amalgam_index::{Configuration, Statistics};
use amalgam_op::Key;

use amalgam_bench::target::{ReadSink, Target, TargetWorker};

/// A map that stores nothing: writes succeed and reads miss. Keys are still generated and hashed.
pub struct Null;

/// A worker of [`Null`].
pub struct NullWorker;

impl Target for Null {
    type Worker<'s> = NullWorker;

    fn open(_configuration: &Configuration) -> anyhow::Result<Self> {
        Ok(Self)
    }

    fn worker(&self) -> NullWorker {
        NullWorker
    }

    fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}

impl TargetWorker for NullWorker {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], _sink: &mut ReadSink) {
        keys.iter().for_each(|key| {
            std::hint::black_box(key.hash());
        });
    }

    #[inline]
    fn set(&mut self, key: Key<'_>, value: &[u8]) -> bool {
        std::hint::black_box((key.hash(), value));
        true
    }
}
