//! The index and its workers, for each number of slots a bucket may have.

use super::store::Store;
use super::worker::StoreWorker;
use crate::shaped::shaped_engine;
use crate::{Configuration, OpenError};

/// The engine. Buckets of 8 slots unless [`crate::Tuning::slots_per_bucket`] asks for 4 or 16.
///
/// Its hash has no secret: somebody who can choose keys can choose them for one bucket. What that
/// buys is evicting (or, without eviction, refusing) keys of that bucket; no request becomes
/// slower, nothing else is harmed. Where clients are hostile, choose another engine.
pub struct Pipeline(Shape);

/// A worker of [`Pipeline`].
pub struct PipelineWorker<'i>(ShapedWorker<'i>);

shaped_engine!(
    "pipeline", Pipeline(Shape), PipelineWorker(ShapedWorker):
    Eight = 8, Four = 4, Sixteen = 16
);

fn open(configuration: &Configuration) -> Result<Shape, OpenError> {
    configuration.tuning.check_disabled(&[])?;
    match configuration.tuning.slots_per_bucket {
        None | Some(8) => Store::open(configuration).map(Shape::Eight),
        Some(4) => Store::open(configuration).map(Shape::Four),
        Some(16) => Store::open(configuration).map(Shape::Sixteen),
        Some(other) => Err(OpenError::Configuration(format!(
            "pipeline has buckets of 4, 8 or 16 slots, not {other}"
        ))),
    }
}
