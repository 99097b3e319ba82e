//! The memory limit: all memory taken from the system is charged here first; and the error that
//! there is none.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes used and allowed. `used` exceeds `limit` only after the limit was lowered.
pub(super) struct Budget {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl Budget {
    pub(super) fn new(limit: usize) -> Self {
        Self { used: AtomicUsize::new(0), limit: AtomicUsize::new(limit) }
    }

    /// Charges `bytes` if the limit allows it.
    pub(super) fn try_charge(&self, bytes: usize) -> bool {
        let limit = self.limit();
        let charge = |used: usize| used.checked_add(bytes).filter(|used| *used <= limit);
        // Relaxed: this is only a counter; other atomics and locks publish the memory itself.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge).is_ok()
    }

    pub(super) fn release(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "released more than was charged");
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }
}

/// The error that there is no memory for an item now; [`super::Pool::make_room`] may find some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage(pub(super) Need);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A slot of this class.
    Class(usize),
    /// A large item of this many bytes.
    Large(usize),
    /// More than the index accepts.
    TooLarge,
}

impl Shortage {
    /// Whether the item is longer than [`crate::Configuration::max_item_bytes`].
    pub fn is_too_large(self) -> bool {
        self.0 == Need::TooLarge
    }
}
