//! Scans, bucket by bucket in the order of hashes: a cursor is a hash and means the same in every
//! table. Buckets split and join in that order, so the hashes below a cursor stay visited, however
//! the table grows or shrinks meanwhile.

use std::ops::ControlFlow;

use amalgam_op::ItemView;

use super::chain::Chains;
use super::engine::MercuryWorker;
use super::locking::Locking;
use crate::Cursor;

impl<L: Locking> MercuryWorker<'_, L> {
    /// Implements [`crate::Worker::scan`]. The cursor is the lowest hash that was not visited.
    pub(super) fn scan_buckets(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let mut hash = from.0;
        for _ in 0..budget.max(1) {
            let guard = self.pool.pin();
            let chains = Chains::new(&self.engine.memory, &guard);
            let tables = self.handle.enter();
            let (locked, end) = tables.lock_range(hash);
            self.scanned.clear();
            let mut item = locked.first().map(|first| chains.item(first));
            while let Some(here) = item {
                self.scanned.push(here.reference());
                item = chains.next(here);
            }
            drop(locked);
            drop(tables);
            for reference in &self.scanned {
                if visit(&chains.item(*reference).view()).is_break() {
                    return Some(Cursor(hash));
                }
            }
            hash = end?;
        }
        Some(Cursor(hash))
    }
}
