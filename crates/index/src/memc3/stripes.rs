//! Locks and version counters of stripes of buckets. Writers exclude each other by the lock bit;
//! from the rest readers see whether items of these buckets were moved while they searched.
//!
//! ```text
//! bit 0      a writer holds the stripe
//! bit 1      it is moving items between buckets: a reader's miss means nothing now
//! bit 2..64  version: number of times that items of the stripe's buckets were moved
//! ```
//!
//! Writers that move nothing (insert into an empty slot, replace, unlink) leave the version
//! unchanged: they change one key by one store, and a reader's miss is right before or after it.
//!
//! Invariants:
//! 1. A thread that holds two stripes locked the lower one first. A thread that holds stripes locks
//!    nothing else but a scan's log, and allocates nothing.
//! 2. Only the holder writes a counter.
//! 3. 62 bits of version do not wrap: at a billion moves a second that takes a century.

use crate::sync::{AtomicU64, Ordering, fence, spin};

const LOCKED: u64 = 1;
const MOVING: u64 = 2;
const VERSION: u64 = 4;

/// The counters of a table.
pub(super) struct Stripes {
    counters: Box<[AtomicU64]>,
    mask: u64,
}

/// The two counters of a bucket pair, as a reader loaded them, without their lock bits.
#[derive(Clone, Copy)]
pub(super) struct VersionPair([u64; 2]);

/// One or two stripes, locked until this is dropped.
pub(super) struct StripeGuard<'s> {
    counters: [&'s AtomicU64; 2],
    /// Whether both buckets share one counter.
    is_single: bool,
    has_moved: bool,
}

impl Stripes {
    /// `count` stripes, a power of two. A bucket's stripe depends on the low bits of its index
    /// only, so that both halves of a bucket that is split stay in it.
    pub(super) fn new(count: usize) -> Self {
        assert!(count.is_power_of_two(), "the number of stripes is a power of two");
        let counters = (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { counters, mask: count as u64 - 1 }
    }

    /// Bytes that the counters take.
    pub(super) fn bytes(&self) -> usize {
        self.counters.len() * size_of::<AtomicU64>()
    }

    #[inline]
    fn counter(&self, bucket: u64) -> &AtomicU64 {
        &self.counters[(bucket & self.mask) as usize]
    }

    /// Begins a read of two buckets; None while items of theirs are being moved.
    #[inline]
    pub(super) fn begin_read(&self, buckets: [u64; 2]) -> Option<VersionPair> {
        // Acquire: the reads of the buckets come after these. Pairs with the release that ends a
        // move: a reader that sees its version sees the moved items in their new slots.
        let seen = buckets.map(|bucket| self.counter(bucket).load(Ordering::Acquire) & !LOCKED);
        let is_moving = (seen[0] | seen[1]) & MOVING != 0;
        (!is_moving).then_some(VersionPair(seen))
    }

    /// Whether no item was moved out of or into the two buckets since `snapshot` was taken.
    #[inline]
    pub(super) fn is_unchanged(&self, buckets: [u64; 2], snapshot: VersionPair) -> bool {
        // Pairs with the release fence in `begin_move`: a reader that loaded a word that a mover
        // stored sees the mover's mark, or a later version, below.
        fence(Ordering::Acquire);
        let seen = buckets.map(|bucket| self.counter(bucket).load(Ordering::Relaxed) & !LOCKED);
        seen == snapshot.0
    }

    /// Locks the stripe of one bucket.
    #[inline]
    pub(super) fn lock(&self, bucket: u64) -> StripeGuard<'_> {
        let counter = self.counter(bucket);
        acquire(counter);
        StripeGuard { counters: [counter, counter], is_single: true, has_moved: false }
    }

    /// Locks the stripes of two buckets.
    #[inline]
    pub(super) fn lock_both(&self, buckets: [u64; 2]) -> StripeGuard<'_> {
        let [left, right] = buckets.map(|bucket| bucket & self.mask);
        if left == right {
            return self.lock(left);
        }
        let counters = [self.counter(left.min(right)), self.counter(left.max(right))];
        acquire(counters[0]);
        acquire(counters[1]);
        StripeGuard { counters, is_single: false, has_moved: false }
    }
}

impl StripeGuard<'_> {
    /// Marks the stripes: readers that miss from here on try again.
    pub(super) fn begin_move(&mut self) {
        self.has_moved = true;
        for counter in self.distinct() {
            // Only the holder writes, so a load and a store are enough.
            counter.store(counter.load(Ordering::Relaxed) | MOVING, Ordering::Relaxed);
        }
        // Before the moving stores. Pairs with the acquire fence in `is_unchanged`.
        fence(Ordering::Release);
    }

    fn distinct(&self) -> &[&AtomicU64] {
        if self.is_single { &self.counters[..1] } else { &self.counters }
    }
}

impl Drop for StripeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        for counter in self.distinct() {
            let value = counter.load(Ordering::Relaxed) & !(LOCKED | MOVING);
            let value = if self.has_moved { value.wrapping_add(VERSION) } else { value };
            // Release: the next holder, and readers that see the version, see the holder's stores.
            counter.store(value, Ordering::Release);
        }
    }
}

#[inline]
fn acquire(counter: &AtomicU64) {
    let mut round = 0_u32;
    loop {
        let value = counter.load(Ordering::Relaxed);
        // Acquire pairs with the release in `StripeGuard::drop`.
        let is_free = value & LOCKED == 0;
        if is_free
            && counter
                .compare_exchange_weak(value, value | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            return;
        }
        spin(round);
        round = round.saturating_add(1);
    }
}
