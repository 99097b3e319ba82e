//! Fits the model to the real structures and messages, and to measured recoveries.

use amalgam_cluster::ids::{ChunkId, Creator, IdRange, NodeId};
use amalgam_cluster::overlay::{LastRequest, Message, Peer};
use amalgam_cluster::ranges::{MapLimits, Placement, Range, RangeMap};
use amalgam_cluster::wire::{Packet, Wire};

use amalgam_bench::workload::{Permutation, mix64};

/// The shares of moved ids for which a map is built.
const SHARES: [f64; 4] = [0.001, 0.01, 0.05, 0.1];
/// The number of nodes of a map, the default of `bench ids`.
const NODES: u64 = 1_000;
/// The number of sets of backups of each owner.
const SETS: u64 = 16;
/// Resident bytes over those that a map counts, at 100 million ids and 1 % (`bench ids`).
const RESIDENT: f64 = 1.03;
/// Shares and resident bytes a range of 100 million ids, as `bench ids` measured them with three
/// backups in 16 sets an owner (docs/results/ids.md): what the fit's are checked against.
const MEASURED: [(f64, f64); 4] = [(0.001, 7.33), (0.01, 6.32), (0.05, 4.45), (0.1, 4.43)];
/// Ethernet, IP and TCP around each message that travels alone, and the frame's head.
const PACKET_BYTES: usize = 78 + 12;
/// The bytes of a log record and a message on top of the value: head, owner, id, version, answer.
const COPY_BESIDE_BYTES: f64 = 100.0;
/// The size of a chunk's value in bytes.
pub const VALUE_BYTES: f64 = 64.0;

/// The parameters of the model.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Fit {
    /// Pairs of a share of moved ids and the resident bytes of a range, with three backups in 16
    /// sets an owner.
    pub range_bytes: Vec<(f64, f64)>,
    /// The bytes of a lookup and its reply on the wire.
    pub lookup_bytes: f64,
    /// The bytes that a super peer keeps of a node's last request.
    pub seen_bytes: f64,
    /// The bytes on the wire of a chunk that is copied to a backup.
    pub copy_bytes: f64,
    /// CPU time in seconds that a chunk takes until it is served again.
    pub readable_core_seconds: f64,
    /// CPU time in seconds that a chunk takes until it has its backups again.
    pub full_core_seconds: f64,
}

impl Fit {
    /// Fits everything apart from recoveries, from maps with `ids` ids. Recoveries get one core at
    /// a million chunks a second.
    pub fn of_structures(ids: u64) -> Self {
        let range_bytes = SHARES.map(|share| (share, bytes_a_range(ids, share))).to_vec();
        Self {
            range_bytes,
            lookup_bytes: lookup_bytes() as f64,
            // The nodes of a map have capacity for half as many entries again.
            seen_bytes: 1.5 * (size_of::<NodeId>() + size_of::<LastRequest>()) as f64,
            copy_bytes: VALUE_BYTES + COPY_BESIDE_BYTES,
            readable_core_seconds: 1e-6,
            full_core_seconds: 1e-6,
        }
    }

    /// The fit with a measured recovery: chunks per second on `cores` cores.
    pub fn with_recovery(self, readable: f64, full: f64, cores: f64) -> Self {
        let readable_core_seconds = cores / readable;
        Self { readable_core_seconds, full_core_seconds: cores / full, ..self }
    }

    /// The relative error of the fitted bytes of a range at a share that was measured; `None` at
    /// others.
    pub fn error_of_range_bytes(&self, share: f64) -> Option<f64> {
        let (_, measured) = MEASURED.iter().find(|(one, _)| *one == share)?;
        Some(self.bytes_a_range(share) / measured - 1.0)
    }

    /// The bytes of a range at the nearest share for which a map was built.
    pub fn bytes_a_range(&self, moved: f64) -> f64 {
        let distance = |share: f64| (share.ln() - moved.ln()).abs();
        let nearest = self
            .range_bytes
            .iter()
            .min_by(|one, other| distance(one.0).total_cmp(&distance(other.0)));
        nearest.map_or(f64::NAN, |(_, bytes)| *bytes)
    }
}

fn node(number: u64) -> NodeId {
    NodeId::new(number as u16).expect("a small number")
}

/// The placement with one of the owner's sets of backups, which `drawn` chooses.
fn placement(owner: u64, drawn: u64) -> Placement {
    let first = (owner + 1 + drawn % SETS * 3) % NODES;
    let backups = [0, 1, 2].map(|step| (first + step) % NODES);
    let backups = backups.iter().filter(|backup| **backup != owner);
    Placement::new(node(owner), &backups.map(|backup| node(*backup)).collect::<Vec<_>>())
        .expect("different nodes")
}

fn bytes_a_range(ids: u64, share: f64) -> f64 {
    let id = |counter| ChunkId::new(Creator::from(node(0)), counter).expect("an id");
    let mut map = RangeMap::new(MapLimits::default());
    map.assign(IdRange::new(id(0), id(ids - 1)).expect("a range"), Some(placement(0, 0)));
    // The dictionary of placements has a fixed size, so it is not counted.
    let order = Permutation::new(ids, 1);
    let moves = (ids as f64 * share) as u64;
    for owner in 1..NODES {
        for set in 0..SETS {
            map.assign(IdRange::single(id(0)), Some(placement(owner, set)));
        }
    }
    let before = map.bytes();
    for number in 0..moves {
        let drawn = mix64(number);
        let target = placement(1 + drawn % (NODES - 1), drawn >> 32);
        map.assign(IdRange::single(id(order.apply(number))), Some(target));
    }
    RESIDENT * (map.bytes() - before) as f64 / map.ranges().count() as f64
}

fn lookup_bytes() -> usize {
    let (id, origin) = (
        ChunkId::new(Creator::from(node(0)), 1 << 30).expect("an id"),
        Peer { node: node(1), incarnation: 1 },
    );
    let range = Range { ids: IdRange::single(id), placement: placement(1, 0) };
    let messages = [
        Message::LookUp { origin, token: 1, id, hops: 0 },
        Message::Found { token: 1, id, epoch: 1, found: Some((range, 1)), is_certain: true },
    ];
    let length = |message: Message| {
        let mut bytes = Vec::new();
        Packet::Overlay(message).encode(&mut bytes);
        bytes.len() + PACKET_BYTES
    };
    messages.into_iter().map(length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_takes_few_bytes_and_less_where_there_are_more() {
        let fit = Fit::of_structures(1_000_000);
        assert!(fit.range_bytes.iter().all(|(_, bytes)| (1.5..16.0).contains(bytes)), "{fit:?}");
        assert!((200.0..400.0).contains(&fit.lookup_bytes), "{fit:?}");
        assert_eq!(fit.bytes_a_range(0.012), fit.bytes_a_range(0.01));
        let exact = Fit { range_bytes: vec![(0.01, 6.32), (0.1, 8.86)], ..fit };
        assert_eq!(exact.error_of_range_bytes(0.01), Some(0.0));
        assert_eq!(exact.error_of_range_bytes(0.1), Some(1.0), "twice what was measured");
        assert_eq!(exact.error_of_range_bytes(0.02), None, "nobody measured it");
    }
}
