//! What the requests of one batch are executed with.

use amalgam_index::Store;
use amalgam_op::Now;

use crate::connections::protocol_state::TurnBudget;
use crate::metrics::counters::Counts;
use crate::metrics::hot_keys::Sampler;
use crate::metrics::miss_curve::AccessRecorder;
use crate::request::observer::Observer;
use crate::state::server_state::ServerState;

/// The server, and the worker's own part of it, for the duration of one batch.
pub struct BatchContext<'t, 's, S: Store + 's> {
    /// What all threads share.
    pub state: &'s ServerState<S>,
    /// The number of the worker that runs the batch.
    pub worker: usize,
    /// The worker's access to the store.
    pub index: &'t mut S::Worker<'s>,
    /// Counts of this batch; published when it ends.
    pub counts: &'t mut Counts,
    /// Samples the accessed keys.
    pub sampler: &'t mut Sampler<'s>,
    /// Samples the requests that the miss curve is estimated from.
    pub recorder: &'t mut AccessRecorder<'s>,
    /// What is left of the worker's turn for requests that take long.
    pub turn: &'t mut TurnBudget,
    /// The time of the batch, sampled after its requests were received.
    pub now: Now,
    /// Reports each request to watchers and prefix counts; None if neither is active.
    pub observer: Option<Observer<'s>>,
}
