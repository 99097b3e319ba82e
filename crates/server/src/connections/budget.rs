//! The bound on the memory of all connections' buffers together.
//!
//! Invariants:
//! 1. What connections receive into buffers of their own is admitted first
//!    ([`BufferBudget::allows`]).
//! 2. A value that has arrived in part is charged at its full length before more of it is read
//!    ([`BufferBudget::admit`]), so it can be received to its end. If the budget is exhausted, the
//!    connection is not read, and waits in first-come order.
//! 3. What they are answered is admitted when their requests are executed
//!    ([`BufferBudget::output_allowance`]), and answers that stay unsent are charged after they
//!    were built. Where they pass the limit, connections are closed
//!    ([`ServerState::relieve_buffers`](crate::state::server_state::ServerState::relieve_buffers)).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use amalgam_op::IgnorePoison;

use crate::connections::protocol_state::{OWN_BUFFER_BYTES, READ_BYTES};
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

/// Seconds until a waiting value is refused; at least four pass in full. In that time stalled
/// connections are closed, and unused reservations are reclaimed at least eight times.
pub const MEMORY_WAIT_SECONDS: u32 = 5;

/// The interval at which workers check connections that wait for memory or have reserved some.
pub const TEND_INTERVAL: Duration = Duration::from_millis(250);

/// While others wait, a connection that receives less than this in an interval (64 KiB a second)
/// loses the unused part of its reservation.
pub const TEND_PROGRESS_BYTES: usize = 16 << 10;

/// The longest value that skips the queue. Longer ones leave a quarter of the limit free, so that
/// a client which begins many of them does not block short values.
const SHORT_VALUE_BYTES: usize = 64 << 10;

/// Bytes that a waiting connection is not charged for: the remainder of one receive. If they were
/// charged, waiting connections could exhaust the budget that they wait for.
pub const UNCHARGED_BYTES: usize = READ_BYTES + OWN_BUFFER_BYTES;

/// A connection that waits until the budget admits its value.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// The number of its reactor.
    pub reactor: usize,
    /// The connection's id, as epoll has it.
    pub id: u64,
    /// Bytes that the budget must admit.
    pub bytes: usize,
}

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
    /// Connections that wait, in first-come order.
    waiters: Mutex<VecDeque<Waiter>>,
    /// The length of `waiters`, which is read without its lock.
    waiting: AtomicUsize,
}

impl BufferBudget {
    /// A budget with a limit in bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            used_bytes: AtomicUsize::new(0),
            session_bytes: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(limit_bytes),
            waiters: Mutex::default(),
            waiting: AtomicUsize::new(0),
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

    /// Whether the budget could admit these bytes of a value, regardless of the queue. While at
    /// most half of the limit is in use, it admits a value of any length.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.fits(self.used_bytes(), bytes)
    }

    fn fits(&self, used: usize, bytes: usize) -> bool {
        let quarter = self.limit_bytes() / 4;
        match bytes {
            ..=SHORT_VALUE_BYTES => used + bytes <= 4 * quarter,
            _ => used + bytes.min(quarter) <= 3 * quarter,
        }
    }

    /// Charges these bytes of a value if the budget has them; if the value is long, only while the
    /// queue is empty. Returns whether they were charged.
    pub fn admit(&self, bytes: usize) -> bool {
        (bytes <= SHORT_VALUE_BYTES || !self.has_waiters()) && self.admit_first(bytes)
    }

    /// Charges these bytes of a value if the budget has them. Requires: the value is the first in
    /// the queue, or short, or the queue is empty.
    pub fn admit_first(&self, bytes: usize) -> bool {
        let add = |used: usize| self.fits(used, bytes).then_some(used + bytes);
        self.used_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
    }

    /// Whether connections wait.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        // Sequentially consistent, as the changes of `used_bytes` are: either the thread that frees
        // memory sees the new waiter, or the waiter sees the freed memory.
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Whether one more connection may wait: what those that wait are not charged for takes a
    /// quarter of the limit at most, and one connection for each worker.
    pub fn takes_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) * UNCHARGED_BYTES < self.limit_bytes() / 4
    }

    fn waiters(&self) -> MutexGuard<'_, VecDeque<Waiter>> {
        self.waiters.lock().ignore_poison()
    }

    /// The connection that is admitted next.
    pub fn first_waiter(&self) -> Option<Waiter> {
        self.waiters().front().copied()
    }

    /// Has a connection wait behind the others. Returns whether it is the only one.
    pub fn enter(&self, waiter: Waiter) -> bool {
        let mut waiters = self.waiters();
        waiters.push_back(waiter);
        self.waiting.store(waiters.len(), Ordering::SeqCst);
        waiters.len() == 1
    }

    /// Has a connection no longer wait, if it does.
    pub fn leave(&self, reactor: usize, id: u64) {
        let mut waiters = self.waiters();
        waiters.retain(|waiter| (waiter.reactor, waiter.id) != (reactor, id));
        self.waiting.store(waiters.len(), Ordering::SeqCst);
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
    // Sequentially consistent: see [`BufferBudget::has_waiters`].
    if after >= before {
        sum.fetch_add(after - before, Ordering::SeqCst);
    } else {
        sum.fetch_sub(before - after, Ordering::SeqCst);
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
    fn long_values_leave_room_for_short_ones_and_any_has_room_in_half() {
        let budget = BufferBudget::new(8 << 20);
        assert!(budget.admit(5 << 20), "half is free");
        assert!(budget.admit(1 << 20) && !budget.admit(65 << 10), "three quarters are taken");
        assert!((0..32).all(|_| budget.admit(64 << 10)) && !budget.admit(1), "all is taken");
        budget.recharge(4 << 20, 0);
        let waiter = Waiter { reactor: 0, id: 7, bytes: 5 << 20 };
        assert!(budget.enter(waiter) && !budget.enter(Waiter { reactor: 1, ..waiter }));
        assert!(budget.has_room(65 << 10) && !budget.admit(65 << 10), "others asked before");
        assert!(budget.admit(64 << 10) && !budget.admit_first(5 << 20), "more than half is taken");
        budget.recharge(64 << 10, 0);
        assert!(budget.admit_first(5 << 20));
        budget.leave(0, waiter.id);
        assert_eq!(budget.first_waiter().map(|waiter| waiter.reactor), Some(1));
        budget.leave(1, waiter.id);
        assert!(!budget.has_waiters());
    }

    #[test]
    fn what_waits_uncharged_is_bounded() {
        let budget = BufferBudget::new(4 * 10 * UNCHARGED_BYTES);
        let waiters = (0..100).map(|id| Waiter { reactor: 0, id, bytes: 1 });
        let mut entered = 0;
        for waiter in waiters.take_while(|_| budget.takes_waiters()) {
            budget.enter(waiter);
            entered += 1;
        }
        assert_eq!(entered, 10);
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
