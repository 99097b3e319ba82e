//! Replies that wait until all backups have the changes behind them.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use crate::chunks::{Reply, value_bytes};
use crate::hash::IntHashMap;
use crate::overlay::Peer;

/// Pending replies at most, and their bytes, apart from the reply with which they are exceeded.
const PENDING_REPLIES_MAX: usize = 1 << 16;
const PENDING_BYTES_MAX: usize = 64 << 20;

/// After this time, operations whose changes all backups have are answered without the others of
/// their request, in milliseconds. Usually the others follow at once, and one message costs less.
const TOGETHER_MS: u64 = 30;

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
    /// The versions are those that its operations wait for, in the same order; None for nothing.
    Reply(Requester, Reply, Vec<Option<u64>>),
    /// The acknowledgement of a page, by its number, to the source of the move of that number.
    Ack(Peer, u64, u32),
}

impl PendingReply {
    /// Bytes of the values that it holds.
    fn bytes(&self) -> usize {
        let Self::Reply(_, reply, _) = self else { return 0 };
        reply.iter().map(|(_, result)| value_bytes(result)).sum()
    }
}

#[derive(Debug)]
struct Held {
    /// How many versions it still waits for.
    versions: usize,
    since_ms: u64,
    reply: PendingReply,
}

/// Pending replies and the versions that they wait for.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    /// Replies by number, which ascend with time.
    answers: BTreeMap<u64, Held>,
    /// Replies with smaller numbers were divided if they could be.
    divided_below: u64,
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
    pub fn hold(
        &mut self,
        versions: impl IntoIterator<Item = u64>,
        reply: PendingReply,
        now_ms: u64,
    ) {
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
        self.bytes += reply.bytes();
        self.answers.insert(number, Held { versions: count, since_ms: now_ms, reply });
        self.next += 1;
    }

    /// Divides the replies that have waited for [`TOGETHER_MS`]: an operation that waits for a
    /// backup which is dead or slow holds up no other. Moves what waits for nothing to `ready`.
    pub fn divide(&mut self, now_ms: u64, ready: &mut Vec<PendingReply>) {
        let end = self.next;
        let is_late = |held: &Held| now_ms >= held.since_ms + TOGETHER_MS;
        while !self.is_full()
            && let Some((&number, held)) = self.answers.range(self.divided_below..end).next()
            && is_late(held)
        {
            self.divided_below = number + 1;
            if !matches!(&held.reply, PendingReply::Reply(_, reply, _) if reply.len() > 1) {
                continue;
            }
            let Some(PendingReply::Reply(to, reply, versions)) = self.remove(number) else {
                continue;
            };
            let mut done = Vec::new();
            for (answer, version) in reply.into_iter().zip(versions) {
                // A version that was dropped has taken the reply with it.
                match version.filter(|version| self.awaited.contains_key(version)) {
                    Some(version) => {
                        let alone = PendingReply::Reply(to, vec![answer], vec![Some(version)]);
                        self.hold([version], alone, now_ms);
                    }
                    None => done.push(answer),
                }
            }
            if !done.is_empty() {
                ready.push(PendingReply::Reply(to, done, Vec::new()));
            }
        }
    }

    fn remove(&mut self, number: u64) -> Option<PendingReply> {
        let Held { reply, .. } = self.answers.remove(&number)?;
        self.bytes -= reply.bytes();
        Some(reply)
    }

    /// All backups have a version: moves the replies that wait for nothing else to `ready`.
    pub fn release(&mut self, version: u64, ready: &mut Vec<PendingReply>) {
        let Some((first, others)) = self.awaited.remove(&version) else { return };
        for number in std::iter::once(first).chain(others) {
            let Some(held) = self.answers.get_mut(&number) else { continue };
            held.versions -= 1;
            if held.versions == 0 {
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
            let reply = vec![(1, value())];
            let reply = PendingReply::Reply(Requester::Local(1), reply, vec![Some(version)]);
            pending.hold([version], reply, 0);
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

    /// A backup died; another has what the rest of the request changed.
    #[test]
    fn operations_of_a_late_reply_are_answered_one_by_one() {
        let mut pending = PendingReplies::default();
        let reply = |numbers: &[u64]| -> Reply {
            numbers.iter().map(|number| (*number, Ok(Response::Ok))).collect()
        };
        let versions = vec![None, Some(7), Some(8), Some(7)];
        let held = PendingReply::Reply(Requester::Local(1), reply(&[1, 2, 3, 4]), versions);
        pending.hold([7, 8, 7], held, 100);
        let answered = |ready: &mut Vec<PendingReply>| {
            let replies = ready.drain(..).map(|ready| match ready {
                PendingReply::Reply(_, reply, _) => reply.iter().map(|(one, _)| *one).collect(),
                PendingReply::Ack(..) => Vec::new(),
            });
            replies.collect::<Vec<Vec<u64>>>()
        };
        let mut ready = Vec::new();
        pending.release(8, &mut ready);
        pending.divide(100 + TOGETHER_MS - 1, &mut ready);
        assert!(ready.is_empty(), "it may still be answered as a whole");
        pending.divide(100 + TOGETHER_MS, &mut ready);
        assert_eq!(answered(&mut ready), [[1, 3]]);
        pending.divide(100 + 9 * TOGETHER_MS, &mut ready);
        assert!(ready.is_empty());
        pending.release(7, &mut ready);
        assert_eq!(answered(&mut ready), [[2], [4]]);
        // What never gets its backups is not answered, in parts or as a whole.
        let held =
            PendingReply::Reply(Requester::Local(1), reply(&[5, 6]), vec![Some(9), Some(10)]);
        pending.hold([9, 10], held, 100);
        pending.release(9, &mut ready);
        pending.keep(|_| false);
        pending.divide(100 + TOGETHER_MS, &mut ready);
        assert!(ready.is_empty());
        assert!(pending.answers.is_empty() && pending.awaited.is_empty() && pending.bytes == 0);
    }
}
