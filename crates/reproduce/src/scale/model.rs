//! The equations of the model. Each says what it leaves out.

use amalgam_cluster::overlay::{GROUP_MEMBERS, OverlaySettings};

use super::fit::Fit;

/// The number of super peers that hold each piece of metadata.
pub const GROUP: f64 = GROUP_MEMBERS as f64;
/// The number of ids in the longest range.
pub const RANGE_IDS: f64 = 2e6;
/// The number of copies that a new owner makes of the chunks that it recovers.
const COPIES: f64 = 3.0;
/// The most chunks that one node can hold; points with more are left out.
pub const NODE_CHUNKS_MAX: f64 = 1e10;

/// A modelled cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    pub nodes: f64,
    pub chunks: f64,
    /// The share of chunks that moved from the node that created them, each by itself.
    pub moved: f64,
}

impl Cluster {
    pub fn super_peers(self) -> f64 {
        OverlaySettings::default().supers_wanted(self.nodes as usize) as f64
    }

    pub fn chunks_of_a_node(self) -> f64 {
        self.chunks / self.nodes
    }

    /// Whether one node could hold its share of the chunks.
    pub fn is_possible(self) -> bool {
        self.chunks_of_a_node() <= NODE_CHUNKS_MAX
    }

    /// The number of ranges. A range ends where the next chunk has another placement, because one
    /// of the two neighbours moved.
    pub fn ranges(self) -> f64 {
        let apart = 2.0 * self.moved - self.moved * self.moved;
        self.chunks * apart + self.cells()
    }

    /// The number of ranges that only the limit on their length ends.
    fn cells(self) -> f64 {
        self.nodes * (self.chunks_of_a_node() / RANGE_IDS).ceil()
    }

    /// The bytes of one copy of all ranges.
    pub fn metadata_bytes(self, fit: &Fit) -> f64 {
        self.ranges() * fit.bytes_a_range(self.moved)
    }

    /// The bytes of one super peer if all ring segments have the same number of ranges, without the
    /// table of last requests ([`Self::remembered_bytes`]).
    pub fn super_peer_bytes(self, fit: &Fit) -> f64 {
        GROUP * self.metadata_bytes(fit) / self.super_peers()
    }

    /// An upper bound of the bytes of a super peer's table of last requests: one entry for each
    /// pair of a node and a creator, as if every node had moved chunks of every creator.
    pub fn remembered_bytes(self, fit: &Fit) -> f64 {
        GROUP * self.nodes * self.nodes * fit.seen_bytes / self.super_peers()
    }

    /// The lookups a second of one super peer where each node asks for `gets` uniformly chosen
    /// chunks a second and caches ranges in `cache_bytes`. Lookups for outdated cache entries are
    /// left out.
    pub fn lookups(self, gets: f64, cache_bytes: f64, fit: &Fit) -> f64 {
        let missed = 1.0 - (cache_bytes / self.metadata_bytes(fit)).min(1.0);
        self.nodes * gets * missed / self.super_peers()
    }
}

/// A simultaneous failure of several nodes, none of which holds a copy for another. With more than
/// three nodes the model gives the time of recovery, not what is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    pub cluster: Cluster,
    pub failed: f64,
    /// The bandwidth of each node's link in bits a second.
    pub link_bits: f64,
}

/// The times of a recovery in seconds, from when the failure is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recovery {
    pub readable: f64,
    pub full: f64,
}

impl Failure {
    /// The time of the new owner that finishes last. The other nodes share the ranges of the failed
    /// ones as evenly as whole ranges allow; each reads, checks and inserts on one core and sends
    /// its copies.
    pub fn recovery(self, fit: &Fit) -> Recovery {
        let Cluster { nodes, .. } = self.cluster;
        let alive = nodes - self.failed;
        let chunks_of_a_node = self.cluster.chunks_of_a_node();
        let chunks_of_a_range = chunks_of_a_node.min(RANGE_IDS);
        let ranges = self.failed * (chunks_of_a_node / RANGE_IDS).max(1.0).ceil();
        let most = (ranges / alive).ceil() * chunks_of_a_range;
        let heir_seconds = |core_seconds: f64| most * core_seconds;
        let sent = most * COPIES * fit.copy_bytes * 8.0 / self.link_bits;
        Recovery {
            readable: heir_seconds(fit.readable_core_seconds).max(sent),
            full: heir_seconds(fit.full_core_seconds).max(sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: f64, chunks: f64, moved: f64) -> Cluster {
        Cluster { nodes, chunks, moved }
    }

    #[test]
    fn metadata_follows_disorder_and_not_nodes() {
        let fit = Fit::of_structures(200_000);
        let bytes = |nodes, moved| cluster(nodes, 1e11, moved).metadata_bytes(&fit);
        assert!(bytes(100.0, 0.1) > 5.0 * bytes(100.0, 0.01));
        let (few, many) = (bytes(100.0, 0.01), bytes(10_000.0, 0.01));
        assert!((many / few - 1.0).abs() < 0.01, "{few} and {many}");
        let own = |nodes| cluster(nodes, 1e11, 0.01).super_peer_bytes(&fit);
        assert!((own(100.0) / own(10_000.0) / 100.0 - 1.0).abs() < 0.01, "8 of 100 share it");
    }

    #[test]
    fn a_faster_link_helps_until_the_cores_are_the_limit() {
        let fit = Fit::of_structures(200_000);
        let time = |link_bits, failed| {
            let cluster = cluster(100.0, 1e10, 0.01);
            Failure { cluster, failed, link_bits }.recovery(&fit).full
        };
        assert!(time(1e9, 1.0) > time(1e10, 1.0) && time(1e10, 1.0) >= time(1e11, 1.0));
        assert_eq!(time(1e11, 1.0), time(1e12, 1.0));
        assert!(time(1e9, 10.0) > 5.0 * time(1e9, 1.0));
    }

    #[test]
    fn a_client_that_remembers_all_asks_nobody() {
        let fit = Fit::of_structures(200_000);
        let few = cluster(10.0, 1e6, 0.01);
        assert_eq!(few.lookups(1e5, 64e6, &fit), 0.0);
        assert!(cluster(1_000.0, 1e12, 0.01).lookups(1e5, 64e6, &fit) > 1e5);
    }
}
