//! The items of plain sets ([`PlainSet`]): what the key holds has no part in them, so an engine
//! builds one before it locks anything, and either copies it to the word of an item that is like it
//! or publishes it.
//!
//! A published item is counted when it takes the place of another one: of two items of one size,
//! neither need be counted.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use amalgam_op::{Expiry, Now, Op, Outcome, PlainSet};

use super::counters::{add, subtract};
use super::header::{Header, ItemLayout, WORD_BYTES};
use super::item::{Item, NewItem, equal};
use super::retired::Retired;
use super::{ItemRef, Pool};

/// The item that a plain set stores, not yet in memory.
#[derive(Clone, Copy)]
pub struct PlainItem<'a> {
    pub(super) key: &'a [u8],
    pub(super) set: PlainSet<'a>,
    pub(super) layout: ItemLayout,
    /// Distance from the header to the key, in bytes.
    pub(super) key_offset: usize,
}

/// An item in memory that is not published and not counted yet.
#[must_use = "an item that is neither published nor discarded is lost"]
pub struct Unpublished {
    reference: ItemRef,
    layout: ItemLayout,
}

impl Unpublished {
    /// The item's reference, for the index word that publishes it.
    #[inline]
    pub fn reference(&self) -> ItemRef {
        self.reference
    }
}

impl<'a> PlainItem<'a> {
    /// The item that `op` stores; None if `op` is no plain set or no header can hold the item.
    #[inline]
    pub fn of(op: &Op<'a>, now: &Now) -> Option<Self> {
        let set = PlainSet::of(op, now)?;
        let key = op.key.bytes();
        let layout = ItemLayout::of_plain_set(key.len(), &set, now)?;
        Some(Self { key, set, layout, key_offset: layout.header.key_offset() })
    }

    /// The full key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The outcome of the set.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.set.outcome()
    }

    /// When the item expires.
    #[inline]
    pub fn expiry(&self) -> Expiry {
        self.set.expiry
    }

    /// Length of the value in bytes.
    #[inline]
    pub fn value_bytes(&self) -> usize {
        self.set.value.len()
    }

    /// Whether the value lives in the item's word, so that [`Item::takes_word_of`] may hold.
    #[inline]
    pub fn has_word(&self) -> bool {
        self.layout.header.has_word()
    }

    /// The value as the item's word. Requires: [`PlainItem::has_word`].
    #[inline]
    fn word(&self) -> [u8; WORD_BYTES] {
        padded(self.set.value).to_le_bytes()
    }
}

impl Item<'_> {
    /// Whether this is the item of `new`'s key and differs from `new` in nothing but its word. Then
    /// the set stores that word in place ([`Item::store_word_of`]). A dead item is never changed.
    #[inline]
    pub fn takes_word_of(&self, header: Header, new: &PlainItem<'_>, now: &Now) -> bool {
        // Equal lengths and fields put everything at the same place.
        header.is_written_like(new.layout.header)
            && new.has_word()
            && equal(self.bytes(new.key_offset, new.key.len()), new.key)
            && (!header.has_flags() || self.u32_at(header.flags_offset()) == new.set.flags)
            && (header.never_expires() || {
                let expiry = self.expiry_of(header);
                expiry == new.set.expiry && !expiry.has_passed(now)
            })
    }

    /// As [`Item::change_word`], to the word of `new`. Requires, in addition: the item takes it.
    #[inline]
    pub fn store_word_of(&self, new: &PlainItem<'_>) {
        self.change_word(new.word(), false);
    }
}

impl NewItem<'_> {
    /// As [`NewItem::write`], for the item of a plain set.
    #[inline]
    fn write_plain(mut self, item: &PlainItem<'_>) {
        let (header, key_bytes) = (item.layout.header, item.key.len());
        if header.has_flags() || header.has_expiry() {
            self.write_flags_and_expiry(header, item.set.flags, item.set.expiry);
        }
        self.bytes(item.key_offset, key_bytes).copy_from_slice(item.key);
        if header.has_word() {
            self.write_word(padded(item.set.value));
        } else {
            let target = self.bytes(item.key_offset + key_bytes, item.set.value.len());
            target.copy_from_slice(item.set.value);
        }
        self.publish_header(header);
    }
}

impl Pool<'_> {
    /// Writes `item` to a slot that is at hand ([`Pool::reserve_at_hand`]); None if there is none.
    /// Publish it and call [`Pool::count_published`] or [`Pool::retire_replaced`], or else
    /// [`Pool::discard`].
    #[inline]
    pub fn fill_at_hand(&mut self, item: &PlainItem<'_>) -> Option<Unpublished> {
        let reference = self.reserve_at_hand(item.layout)?.into_reference();
        self.memory.allow_item(reference, item.layout.bytes());
        let memory = self.memory.arena.at(reference.to_bits());
        NewItem { header: memory, owner: PhantomData }.write_plain(item);
        if !item.layout.header.never_expires() {
            self.memory.note_expiry(reference, item.set.expiry);
        }
        Some(Unpublished { reference, layout: item.layout })
    }

    /// Counts an item that was published and replaced none.
    #[inline]
    pub fn count_published(&mut self, new: Unpublished) {
        let counters = self.counters();
        add(&counters.items_total, 1);
        add(&counters.items, 1);
        self.count_bytes(new.layout.bytes());
    }

    /// Counts an item that was published in place of `old`, and retires `old`.
    ///
    /// # Safety
    ///
    /// As for [`Pool::retire`]. Besides, no thread seals `old` ([`Item::seal_header`]), or changes
    /// its word without the lock under which it was unlinked.
    #[inline]
    pub unsafe fn retire_replaced(&mut self, old: &Item<'_>, new: Unpublished, now: &Now) {
        let word = old.header_word();
        let header = Header(word.load(Ordering::Relaxed));
        debug_assert!(header.is_live(), "an item is retired once");
        // A plain store, as in `Item::change_word`: it may undo a read that is counted or forgotten
        // meanwhile, and reads are hints. A reader's exchange of the header fails after it.
        // Relaxed: as in `Pool::retire`.
        word.store(header.0 & !Header::LIVE, Ordering::Relaxed);
        let bytes = header.bytes();
        add(&self.counters().items_total, 1);
        if bytes != new.layout.bytes() {
            self.count_bytes(new.layout.bytes());
            self.uncount_bytes(bytes);
        }
        if !header.never_expires() || header.generation() != now.generation {
            self.note_if_dead(now, &old.view());
        }
        self.push_retired(Retired::item(old.reference()), bytes);
    }

    /// Gives back an item that was not published.
    pub fn discard(&mut self, new: Unpublished) {
        let memory = self.memory.arena.at(new.reference.to_bits());
        // SAFETY: this thread filled the item and published it to no other.
        let item = unsafe { Item::new(memory, new.reference) };
        // A walk of memory may have found the item live; it fails to unlink it.
        item.header_word().fetch_and(!Header::LIVE, Ordering::Relaxed);
        self.push_retired(Retired::item(new.reference), new.layout.bytes());
    }

    fn count_bytes(&self, bytes: usize) {
        let counters = self.counters();
        add(&counters.bytes, bytes as u64);
        if let Some(class) = self.class_of(bytes) {
            add(&counters.class_items[class], 1);
        }
    }

    fn uncount_bytes(&self, bytes: usize) {
        let counters = self.counters();
        subtract(&counters.bytes, bytes as u64);
        if let Some(class) = self.class_of(bytes) {
            subtract(&counters.class_items[class], 1);
        }
    }
}

/// Up to 8 bytes as a little-endian number, padded with zeros. Overlapping loads avoid a loop over
/// bytes.
#[inline]
pub(crate) fn padded(bytes: &[u8]) -> u64 {
    let half = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[at..at + 4]);
        u64::from(u32::from_le_bytes(word))
    };
    let length = bytes.len();
    if let Some(word) = bytes.first_chunk() {
        u64::from_le_bytes(*word)
    } else if length >= 4 {
        half(0) | half(length - 4) << (8 * (length - 4))
    } else if length > 0 {
        let byte = |at: usize| u64::from(bytes[at]) << (8 * at);
        byte(0) | byte(length / 2) | byte(length - 1)
    } else {
        0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use amalgam_op::{Decision, ItemWrite, Key, MetaFlags, Part, Store, StoreMode, Verb};
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::Configuration;
    use crate::mem::{Memory, SlotLayout};

    const NOW: Now = Now { seconds: 1000, epoch_unix_seconds: 0, generation: 5 };

    /// The expiries of items, and what clients send for them.
    const EXPIRIES: [(u32, i64); 4] = [(0, 0), (999, -1), (1001, 1), (2000, 1000)];

    /// The length of a value, flags, and the number of an expiry.
    fn contents(random: &mut SmallRng) -> [usize; 3] {
        let length = [0, 3, 4, 7, 8, 8, 9, 40][random.random_range(0..8)];
        [length, [0, 0, 7, 8][random.random_range(0..4)], random.random_range(0..4)]
    }

    fn value(random: &mut SmallRng, length: usize) -> Vec<u8> {
        (0..length).map(|_| random.random()).collect()
    }

    /// The short cut changes a word in exactly those items in which the general way does.
    #[test]
    fn a_plain_set_changes_the_words_that_a_decision_would() {
        let small = Configuration { memory_bytes: 4 << 20, ..Configuration::default() };
        let memory = Memory::new(&small, SlotLayout::Plain).expect("memory");
        let mut pool = Pool::new(&memory);
        let mut random = SmallRng::seed_from_u64(17);
        let mut seen = [0; 2];
        for _ in 0..if cfg!(miri) { 10 } else { 20_000 } {
            let chance = |random: &mut SmallRng| random.random_range(0..8) == 0;
            let former = contents(&mut random);
            let former_value = value(&mut random, former[0]);
            let before = ItemWrite {
                parts: [Part::Bytes(&former_value), Part::Empty],
                flags: former[1] as u32,
                expiry: Expiry(EXPIRIES[former[2]].0),
                cas: chance(&mut random).then_some(3),
                meta_flags: MetaFlags {
                    fetched: random.random(),
                    stale: chance(&mut random),
                    won: chance(&mut random),
                },
            };
            let written_at = Now { generation: 5 - u8::from(chance(&mut random)), ..NOW };
            let layout = ItemLayout::new(5, &before, 0, &written_at).expect("it fits");
            let slot = pool.reserve(layout).expect("there is room");
            let old = pool.fill(slot, b"key 1", &before, &[]);
            let mut latter = contents(&mut random);
            for (latter, former) in latter.iter_mut().zip(former) {
                // Mostly the same, so that a word can change alone.
                *latter = if chance(&mut random) { *latter } else { former };
            }
            let value = value(&mut random, latter[0]);
            let (flags, expiry) = (latter[1] as u32, EXPIRIES[latter[2]].1);
            let key: &[u8] = if chance(&mut random) { b"key 2" } else { b"key 1" };
            let verb = Verb::Store(Store::new(StoreMode::Set, &value, flags, expiry));
            let op = Op { key: Key::new(key, memory.seed()), verb };
            let new = PlainItem::of(&op, &NOW).expect("a plain set");
            let Decision::Replace(item_write, _) = new.set.decision() else { unreachable!() };
            let layout = ItemLayout::new(5, &item_write, 0, &NOW).expect("it fits");
            assert_eq!(new.layout, layout);
            let guard = pool.pin();
            // SAFETY: filled above, and retired below.
            let item = unsafe { memory.item(old, &guard) };
            let word = item_write.sole_word_change(&item.view(), &NOW);
            let takes_word = item.takes_word_of(item.header(), &new, &NOW);
            assert_eq!(
                takes_word,
                word.is_some() && item.has_key(key),
                "{before:?} {item_write:?}"
            );
            assert!(!takes_word || word == Some(new.word()));
            seen[usize::from(takes_word)] += 1;
            if let Some(filled) = pool.fill_at_hand(&new) {
                // SAFETY: filled by the call above, and retired below.
                let filled_item = unsafe { memory.item(filled.reference(), &guard) };
                let view = filled_item.view();
                assert_eq!((view.key, view.value.as_bytes(), view.cas), (key, &*value, None));
                assert_eq!((view.flags, view.expiry), (item_write.flags, item_write.expiry));
                assert_eq!(filled_item.header(), layout.header);
                let next = filled.reference();
                match random.random_range(0..3) {
                    // SAFETY: never published.
                    0 => unsafe { pool.retire_replaced(&item, filled, &NOW) },
                    1 => {
                        pool.count_published(filled);
                        // SAFETY: never published.
                        unsafe { pool.retire(old) };
                    }
                    _ => {
                        pool.discard(filled);
                        drop(guard);
                        // SAFETY: never published.
                        unsafe { pool.retire(old) };
                        assert_counts(&memory, 0);
                        pool.quiesce();
                        continue;
                    }
                }
                assert_counts(&memory, layout.bytes() as u64);
                // SAFETY: never published.
                unsafe { pool.retire(next) };
            } else {
                // SAFETY: never published.
                unsafe { pool.retire(old) };
            }
            drop(guard);
            assert_counts(&memory, 0);
            pool.quiesce();
        }
        assert!(cfg!(miri) || seen.iter().all(|times| *times > 1000), "{seen:?}");
    }

    /// One item of these bytes, or none, is filled and not retired.
    fn assert_counts(memory: &Memory, bytes: u64) {
        let items = u64::from(bytes > 0);
        assert_eq!((memory.items(), memory.statistics().items), (items, bytes));
        let classes = (0..memory.classes.count()).map(|class| memory.items_of(class));
        assert_eq!(classes.sum::<u64>(), items);
    }

    #[test]
    fn words_are_padded_with_zeros() {
        let bytes: Vec<u8> = (1..=8).collect();
        for length in 0..=8 {
            let mut word = [0; 8];
            word[..length].copy_from_slice(&bytes[..length]);
            assert_eq!(padded(&bytes[..length]), u64::from_le_bytes(word), "length {length}");
        }
    }
}
