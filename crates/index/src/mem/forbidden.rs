//! Memory that no item uses: AddressSanitizer, which knows nothing of the arena by itself, is told
//! to report accesses to it (`make sanitize`). Without `--cfg asan` nothing here does anything.
//!
//! A slot or a run is forbidden from the end of its grace period until an item is written to it,
//! and what the item is shorter by even then; a page from when it leaves its class until it is
//! formatted. Header words stay allowed, since walks of memory read those of free slots too.

use super::page::Geometry;
use super::{ItemRef, Memory};

/// Bytes of a header.
const HEADER: u64 = 8;

impl Memory {
    /// Forbids a slot or a large run. Requires: it is past its grace period and not free yet, or
    /// the calling thread has taken it.
    #[inline]
    pub(super) fn forbid_item(&self, item: ItemRef) {
        if !cfg!(asan) {
            return;
        }
        let slot_bytes = match self.is_large(item) {
            // What lies before a large item's link word is no item's either.
            true => self.large.length(self.run_of(item)) - 8,
            false => self.geometries[self.place_of(item).1].slot_bytes as usize,
        };
        self.forbid_slot(item.to_bits(), slot_bytes);
    }

    fn forbid_slot(&self, header: u64, slot_bytes: usize) {
        let link_bytes = self.layout.link_bytes();
        self.arena.forbid(header - link_bytes as u64, link_bytes);
        self.arena.forbid(header + HEADER, slot_bytes - link_bytes - HEADER as usize);
    }

    /// Allows a header word at `offset`, where none may have been: large runs are split and joined.
    pub(super) fn allow_header(&self, offset: u64) {
        self.arena.allow(offset, HEADER as usize);
    }

    /// Allows the `bytes` of an item from its header on, and its link word. Requires: the calling
    /// thread owns the slot.
    #[inline]
    pub(super) fn allow_item(&self, item: ItemRef, bytes: usize) {
        if cfg!(asan) {
            let link_bytes = self.layout.link_bytes();
            self.arena.allow(item.to_bits() - link_bytes as u64, bytes + link_bytes);
        }
    }

    /// Forbids a page. Requires: it is in no class, and past its grace period.
    pub(super) fn forbid_page(&self, page: u32) {
        self.arena.forbid(self.page_start(page), self.page_bytes());
    }

    /// Allows a page that is to be formatted.
    pub(super) fn allow_page(&self, page: u32) {
        self.arena.allow(self.page_start(page), self.page_bytes());
    }

    /// Forbids all slots of a page, which is formatted.
    pub(super) fn forbid_slots(&self, page: u32, geometry: &Geometry) {
        if !cfg!(asan) {
            return;
        }
        for slot in 0..geometry.slots {
            let header = self.page_start(page) + geometry.header_of(slot);
            self.forbid_slot(header, geometry.slot_bytes as usize);
        }
    }
}
