//! Items that look alike: the same header but for the time of the last access, so the same lengths,
//! fields and marks.
//!
//! What follows from a header is worked out once and kept. A reader that expects an item to look
//! like the last one compares one word; where its fields lie does not wait for the item's memory
//! then, and neither does the processor.

use std::sync::atomic::Ordering;

use amalgam_op::{Expiry, ItemView, Now, Value};

use super::header::Header;
use super::item::{Item, equal};

/// What follows from a header.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    header: Header,
    key_offset: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Where flags and CAS id lie; 0 where an item has none.
    flags_offset: usize,
    cas_offset: usize,
    has_word: bool,
    never_expires: bool,
    generation: u8,
    stale: bool,
    won: bool,
}

impl Look {
    /// No item looks like this.
    pub const NONE: Self = Self {
        header: Header(0),
        key_offset: 0,
        key_bytes: usize::MAX,
        value_bytes: 0,
        flags_offset: 0,
        cas_offset: 0,
        has_word: false,
        never_expires: false,
        generation: 0,
        stale: false,
        won: false,
    };

    /// The look of items with this header that have been read since they were written and since
    /// the CLOCK hand last passed.
    pub fn of_read(header: Header) -> Self {
        let header = Header(header.0 | Header::RECENT | Header::FETCHED);
        let marks = header.marks();
        Self {
            header,
            key_offset: header.key_offset(),
            key_bytes: header.key_bytes(),
            value_bytes: header.value_bytes(),
            flags_offset: if header.has_flags() { header.flags_offset() } else { 0 },
            cas_offset: if header.has_cas() { header.cas_offset() } else { 0 },
            has_word: header.has_word(),
            never_expires: header.never_expires(),
            generation: header.generation(),
            stale: marks.stale,
            won: marks.won,
        }
    }

    /// Whether items that look like this are alive, whatever else they hold.
    #[inline]
    pub fn is_live(&self, now: &Now) -> bool {
        self.never_expires && now.is_live(Expiry::NEVER, self.generation)
    }

    /// Bytes of such an item from its header on.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.key_offset + self.key_bytes + if self.has_word { 0 } else { self.value_bytes }
    }
}

impl<'g> Item<'g> {
    /// The item as it is seen, if it looks like `look` and is that of `key`; a `look` that
    /// [`Look::is_live`]. Such an item needs no [`Item::mark_accessed`].
    #[inline]
    pub fn view_as(&self, look: &Look, key: &[u8]) -> Option<ItemView<'g>> {
        self.view_of_as(self.header(), look, key)
    }

    /// As [`Item::view_as`], with a header that was loaded before.
    #[inline]
    pub fn view_of_as(&self, header: Header, look: &Look, key: &[u8]) -> Option<ItemView<'g>> {
        let is_it = header.looks_like(look.header)
            && key.len() == look.key_bytes
            && equal(self.bytes(look.key_offset, look.key_bytes), key);
        is_it.then(|| self.seen_as(look))
    }

    /// The item as it is seen, if it looks like `look`, which [`Look::is_live`]. Such an item needs
    /// no [`Item::mark_accessed`].
    #[inline]
    pub fn view_like(&self, look: &Look) -> Option<ItemView<'g>> {
        self.header().looks_like(look.header).then(|| self.seen_as(look))
    }

    /// As [`Item::has_key`], and quicker if the item looks like `look`.
    #[inline]
    pub fn has_key_as(&self, look: &Look, key: &[u8]) -> bool {
        if self.header().looks_like(look.header) && key.len() == look.key_bytes {
            return equal(self.bytes(look.key_offset, look.key_bytes), key);
        }
        self.has_key(key)
    }

    /// For items with the header of `look` only.
    #[inline]
    fn seen_as(&self, look: &Look) -> ItemView<'g> {
        let value = if look.has_word {
            // SAFETY: the header says so: the word follows it, 8-byte aligned.
            let word = unsafe { self.word_unchecked() };
            // Acquire pairs with the release of an in-place update.
            Value::Word(word.load(Ordering::Acquire).to_le_bytes(), look.value_bytes)
        } else {
            Value::Bytes(self.bytes(look.key_offset + look.key_bytes, look.value_bytes))
        };
        ItemView {
            key: self.bytes(look.key_offset, look.key_bytes),
            value,
            flags: if look.flags_offset != 0 { self.u32_at(look.flags_offset) } else { 0 },
            expiry: Expiry::NEVER,
            cas: (look.cas_offset != 0).then(|| self.u64_at(look.cas_offset)),
            generation: look.generation,
            fetched: true,
            stale: look.stale,
            won: look.won,
            // Whoever asks for it (meta `l`) does not read this way.
            last_access_seconds: None,
        }
    }
}
