//! What a node shows of itself in the metrics of its clients' port.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amalgam_cluster::client::ClientStatistics;
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::replication::Backlog;
use amalgam_cluster::wire::{MemoryUse, NodeMemory, NodeStatus};
use amalgam_index::Metric;

/// What the event loop tells about once a second.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// As clients are told.
    pub status: NodeStatus,
    /// Failovers that load replicas, and those whose new backups are agreed on.
    pub failovers: (usize, usize),
    /// What its backups have not acknowledged.
    pub backlogs: Vec<Backlog>,
    /// Items that the node, as a backup of a cache, has forgotten since its log was full.
    pub forgotten: u64,
    /// How long the nodes that it probes take to answer.
    pub round_trips: Vec<(Peer, Duration)>,
}

/// What the workers have had other nodes, or their own event loop, execute. Relaxed: these are
/// numbers to look at.
#[derive(Debug, Default)]
pub struct LateCounts {
    answered: AtomicU64,
    requests: AtomicU64,
    misdirected: AtomicU64,
    given_up: AtomicU64,
}

impl LateCounts {
    /// Adds what a worker's client did between two of its statistics.
    pub fn add(&self, before: &ClientStatistics, now: &ClientStatistics) {
        let counts = [
            (&self.answered, before.answered, now.answered),
            (&self.requests, before.requests, now.requests),
            (&self.misdirected, before.misdirected, now.misdirected),
            (&self.given_up, before.given_up, now.given_up),
        ];
        for (count, before, now) in counts {
            if now > before {
                count.fetch_add(now - before, Ordering::Relaxed);
            }
        }
    }

    /// Shows the counts.
    pub fn show(&self, show: &mut dyn FnMut(&Metric<'_>)) {
        let name = "amalgam_cluster_forwarded_total";
        let help = "Operations on keys that the threads of the clients' port could not execute by \
                    themselves, by what became of them.";
        let all = [("answered", &self.answered), ("given_up", &self.given_up)];
        for (result, count) in all {
            let label = Some(("result", result));
            show(&Metric { name, help, label, value: count.load(Ordering::Relaxed) as f64 });
        }
        let rows = [
            (
                "amalgam_cluster_requests_total",
                "Requests to owners of keys; one carries many operations.",
                &self.requests,
            ),
            (
                "amalgam_cluster_misdirected_total",
                "Requests to a node that was not the key's owner, or no longer.",
                &self.misdirected,
            ),
        ];
        for (name, help, count) in rows {
            let value = count.load(Ordering::Relaxed) as f64;
            show(&Metric { name, help, label: None, value });
        }
    }
}

impl NodeReport {
    /// Shows the report.
    pub fn show(&self, show: &mut dyn FnMut(&Metric<'_>)) {
        let status = &self.status;
        let rows = [
            (
                "amalgam_cluster_members",
                "Members that the node knows.",
                status.members.len() as u64,
            ),
            (
                "amalgam_cluster_partitions",
                "Partitions of the keys that the node serves.",
                status.partitions,
            ),
            ("amalgam_cluster_chunks", "Chunk ids that the node owns.", status.ids),
            ("amalgam_cluster_spans", "Intervals that these ids form.", status.spans),
            (
                "amalgam_cluster_metadata_ranges",
                "Ranges of metadata that the node holds as a super peer.",
                status.ranges.0,
            ),
            ("amalgam_cluster_backups", "Backups that each range is to have.", status.backups),
            (
                "amalgam_cluster_reduced_ranges",
                "Intervals of the node's ids that have fewer backups than they are to have, or \
                 than there are other members.",
                status.reduced.0,
            ),
            (
                "amalgam_cluster_kept_replicas",
                "Chunks and items of other nodes that the node keeps as a backup.",
                status.kept,
            ),
            (
                "amalgam_cluster_forgotten_items_total",
                "Items of other nodes that the node, as a backup, has forgotten as its log was \
                 full: they are missing if their owner dies.",
                self.forgotten,
            ),
            (
                "amalgam_cluster_hot_moves_total",
                "Ids that the node moved to others because they were hot.",
                status.hot_moves,
            ),
            ("amalgam_cluster_flushes_total", "Flushes that the node carried out.", status.flushes),
        ];
        for (name, help, value) in rows {
            show(&Metric { name, help, label: None, value: value as f64 });
        }
        let (from, to) = status.moves;
        let name = "amalgam_cluster_migrations";
        let help = "Ranges that migrate at present, from the node or to it.";
        for (direction, count) in [("from", from), ("to", to)] {
            show(&Metric {
                name,
                help,
                label: Some(("direction", direction)),
                value: count as f64,
            });
        }
        let (loading, committing) = self.failovers;
        let name = "amalgam_cluster_failovers";
        let help = "Ranges of dead nodes that the node takes over at present: it loads replicas, \
                    or agrees on new backups.";
        for (stage, count) in [("loading", loading), ("committing", committing)] {
            show(&Metric { name, help, label: Some(("stage", stage)), value: count as f64 });
        }
        // By node, as it may have a stream of an earlier incarnation too.
        let mut nodes: BTreeMap<u16, (usize, usize)> = BTreeMap::new();
        for backlog in &self.backlogs {
            let (entries, bytes) = nodes.entry(backlog.peer.node.get()).or_default();
            *entries += backlog.entries;
            *bytes += backlog.bytes;
        }
        let name = "amalgam_cluster_unacknowledged_entries";
        let help = "Changes that a backup has not acknowledged.";
        for (node, (entries, _)) in &nodes {
            let label = Some(("backup", &*node.to_string()));
            show(&Metric { name, help, label, value: *entries as f64 });
        }
        let name = "amalgam_cluster_unacknowledged_bytes";
        let help = "Bytes of these changes, at most.";
        for (node, (_, bytes)) in &nodes {
            let label = Some(("backup", &*node.to_string()));
            show(&Metric { name, help, label, value: *bytes as f64 });
        }
        let name = "amalgam_cluster_peer_round_trip_seconds";
        let help = "Time until another node answers a probe, smoothed, or for which its answer is \
                    outstanding if that is longer: of the nodes that this one probes.";
        for (peer, time) in &self.round_trips {
            let label = Some(("peer", &*peer.node.get().to_string()));
            show(&Metric { name, help, label, value: time.as_secs_f64() });
        }
    }
}

/// Shows how long the node's lease lasts if it is not renewed.
pub fn show_lease(left_ms: u64, show: &mut dyn FnMut(&Metric<'_>)) {
    let name = "amalgam_cluster_lease_left_seconds";
    let help = "Time until the node is no member any more if etcd does not renew its lease.";
    show(&Metric { name, help, label: None, value: left_ms as f64 / 1e3 });
}

/// Shows the memory of chunks; that of items is the server's.
pub fn show_memory(memory: &NodeMemory, show: &mut dyn FnMut(&Metric<'_>)) {
    let MemoryUse { used, fillable, limit } = memory.chunks;
    let name = "amalgam_cluster_chunk_memory_bytes";
    let help = "Memory of chunks: in use, what clients may fill of it, and the limit.";
    for (part, bytes) in [("used", used), ("fillable", fillable), ("limit", limit)] {
        show(&Metric { name, help, label: Some(("part", part)), value: bytes as f64 });
    }
}
