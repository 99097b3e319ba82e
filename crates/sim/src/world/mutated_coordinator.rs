//! Mutants of the coordinator, which forgets something when it restarts.

use amalgam_cluster::coordinator::Coordinator;
use amalgam_cluster::overlay::View;

use super::{LEASE_MS, World};
use crate::mutants::Mutant;
use crate::node_process::NodeProcess;

impl<P: NodeProcess> World<P> {
    /// Applies [`Mutant::ReusedIncarnation`].
    pub(super) fn reuse_incarnation(&mut self, name: &str) {
        let mut names = self.coordinator.names().clone();
        if let Some(last) = names.get_mut(name) {
            last.incarnation -= 1;
            let view = self.coordinator.view().clone();
            self.coordinator = Coordinator::resume(self.settings, LEASE_MS, view, names);
            for peer in self.nodes.values().map(|node| node.peer).collect::<Vec<_>>() {
                let _ = self.coordinator.keep_alive(peer, self.now_ms);
            }
        }
    }

    /// Nodes are about to learn of a view.
    pub(super) fn note_view(&mut self, view: &View) {
        if self.mutant == Mutant::RestoresOldView && self.last_views[1] != *view {
            self.last_views.rotate_left(1);
            self.last_views[1] = view.clone();
        }
    }

    /// Applies [`Mutant::RestoresOldView`].
    pub(super) fn restore_old_view(&mut self) {
        if self.mutant == Mutant::RestoresOldView {
            let (view, names) = (self.last_views[0].clone(), self.coordinator.names().clone());
            self.coordinator = Coordinator::resume(self.settings, LEASE_MS, view, names);
        }
    }
}
