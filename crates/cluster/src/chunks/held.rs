//! Answers that wait until backups have what they say.

use std::collections::{BTreeMap, BTreeSet};

use super::migration::MoveMessage;
use super::request::Reply;
use crate::overlay::Peer;

/// Answers that wait at most.
const HELD_MAX: usize = 1 << 16;

/// Who asked, to be answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A node.
    Peer(Peer),
    /// Somebody whom the process around the node knows by that number.
    Local(u64),
}

/// What waits.
#[derive(Debug)]
pub(super) enum Waiting {
    Reply(Asker, Reply),
    /// To the source of a move.
    Got(Peer, MoveMessage),
}

/// Answers and the versions that they wait for.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// By number: how many versions an answer waits for yet.
    answers: BTreeMap<u64, (usize, Waiting)>,
    /// Versions, and numbers of answers that wait for them.
    awaited: BTreeSet<(u64, u64)>,
    next: u64,
}

impl Held {
    /// Whether no more may wait.
    pub fn is_full(&self) -> bool {
        self.answers.len() >= HELD_MAX
    }

    /// Keeps an answer until all of `versions`, of which there is one at least, were released.
    pub fn hold(&mut self, versions: impl IntoIterator<Item = u64>, waiting: Waiting) {
        let (number, awaited) = (self.next, &mut self.awaited);
        let new = versions.into_iter().filter(|version| awaited.insert((*version, number)));
        let count = new.count();
        self.answers.insert(number, (count, waiting));
        self.next += 1;
    }

    /// A version is with all backups: hands out what waited for nothing else.
    pub fn release(&mut self, version: u64, ready: &mut Vec<Waiting>) {
        while let Some(number) = self.take(version) {
            let Some((count, _)) = self.answers.get_mut(&number) else { continue };
            *count -= 1;
            if *count == 0 {
                ready.extend(self.answers.remove(&number).map(|(_, waiting)| waiting));
            }
        }
    }

    /// One that waits for a version; it does no more.
    fn take(&mut self, version: u64) -> Option<u64> {
        // Versions end in the order in which they began, nearly always.
        let first = match self.awaited.first() {
            Some((first, number)) if *first == version => Some((version, *number)),
            _ => self.awaited.range((version, 0)..=(version, u64::MAX)).next().copied(),
        }?;
        self.awaited.remove(&first);
        Some(first.1)
    }

    /// Drops answers that wait for what will never be: their askers ask again.
    pub fn keep(&mut self, is_awaited: impl Fn(u64) -> bool) {
        let Self { answers, awaited, .. } = self;
        awaited.retain(|(version, number)| {
            let is_kept = is_awaited(*version);
            if !is_kept {
                answers.remove(number);
            }
            is_kept
        });
    }
}
