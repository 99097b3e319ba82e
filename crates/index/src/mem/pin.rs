//! Pinned values, which outlive their guard, for vectored writes without a copy.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use amalgam_op::IgnorePoison;

use super::{ItemRef, Memory};

/// Pinned items and their numbers of readers. A reader adds an item while it holds a guard; a
/// reclaimer checks the table after the item's grace period, when no new pin of the item can
/// appear.
#[derive(Default)]
pub(super) struct Pins {
    /// The number of pinned items. A reader's increment comes before the release that ends its
    /// guard, which the reclaimer's scan of the guards acquires; so a reclaimer that reads 0 has
    /// missed no pin of an item past its grace period.
    count: AtomicUsize,
    /// Bytes of the pinned values, each counted once however many readers it has.
    bytes: AtomicUsize,
    items: Mutex<HashMap<ItemRef, Pin>>,
}

#[derive(Default)]
struct Pin {
    readers: usize,
    /// Whether the item's grace period is over, so that its last reader frees it.
    is_freed: bool,
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, HashMap<ItemRef, Pin>> {
        self.items.lock().ignore_poison()
    }

    /// Whether no item is pinned. The answer is exact for items past their grace period.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether `item` is pinned. If it is, its last reader will free it and the caller must not.
    pub(super) fn postpone(&self, item: ItemRef) -> bool {
        if self.is_empty() {
            return false;
        }
        self.lock().get_mut(&item).map(|pin| pin.is_freed = true).is_some()
    }
}

/// A value kept in memory beyond its guard; released on drop.
pub struct Pinned {
    memory: Arc<Memory>,
    item: ItemRef,
    value: NonNull<[u8]>,
}

// SAFETY: the value is immutable bytes that stay until the pin is dropped, in any thread.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// The value.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `Memory::pin_value` took it from a live item, which is not reused before this pin
        // is dropped.
        unsafe { self.value.as_ref() }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let pins = &self.memory.pins;
        let mut items = pins.lock();
        let pin = items.get_mut(&self.item).expect("a pinned item has an entry");
        pin.readers -= 1;
        if pin.readers == 0 {
            let is_freed = pin.is_freed;
            items.remove(&self.item);
            pins.bytes.fetch_sub(self.as_bytes().len(), Ordering::Relaxed);
            drop(items);
            pins.count.fetch_sub(1, Ordering::Release);
            if is_freed {
                self.memory.free_later(self.item);
            }
        }
    }
}

impl Memory {
    /// Pins `item`, whose value is `value`. Requires: the caller holds a guard under which it read
    /// the item. Locks the table of pins.
    pub(crate) fn pin_value(self: &Arc<Self>, item: ItemRef, value: &[u8]) -> Pinned {
        let mut items = self.pins.lock();
        let pin = items.entry(item).or_default();
        pin.readers += 1;
        if pin.readers == 1 {
            self.pins.count.fetch_add(1, Ordering::Release);
            self.pins.bytes.fetch_add(value.len(), Ordering::Relaxed);
        }
        drop(items);
        Pinned { memory: self.clone(), item, value: NonNull::from(value) }
    }

    /// Bytes of the values that are pinned, each counted once. They are charged to the limit as
    /// long as they are pinned, also after their item was removed.
    pub fn pinned_bytes(&self) -> usize {
        // Relaxed: a sum that orders nothing.
        self.pins.bytes.load(Ordering::Relaxed)
    }
}
