//! The bound on the memory of all connections' buffers together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes that connections keep from one batch to the next. Shared by all threads.
pub struct BufferBudget {
    used_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
}

impl BufferBudget {
    /// A budget with a limit in bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self { used_bytes: AtomicUsize::new(0), limit_bytes: AtomicUsize::new(limit_bytes) }
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_limit(&self, limit_bytes: usize) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// Whether `bytes` more would fit. Other workers may take them meanwhile, so the limit can be
    /// exceeded by one buffer for each worker.
    pub fn allows(&self, bytes: usize) -> bool {
        self.used_bytes().saturating_add(bytes) <= self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the charge of a connection from `before` to `after` bytes.
    pub fn recharge(&self, before: usize, after: usize) {
        // Relaxed: a sum that orders nothing.
        if after >= before {
            self.used_bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.used_bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}
