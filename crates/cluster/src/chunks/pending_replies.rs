//! Answers that wait until backups have what they say.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use super::migration::MoveMessage;
use super::request::Reply;
use crate::hash::IntHashMap;
use crate::overlay::Peer;

/// Answers that wait at most.
const PENDING_REPLIES_MAX: usize = 1 << 16;

/// Who asked, to be answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A node.
    Peer(Peer),
    /// Somebody whom the process around the node knows by that number.
    Local(u64),
}

/// What waits.
#[derive(Debug)]
pub(super) enum PendingReply {
    Reply(Requester, Reply),
    /// To the source of a move.
    Ack(Peer, MoveMessage),
}

/// Answers and the versions that they wait for.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    /// By number: how many versions an answer waits for yet.
    answers: BTreeMap<u64, (usize, PendingReply)>,
    /// By version: the numbers of the answers that wait for it, the first of them and others.
    awaited: IntHashMap<u64, (u64, Vec<u64>)>,
    next: u64,
}

impl PendingReplies {
    /// Whether no more may wait.
    pub fn is_full(&self) -> bool {
        self.answers.len() >= PENDING_REPLIES_MAX
    }

    /// Keeps an answer until all of `versions`, of which there is one at least, were released.
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

    /// A version is with all backups: hands out what waited for nothing else.
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

    /// Drops answers that wait for what will never be: their askers ask again.
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
