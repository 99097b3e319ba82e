//! Items as engines see them: references that fit an index word, and safe reads through them.

use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_op::{Expiry, ItemView, Value};

use super::header::{Header, WORD_BYTES};

/// A reference to an item: the distance of its header from the start of the arena, in bytes. It
/// fits 48 bits, is a multiple of 8 and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ItemRef(NonZeroU64);

impl ItemRef {
    /// The reference in 48 bits, as index words hold it.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The reference that `bits` holds; None for 0.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }
}

/// An item in memory. Its fields never change, except for the word, the link and some header bits,
/// which are atomics.
#[derive(Clone, Copy)]
pub struct Item<'g> {
    pub(super) header: NonNull<u8>,
    reference: ItemRef,
    guard: PhantomData<&'g u8>,
}

impl<'g> Item<'g> {
    /// # Safety
    ///
    /// `header` is the address of `reference`, the item was filled (`Pool::fill`) by a call that
    /// happens before this one, and the item is not reused while `'g` lasts.
    #[inline]
    pub(super) unsafe fn new(header: NonNull<u8>, reference: ItemRef) -> Self {
        Self { header, reference, guard: PhantomData }
    }

    /// The item's reference.
    #[inline]
    pub fn reference(&self) -> ItemRef {
        self.reference
    }

    /// The header as an atomic. Its reads, seal and access time may change while others read it;
    /// lengths and fields do not.
    #[inline]
    pub fn header_word(&self) -> &'g AtomicU64 {
        // SAFETY: a live item starts with its header, 8-byte aligned.
        unsafe { self.header.cast::<AtomicU64>().as_ref() }
    }

    /// A snapshot of the header.
    #[inline]
    pub fn header(&self) -> Header {
        // Relaxed: the fields that never change were published with the item.
        Header(self.header_word().load(Ordering::Relaxed))
    }

    /// The link word before the header. Requires: a layout with a link word (`SlotLayout::Linked`
    /// or `SlotLayout::Chained`).
    #[inline]
    pub fn link(&self) -> &'g AtomicU64 {
        // SAFETY: these layouts have 8 bytes before the header, and only engines with such a layout
        // call this (a `Memory` is built with the layout of its one engine).
        unsafe { self.header.sub(8).cast::<AtomicU64>().as_ref() }
    }

    /// The word of a value of at most 8 bytes ([`Header::has_word`]), which may change in place.
    ///
    /// # Panics
    ///
    /// If the value is longer.
    #[inline]
    pub fn word(&self) -> &'g AtomicU64 {
        assert!(self.header().has_word(), "a longer value has no word");
        // SAFETY: checked.
        unsafe { self.word_unchecked() }
    }

    /// # Safety
    ///
    /// The item has a word: [`Header::has_word`].
    #[inline]
    pub(super) unsafe fn word_unchecked(&self) -> &'g AtomicU64 {
        // SAFETY: the word follows the header, 8-byte aligned.
        unsafe { self.header.add(8).cast::<AtomicU64>().as_ref() }
    }

    /// The full key.
    #[inline]
    pub fn key(&self) -> &'g [u8] {
        let header = self.header();
        self.bytes(header.key_offset(), header.key_bytes())
    }

    /// Whether this is the item of `key`.
    #[inline]
    pub fn has_key(&self, key: &[u8]) -> bool {
        let header = self.header();
        header.key_bytes() == key.len() && equal(self.bytes(header.key_offset(), key.len()), key)
    }

    /// As [`Item::has_key`], with a header that was loaded before.
    #[inline]
    pub fn is_of(&self, header: Header, key: &[u8]) -> bool {
        header.key_bytes() == key.len() && equal(self.bytes(header.key_offset(), key.len()), key)
    }

    /// One consistent state of the item. The word is read once, with acquire ordering.
    #[inline]
    pub fn view(&self) -> ItemView<'g> {
        self.view_of(self.header())
    }

    /// As [`Item::view`], with a header that was loaded before.
    #[inline]
    pub fn view_of(&self, header: Header) -> ItemView<'g> {
        let value_bytes = header.value_bytes();
        let value = if header.has_word() {
            // Acquire pairs with the release of an in-place update.
            Value::Word(self.word().load(Ordering::Acquire).to_le_bytes(), value_bytes)
        } else {
            Value::Bytes(self.bytes(header.key_offset() + header.key_bytes(), value_bytes))
        };
        let meta_flags = header.marks();
        ItemView {
            key: self.bytes(header.key_offset(), header.key_bytes()),
            value,
            flags: if header.has_flags() { self.u32_at(header.flags_offset()) } else { 0 },
            expiry: self.expiry_of(header),
            cas: header.has_cas().then(|| self.u64_at(header.cas_offset())),
            generation: header.generation(),
            fetched: meta_flags.fetched,
            stale: meta_flags.stale,
            won: meta_flags.won,
            last_access_seconds: Some(header.last_access_seconds()),
        }
    }

    /// The item's expiry.
    #[inline]
    pub fn expiry_of(&self, header: Header) -> Expiry {
        if !header.has_expiry() {
            return Expiry::NEVER;
        }
        Expiry(self.u32_at(header.flags_offset() + if header.has_flags() { 4 } else { 0 }))
    }

    /// Records a read and its time, unless that changes nothing: the header of an item that is read
    /// all the time is not written all the time.
    #[inline]
    pub fn mark_accessed(&self, header: Header, seconds: u32) {
        if header.is_read_enough() {
            return;
        }
        // Relaxed: the header's fields do not change, and reads and time are hints. If another
        // thread changed the header meanwhile, most likely by a read, that one is enough; but an
        // item that was read must not look as if it was not.
        let (word, read) = (self.header_word(), header.read_at(seconds));
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let exchanged = word.compare_exchange(header.0, read.0, success, failure);
        if exchanged.is_err_and(|word| !Header(word).is_fetched()) {
            word.fetch_or(Header::FIRST_READ, Ordering::Relaxed);
        }
    }

    /// Records that the CLOCK hand has spared the item, whose header is `header` and recent. With
    /// CLOCK's single bit it does so once.
    pub fn spare(&self, header: Header, has_one_bit: bool) {
        // Relaxed: reads are hints. Whoever changed the header meanwhile has read the item.
        let (passed, ordering) = (header.passed(has_one_bit).0, Ordering::Relaxed);
        _ = self.header_word().compare_exchange(header.0, passed, ordering, ordering);
    }

    /// Bytes of the item from its header on.
    pub fn bytes_held(&self) -> usize {
        self.header().bytes()
    }

    /// Changes the word in place; this is the linearization point of the change. Requires: the
    /// caller holds the lock that keeps the item linked and other threads from changing it.
    #[inline]
    pub fn change_word(&self, word: [u8; WORD_BYTES], is_fetched: bool) {
        // Release pairs with the acquire in `Item::view`.
        self.word().store(u64::from_le_bytes(word), Ordering::Release);
        // A new value was not read yet. A plain store may undo a read that is counted or forgotten
        // meanwhile: reads are hints and no part of the value. No other thread writes the header of
        // a linked item whose word the caller may change.
        let header = self.header_word();
        let word = header.load(Ordering::Relaxed);
        if !is_fetched && word & Header::READS != 0 {
            header.store(word & !Header::READS, Ordering::Relaxed);
        }
    }

    /// Asks the memory system for the item's first line.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.header.as_ptr());
    }

    #[inline]
    pub(super) fn bytes(&self, offset: usize, length: usize) -> &'g [u8] {
        // SAFETY: the header says that the item has these bytes; they never change, and the item
        // is not reused while 'g lasts (`Item::new`).
        unsafe { std::slice::from_raw_parts(self.header.add(offset).as_ptr(), length) }
    }

    #[inline]
    pub(super) fn u32_at(&self, offset: usize) -> u32 {
        let bytes = self.bytes(offset, 4);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline]
    pub(super) fn u64_at(&self, offset: usize) -> u64 {
        u64_of(self.bytes(offset, 8))
    }
}

/// An item that one thread is writing and has not published.
pub(super) struct NewItem<'a> {
    pub(super) header: NonNull<u8>,
    pub(super) owner: PhantomData<&'a mut u8>,
}

impl NewItem<'_> {
    /// The bytes from `offset` on, to be written.
    pub(super) fn bytes(&mut self, offset: usize, length: usize) -> &mut [u8] {
        // SAFETY: the slot is at least as long as its layout says, and no other thread accesses it
        // before its header says that it is live.
        unsafe { std::slice::from_raw_parts_mut(self.header.add(offset).as_ptr(), length) }
    }

    /// Writes all fields, the header last: from then on walks of the memory find a live item.
    pub(super) fn write(
        mut self,
        header: Header,
        key: &[u8],
        item_write: &amalgam_op::ItemWrite<'_>,
        current: &[u8],
    ) {
        let length = header.value_bytes();
        if header.has_word() {
            let mut word = [0; WORD_BYTES];
            item_write.write_value(current, &mut word[..length]);
            self.write_word(u64::from_le_bytes(word));
        }
        if let Some(cas) = item_write.cas {
            self.bytes(header.cas_offset(), 8).copy_from_slice(&cas.to_le_bytes());
        }
        self.write_flags_and_expiry(header, item_write.flags, item_write.expiry);
        self.bytes(header.key_offset(), key.len()).copy_from_slice(key);
        if !header.has_word() {
            let target = self.bytes(header.key_offset() + key.len(), length);
            item_write.write_value(current, target);
        }
        self.publish_header(header);
    }

    /// Writes the word. Requires: the item has one.
    #[inline]
    pub(super) fn write_word(&mut self, word: u64) {
        // SAFETY: the word follows the header, 8-byte aligned, and belongs to this thread
        // alone. It is written as an atomic because later accesses are atomic.
        let target = unsafe { self.header.add(8).cast::<AtomicU64>().as_ref() };
        target.store(word, Ordering::Relaxed);
    }

    /// Writes those of the two fields that the item has.
    pub(super) fn write_flags_and_expiry(&mut self, header: Header, flags: u32, expiry: Expiry) {
        let mut offset = header.flags_offset();
        if header.has_flags() {
            self.bytes(offset, 4).copy_from_slice(&flags.to_le_bytes());
            offset += 4;
        }
        if header.has_expiry() {
            self.bytes(offset, 4).copy_from_slice(&expiry.0.to_le_bytes());
        }
    }

    /// Writes the header: from then on walks of the memory find a live item.
    #[inline]
    pub(super) fn publish_header(self, header: Header) {
        // SAFETY: the slot starts with its header, 8-byte aligned.
        let word = unsafe { self.header.cast::<AtomicU64>().as_ref() };
        // Release pairs with the acquire in `Memory::live_item_at` (CLOCK and sweep).
        word.store(header.0, Ordering::Release);
    }
}

/// Compares short byte strings of equal length without a call.
#[inline]
pub(super) fn equal(left: &[u8], right: &[u8]) -> bool {
    let length = left.len();
    if length >= 8 {
        let last = length - 8;
        let differs = |at: usize| u64_of(&left[at..at + 8]) ^ u64_of(&right[at..at + 8]);
        // No early exit: compared keys are nearly always equal, and otherwise differ at any place.
        let mut difference = differs(last);
        let mut at = 0;
        while at < last {
            difference |= differs(at);
            at += 8;
        }
        difference == 0
    } else {
        left == right
    }
}

/// The first 8 bytes as a number.
#[inline]
fn u64_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Asks the memory system for the line at `address`; a hint that is always safe.
#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    let _ = address;
}

/// As [`prefetch`], for a line that this thread will write: the line is fetched in exclusive state.
#[inline]
pub(crate) fn prefetch_for_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, and does nothing on processors that do not know it.
    unsafe {
        std::arch::asm!(
            "prefetchw [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::asm!(
            "prfm pstl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    let _ = address;
}
