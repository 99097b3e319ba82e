//! A cache that loses everything: all nodes stop at once, and their disks are gone.

use super::World;
use crate::node_process::NodeProcess;

impl<P: NodeProcess> World<P> {
    /// After all nodes of a cache stopped: perhaps takes their disks too. It begins empty then.
    pub(super) fn lose_all_disks(&mut self) {
        if !self.observed.evicts || !self.random.percent(25) {
            return;
        }
        self.observed.coverage.record("a cache that lost everything");
        self.observed.disks.clear();
        self.observed.oracle.forget();
        self.unrecovered.clear();
        self.pending_sets.clear();
    }
}
