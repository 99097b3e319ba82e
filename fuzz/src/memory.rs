//! An allocator that counts, so that targets can bound the memory that an input makes the code
//! under test take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Counts the bytes of the system's allocator.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(bytes: usize) {
    let now = NOW.fetch_add(bytes, Relaxed) + bytes;
    // A target runs on one thread, so this need not be one step.
    if now > PEAK.load(Relaxed) {
        PEAK.store(now, Relaxed);
    }
}

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both may exist for a moment.
        add(bytes);
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// Bytes that are allocated.
pub fn allocated() -> usize {
    NOW.load(Relaxed)
}

/// Runs `body`, which may take at most this many bytes at any time over those taken before.
///
/// # Panics
///
/// If it takes more.
pub fn within<T>(bytes: usize, body: impl FnOnce() -> T) -> T {
    let before = allocated();
    PEAK.store(before, Relaxed);
    let result = body();
    let taken = PEAK.load(Relaxed) - before;
    assert!(taken <= bytes, "took {taken} bytes of memory, may take {bytes}");
    result
}
