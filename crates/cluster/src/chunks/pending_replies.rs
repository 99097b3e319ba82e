//! Replies that wait until all backups have the changes behind them.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use super::migration::MoveMessage;
use super::request::Reply;
use crate::hash::IntHashMap;
use crate::overlay::Peer;

/// Pending replies at most.
const PENDING_REPLIES_MAX: usize = 1 << 16;

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

/// Pending replies and the versions that they wait for.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    /// By number: how many versions a reply still waits for, and the reply.
    answers: BTreeMap<u64, (usize, PendingReply)>,
    /// By version: the numbers of the replies that wait for it, the first apart from the rest.
    awaited: IntHashMap<u64, (u64, Vec<u64>)>,
    next: u64,
}

impl PendingReplies {
    /// Whether no further reply may wait.
    pub fn is_full(&self) -> bool {
        self.answers.len() >= PENDING_REPLIES_MAX
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
        self.answers.insert(number, (count, waiting));
        self.next += 1;
    }

    /// All backups have a version: moves the replies that wait for nothing else to `ready`.
    pub fn release(&mut self, version: u64, ready: &mut Vec<PendingReply>) {
        let Some((first, others)) = self.awaited.remove(&version) else { return };
        for number in std::iter::once(first).chain(others) {
            let Some((count, _)) = self.answers.get_mut(&number) else { continue };
            *count -= 1;
            if *count == 0 {
                ready.extend(self.answers.remove(&number).map(|(_, waiting)| waiting));
            }
        }
    }

    /// Drops replies that wait for a version that will never be released; their requesters repeat
    /// the request.
    pub fn keep(&mut self, is_awaited: impl Fn(u64) -> bool) {
        let Self { answers, awaited, .. } = self;
        awaited.retain(|version, (first, others)| {
            let is_kept = is_awaited(*version);
            if !is_kept {
                answers.remove(first);
                others.iter().for_each(|number| drop(answers.remove(number)));
            }
            is_kept
        });
    }
}
