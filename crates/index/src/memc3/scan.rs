//! Scans: visits of all items, in slices, that miss none although items move between the calls.
//! `scan_log` explains how.

use std::ops::ControlFlow;

use super::cuckoo::View;
use super::scan_log::{END, ID_MASK, MovedItem, ScanState};
use super::word::Word;
use crate::Cursor;
use crate::sync::Ordering;

impl<const SLOTS: usize> View<'_, SLOTS> {
    /// Visits about `budget` buckets from `cursor` on, as [`crate::Worker::scan`] does.
    pub(super) fn scan(
        &self,
        cursor: Cursor,
        budget: usize,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let scans = &self.cuckoo.scans;
        let (state, id) = scans.resume(cursor);
        for _ in 0..budget.max(1) {
            // Relaxed: only the scan's own thread moves the position.
            let position = state.position.load(Ordering::Relaxed);
            // In a statement of its own, so that the log is not locked while the item is visited.
            let moved = state.lock_log().pop();
            let flow = match moved {
                Some(moved) => self.revisit(moved, visit),
                None if position >= END => {
                    scans.end(state);
                    return None;
                }
                None => self.visit_next(state, position, visit),
            };
            if flow.is_break() {
                state.lock_log().extend(moved);
                break;
            }
        }
        Some(Cursor((state.position.load(Ordering::Relaxed) & !ID_MASK) | id))
    }

    /// Visits the bucket at `position` and moves the position after it.
    fn visit_next(
        &self,
        state: &ScanState,
        position: u64,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let bucket = position.reverse_bits();
        let held = self.stripes.lock(bucket);
        let (layer, index) = self.current_bucket(bucket);
        let words: [Word; SLOTS] = std::array::from_fn(|slot| layer.table.word(index, slot));
        let width = 1 << (u64::BITS - layer.table.len().trailing_zeros());
        let after = position.checked_add(width).unwrap_or(END);
        state.position.store(after, Ordering::Relaxed);
        drop(held);
        for (slot, word) in words.iter().enumerate() {
            if word.is_item() && visit(*word).is_break() {
                let table_len = layer.table.len();
                let rest = words[slot..].iter().filter(|word| word.is_item());
                let rest = rest.map(|word| MovedItem { bucket: index, table_len, tag: word.tag() });
                state.lock_log().extend(rest);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits the items that a log entry may mean.
    fn revisit(
        &self,
        moved: MovedItem,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut words = Vec::new();
        let pair = |bucket: u64| [bucket, bucket ^ moved.tag.offset()];
        // Those of all buckets that these two were split into. Held before these are counted, so
        // that none is split further meanwhile.
        let held = self.stripes.lock_both(pair(moved.bucket as u64));
        let splits = self.last().table.len() / moved.table_len;
        for split in 0..splits {
            for bucket in pair((moved.bucket + split * moved.table_len) as u64) {
                let (layer, index) = self.current_bucket(bucket);
                let here = (0..SLOTS).map(|slot| layer.table.word(index, slot));
                words.extend(here.filter(|word| word.tag() == moved.tag));
            }
        }
        drop(held);
        words.sort_unstable_by_key(|word| word.0);
        words.dedup();
        words.into_iter().try_for_each(visit)
    }
}
