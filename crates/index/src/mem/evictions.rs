//! A log of evicted items, kept while an observer wants it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use amalgam_op::{IgnorePoison, ItemView, Now};

/// The number of evictions kept until they are taken; later ones are not logged.
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
    /// The time that the item had left to live; None if it had no expiry.
    pub ttl_seconds: Option<u32>,
}

/// Logs evictions while they are watched; otherwise an eviction costs one load. Any thread may call
/// it.
#[derive(Default)]
pub struct Evictions {
    is_watched: AtomicBool,
    items: Mutex<VecDeque<Evicted>>,
}

impl Evictions {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Evicted>> {
        self.items.lock().ignore_poison()
    }

    /// Starts or stops logging.
    pub fn watch(&self, is_watched: bool) {
        // Relaxed: evictions under way may or may not be logged.
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Logs an eviction, if evictions are watched.
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

    /// Takes the evictions logged since the last call, oldest first.
    pub fn take(&self) -> VecDeque<Evicted> {
        std::mem::take(&mut *self.lock())
    }
}
