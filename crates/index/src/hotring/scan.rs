//! Scans in the order of hashes: the cursor is a hash, so a rehash does not affect it.

use std::ops::ControlFlow;

use amalgam_op::ItemView;

use super::engine::{HotRingWorker, Strategy};
use super::items::Items;
use super::space::{Order, Space, Target, lower_of};
use super::walk::{Event, LoadedNode, Walk};
use super::word::Head;
use crate::Cursor;

impl<S: Strategy> HotRingWorker<'_, S> {
    /// Implements [`crate::Worker::scan`].
    pub(super) fn scan_rings(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let mut from = from.0;
        for _ in 0..budget.max(1) {
            let guard = self.pool.pin();
            let items = self.items(&guard);
            // The range of one ring of the current table; if that ring is being divided, all its
            // parts are visited.
            let last = from | (u64::MAX >> (64 - items.tables.current(&guard).shift()));
            if let ControlFlow::Break(at) = visit_range(&items, from, last, visit) {
                return Some(Cursor(at));
            }
            from = last.checked_add(1)?;
        }
        Some(Cursor(from))
    }
}

/// Visits the items with hashes from `from` to `last`, which lie in one ring, or in the rings that
/// it is being divided into. Breaks with the hash at which the visitor broke.
fn visit_range(
    items: &Items<'_>,
    from: u64,
    last: u64,
    visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
) -> ControlFlow<u64> {
    let mut from = from;
    loop {
        let end = visit_ring(items, from, last, visit)?;
        match end.checked_add(1) {
            Some(next) if end < last => from = next,
            _ => return ControlFlow::Continue(()),
        }
    }
}

/// Visits the items of the ring of `from` with hashes up to `last`. Returns the last hash that the
/// visit covered.
fn visit_ring(
    items: &Items<'_>,
    from: u64,
    last: u64,
    visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
) -> ControlFlow<u64, u64> {
    let (last, head) = items.ring_end(from, last);
    if head == Head::EMPTY {
        return ControlFlow::Continue(last);
    }
    let target = Target::new(items.bits, Order { hash: from, key: &[] });
    let mut walk = Walk::new(items, target, head.address());
    // Walk to the position of `from`, then on until the walk has gone around the ring.
    let start = match walk.finish() {
        Event::Passed => match walk.before {
            Some(before) => before.link.address(),
            None => return ControlFlow::Continue(last),
        },
        // `from` is the boundary of a rehash item.
        Event::Hit(loaded) => loaded.link.address(),
        Event::Item(_) | Event::Boundary { .. } | Event::Vacant => {
            return ControlFlow::Continue(last);
        }
    };
    let mut walk = Walk::new(items, target, start);
    loop {
        let loaded = match walk.step() {
            Event::Item(loaded) => loaded,
            // The ring may have been divided meanwhile; then this walk does not reach the other
            // half.
            Event::Boundary { met, own } if met.node != own => {
                return ControlFlow::Continue(end_of_half(items, from, last, met));
            }
            Event::Hit(met) if met.link.is_rehash() => {
                return ControlFlow::Continue(end_of_half(items, from, last, met));
            }
            Event::Boundary { .. } => continue,
            Event::Hit(_) | Event::Passed | Event::Vacant => return ControlFlow::Continue(last),
        };
        let hash = items.order(loaded.node).hash;
        if !(from..=last).contains(&hash) {
            return ControlFlow::Continue(last);
        }
        if visit(&items.item(loaded.node).view()).is_break() {
            return ControlFlow::Break(hash);
        }
    }
}

/// The last hash of the half of `from`, at most `last`, in a ring divided by the pair of `met`.
fn end_of_half(items: &Items<'_>, from: u64, last: u64, met: LoadedNode) -> u64 {
    let division = items.division(lower_of(met.node, met.link));
    if from < division { last.min(division - 1) } else { last }
}
