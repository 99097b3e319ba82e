//! Which items were evicted, for whoever wants to know.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use amalgam_op::{IgnorePoison, ItemView, Now};

/// Evictions kept until somebody takes them; later ones are not noted.
const MOST_KEPT: usize = 4096;

/// An item that was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Its key.
    pub key: Vec<u8>,
    /// Length of its value in bytes.
    pub value_bytes: usize,
    /// The client's opaque 32 bits.
    pub flags: u32,
    /// Whether it was read since it was written.
    pub is_fetched: bool,
    /// How long it would have lived; none for ever.
    pub ttl_seconds: Option<u32>,
}

/// Notes evictions while they are watched; else costs one load each.
#[derive(Default)]
pub struct Evictions {
    is_watched: AtomicBool,
    items: Mutex<VecDeque<Evicted>>,
}

impl Evictions {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Evicted>> {
        self.items.lock().ignore_poison()
    }

    /// Begins or ends to note.
    pub fn watch(&self, is_watched: bool) {
        // Relaxed: evictions under way may or may not be noted.
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Notes an eviction, if somebody watches.
    pub(super) fn note(&self, item: &ItemView<'_>, now: &Now) {
        if !self.is_watched.load(Ordering::Relaxed) {
            return;
        }
        let mut items = self.lock();
        if items.len() < MOST_KEPT {
            items.push_back(Evicted {
                key: item.key.to_vec(),
                value_bytes: item.value.len(),
                flags: item.flags,
                is_fetched: item.fetched,
                ttl_seconds: item.expiry.remaining_seconds(now),
            });
        }
    }

    /// Takes what was noted.
    pub fn take(&self) -> VecDeque<Evicted> {
        std::mem::take(&mut *self.lock())
    }
}
