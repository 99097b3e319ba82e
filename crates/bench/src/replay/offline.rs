//! Policies next to servers: what each would miss with the payload bytes that a server held.

use super::policy::{PolicyName, Simulation, next_requests};
use super::result::{Load, PolicyResult, ServerResult};
use super::source::Trace;

/// The most copies of a trace that are simulated: the copies are alike, so that a few of them in
/// their part of the bytes miss as often as all do.
const MOST_COPIES: u32 = 4;

/// The simulations of one cell.
pub struct Offline<'t> {
    trace: &'t Trace,
    load: &'t Load,
    copies: u32,
    next: Vec<u32>,
    /// Bytes of the key and the value of each item of the copies that are simulated.
    bytes: Vec<u32>,
}

impl<'t> Offline<'t> {
    /// For a load whose items have these values.
    pub fn new(trace: &'t Trace, load: &'t Load, value_bytes: &[u32]) -> Self {
        let copies = load.copies.min(MOST_COPIES);
        let items = (trace.keys * copies) as usize;
        let with_key = |bytes: &u32| bytes + load.key_bytes as u32;
        Self {
            trace,
            load,
            copies,
            next: next_requests(&trace.requests, trace.keys),
            bytes: value_bytes[..items].iter().map(with_key).collect(),
        }
    }

    /// What the policy misses with the payload bytes that `server` held.
    pub fn result(&self, policy: PolicyName, server: &ServerResult) -> PolicyResult {
        let share = f64::from(self.copies) / f64::from(self.load.copies);
        let capacity_bytes = (server.payload_bytes as f64 * share) as u64;
        let simulation = Simulation {
            requests: &self.trace.requests,
            next: &self.next,
            keys: self.trace.keys,
            copies: self.copies,
            bytes: &self.bytes,
        };
        let misses = simulation.misses(policy, capacity_bytes) as f64 / share;
        PolicyResult {
            kind: "policy",
            policy,
            server: server.server.clone(),
            load: self.load.clone(),
            capacity_bytes: server.payload_bytes,
            copies_simulated: self.copies,
            misses: misses.round() as u64,
            miss_ratio: misses / self.load.requests.max(1) as f64,
            ratio_of_server: server.misses as f64 / misses.max(1.0),
        }
    }
}
