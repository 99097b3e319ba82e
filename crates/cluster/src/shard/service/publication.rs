//! What the service tells other threads about the ids that it serves.

use std::ops::Range;

use super::ChunkService;
use crate::chunks::{Action, ChunkStore};
use crate::ids::{COUNTER_BITS, ChunkId, IdRange, NAMED_FIRST, PARTITIONS};

impl<S: ChunkStore> ChunkService<S> {
    /// To be called before any change of what [`ChunkService::publish`] publishes.
    pub(super) fn before_served_changes(&self, ids: IdRange) {
        if ids.first().creator().is_named() {
            self.served.withdraw();
        }
    }

    /// Makes this node the owner of ids since an epoch; None for no more.
    pub(super) fn set_owned(&mut self, ids: IdRange, since: Option<u64>) {
        self.before_served_changes(ids);
        self.owned.assign(ids.start()..ids.end(), since);
    }

    /// From here on nobody reads or writes the ids, or this node serves them again.
    pub(super) fn set_frozen(&mut self, ids: IdRange, is_frozen: bool) {
        self.before_served_changes(ids);
        self.frozen.assign(ids.start()..ids.end(), is_frozen.then_some(()));
    }

    /// Publishes what this node serves: what other threads may read, and what they may write. They
    /// write nothing that has backups or is to move, which both have to learn of it.
    pub(super) fn publish(&mut self) {
        let named = u64::from(NAMED_FIRST) << COUNTER_BITS;
        let named = named..named + (u64::from(PARTITIONS) << COUNTER_BITS);
        let owned = self.owned.over(named.clone()).map(|(span, _)| span);
        let served = without(owned, self.frozen.over(named).map(|(span, ())| span));
        let writable = if self.has_backups() || self.holds_writes {
            Vec::new()
        } else {
            let outgoing = self.outgoing.values().map(|outgoing| outgoing.ids);
            let mut moving: Vec<_> = outgoing.map(|ids| ids.start()..ids.end()).collect();
            moving.sort_unstable_by_key(|span| span.start);
            without(served.iter().cloned(), moving.into_iter())
        };
        self.served.publish(served.into_iter(), writable.into_iter());
    }

    /// Has other threads write nothing until [`Self::release_writes`]. Whether all their writes
    /// have ended; if not, call it again.
    pub fn hold_writes(&mut self) -> bool {
        if !self.holds_writes {
            self.holds_writes = true;
            self.served.withdraw();
        }
        self.served.earlier_writes_have_ended()
    }

    /// Other threads may write again.
    pub fn release_writes(&mut self) {
        if self.holds_writes {
            self.holds_writes = false;
            self.served.withdraw();
        }
    }

    /// Tells other threads, before the engine shows it, that the backups may lack a change of an
    /// item; [`Self::end_announcement`] must follow. Whether it did.
    pub(super) fn announce(&self, action: &Action) -> bool {
        let Action::Item { id, op } = action else { return false };
        let is_announced = self.has_backups() && op.verb.writes();
        if is_announced {
            self.replication.unacknowledged().add(*id);
        }
        is_announced
    }

    /// From here on the replication tells them, for as long as backups lack the change.
    pub(super) fn end_announcement(&self, id: ChunkId, is_announced: bool) {
        if is_announced {
            self.replication.unacknowledged().remove(id);
        }
    }

    /// Counts the operations that other threads have executed.
    pub(super) fn record_others(&mut self) {
        let (operations, samples) = self.served.take_load();
        self.load_balancer.record_sampled(operations, &samples);
    }
}

/// Spans less holes; both ascend, and holes may overlap.
fn without(
    spans: impl Iterator<Item = Range<u64>>,
    holes: impl Iterator<Item = Range<u64>>,
) -> Vec<Range<u64>> {
    let (mut left, mut holes) = (Vec::new(), holes.peekable());
    for span in spans {
        let mut start = span.start;
        while let Some(hole) = holes.peek().filter(|hole| hole.start < span.end) {
            if start < hole.start {
                left.push(start..hole.start);
            }
            start = start.max(hole.end);
            if hole.end > span.end {
                break;
            }
            holes.next();
        }
        if start < span.end {
            left.push(start..span.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn holes_are_left_out() {
        let left = |spans: &[(u64, u64)], holes: &[(u64, u64)]| {
            let of = |spans: &[(u64, u64)]| -> Vec<_> {
                spans.iter().map(|(start, end)| *start..*end).collect()
            };
            let left = without(of(spans).into_iter(), of(holes).into_iter());
            left.into_iter().map(|span| (span.start, span.end)).collect::<Vec<_>>()
        };
        let spans = [(10, 20), (20, 30), (40, 50)];
        assert_eq!(left(&spans, &[]), spans);
        assert_eq!(left(&spans, &[(0, 10), (30, 40), (50, 60)]), spans, "they only touch");
        assert_eq!(left(&spans, &[(12, 14), (15, 45)]), [(10, 12), (14, 15), (45, 50)]);
        assert_eq!(left(&spans, &[(5, 60)]), []);
        assert_eq!(left(&spans, &[(10, 20), (12, 13), (49, 55)]), [(20, 30), (40, 49)]);
    }
}
