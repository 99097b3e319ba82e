//! Replies that wait until all backups have the changes behind them.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use super::moves::MoveMessage;
use crate::chunks::{Reply, value_bytes};
use crate::hash::IntHashMap;
use crate::overlay::Peer;

/// Pending replies at most, and their bytes, apart from the reply with which they are exceeded.
const PENDING_REPLIES_MAX: usize = 1 << 16;
const PENDING_BYTES_MAX: usize = 64 << 20;

/// Where a reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// To a node.
    Peer(Peer),
    /// To the process around the node, which knows the request by this number.
    Local(u64),
}

/// A reply that waits.
#[derive(Debug)]
pub(super) enum PendingReply {
    Reply(Requester, Reply),
    /// The acknowledgement of a page, to the source of a move.
    Ack(Peer, MoveMessage),
}

impl PendingReply {
    /// Bytes of the values that it holds.
    fn bytes(&self) -> usize {
        let Self::Reply(_, reply) = self else { return 0 };
        reply.iter().map(|(_, result)| value_bytes(result)).sum()
    }
}

/// Pending replies and the versions that they wait for.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    /// By number: how many versions a reply still waits for, and the reply.
    answers: BTreeMap<u64, (usize, PendingReply)>,
    /// By version: the numbers of the replies that wait for it, the first apart from the rest.
    awaited: IntHashMap<u64, (u64, Vec<u64>)>,
    next: u64,
    /// Bytes of `answers`.
    bytes: usize,
}

impl PendingReplies {
    /// Whether no further reply may wait.
    pub fn is_full(&self) -> bool {
        self.answers.len() >= PENDING_REPLIES_MAX || self.bytes >= PENDING_BYTES_MAX
    }

    /// Holds a reply until all of `versions` are released. Requires: at least one version.
    pub fn hold(&mut self, versions: impl IntoIterator<Item = u64>, waiting: PendingReply) {
        let number = self.next;
        let mut count = 0;
        for version in versions {
            match self.awaited.entry(version) {
                Entry::Vacant(vacant) => drop(vacant.insert((number, Vec::new()))),
                Entry::Occupied(mut occupied) => {
                    let (first, others) = occupied.get_mut();
                    if *first == number || others.last() == Some(&number) {
                        continue;
                    }
                    others.push(number);
                }
            }
            count += 1;
        }
        self.bytes += waiting.bytes();
        self.answers.insert(number, (count, waiting));
        self.next += 1;
    }

    fn remove(&mut self, number: u64) -> Option<PendingReply> {
        let (_, waiting) = self.answers.remove(&number)?;
        self.bytes -= waiting.bytes();
        Some(waiting)
    }

    /// All backups have a version: moves the replies that wait for nothing else to `ready`.
    pub fn release(&mut self, version: u64, ready: &mut Vec<PendingReply>) {
        let Some((first, others)) = self.awaited.remove(&version) else { return };
        for number in std::iter::once(first).chain(others) {
            let Some((count, _)) = self.answers.get_mut(&number) else { continue };
            *count -= 1;
            if *count == 0 {
                ready.extend(self.remove(number));
            }
        }
    }

    /// Drops replies that wait for a version that will never be released; their requesters repeat
    /// the request.
    pub fn keep(&mut self, is_awaited: impl Fn(u64) -> bool) {
        let mut dropped = Vec::new();
        self.awaited.retain(|version, (first, others)| {
            let is_kept = is_awaited(*version);
            if !is_kept {
                dropped.push(*first);
                dropped.append(others);
            }
            is_kept
        });
        dropped.into_iter().for_each(|number| drop(self.remove(number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Response;

    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let mut pending = PendingReplies::default();
        let value = || Ok(Response::Value(vec![0; 1 << 20]));
        let hold = |pending: &mut PendingReplies, version| {
            pending.hold([version], PendingReply::Reply(Requester::Local(1), vec![(1, value())]));
        };
        let most = (PENDING_BYTES_MAX >> 20) as u64;
        for version in 0..most {
            assert!(!pending.is_full(), "{version}");
            hold(&mut pending, version);
        }
        assert!(pending.is_full());
        let mut ready = Vec::new();
        pending.release(0, &mut ready);
        assert!(!pending.is_full() && ready.len() == 1);
        hold(&mut pending, most);
        assert!(pending.is_full());
        pending.keep(|_| false);
        assert!(!pending.is_full() && pending.bytes == 0, "nobody waits for them");
    }
}
