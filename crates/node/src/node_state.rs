//! The state that the threads of a node share. Every method may be called by any thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use amalgam_cluster::shard::Served;
use amalgam_cluster::wire::NodeMemory;
use amalgam_op::IgnorePoison;
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::{ItemClock, boot_ms};
use crate::membership::Snapshot;
use crate::own_requests::{HandoffQueue, OwnRequest};
use crate::report::NodeReport;

/// What the threads of a node share. Flags are stored with release and loaded with acquire
/// ordering.
#[derive(Debug)]
pub struct NodeState {
    snapshot: Mutex<Arc<Snapshot>>,
    /// Until when the node is certainly a member, in [`crate::clock::boot_ms`]; 0 if it is not.
    deadline_ms: AtomicU64,
    /// When the event loop began its last turn, in [`crate::clock::boot_ms`].
    beat_ms: AtomicU64,
    /// Since when the log's thread works on one command, in [`crate::clock::boot_ms`]; 0 while it
    /// has none.
    log_busy_since_ms: AtomicU64,
    /// Whether the event loop is to look at the snapshot and the flags before the next tick is due.
    is_tick_due: AtomicBool,
    is_stopping: AtomicBool,
    has_lost_lease: AtomicBool,
    is_leaving: AtomicBool,
    has_left: AtomicBool,
    has_loop_ended: AtomicBool,
    memory: Mutex<NodeMemory>,
    report: Mutex<Option<Arc<NodeReport>>>,
    waker: OwnedFd,
    own_requests: HandoffQueue<OwnRequest>,
    /// What the node serves; set when its event loop starts.
    served: OnceLock<Arc<Served>>,
    /// The time of the node's items.
    pub clock: ItemClock,
}

impl NodeState {
    /// The state of a node that starts.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new(snapshot: Arc<Snapshot>) -> io::Result<Self> {
        Ok(Self {
            snapshot: Mutex::new(snapshot),
            deadline_ms: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            has_lost_lease: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            has_loop_ended: AtomicBool::new(false),
            beat_ms: AtomicU64::new(boot_ms()),
            log_busy_since_ms: AtomicU64::new(0),
            is_tick_due: AtomicBool::new(false),
            memory: Mutex::default(),
            report: Mutex::default(),
            waker: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            own_requests: HandoffQueue::default(),
            served: OnceLock::new(),
            clock: ItemClock::default(),
        })
    }

    /// The snapshot that was published last.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock().ignore_poison())
    }

    /// Replaces the snapshot and wakes the event loop.
    pub fn publish(&self, snapshot: Arc<Snapshot>) {
        *self.snapshot.lock().ignore_poison() = snapshot;
        self.wake_for_tick();
    }

    /// Until when the node is certainly a member, in [`crate::clock::boot_ms`].
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms.load(Ordering::Acquire)
    }

    /// Sets the deadline after the lease was renewed, or to 0 after it has ended.
    pub fn set_deadline_ms(&self, deadline_ms: u64) {
        self.deadline_ms.store(deadline_ms, Ordering::Release);
    }

    /// The event loop begins a turn.
    pub fn beat(&self, now_ms: u64) {
        self.beat_ms.store(now_ms, Ordering::Release);
    }

    /// How long ago the event loop began its last turn, in milliseconds.
    pub fn since_beat_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.beat_ms.load(Ordering::Acquire))
    }

    /// The log's thread begins a command at this time, or has none (0).
    pub fn set_log_busy_since_ms(&self, since_ms: u64) {
        self.log_busy_since_ms.store(since_ms, Ordering::Release);
    }

    /// How long the log's thread has worked on one command, in milliseconds.
    pub fn log_stalled_ms(&self, now_ms: u64) -> u64 {
        match self.log_busy_since_ms.load(Ordering::Acquire) {
            0 => 0,
            since_ms => now_ms.saturating_sub(since_ms),
        }
    }

    /// The use of the node's memory, as it was about a second ago.
    pub fn memory(&self) -> NodeMemory {
        *self.memory.lock().ignore_poison()
    }

    /// Sets the use of the node's memory.
    pub fn set_memory(&self, memory: NodeMemory) {
        *self.memory.lock().ignore_poison() = memory;
    }

    /// What the node showed of itself about a second ago; None before its event loop runs.
    pub fn report(&self) -> Option<Arc<NodeReport>> {
        self.report.lock().ignore_poison().clone()
    }

    /// Sets what the node shows of itself.
    pub fn set_report(&self, report: NodeReport) {
        *self.report.lock().ignore_poison() = Some(Arc::new(report));
    }

    /// Records that the event loop answers nothing more.
    pub fn set_loop_ended(&self) {
        self.has_loop_ended.store(true, Ordering::Release);
    }

    /// Whether the event loop answers nothing more.
    pub fn has_loop_ended(&self) -> bool {
        self.has_loop_ended.load(Ordering::Acquire)
    }

    /// Whether the node is stopping.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Stops the node since the coordinator no longer has it as a member.
    pub fn stop_without_lease(&self) {
        self.has_lost_lease.store(true, Ordering::Release);
        self.stop();
    }

    /// Whether the node stops since the coordinator no longer has it as a member.
    pub fn has_lost_lease(&self) -> bool {
        self.has_lost_lease.load(Ordering::Acquire)
    }

    /// Has the node hand everything it has to other nodes.
    pub fn start_leaving(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.wake_for_tick();
    }

    /// Whether the node hands everything it has to other nodes.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Records that other nodes have everything that this one had.
    pub fn set_has_left(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Whether other nodes have everything that this one had.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Stops the node.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// What the node serves, for threads that execute operations on its items; None before its
    /// event loop runs.
    pub fn served(&self) -> Option<&Arc<Served>> {
        self.served.get()
    }

    /// Sets what the node serves, once.
    pub fn set_served(&self, served: Arc<Served>) {
        let _ = self.served.set(served);
    }

    /// Hands a request of a worker of this process to the event loop.
    pub fn request(&self, request: OwnRequest) {
        if self.own_requests.push(request) {
            self.wake();
        }
    }

    /// Takes the requests that workers of this process have handed over.
    pub fn take_requests(&self) -> Vec<OwnRequest> {
        self.own_requests.take()
    }

    /// The eventfd that wakes the event loop.
    pub fn waker(&self) -> &OwnedFd {
        &self.waker
    }

    fn wake_for_tick(&self) {
        self.is_tick_due.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns whether a tick is due at once, and clears that.
    pub fn take_tick_due(&self) -> bool {
        self.is_tick_due.swap(false, Ordering::AcqRel)
    }

    /// Wakes the event loop.
    pub fn wake(&self) {
        // Fails only if the eventfd's counter is full: the event loop is woken already.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }
}
