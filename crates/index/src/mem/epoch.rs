//! Grace periods: they decide when unlinked memory may be reused (epoch-based reclamation).
//!
//! A thread *pins* itself before it follows index words and unpins when it holds no reference to an
//! item any more. A thread that unlinks items collects them in a bag and *seals* the bag with the
//! current epoch. The memory of a bag may be reused when no thread is pinned at or before its
//! epoch.
//!
//! Pinning is two plain stores: the fence between a pin and the scan of the pins is executed on the
//! scanning side (`membarrier`), which should run thousands of times less often. Without membarrier
//! both sides execute a fence, and also on request
//! ([`crate::Configuration::pins_execute_fence`]). An epoch needs one barrier after it was sealed,
//! whichever thread executes it and however often the pins are scanned: [`Epochs`] keeps the number
//! of the latest epoch that had one.
//!
//! Proof of safety. Let a reader pin at epoch `p` and an unlinker seal at epoch `e`, let a barrier
//! follow the seal, and let a scan follow the barrier.
//! 1. `p > e`: the reader's acquire load of the global epoch read the seal's increment (or a later
//!    one), so the unlinking happens before its reads: it cannot find the item.
//! 2. `p <= e` and the scan sees the pin: the bag waits.
//! 3. `p <= e` and the scan does not see the pin: then the pin was stored after the barrier, and
//!    every read of the reader comes after the unlinking. It cannot find the item. (Or the reader
//!    has unpinned before the scan.)

use crate::sync::{AtomicU64, CachePadded, Ordering, fence};

/// The value of a slot whose thread is not pinned.
const UNPINNED: u64 = 0;

/// The epochs of one index and the pins of its threads.
pub(super) struct Epochs {
    global: CachePadded<AtomicU64>,
    /// The latest epoch after whose end a barrier was executed; 0 at first.
    fenced: CachePadded<AtomicU64>,
    slots: Box<[CachePadded<Slot>]>,
    /// The side that executes the fence between a pin and the scan of the pins.
    pins: Barrier,
    /// The side that executes that of [`Epochs::light_fence`] and [`Epochs::heavy_fence`].
    barrier: Barrier,
}

/// A thread's pin.
#[derive(Default)]
pub(super) struct Slot {
    /// [`UNPINNED`], or the epoch at which the thread pinned itself.
    epoch: AtomicU64,
    /// The number of guards that the thread holds; only that thread writes it.
    depth: AtomicU64,
    /// 1 while a thread has the slot.
    taken: AtomicU64,
}

/// The side that executes the fence between a store that is frequent and a scan that is not.
#[derive(Clone, Copy, PartialEq)]
enum Barrier {
    /// The scan, by making every running thread of the process execute a fence.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    Scan,
    /// Both sides.
    Both,
}

impl Barrier {
    #[inline]
    fn light_fence(self) {
        match self {
            Self::Scan => compiler_fence(),
            Self::Both => fence(Ordering::SeqCst),
        }
    }

    fn heavy_fence(self) {
        match self {
            Self::Scan => membarrier(),
            Self::Both => fence(Ordering::SeqCst),
        }
    }
}

impl Epochs {
    pub(super) fn new(threads: usize, pins_execute_fence: bool) -> Self {
        let barrier = register_membarrier();
        Self {
            global: CachePadded(AtomicU64::new(1)),
            fenced: CachePadded(AtomicU64::new(0)),
            slots: (0..threads).map(|_| CachePadded::default()).collect(),
            pins: if pins_execute_fence { Barrier::Both } else { barrier },
            barrier,
        }
    }

    /// Takes a slot for the calling thread; None if all are taken.
    pub(super) fn take_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| {
            // Acquire pairs with the release in `return_slot`: the previous owner's pin is over.
            slot.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Gives a slot back.
    ///
    /// # Panics
    ///
    /// If its thread still holds a guard.
    pub(super) fn return_slot(&self, slot: usize) {
        let slot = &self.slots[slot];
        assert_eq!(slot.depth.load(Ordering::Relaxed), 0, "a worker ended under its own guard");
        slot.taken.store(0, Ordering::Release);
    }

    #[inline]
    pub(super) fn pin(&self, slot: usize) -> Guard<'_> {
        let slot = &*self.slots[slot];
        let depth = slot.depth.load(Ordering::Relaxed);
        if depth == 0 {
            // Acquire pairs with the increment in `seal` (case 1 above).
            slot.epoch.store(self.global.load(Ordering::Acquire), Ordering::Relaxed);
            // Pairs with the heavy fence in `unreachable_below` (case 3).
            self.pins.light_fence();
        }
        slot.depth.store(depth + 1, Ordering::Relaxed);
        Guard { slot, not_send: std::marker::PhantomData }
    }

    /// The cheap half of an asymmetric fence. Of two threads that each store, fence (one lightly,
    /// one heavily) and load what the other stores, at least one sees the other's store.
    #[inline]
    pub(super) fn light_fence(&self) {
        self.barrier.light_fence();
    }

    /// The expensive half (about 10 microseconds): see [`Epochs::light_fence`].
    pub(super) fn heavy_fence(&self) {
        self.barrier.heavy_fence();
    }

    /// Ends the current epoch and returns it: items that the calling thread unlinked before belong
    /// to it.
    pub(super) fn seal(&self) -> u64 {
        // Release publishes the unlinking to every thread that pins later (case 1).
        self.global.fetch_add(1, Ordering::AcqRel)
    }

    /// The latest epoch that has ended; 0 if none has.
    pub(super) fn last_ended(&self) -> u64 {
        // Acquire pairs with the seals of all ended epochs: what was unlinked in them happens
        // before the fence that follows.
        self.global.load(Ordering::Acquire) - 1
    }

    /// The epoch below which no thread can reach what was unlinked: bags of earlier epochs may be
    /// freed. Executes a barrier only if epoch `wanted`, which has ended, had none and no thread is
    /// seen that it waits for.
    pub(super) fn unreachable_below(&self, wanted: u64) -> u64 {
        // Acquire, and before the scan: pins stored before that barrier are seen. Pairs with the
        // release below.
        let fenced = self.fenced.load(Ordering::Acquire);
        let oldest_pin = self.oldest_pin();
        if fenced >= wanted || oldest_pin <= wanted {
            return oldest_pin.min(fenced + 1);
        }
        let ended = self.last_ended();
        self.pins.heavy_fence();
        self.fenced.fetch_max(ended, Ordering::AcqRel);
        self.oldest_pin().min(ended + 1)
    }

    /// The oldest epoch at which a thread is seen pinned; `u64::MAX` if none is.
    fn oldest_pin(&self) -> u64 {
        // Acquire pairs with the release in `Guard::drop`: a thread's reads under its pin come
        // before the memory is reused.
        let pins = self.slots.iter().map(|slot| slot.epoch.load(Ordering::Acquire));
        pins.filter(|epoch| *epoch != UNPINNED).min().unwrap_or(u64::MAX)
    }
}

/// Keeps the thread pinned: while the guard lives, no item that the thread can reach is reused.
pub struct Guard<'m> {
    slot: &'m Slot,
    /// A guard belongs to the thread of its slot.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let depth = self.slot.depth.load(Ordering::Relaxed) - 1;
        self.slot.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            self.slot.epoch.store(UNPINNED, Ordering::Release);
        }
    }
}

/// Keeps the compiler, not the processor, from moving reads before the pin.
fn compiler_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
fn register_membarrier() -> Barrier {
    let command = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    // SAFETY: registers the process for a barrier; touches no memory.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Barrier::Scan,
        _ => Barrier::Both,
    }
}

/// Miri, loom and other systems have no membarrier.
#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
fn register_membarrier() -> Barrier {
    Barrier::Both
}

/// Executes a full fence on every running thread of the process (about 10 microseconds).
fn membarrier() {
    #[cfg(all(target_os = "linux", not(miri), not(loom)))]
    {
        let command = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        // SAFETY: a barrier; touches no memory.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        assert_eq!(result, 0, "membarrier failed after it was registered");
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
    unreachable!("chosen only where it is there");
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    type Shared = (Epochs, AtomicU64, loom::cell::UnsafeCell<u64>);

    /// Follows the link under a guard, and reads the item if it is linked.
    fn read(shared: &Shared) {
        let (epochs, link, item) = shared;
        let slot = epochs.take_slot().expect("a slot");
        let guard = epochs.pin(slot);
        if link.load(Ordering::Acquire) == 1 {
            // Loom fails the test if this read races with the reuse.
            // SAFETY: what the test is about.
            item.with(|value| assert_eq!(unsafe { *value }, 7));
        }
        drop(guard);
        epochs.return_slot(slot);
    }

    fn reuse_if_unreachable(shared: &Shared, epoch: u64) {
        let (epochs, _, item) = shared;
        if epoch < epochs.unreachable_below(epoch) {
            // SAFETY: what the test is about.
            item.with_mut(|value| unsafe { *value = 8 });
        }
    }

    fn shared() -> Arc<Shared> {
        let item = loom::cell::UnsafeCell::new(7);
        Arc::new((Epochs::new(2, true), AtomicU64::new(1), item))
    }

    /// A reader and an unlinker: the item is never reused while the reader may read it.
    #[test]
    fn a_pinned_reader_keeps_what_it_found() {
        loom::model(|| {
            let shared = shared();
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || read(&shared))
            };
            shared.1.store(0, Ordering::Release);
            let epoch = shared.0.seal();
            reuse_if_unreachable(&shared, epoch);
            reader.join().expect("the reader ends");
        });
    }

    /// The unlinker relies on the barrier of another thread, if that came after its seal.
    #[test]
    fn a_barrier_serves_all_threads() {
        loom::model(|| {
            let shared = shared();
            let [reader, other] = [read, |shared: &Shared| {
                let epochs = &shared.0;
                epochs.unreachable_below(epochs.last_ended());
            }]
            .map(|work: fn(&Shared)| {
                let shared = shared.clone();
                thread::spawn(move || work(&shared))
            });
            shared.1.store(0, Ordering::Release);
            let epoch = shared.0.seal();
            reuse_if_unreachable(&shared, epoch);
            reader.join().expect("the reader ends");
            other.join().expect("the other ends");
        });
    }
}
