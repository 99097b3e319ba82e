//! Memory of connection buffers, bounded over all connections.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes that connections keep between turns.
pub struct Budget {
    used_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
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

    /// Whether so many bytes more would fit. Others may take them meanwhile: the limit may be
    /// passed by one buffer for each worker.
    pub fn allows(&self, bytes: usize) -> bool {
        self.used_bytes().saturating_add(bytes) <= self.limit_bytes.load(Ordering::Relaxed)
    }

    /// A buffer that was charged with `before` bytes now has `after`.
    pub fn settle(&self, before: usize, after: usize) {
        // Relaxed: a sum that orders nothing.
        if after >= before {
            self.used_bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.used_bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}
