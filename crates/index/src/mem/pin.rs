//! Values that outlive their guard, for vectored writes without a copy.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use amalgam_op::IgnorePoison;

use super::{ItemRef, Memory};

/// Pinned items and how often. A reader enters an item while it holds a guard; a reclaimer looks
/// here after the grace period: by then no new pin of the item can appear.
#[derive(Default)]
pub(super) struct Pins {
    /// Items pinned. A reader's increment comes before the release that ends its guard, which the
    /// reclaimer's scan of the guards acquires; so a reclaimer that reads 0 missed nothing.
    count: AtomicUsize,
    items: Mutex<HashMap<ItemRef, Pin>>,
}

#[derive(Default)]
struct Pin {
    readers: usize,
    /// Whether the item waits for its last reader to be freed.
    is_freed: bool,
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, HashMap<ItemRef, Pin>> {
        self.items.lock().ignore_poison()
    }

    /// Whether nothing is pinned that was retired more than a grace period ago.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether `item` is pinned; then its last reader will free it.
    pub(super) fn postpone(&self, item: ItemRef) -> bool {
        if self.is_empty() {
            return false;
        }
        self.lock().get_mut(&item).map(|pin| pin.is_freed = true).is_some()
    }
}

/// A value kept in memory beyond its guard; let go on drop.
pub struct Pinned {
    memory: Arc<Memory>,
    item: ItemRef,
    value: NonNull<[u8]>,
}

// SAFETY: the value is immutable bytes that stay until the pin is dropped, in whatever thread.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// The value.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `Memory::pin_value` took it from a live item, which is not reused before our
        // drop.
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
            drop(items);
            pins.count.fetch_sub(1, Ordering::Release);
            if is_freed {
                self.memory.free_later(self.item);
            }
        }
    }
}

impl Memory {
    /// Pins `item`, whose value is `value`. The caller holds a guard under which it read the item.
    pub(crate) fn pin_value(self: &Arc<Self>, item: ItemRef, value: &[u8]) -> Pinned {
        let mut items = self.pins.lock();
        let pin = items.entry(item).or_default();
        pin.readers += 1;
        if pin.readers == 1 {
            self.pins.count.fetch_add(1, Ordering::Release);
        }
        drop(items);
        Pinned { memory: self.clone(), item, value: NonNull::from(value) }
    }
}
