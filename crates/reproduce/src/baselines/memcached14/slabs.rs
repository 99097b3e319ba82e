//! Slab classes: pages of chunks.
//!
//! Invariants: (1) a page belongs to one class or to none; (2) a chunk is in its page's list of
//! free chunks, beyond the part of the page that was ever used, or an item's; (3) a page without
//! items belongs to no class.

use super::layout::{ItemIndex, Words};

/// The smallest chunk, in bytes: memcached's header and its default of 48 further bytes.
const SMALLEST_CHUNK_BYTES: usize = 96;
/// The usual size of a page in bytes, which is also the size of memcached's longest item.
const PAGE_BYTES: usize = 1 << 20;
/// The number that stands for no page.
const NONE: u32 = u32::MAX;

pub(super) struct Slabs {
    page_words: usize,
    pages: Vec<Page>,
    pub(super) classes: Vec<Class>,
    /// Pages that were used before and belong to no class.
    free: Vec<u32>,
    /// The first page that was never used.
    fresh: u32,
}

#[derive(Clone, Copy)]
struct Page {
    class: u32,
    used: u32,
    /// The first free chunk; each free chunk has the next one in its first word.
    free: ItemIndex,
    /// The first chunk that was never used.
    fresh: u32,
}

pub(super) struct Class {
    pub(super) chunk_words: usize,
    chunks: u32,
    /// Pages with a free chunk.
    roomy: Vec<u32>,
    pub(super) pages: u32,
    /// The newest and the oldest item of the LRU; 0 if it is empty.
    pub(super) newest: ItemIndex,
    pub(super) oldest: ItemIndex,
    pub(super) evictions: u64,
}

impl Slabs {
    /// The size of a page whose items have at most `max_item_bytes`.
    pub(super) fn page_bytes_for(max_item_bytes: usize) -> usize {
        // Word 0 of the first page belongs to no item, so that 0 can stand for none.
        (max_item_bytes + 8).max(PAGE_BYTES).next_multiple_of(8)
    }

    pub(super) fn new(page_bytes: usize, pages: usize) -> Self {
        let page_words = page_bytes / 8;
        let mut classes = Vec::new();
        let mut chunk_words = SMALLEST_CHUNK_BYTES / 8;
        while chunk_words < page_words / 2 {
            classes.push(Class::new(chunk_words, page_words));
            // The next class has a quarter more, in whole words.
            chunk_words = (chunk_words * 5).div_ceil(4);
        }
        classes.push(Class::new(page_words - 1, page_words));
        let none = Page { class: NONE, used: 0, free: 0, fresh: 0 };
        Self { page_words, pages: vec![none; pages], classes, free: Vec::new(), fresh: 0 }
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.page_words * 8
    }

    /// The number of pages that belong to a class.
    pub(super) fn pages_in_use(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    pub(super) fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// The class whose chunks fit `bytes`.
    pub(super) fn class_of(&self, bytes: usize) -> Option<usize> {
        let class = self.classes.partition_point(|class| class.chunk_words * 8 < bytes);
        (class < self.classes.len()).then_some(class)
    }

    /// Takes a free chunk from the pages of a class; None if they are full.
    pub(super) fn take(&mut self, class: usize, words: &Words) -> Option<ItemIndex> {
        let shared = &mut self.classes[class];
        let number = *shared.roomy.last()?;
        let page = &mut self.pages[number as usize];
        let index = if page.free != 0 {
            let index = page.free;
            page.free = words.load(index, 0) as ItemIndex;
            index
        } else {
            let start = number as usize * self.page_words + 1;
            page.fresh += 1;
            start + (page.fresh - 1) as usize * shared.chunk_words
        };
        page.used += 1;
        if page.used == shared.chunks {
            shared.roomy.pop();
        }
        Some(index)
    }

    /// Gives a class another page. Returns false if there is none.
    pub(super) fn add_page(&mut self, class: usize) -> bool {
        let number = match self.free.pop() {
            Some(number) => number,
            None if (self.fresh as usize) < self.pages.len() => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return false,
        };
        self.pages[number as usize] = Page { class: class as u32, used: 0, free: 0, fresh: 0 };
        self.classes[class].roomy.push(number);
        self.classes[class].pages += 1;
        true
    }

    /// Takes a chunk back; an empty page leaves its class.
    pub(super) fn give_back(&mut self, index: ItemIndex, words: &Words) {
        let number = index / self.page_words;
        let page = &mut self.pages[number];
        let class = &mut self.classes[page.class as usize];
        if page.used == class.chunks {
            class.roomy.push(number as u32);
        }
        words.store(index, 0, page.free as u64);
        page.free = index;
        page.used -= 1;
        if page.used == 0 {
            class.roomy.retain(|other| *other != number as u32);
            class.pages -= 1;
            page.class = NONE;
            self.free.push(number as u32);
        }
    }

    /// The chunks that were ever used, some of which hold items, of the first page of `class` from
    /// page `from` on, cyclically. Also returns the page to continue from.
    pub(super) fn chunks_of_a_page(
        &self,
        class: usize,
        from: usize,
    ) -> Option<(Vec<ItemIndex>, usize)> {
        let count = self.fresh as usize;
        let pages = (0..count).map(|step| (from + step) % count);
        let number = { pages }.find(|page| self.pages[*page].class == class as u32)?;
        let page = &self.pages[number];
        let start = number * self.page_words + 1;
        let chunk_words = self.classes[class].chunk_words;
        let items = (0..page.fresh as usize).map(|chunk| start + chunk * chunk_words);
        Some((items.collect(), number + 1))
    }

    /// All chunks that were ever used, page by page, as ranges `(first, step, count)`.
    pub(super) fn page_chunks(&self, page: usize) -> Option<(ItemIndex, usize, usize)> {
        let found = self.pages.get(page).filter(|page| page.class != NONE)?;
        let step = self.classes[found.class as usize].chunk_words;
        Some((page * self.page_words + 1, step, found.fresh as usize))
    }

    /// The number of pages that were ever used.
    pub(super) fn page_count(&self) -> usize {
        self.fresh as usize
    }
}

impl Class {
    fn new(chunk_words: usize, page_words: usize) -> Self {
        Self {
            chunk_words,
            chunks: ((page_words - 1) / chunk_words) as u32,
            roomy: Vec::new(),
            pages: 0,
            newest: 0,
            oldest: 0,
            evictions: 0,
        }
    }

    pub(super) fn slots(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.chunks)
    }
}
