//! In-place changes of an item's word: header and word are exchanged by one 16-byte instruction.
//!
//! A word must not change any more once a thread has copied the item to replace it, or a change
//! would be acknowledged and lost. Therefore a thread that replaces an item *seals* it first, and
//! an in-place change exchanges header and word together: it fails if the seal was set (or another
//! bit of the header changed) in between. Requires: `SlotLayout::Linked`, which aligns the pair of
//! header and word to 16 bytes.

use std::sync::atomic::Ordering;

use super::{Header, Item};

impl Header {
    /// Set when the item is about to be replaced: its word does not change any more.
    const SEALED: u64 = 1 << 6;

    /// Whether the item's word is final.
    #[inline]
    pub fn is_sealed(self) -> bool {
        self.0 & Self::SEALED != 0
    }
}

/// Whether this processor can exchange a header and its word by one instruction. If not, engines
/// replace items instead of changing them in place.
#[inline]
pub fn changes_in_place() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return std::arch::is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

impl Item<'_> {
    /// Changes the word from `word` to `new_word` if the pair of header and word still is
    /// (`header`, `word`); returns whether it did. Unless `is_fetched`, forgets the reads too.
    /// This is the linearization point of an in-place update. Ordering: acquire and release; pairs
    /// with the acquire in [`Item::view`].
    ///
    /// # Panics
    ///
    /// If the item has no word or is sealed, or the processor lacks the instruction
    /// ([`changes_in_place`]).
    #[inline]
    pub fn exchange_word(
        &self,
        header: Header,
        word: u64,
        new_word: u64,
        is_fetched: bool,
    ) -> bool {
        assert!(!header.is_sealed(), "a sealed word is final");
        let kept = if is_fetched { u64::MAX } else { !Header::READS };
        self.exchange((header.0, word), (header.0 & kept, new_word))
    }

    /// Seals the item, which makes `word` final, if the pair of header and word still is (`header`,
    /// `word`). Returns whether the word is final. The caller skips items that have no word or are
    /// sealed already.
    ///
    /// # Panics
    ///
    /// As [`Item::exchange_word`].
    #[inline]
    pub fn seal(&self, header: Header, word: u64) -> bool {
        if !changes_in_place() {
            // No word ever changes in place, so every word is final.
            return true;
        }
        self.exchange((header.0, word), (header.0 | Header::SEALED, word))
    }

    /// Sets the seal, whatever the rest of the header holds. In an engine that does so before it
    /// unlinks an item, a header without a seal, loaded by [`Item::header_in_order`], proves that
    /// the item was not unlinked yet.
    #[inline]
    pub fn seal_header(&self) {
        // SeqCst pairs with the load of `header_in_order`.
        self.header_word().fetch_or(Header::SEALED, Ordering::SeqCst);
    }

    /// The header, by a sequentially consistent load.
    #[inline]
    pub fn header_in_order(&self) -> Header {
        Header(self.header_word().load(Ordering::SeqCst))
    }

    /// Header and word, for a later [`Item::exchange_word`] or [`Item::seal`]. The two are loaded
    /// one after the other: if they never were a pair at one time, the exchange fails.
    #[inline]
    pub fn header_and_word(&self) -> (Header, u64) {
        let header = self.header();
        let word = if header.has_word() { self.word().load(Ordering::Acquire) } else { 0 };
        (header, word)
    }

    #[inline]
    fn exchange(&self, old: (u64, u64), new: (u64, u64)) -> bool {
        assert!(changes_in_place() && Header(old.0).has_word(), "there is nothing to exchange");
        let target = self.header.cast::<u64>().as_ptr();
        assert!(target.addr().is_multiple_of(16), "header and word lie on 16 bytes");
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the item has a word after its header, both are atomics, and the address is
        // aligned (checked); the processor has the instruction (checked).
        return unsafe { compare_exchange_16(target, old, new) };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        unreachable!("{new:?}: refused above")
    }
}

/// # Safety
///
/// `target` is aligned to 16 and points at two atomics; the processor has `cmpxchg16b`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn compare_exchange_16(target: *mut u64, old: (u64, u64), new: (u64, u64)) -> bool {
    let (seen_low, seen_high): (u64, u64);
    // SAFETY: the caller guarantees alignment, target and instruction. The compiler reserves rbx,
    // so the code saves and restores it through rsi; the other registers are named, because `reg`
    // may choose rbx, which no longer holds the address when it is used. A locked instruction is a
    // full fence.
    unsafe {
        std::arch::asm!(
            "xchg rbx, rsi",
            "lock cmpxchg16b [rdi]",
            "mov rbx, rsi",
            inout("rsi") new.0 => _,
            in("rdi") target,
            in("rcx") new.1,
            inout("rax") old.0 => seen_low,
            inout("rdx") old.1 => seen_high,
            options(nostack),
        );
    }
    // On failure the instruction loads the pair that it found, which differs from `old`.
    (seen_low, seen_high) == old
}

#[cfg(test)]
mod tests {
    use amalgam_op::{Expiry, ItemWrite, MetaFlags, Now, Part};

    use super::*;
    use crate::Configuration;
    use crate::mem::{ItemLayout, Memory, Pool, SlotLayout};

    /// Adders change an item's word in place until it is sealed: the final word holds exactly the
    /// acknowledged changes, and no later one.
    #[test]
    fn no_acknowledged_change_is_lost_to_a_seal() {
        if !changes_in_place() {
            return;
        }
        let small = Configuration { memory_bytes: 4 << 20, ..Configuration::default() };
        let memory = Memory::new(&small, SlotLayout::Linked).expect("memory");
        for _ in 0..200 {
            let mut pool = Pool::new(&memory);
            let item_write = ItemWrite {
                parts: [Part::Bytes(&[0; 8]), Part::Empty],
                flags: 0,
                expiry: Expiry::NEVER,
                cas: None,
                meta_flags: MetaFlags::default(),
            };
            let layout = ItemLayout::new(3, &item_write, 0, &Now::at(1)).expect("it fits a header");
            let slot = pool.reserve(layout).expect("there is room");
            let reference = pool.fill(slot, b"key", &item_write, &[]);
            let add = || {
                let pool = Pool::new(&memory);
                let guard = pool.pin();
                // SAFETY: filled above, and retired after the threads have ended.
                let item = unsafe { memory.item(reference, &guard) };
                let mut acknowledged = 0_u64;
                loop {
                    let (header, word) = item.header_and_word();
                    if header.is_sealed() {
                        return acknowledged;
                    }
                    acknowledged += u64::from(item.exchange_word(header, word, word + 1, true));
                }
            };
            let guard = pool.pin();
            // SAFETY: as above.
            let item = unsafe { memory.item(reference, &guard) };
            std::thread::scope(|scope| {
                let adders = [scope.spawn(add), scope.spawn(add)];
                while item.word().load(Ordering::Relaxed) < 50 {
                    std::hint::spin_loop();
                }
                let sealed = loop {
                    let (header, word) = item.header_and_word();
                    if item.seal(header, word) {
                        break word;
                    }
                };
                let acknowledged: u64 =
                    adders.into_iter().map(|adder| adder.join().expect("it ends")).sum();
                assert_eq!(sealed, acknowledged);
                assert_eq!(item.word().load(Ordering::Relaxed), sealed);
            });
            // SAFETY: never published.
            unsafe { pool.retire(reference) };
        }
    }
}
