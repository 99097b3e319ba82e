//! What a replica holds of one creator apart from its ranges, and digests of it.

use std::collections::BTreeMap;

use super::edit::{LastRequest, Version};
use super::view::Peer;
use crate::ids::{IdRange, NodeId};
use crate::interval_map::IntervalMap;
use crate::ranges::Range;

#[derive(Clone, Debug)]
pub(super) struct CreatorState {
    pub(super) version: Version,
    /// Sum of the digests of ranges, last requests, incarnations and runs to recover: equal for
    /// equal content, whatever its history.
    pub(super) digest: u64,
    pub(super) last_requests: BTreeMap<NodeId, LastRequest>,
    /// The incarnation of each node that ranges name, or have named.
    pub(super) incarnations: BTreeMap<NodeId, u32>,
    /// Ids whose owner has yet to recover them, and the peer in whose name they were replicated;
    /// ids without a backup that their owner keeps in its own log, and that owner.
    pub(super) to_recover: IntervalMap<Peer>,
}

impl CreatorState {
    pub(super) fn new(version: Version) -> Self {
        let (last_requests, incarnations, to_recover) = Default::default();
        Self { version, digest: 0, last_requests, incarnations, to_recover }
    }

    /// Whether ranges name this incarnation of the node.
    pub(super) fn names_peer(&self, peer: Peer) -> bool {
        self.incarnations.get(&peer.node) == Some(&peer.incarnation)
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = Peer> {
        self.incarnations
            .iter()
            .map(|(node, incarnation)| Peer { node: *node, incarnation: *incarnation })
    }

    pub(super) fn add_peer(&mut self, peer: Peer) {
        if self.incarnations.insert(peer.node, peer.incarnation).is_none() {
            self.digest = self.digest.wrapping_add(digest_of_peer(peer));
        }
    }

    pub(super) fn remove_peer(&mut self, peer: Peer) {
        if self.incarnations.remove(&peer.node).is_some() {
            self.digest = self.digest.wrapping_sub(digest_of_peer(peer));
        }
    }

    /// Cuts `ids` into parts to recover from one source, and parts with nothing to recover (None).
    pub(super) fn to_recover_in(&self, ids: IdRange) -> Vec<(IdRange, Option<Peer>)> {
        let (mut parts, mut at) = (Vec::new(), ids.start());
        for (span, source) in self.to_recover.over(ids.start()..ids.end()) {
            if at < span.start {
                parts.push((IdRange::from_bits(at, span.start), None));
            }
            at = span.end;
            parts.push((IdRange::from_bits(span.start, span.end), Some(*source)));
        }
        if at < ids.end() {
            parts.push((IdRange::from_bits(at, ids.end()), None));
        }
        parts
    }

    /// Digest of the runs that an assignment to `ids` can change: those that overlap or touch them.
    pub(super) fn digest_of_to_recover(&self, ids: IdRange) -> u64 {
        let runs = self.to_recover.iter();
        let near = runs.filter(|(span, _)| span.start <= ids.end() && span.end >= ids.start());
        near.fold(0, |sum: u64, (span, source)| sum.wrapping_add(digest_of_run(&span, *source)))
    }

    pub(super) fn set_last_request(&mut self, request: LastRequest) {
        self.digest = self.digest.wrapping_add(digest_of_request(&request));
        if let Some(last) = self.last_requests.insert(request.request.peer.node, request) {
            self.digest = self.digest.wrapping_sub(digest_of_request(&last));
        }
    }
}

pub(super) fn digest_of_range(range: &Range) -> u64 {
    mix(&[1, range.ids.start(), range.ids.end(), range.placement.bits()])
}

pub(super) fn digest_of_run(span: &std::ops::Range<u64>, source: Peer) -> u64 {
    let Peer { node, incarnation } = source;
    mix(&[3, span.start, span.end, u64::from(node.get()), u64::from(incarnation)])
}

fn digest_of_peer(peer: Peer) -> u64 {
    mix(&[4, u64::from(peer.node.get()), u64::from(peer.incarnation)])
}

fn digest_of_request(request: &LastRequest) -> u64 {
    let result = match request.result {
        Ok(epoch) => epoch,
        Err(refusal) => u64::MAX - refusal as u64,
    };
    let Peer { node, incarnation } = request.request.peer;
    mix(&[2, u64::from(node.get()), u64::from(incarnation), request.request.sequence, result])
}

/// A non-cryptographic mix: it finds accidental differences, not forged ones.
fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x243f_6a88_85a3_08d3, |state: u64, word| {
        let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
    })
}
