//! Whether connections are accepted, and what was turned away.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Says whether connections are accepted, and counts pauses. Written by the accepting thread, read
/// by all.
pub struct AcceptGate {
    is_open: AtomicBool,
    /// How often accepting was paused.
    pub pauses: AtomicU64,
    /// How long accepting was paused in total, in microseconds, without the current pause.
    pub paused_micros: AtomicU64,
    /// Connections that were accepted only to be closed, because there were too many.
    pub rejected: AtomicU64,
}

impl Default for AcceptGate {
    fn default() -> Self {
        Self {
            is_open: AtomicBool::new(true),
            pauses: AtomicU64::new(0),
            paused_micros: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        }
    }
}

impl AcceptGate {
    /// Whether connections are accepted at the moment.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Pauses accepting.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.pauses.fetch_add(1, Ordering::Relaxed);
    }

    /// Resumes accepting after a pause of this length.
    pub fn reopen(&self, paused: Duration) {
        self.paused_micros.fetch_add(paused.as_micros() as u64, Ordering::Relaxed);
        self.is_open.store(true, Ordering::Relaxed);
    }
}
