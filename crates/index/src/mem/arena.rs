//! The arena: one reservation of address space, which the system backs with memory as it is
//! touched.
//!
//! Invariants: (1) the reservation never moves or shrinks while the arena lives; (2) fresh or
//! discarded memory reads as zero; (3) no item's header lies at offset 0, so 0 serves as "no item".

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A reservation of address space, aligned to [`Arena::ALIGNMENT`].
pub(super) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    /// Start of the mapping that `base` was aligned within, and its length.
    mapping: (NonNull<u8>, usize),
    /// The length of the first part, where huge pages are asked for. Relaxed: it guards no memory.
    huge_bytes: AtomicUsize,
}

// SAFETY: the arena is address space; the page table and the grace periods decide which thread may
// access which part.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Huge pages have 2 MiB on x86-64 and 64-bit Arm with 4 KiB pages.
    pub(super) const ALIGNMENT: usize = if cfg!(miri) { 1 << 12 } else { 2 << 20 };

    /// Reserves `bytes`; asks for huge pages in the first `huge_bytes`.
    pub(super) fn reserve(bytes: usize, huge_bytes: usize) -> io::Result<Self> {
        let mapping_bytes = bytes + Self::ALIGNMENT;
        let start = system::map(mapping_bytes)?;
        let padding = start.as_ptr().align_offset(Self::ALIGNMENT);
        // SAFETY: the padding is less than the alignment, by which the mapping is longer than
        // `bytes`.
        let base = unsafe { start.add(padding) };
        let mapping = (start, mapping_bytes);
        let arena = Self { base, bytes, mapping, huge_bytes: AtomicUsize::new(0) };
        arena.prefer_huge_pages(huge_bytes);
        Ok(arena)
    }

    /// Asks for huge pages in the first `bytes`. What is touched already stays as it is.
    pub(super) fn prefer_huge_pages(&self, bytes: usize) {
        self.huge_bytes.store(bytes, Ordering::Relaxed);
        system::prefer_huge_pages(self.base, bytes);
    }

    /// Asks for huge pages, or only for usual ones, in the block of [`Arena::ALIGNMENT`] around
    /// `offset`, if huge ones are asked for there at all. The system fills the holes of a block
    /// with memory of its own accord to make a huge page of it, also those that were discarded.
    pub(super) fn set_huge_page(&self, offset: u64, is_huge: bool) {
        let start = offset & !(Self::ALIGNMENT as u64 - 1);
        if start as usize + Self::ALIGNMENT > self.huge_bytes.load(Ordering::Relaxed) {
            return;
        }
        match is_huge {
            true => system::prefer_huge_pages(self.at(start), Self::ALIGNMENT),
            false => system::refuse_huge_pages(self.at(start), Self::ALIGNMENT),
        }
    }

    /// The length of the reservation in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `offset`.
    #[inline]
    pub(super) fn at(&self, offset: u64) -> NonNull<u8> {
        debug_assert!((offset as usize) < self.bytes, "offset {offset} outside of the arena");
        // SAFETY: offsets come from this arena, so they lie within the reservation.
        unsafe { self.base.add(offset as usize) }
    }

    /// Gives the memory behind a range back to the system; the range reads as zero afterwards.
    ///
    /// # Safety
    ///
    /// No thread uses the range now or holds a reference into it.
    pub(super) unsafe fn discard(&self, offset: u64, bytes: usize) {
        system::discard(self.at(offset), bytes);
    }

    /// Makes AddressSanitizer report accesses to a range, whose ends are multiples of 8. A compiler
    /// without `--cfg asan` leaves nothing of it.
    pub(super) fn forbid(&self, offset: u64, bytes: usize) {
        system::forbid(self.at(offset), bytes);
    }

    /// Ends what [`Arena::forbid`] began. The start of the range is a multiple of 8.
    pub(super) fn allow(&self, offset: u64, bytes: usize) {
        system::allow(self.at(offset), bytes);
    }

    /// Whether an access to the byte at `offset` would be reported.
    #[cfg(all(asan, test))]
    pub(super) fn is_forbidden(&self, offset: u64) -> bool {
        system::is_forbidden(self.at(offset))
    }

    /// Faults the pages of a range in, so that later writes do not fault. Contents are kept.
    /// Requires: no thread but the caller uses the range.
    pub(super) fn populate(&self, offset: u64, bytes: usize) {
        system::populate(self.at(offset), bytes);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // The next mapping may have these addresses.
        self.allow(0, self.bytes);
        system::unmap(self.mapping.0, self.mapping.1);
    }
}

/// Zeroed memory of its own mapping, for tables; huge pages where the system has them.
pub(super) struct Mapping(Arena);

impl Mapping {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        Arena::reserve(bytes, bytes).map(Self)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    pub(super) fn populate(&self) {
        self.0.populate(0, self.0.bytes);
    }
}

#[cfg(not(miri))]
mod system {
    use super::{NonNull, io};

    #[cfg(asan)]
    unsafe extern "C" {
        fn __asan_poison_memory_region(start: *const u8, bytes: usize);
        fn __asan_unpoison_memory_region(start: *const u8, bytes: usize);
        #[cfg(test)]
        fn __asan_address_is_poisoned(byte: *const u8) -> i32;
    }

    #[cfg(all(asan, test))]
    pub(super) fn is_forbidden(byte: NonNull<u8>) -> bool {
        // SAFETY: it asks for a note, and reads nothing there.
        unsafe { __asan_address_is_poisoned(byte.as_ptr()) != 0 }
    }

    pub(super) fn forbid(_start: NonNull<u8>, _bytes: usize) {
        #[cfg(asan)]
        // SAFETY: a note on our own mapping, whose contents stay.
        unsafe {
            __asan_poison_memory_region(_start.as_ptr(), _bytes);
        }
    }

    pub(super) fn allow(_start: NonNull<u8>, _bytes: usize) {
        #[cfg(asan)]
        // SAFETY: as above.
        unsafe {
            __asan_unpoison_memory_region(_start.as_ptr(), _bytes);
        }
    }

    pub(super) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the owner of the mapping is being dropped.
        let result = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
        debug_assert_eq!(result, 0, "unmapping what was mapped");
    }

    /// A hint; systems without huge pages ignore it.
    #[cfg(target_os = "linux")]
    pub(super) fn prefer_huge_pages(start: NonNull<u8>, bytes: usize) {
        // SAFETY: advice on our own mapping changes no contents.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }

    /// A hint, as [`prefer_huge_pages`].
    #[cfg(target_os = "linux")]
    pub(super) fn refuse_huge_pages(start: NonNull<u8>, bytes: usize) {
        // SAFETY: advice on our own mapping changes no contents.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn prefer_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

    #[cfg(not(target_os = "linux"))]
    pub(super) fn refuse_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

    /// Other systems do not promise that discarded memory reads as zero, but a new mapping does.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn discard(start: NonNull<u8>, bytes: usize) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the caller says that nobody uses the range, which is our own mapping.
        let address = unsafe { libc::mmap(start.as_ptr().cast(), bytes, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "discarding our own mapping");
    }

    #[cfg(target_os = "linux")]
    pub(super) fn discard(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller says that nobody uses the range.
        let result = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
        assert_eq!(result, 0, "discarding our own mapping");
    }

    /// Elsewhere the first write to each page faults.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn populate(_start: NonNull<u8>, _bytes: usize) {}

    #[cfg(target_os = "linux")]
    pub(super) fn populate(start: NonNull<u8>, bytes: usize) {
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: faults pages of our own mapping in; contents are kept.
        let result = unsafe { libc::madvise(start.as_ptr().cast(), bytes, MADV_POPULATE_WRITE) };
        if result != 0 {
            // Kernels before 5.14 do not know the advice: the first write to each page faults
            // instead.
            std::hint::black_box(result);
        }
    }
}

/// Miri does not support madvise: a zeroed allocation stands in for the mapping.
#[cfg(miri)]
mod system {
    use super::{Arena, NonNull, io};
    use std::alloc::Layout;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, Arena::ALIGNMENT).expect("a small test arena")
    }

    pub(super) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout(bytes)) };
        NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: allocated in `map` with this layout.
        unsafe { std::alloc::dealloc(start.as_ptr(), layout(bytes)) };
    }

    pub(super) fn prefer_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

    pub(super) fn refuse_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

    pub(super) fn discard(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller says that nobody uses the range.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
    }

    pub(super) fn populate(_start: NonNull<u8>, _bytes: usize) {}

    pub(super) fn forbid(_start: NonNull<u8>, _bytes: usize) {}

    pub(super) fn allow(_start: NonNull<u8>, _bytes: usize) {}
}
