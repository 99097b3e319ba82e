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
    answers: BTreeMap<u64, (BTreeSet<u64>, Waiting)>,
    by_version: BTreeMap<u64, Vec<u64>>,
    next: u64,
}

impl Held {
    /// Whether no more may wait.
    pub fn is_full(&self) -> bool {
        self.answers.len() >= HELD_MAX
    }

    /// Keeps an answer until all of `versions` were released.
    pub fn hold(&mut self, versions: BTreeSet<u64>, waiting: Waiting) {
        for version in &versions {
            self.by_version.entry(*version).or_default().push(self.next);
        }
        self.answers.insert(self.next, (versions, waiting));
        self.next += 1;
    }

    /// A version is with all backups: hands out what waited for nothing else.
    pub fn release(&mut self, version: u64) -> Vec<Waiting> {
        let mut ready = Vec::new();
        for number in self.by_version.remove(&version).unwrap_or_default() {
            if let Some((versions, _)) = self.answers.get_mut(&number) {
                versions.remove(&version);
                if versions.is_empty() {
                    ready.extend(self.answers.remove(&number).map(|(_, waiting)| waiting));
                }
            }
        }
        ready
    }

    /// Drops answers that wait for what will never be: their askers ask again.
    pub fn keep(&mut self, is_awaited: impl Fn(u64) -> bool) {
        let dropped: Vec<u64> =
            self.by_version.keys().copied().filter(|version| !is_awaited(*version)).collect();
        for version in dropped {
            for number in self.by_version.remove(&version).unwrap_or_default() {
                self.answers.remove(&number);
            }
        }
    }
}
