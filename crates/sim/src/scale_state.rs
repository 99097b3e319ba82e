//! What a large cluster has in common: racks, what is left to create, and counts of packets.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use amalgam_cluster::ids::NodeId;
use amalgam_cluster::overlay::Peer;

/// What all nodes of a large cluster share, unlike real ones.
#[derive(Debug, Default)]
pub struct ScaleState {
    /// Chunks that the client of each node has yet to create.
    pub to_create: BTreeMap<NodeId, usize>,
    /// How often a client begins an operation, in percent of its node's ticks.
    pub operations_percent: u64,
    /// Backups of each range.
    pub backups: usize,
    /// The rack of each node.
    pub racks: BTreeMap<NodeId, String>,
    /// A hash of all packets that arrived, and when: two runs of a seed have the same.
    pub fingerprint: DefaultHasher,
    /// Packets that arrived, and their bytes.
    pub packets: u64,
    /// See [`Self::packets`].
    pub packet_bytes: u64,
}

impl ScaleState {
    /// A packet arrives.
    pub(crate) fn note_packet(&mut self, (from, to): (Peer, Peer), bytes: &[u8], now_ms: u64) {
        if self.backups == 0 {
            return;
        }
        self.packets += 1;
        self.packet_bytes += bytes.len() as u64;
        let [from, to] = [from, to].map(|peer| u64::from(peer.node.get()));
        self.fingerprint.write_u64(from << 48 | to << 32 | now_ms);
        self.fingerprint.write(bytes);
    }
}
