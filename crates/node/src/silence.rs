//! Nodes that owe answers and send nothing, and how long their clients wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use amalgam_cluster::overlay::Peer;
use amalgam_op::IgnorePoison;

/// How long nothing more is logged of a node that falls silent again and again, in milliseconds: of
/// one that is short of processors, each answer ends a silence and the next one is soon noticed.
const REPORT_PAUSE_MS: u64 = 5_000;

/// The nodes that make no progress, as far as several clients of one process know.
#[derive(Debug, Default)]
pub struct SilentNodes {
    nodes: Mutex<BTreeSet<Peer>>,
    /// The number of nodes.
    count: AtomicUsize,
    /// The silence of each node that was logged last.
    reports: Mutex<BTreeMap<Peer, Report>>,
}

/// What was logged of a node's silence.
#[derive(Clone, Copy, Debug)]
struct Report {
    at_ms: u64,
    /// Whether its end was logged too.
    is_over: bool,
}

impl SilentNodes {
    /// Changes the set.
    pub fn change<R>(&self, change: impl FnOnce(&mut BTreeSet<Peer>) -> R) -> R {
        let mut nodes = self.nodes.lock().ignore_poison();
        let result = change(&mut nodes);
        self.count.store(nodes.len(), Ordering::Release);
        result
    }

    /// Adds a node. Whether to log that: it was none of them, and the last report is old enough.
    pub fn fell_silent(&self, node: Peer, now_ms: u64) -> bool {
        if !self.change(|nodes| nodes.insert(node)) {
            return false;
        }
        let mut reports = self.reports.lock().ignore_poison();
        reports.retain(|_, report| !report.is_over || now_ms < report.at_ms + REPORT_PAUSE_MS);
        let is_new = !reports.contains_key(&node);
        if is_new {
            reports.insert(node, Report { at_ms: now_ms, is_over: false });
        }
        is_new
    }

    /// Removes a node. Whether to log that: its silence was logged, and no end of it.
    pub fn progressed(&self, node: Peer) -> bool {
        if !self.change(|nodes| nodes.remove(&node)) {
            return false;
        }
        let mut reports = self.reports.lock().ignore_poison();
        let report = reports.get_mut(&node);
        report.is_some_and(|report| !std::mem::replace(&mut report.is_over, true))
    }

    /// Forgets the nodes that are no members any more.
    pub fn retain(&self, is_member: impl Fn(&Peer) -> bool) {
        self.change(|nodes| nodes.retain(&is_member));
        self.reports.lock().ignore_poison().retain(|node, _| is_member(node));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether a node is one of them.
    pub fn has(&self, node: Peer) -> bool {
        !self.is_empty() && self.nodes.lock().ignore_poison().contains(&node)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Peer> {
        self.nodes.lock().ignore_poison().iter().copied().collect()
    }
}

/// How long a client waits for other nodes, if its callers must not wait long.
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// Time after which an operation is given up, in milliseconds. Its owner does not execute it
    /// later.
    pub operation_ms: u64,
    /// Silence after which a node that owes answers counts as silent, in milliseconds. Operations
    /// on its keys then fail at once.
    pub silent_ms: u64,
    /// The silent nodes, which clients of one process share.
    pub silent: Arc<SilentNodes>,
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::ids::NodeId;

    use super::*;

    #[test]
    fn a_node_that_falls_silent_again_and_again_is_logged_seldom() {
        let peer = |number| Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 };
        let silent = SilentNodes::default();
        let (mut begins, mut ends) = (0, 0);
        for now_ms in (0..20_000).step_by(10) {
            begins += usize::from(silent.fell_silent(peer(1), now_ms));
            assert!(silent.has(peer(1)) && !silent.fell_silent(peer(1), now_ms));
            ends += usize::from(silent.progressed(peer(1)));
            assert!(silent.is_empty() && !silent.progressed(peer(1)));
        }
        assert_eq!((begins, ends), (4, 4));
        // Each node for itself, and a silence that lasts once.
        assert!(silent.fell_silent(peer(2), 19_000) && !silent.fell_silent(peer(1), 19_500));
        assert!(!silent.fell_silent(peer(2), 40_000) && silent.progressed(peer(2)));
        silent.retain(|node| *node == peer(2));
        assert!(silent.is_empty() && silent.fell_silent(peer(1), 20_001));
    }
}
