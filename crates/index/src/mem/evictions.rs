//! A log of evicted items, kept while an observer wants it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use amalgam_op::{IgnorePoison, ItemView, Now};

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
    /// Evictions that are kept until they are taken, at most; later ones are not logged.
    most: AtomicUsize,
    items: Mutex<VecDeque<Evicted>>,
}

impl Evictions {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Evicted>> {
        self.items.lock().ignore_poison()
    }

    /// Keeps at most `most` evictions from here on until they are taken; none if it is 0.
    pub fn watch(&self, most: usize) {
        // Relaxed: evictions under way may or may not be logged.
        self.most.store(most, Ordering::Relaxed);
    }

    /// Logs an eviction, if evictions are watched.
    pub(super) fn note(&self, item: &ItemView<'_>, now: &Now) {
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 {
            return;
        }
        let mut items = self.lock();
        if items.len() < most {
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
