//! Scans that miss nothing, although items move between buckets while a scan is between two calls.
//!
//! A scan visits buckets in the order of their bit-reversed numbers, in which a bucket and the two
//! that it is split into when the table doubles cover the same stretch: growth loses nothing. What
//! could be lost is an item displaced from a bucket that is not visited yet to one that was. So
//! while scans are under way every displacement looks whether it crosses a scan's position that
//! way, and if so leaves a note in that scan's log; the scan goes back for it.
//!
//! Why a note is never missed. A scan's position passes a bucket while the scan holds the bucket's
//! stripe, together with reading the bucket. A displacement holds the stripes of both its ends. So
//! on which side of the position each end lies cannot change during a displacement, and what it
//! sees of the position is right for both ends.
//!
//! Bounds: so many scans at once, so many notes a scan. A scan that exceeds them, or was taken for
//! abandoned when others needed its place, starts again from the beginning at its next call.

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard};

use amalgam_op::IgnorePoison;

use super::cuckoo::View;
use super::word::{Tag, Word};
use crate::Cursor;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Scans that may be under way at once.
const SCANS: usize = 8;
/// Notes that a scan may have open.
const MAX_NOTES: usize = 1 << 16;
/// A position has as many bits as an index may have; the others of a cursor name the scan.
const POSITION_BITS: u32 = 40;
const NAME_MASK: u64 = (1 << (u64::BITS - POSITION_BITS)) - 1;
/// Behind every bucket.
const END: u64 = !NAME_MASK;

/// The scans under way on one table.
#[derive(Default)]
pub(super) struct Scans {
    /// How many entries have a name.
    active: AtomicUsize,
    entries: [Entry; SCANS],
    /// The name that was given last.
    last_name: Mutex<u64>,
}

#[derive(Default)]
struct Entry {
    /// The scan that has the entry, or 0.
    name: AtomicU64,
    /// Buckets whose reversed number is below this are visited.
    position: AtomicU64,
    log: Mutex<Vec<Note>>,
}

/// Go back to the items with this tag that may lie in this bucket, or in their other one.
#[derive(Clone, Copy)]
struct Note {
    bucket: usize,
    /// Buckets of the table when the note was left.
    table_len: usize,
    tag: Tag,
}

impl Entry {
    fn lock_log(&self) -> MutexGuard<'_, Vec<Note>> {
        self.log.lock().ignore_poison()
    }
}

impl Scans {
    /// Called by a mover that holds the stripes of both buckets.
    #[inline]
    pub(super) fn note_move(&self, table_len: usize, from: usize, to: usize, tag: Tag) {
        // Relaxed, here and below: that a scan has passed one of the buckets was stored under a
        // stripe that the caller holds now.
        if self.active.load(Ordering::Relaxed) != 0 {
            self.leave_notes(table_len, from, to, tag);
        }
    }

    #[cold]
    fn leave_notes(&self, table_len: usize, from: usize, to: usize, tag: Tag) {
        for entry in &self.entries {
            let position = entry.position.load(Ordering::Relaxed);
            let crosses = order(to) < position && order(from) >= position;
            if !crosses || entry.name.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut log = entry.lock_log();
            if log.len() < MAX_NOTES {
                log.push(Note { bucket: to, table_len, tag });
            } else {
                self.end(entry);
            }
        }
    }

    /// The entry of the scan that a cursor belongs to; a new one for a scan that starts, or that
    /// lost its entry.
    fn resume(&self, cursor: Cursor) -> (&Entry, u64) {
        let name = cursor.0 & NAME_MASK;
        let known = self.entries.iter().find(|entry| entry.name.load(Ordering::Relaxed) == name);
        if let Some(entry) = known.filter(|_| name != 0) {
            return (entry, name);
        }
        let mut last_name = self.last_name.lock().ignore_poison();
        *last_name = *last_name % (NAME_MASK - 1) + 1;
        // A free entry, or the one of the oldest scan.
        let age = |entry: &&Entry| match entry.name.load(Ordering::Relaxed) {
            0 => u64::MAX,
            name => (*last_name).wrapping_sub(name) & NAME_MASK,
        };
        let entry = self.entries.iter().max_by_key(age).expect("there are entries");
        self.end(entry);
        entry.lock_log().clear();
        // Nothing is visited yet, so a mover that does not see the scan yet misses nothing.
        entry.position.store(0, Ordering::Relaxed);
        entry.name.store(*last_name, Ordering::Relaxed);
        self.active.fetch_add(1, Ordering::Relaxed);
        (entry, *last_name)
    }

    fn end(&self, entry: &Entry) {
        if entry.name.swap(0, Ordering::Relaxed) != 0 {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Where a bucket comes in a scan.
fn order(bucket: usize) -> u64 {
    (bucket as u64).reverse_bits()
}

impl<const SLOTS: usize> View<'_, SLOTS> {
    /// Visits about `budget` buckets from `cursor` on, as [`crate::Worker::scan`] does.
    pub(super) fn scan(
        &self,
        cursor: Cursor,
        budget: usize,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let scans = &self.cuckoo.scans;
        let (entry, name) = scans.resume(cursor);
        for _ in 0..budget.max(1) {
            // Relaxed: only the scan's own thread moves the position.
            let position = entry.position.load(Ordering::Relaxed);
            // In a statement of its own, so that the log is not locked while the note is followed.
            let note = entry.lock_log().pop();
            let flow = match note {
                Some(note) => self.go_back(note, visit),
                None if position >= END => {
                    scans.end(entry);
                    return None;
                }
                None => self.visit_next(entry, position, visit),
            };
            if flow.is_break() {
                entry.lock_log().extend(note);
                break;
            }
        }
        Some(Cursor((entry.position.load(Ordering::Relaxed) & !NAME_MASK) | name))
    }

    /// Visits the bucket at `position` and moves the position behind it.
    fn visit_next(
        &self,
        entry: &Entry,
        position: u64,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let bucket = position.reverse_bits();
        let held = self.stripes.lock(bucket);
        let (layer, index) = self.settled(bucket);
        let words: [Word; SLOTS] = std::array::from_fn(|slot| layer.table.word(index, slot));
        let width = 1 << (u64::BITS - layer.table.len().trailing_zeros());
        let behind = position.checked_add(width).unwrap_or(END);
        entry.position.store(behind, Ordering::Relaxed);
        drop(held);
        for (slot, word) in words.iter().enumerate() {
            if word.is_item() && visit(*word).is_break() {
                let table_len = layer.table.len();
                let rest = words[slot..].iter().filter(|word| word.is_item());
                let notes = rest.map(|word| Note { bucket: index, table_len, tag: word.tag() });
                entry.lock_log().extend(notes);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits the items that a note may mean.
    fn go_back(
        &self,
        note: Note,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut words = Vec::new();
        let splits = self.last().table.len() / note.table_len;
        for split in 0..splits {
            let bucket = (note.bucket + split * note.table_len) as u64;
            let buckets = [bucket, bucket ^ note.tag.offset()];
            let _held = self.stripes.lock_both(buckets);
            for bucket in buckets {
                let (layer, index) = self.settled(bucket);
                let here = (0..SLOTS).map(|slot| layer.table.word(index, slot));
                words.extend(here.filter(|word| word.tag() == note.tag));
            }
        }
        words.sort_unstable_by_key(|word| word.0);
        words.dedup();
        words.into_iter().try_for_each(visit)
    }
}
