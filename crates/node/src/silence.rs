//! Nodes that owe answers and send nothing, and how long their clients wait for them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use amalgam_cluster::overlay::Peer;
use amalgam_op::IgnorePoison;

/// The nodes that make no progress, as far as several clients of one process know.
#[derive(Debug, Default)]
pub struct SilentNodes {
    nodes: Mutex<BTreeSet<Peer>>,
    /// The number of nodes.
    count: AtomicUsize,
}

impl SilentNodes {
    /// Changes the set.
    pub fn change<R>(&self, change: impl FnOnce(&mut BTreeSet<Peer>) -> R) -> R {
        let mut nodes = self.nodes.lock().ignore_poison();
        let result = change(&mut nodes);
        self.count.store(nodes.len(), Ordering::Release);
        result
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
