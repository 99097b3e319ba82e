//! Runs the requests of many connections together.
//!
//! All requests that the connections sent are parsed into *stages*. The first stage holds, of each
//! connection, its reads up to its first other request, then its other requests up to its next
//! read; there the second stage begins, and so on. The reads of a stage are one batch for the
//! store, whose answers go in order straight into each connection's output. The other requests
//! follow, plain sets in batches and the rest one by one; their buckets were prefetched when they
//! were parsed.
//!
//! Invariants:
//! 1. The requests of a connection are answered in the order of their arrival, and executed in that
//!    order if they are on one key; on all keys where no answer comes later.
//! 2. Serving a request copies and allocates nothing but what enters its connection's output.
//! 3. A connection whose output passes its limit ([`BufferBudget::output_allowance`]) stalls: its
//!    requests from there on stay in its input and are parsed again when the output is drained.
//! 4. What a batch keeps for the next one is bounded, whatever the requests were.
//!
//! [`BufferBudget::output_allowance`]: crate::connections::budget::BufferBudget::output_allowance

use amalgam_index::{Store, Worker};

use crate::request::context::BatchContext;
use crate::request::dump::continue_dump;
use crate::request::parse::parse;
use crate::request::reads::execute_reads;
use crate::request::slot::RequestSlot;
use crate::request::stage::BatchStage;
use crate::request::writes::execute_writes;

/// Runs batches, and keeps the memory of their stages for the next batch.
#[derive(Default)]
pub struct Batch {
    stages: Vec<BatchStage<'static>>,
}

/// Bytes of stages that are kept from one batch to the next, at most. No connection is charged for
/// them. A worker frees them once a second.
pub const KEPT_BYTES: usize = 4 << 20;

impl Batch {
    /// Bytes that are kept for the next batch.
    #[cfg(any(test, fuzzing))]
    pub fn kept_bytes(&self) -> usize {
        own_bytes(&self.stages) + self.stages.iter().map(BatchStage::bytes).sum::<usize>()
    }

    /// Executes the requests in `inputs`, one input for each slot.
    pub fn run<'i, 's, S: Store>(
        &mut self,
        context: &mut BatchContext<'_, 's, S>,
        inputs: impl Iterator<Item = &'i [u8]>,
        slots: &mut [RequestSlot],
    ) {
        let mut stages: Vec<BatchStage<'i>> = std::mem::take(&mut self.stages);
        for (number, input) in inputs.enumerate() {
            parse(context, input, number, &mut slots[number], &mut stages);
        }
        for stage in &mut stages {
            if stage.is_empty() {
                break;
            }
            execute_reads(context, stage, slots);
            execute_writes(context, stage, slots);
            if context.index.late_answers().is_some() {
                // The next stage begins with reads of what this one may write.
                slots.iter_mut().for_each(|slot| slot.ahead = None);
            }
        }
        for slot in slots.iter_mut().filter(|slot| slot.protocol_state.dump.is_some()) {
            continue_dump(context, slot);
        }
        let mut kept = own_bytes(&stages);
        let is_kept = |stage: &&BatchStage<'_>| {
            kept += stage.bytes();
            kept <= KEPT_BYTES
        };
        let kept_stages = stages.iter().take_while(is_kept).count();
        if kept_stages < stages.len() {
            // Requests that alternate between reads and writes make a stage each.
            stages.truncate(kept_stages);
            stages.shrink_to_fit();
        }
        self.stages = stages.into_iter().map(BatchStage::recycle).collect();
    }
}

/// Bytes of a list of stages without theirs.
fn own_bytes(stages: &Vec<BatchStage<'_>>) -> usize {
    stages.capacity() * size_of::<BatchStage<'_>>()
}
