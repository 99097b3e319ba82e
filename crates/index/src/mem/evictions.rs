//! Logs of items that left by themselves, kept while an observer wants them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

/// An item that was evicted, or that was found expired, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// Whether it had expired.
    pub has_expired: bool,
}

/// Logs evictions while they are watched; otherwise an eviction costs two loads. Any thread may
/// call it.
#[derive(Default)]
pub struct Evictions {
    /// Evictions that are kept until they are taken, at most; later ones are not logged.
    most: AtomicUsize,
    items: Mutex<VecDeque<Evicted>>,
    keeps_values: AtomicBool,
    departed: Mutex<Vec<Departed>>,
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

    /// From now on keeps every item that is evicted or found expired, with its value. There is no
    /// bound: call [`Self::take_departed`] after each operation.
    pub fn keep_values(&self) {
        self.keeps_values.store(true, Ordering::Relaxed);
    }

    /// Takes the items that were kept since the last call, oldest first.
    pub fn take_departed(&self) -> Vec<Departed> {
        std::mem::take(&mut *self.departed.lock().ignore_poison())
    }

    /// Keeps an item that leaves, if values are kept.
    pub(super) fn note_departed(&self, item: &ItemView<'_>, has_expired: bool) {
        if self.keeps_values.load(Ordering::Relaxed) {
            let (key, value) = (item.key.to_vec(), item.value.as_bytes().to_vec());
            self.departed.lock().ignore_poison().push(Departed { key, value, has_expired });
        }
    }

    /// Logs an eviction, if evictions are watched.
    pub(super) fn note(&self, item: &ItemView<'_>, now: &Now) {
        self.note_departed(item, false);
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
