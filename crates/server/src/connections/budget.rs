//! The bound on the memory of all connections' buffers together.
//!
//! Invariants:
//! 1. What connections receive into buffers of their own is admitted first
//!    ([`BufferBudget::allows`]).
//! 2. What they are answered is admitted when their requests are executed
//!    ([`BufferBudget::output_allowance`]), and answers that stay unsent are charged after they
//!    were built. Where they pass the limit, connections are closed
//!    ([`ServerState::relieve_buffers`](crate::state::server_state::ServerState::relieve_buffers)).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::settings::Settings;

/// Bytes of output of one connection from which on its requests wait until the output is drained,
/// at most.
pub const MAX_OUTPUT_BYTES: usize = 256 << 10;

/// The same, at least, however little memory is left.
const MIN_OUTPUT_BYTES: usize = 16 << 10;

/// Bytes of output of all connections of one batch, about.
pub const BATCH_OUTPUT_BYTES: usize = 4 << 20;

/// Bytes of the output buffers that a worker keeps for reuse, at most.
const SPARE_BYTES: usize = 4 << 20;

/// Those of all workers take 1/N of the memory limit, at most.
const SPARE_LIMIT_PARTS: usize = 64;

/// Bytes of the output buffers that each worker may keep for reuse. No connection is charged for
/// them.
pub fn spare_limit(settings: &Settings) -> usize {
    let share = settings.memory_bytes / SPARE_LIMIT_PARTS / settings.threads.max(1);
    share.min(SPARE_BYTES)
}

/// Counts the bytes that connections keep from one batch to the next. Shared by all threads.
pub struct BufferBudget {
    used_bytes: AtomicUsize,
    /// Bytes of TLS sessions: bounded by the number of connections, not by the limit.
    session_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
}

impl BufferBudget {
    /// A budget with a limit in bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            used_bytes: AtomicUsize::new(0),
            session_bytes: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(limit_bytes),
        }
    }

    /// Bytes of buffers in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of buffers and TLS sessions.
    pub fn total_bytes(&self) -> usize {
        self.used_bytes() + self.session_bytes.load(Ordering::Relaxed)
    }

    /// Bytes by which connections lower the limit of the items: what they use, but at most the
    /// limit for buffers and as much again for TLS sessions.
    pub fn reserved_bytes(&self) -> usize {
        let limit = self.limit_bytes();
        self.used_bytes().min(limit) + self.session_bytes.load(Ordering::Relaxed).min(limit)
    }

    /// The limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_limit(&self, limit_bytes: usize) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// Whether `bytes` more would fit. Other workers may take them meanwhile, so the limit can be
    /// exceeded by one buffer for each worker.
    pub fn allows(&self, bytes: usize) -> bool {
        self.used_bytes().saturating_add(bytes) <= self.limit_bytes()
    }

    /// Bytes of output from which on the requests of a connection wait, in a batch of this many
    /// connections.
    pub fn output_allowance(&self, connections: usize) -> usize {
        let left = (self.limit_bytes() / 2).saturating_sub(self.used_bytes());
        let share = left.min(BATCH_OUTPUT_BYTES) / connections.max(1);
        share.clamp(MIN_OUTPUT_BYTES, MAX_OUTPUT_BYTES)
    }

    /// Changes the charge of a connection from `before` to `after` bytes.
    pub fn recharge(&self, before: usize, after: usize) {
        recharge(&self.used_bytes, before, after);
    }

    /// Changes the charge of a connection's TLS session.
    pub fn recharge_session(&self, before: usize, after: usize) {
        recharge(&self.session_bytes, before, after);
    }
}

fn recharge(sum: &AtomicUsize, before: usize, after: usize) {
    // Relaxed: a sum that orders nothing.
    if after >= before {
        sum.fetch_add(after - before, Ordering::Relaxed);
    } else {
        sum.fetch_sub(before - after, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_admitted_by_what_is_left_and_how_many_share_it() {
        let budget = BufferBudget::new(16 << 20);
        assert_eq!(budget.output_allowance(1), MAX_OUTPUT_BYTES);
        assert_eq!(budget.output_allowance(64), BATCH_OUTPUT_BYTES / 64);
        budget.recharge(0, 7 << 20);
        assert_eq!(budget.output_allowance(8), (1 << 20) / 8);
        budget.recharge(7 << 20, 9 << 20);
        assert_eq!(budget.output_allowance(1), MIN_OUTPUT_BYTES);
    }

    #[test]
    fn buffers_kept_for_reuse_are_a_small_part_of_the_limit() {
        for (memory_mib, threads, kib) in [(32, 4, 128), (64, 1, 1024), (4096, 4, 4096)] {
            let memory_bytes = memory_mib << 20;
            let settings = Settings { memory_bytes, threads, ..Settings::default() };
            assert_eq!(spare_limit(&settings), kib << 10);
        }
    }

    #[test]
    fn connections_leave_the_items_their_floor() {
        let budget = BufferBudget::new(8 << 20);
        budget.recharge(0, 100 << 20);
        budget.recharge_session(0, 100 << 20);
        assert_eq!(budget.reserved_bytes(), 16 << 20);
        assert_eq!(budget.total_bytes(), 200 << 20);
    }
}
