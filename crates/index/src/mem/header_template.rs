//! The header that most items of an index share, and the offsets derived from it.
//!
//! Caches hold many items with the same lengths, fields and flags, whose headers differ only in the
//! time of the last access. A [`HeaderTemplate`] keeps the offsets that follow from such a header.
//! A reader that predicts the header compares one word, and the addresses of the item's fields do
//! not depend on a load of the item's memory.

use std::sync::atomic::Ordering;

use amalgam_op::{Expiry, ItemView, Now, Value};

use super::header::Header;
use super::item::{Item, equal};

/// A header, and the offsets and flags derived from it.
#[derive(Clone, Copy, Debug)]
pub struct HeaderTemplate {
    header: Header,
    key_offset: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Distance from the header to the flags and to the CAS id; 0 if such items have none.
    flags_offset: usize,
    cas_offset: usize,
    has_word: bool,
    never_expires: bool,
    generation: u8,
    stale: bool,
    won: bool,
}

impl HeaderTemplate {
    /// A template that no item matches.
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

    /// The template of items with this header that were read, and then again since the CLOCK hand
    /// last passed: nothing is left to record of a read.
    pub fn of_read(header: Header) -> Self {
        let header = header.with_reads_of(Header(Header::LATER_READ));
        let meta_flags = header.marks();
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
            stale: meta_flags.stale,
            won: meta_flags.won,
        }
    }

    /// Whether every item that matches the template is alive. False for templates with an expiry,
    /// as each item has its own.
    #[inline]
    pub fn is_live(&self, now: &Now) -> bool {
        self.never_expires && now.is_live(Expiry::NEVER, self.generation)
    }

    /// Bytes of a matching item from its header on.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.key_offset + self.key_bytes + if self.has_word { 0 } else { self.value_bytes }
    }
}

impl<'g> Item<'g> {
    /// A view of the item if it matches `template` and has `key`, else None. Requires:
    /// [`HeaderTemplate::is_live`]. Such an item needs no [`Item::mark_accessed`].
    #[inline]
    pub fn view_as(&self, template: &HeaderTemplate, key: &[u8]) -> Option<ItemView<'g>> {
        self.view_of_as(self.header(), template, key)
    }

    /// As [`Item::view_as`], with a header that was loaded before.
    #[inline]
    pub fn view_of_as(
        &self,
        header: Header,
        template: &HeaderTemplate,
        key: &[u8],
    ) -> Option<ItemView<'g>> {
        let is_it = header.looks_like(template.header)
            && key.len() == template.key_bytes
            && equal(self.bytes(template.key_offset, template.key_bytes), key);
        is_it.then(|| self.view_from(template))
    }

    /// A view of the item if it matches `template`, else None. Requires:
    /// [`HeaderTemplate::is_live`]. Such an item needs no [`Item::mark_accessed`].
    #[inline]
    pub fn view_like(&self, template: &HeaderTemplate) -> Option<ItemView<'g>> {
        self.header().looks_like(template.header).then(|| self.view_from(template))
    }

    /// As [`Item::has_key`], faster if the item matches `template`.
    #[inline]
    pub fn has_key_as(&self, template: &HeaderTemplate, key: &[u8]) -> bool {
        if self.header().looks_like(template.header) && key.len() == template.key_bytes {
            return equal(self.bytes(template.key_offset, template.key_bytes), key);
        }
        self.has_key(key)
    }

    /// Requires: the item matches `template`.
    #[inline]
    fn view_from(&self, template: &HeaderTemplate) -> ItemView<'g> {
        let value = if template.has_word {
            // SAFETY: the header says that a word follows it, 8-byte aligned.
            let word = unsafe { self.word_unchecked() };
            // Acquire pairs with the release of an in-place update.
            Value::Word(word.load(Ordering::Acquire).to_le_bytes(), template.value_bytes)
        } else {
            Value::Bytes(self.bytes(template.key_offset + template.key_bytes, template.value_bytes))
        };
        ItemView {
            key: self.bytes(template.key_offset, template.key_bytes),
            value,
            flags: if template.flags_offset != 0 { self.u32_at(template.flags_offset) } else { 0 },
            expiry: Expiry::NEVER,
            cas: (template.cas_offset != 0).then(|| self.u64_at(template.cas_offset)),
            generation: template.generation,
            fetched: true,
            stale: template.stale,
            won: template.won,
            // Reads that ask for the time of the last access (meta `l`) do not use templates.
            last_access_seconds: None,
        }
    }
}
