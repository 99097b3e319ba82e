//! Chunks and items that a new owner cannot read in its own log. Each other holder has every
//! acknowledged write, so it asks them in turn, a bounded part at a time, while they are members.

use std::collections::{BTreeMap, BTreeSet};

use crate::overlay::Peer;
use crate::replication::{FETCH_KEYS_MAX, RecordKey};

/// The unreadable chunks and items of one failover.
#[derive(Debug, Default)]
pub(super) struct Missing {
    keys: BTreeMap<RecordKey, Without>,
    /// Questions sent so far, and when the next is due.
    asked: usize,
    next_ask_ms: u64,
}

/// The holders that cannot provide a chunk or item.
#[derive(Debug, Default)]
struct Without {
    holders: BTreeSet<Peer>,
    /// Whether a holder never received it: then nobody was told that it exists.
    is_unacknowledged: bool,
}

impl Missing {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Adds keys that could not be read here.
    pub fn add(&mut self, keys: &[RecordKey]) {
        self.keys.extend(keys.iter().map(|record| (*record, Without::default())));
    }

    /// The missing keys that a holder may have.
    fn of(&self, holder: Peer) -> impl Iterator<Item = RecordKey> {
        let may_have = self.keys.iter().filter(move |(_, one)| !one.holders.contains(&holder));
        may_have.map(|(record, _)| *record)
    }

    /// The next question: a holder and the keys to ask it for. Holders take turns, since one may be
    /// silent.
    pub fn question(
        &mut self,
        now_ms: u64,
        retry_ms: u64,
        holders: impl Iterator<Item = Peer>,
    ) -> Option<(Peer, Vec<RecordKey>)> {
        if self.keys.is_empty() || now_ms < self.next_ask_ms {
            return None;
        }
        let able: Vec<Peer> = holders.filter(|holder| self.of(*holder).next().is_some()).collect();
        let holder = *able.get(self.asked.checked_rem(able.len())?)?;
        self.asked += 1;
        self.next_ask_ms = now_ms + retry_ms;
        Some((holder, self.of(holder).take(FETCH_KEYS_MAX).collect()))
    }

    /// Whether one of these holders may have something that is missing.
    pub fn may_come(&self, mut holders: impl Iterator<Item = Peer>) -> bool {
        holders.any(|holder| self.of(holder).next().is_some())
    }

    /// Takes a holder's answer: `lacking` it never received, `damaged` it cannot read either.
    pub fn answered(&mut self, holder: Peer, lacking: &[RecordKey], damaged: &[RecordKey]) {
        self.next_ask_ms = 0;
        for (keys, is_unacknowledged) in [(lacking, true), (damaged, false)] {
            for record in keys {
                if let Some(one) = self.keys.get_mut(record) {
                    one.holders.insert(holder);
                    one.is_unacknowledged |= is_unacknowledged;
                }
            }
        }
    }

    /// A key arrived. False if it was not missing.
    pub fn came(&mut self, record: RecordKey) -> bool {
        self.keys.remove(&record).is_some()
    }

    /// Gives up. Returns the keys that may have been acknowledged and that no holder can provide,
    /// and those of which nobody was told.
    pub fn give_up(&mut self) -> (Vec<RecordKey>, Vec<RecordKey>) {
        let (unacknowledged, lost): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.keys).into_iter().partition(|(_, one)| one.is_unacknowledged);
        let keys = |all: Vec<(RecordKey, Without)>| all.into_iter().map(|(record, _)| record);
        (keys(lost).collect(), keys(unacknowledged).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ChunkId, Creator, NodeId};

    fn peer(node: u16) -> Peer {
        Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 }
    }

    fn record(counter: u64) -> RecordKey {
        let creator = Creator::from(NodeId::new(9).expect("a node"));
        RecordKey::from(ChunkId::new(creator, counter).expect("an id"))
    }

    #[test]
    fn holders_are_asked_in_turn_until_nothing_is_missing() {
        let (mut missing, holders) = (Missing::default(), [peer(1), peer(2)]);
        let ask = |missing: &mut Missing, now_ms| missing.question(now_ms, 20, holders.into_iter());
        assert_eq!(ask(&mut missing, 0), None);
        missing.add(&[record(1), record(2), record(3)]);
        assert_eq!(ask(&mut missing, 100), Some((peer(1), vec![record(1), record(2), record(3)])));
        assert_eq!(ask(&mut missing, 119), None, "the answer is on its way");
        assert_eq!(ask(&mut missing, 120), Some((peer(2), vec![record(1), record(2), record(3)])));

        missing.answered(peer(2), &[record(3)], &[record(1)]);
        assert!(missing.came(record(2)) && !missing.came(record(2)));
        for now_ms in [122, 142] {
            assert_eq!(ask(&mut missing, now_ms), Some((peer(1), vec![record(1), record(3)])));
        }
        assert!(missing.may_come(holders.into_iter()), "it is silent, and may have it");
        assert!(!missing.may_come([peer(2)].into_iter()), "it is no member any more");
        missing.answered(peer(1), &[], &[record(1), record(3)]);
        assert!(!missing.may_come(holders.into_iter()), "nobody can read it");
        let lost = missing.give_up();
        assert_eq!(lost, (vec![record(1)], vec![record(3)]), "one was never sent the third");
        assert!(missing.is_empty());
    }

    #[test]
    fn a_question_is_bounded() {
        let (mut missing, count) = (Missing::default(), FETCH_KEYS_MAX as u64 + 1);
        missing.add(&(0..count).map(record).collect::<Vec<_>>());
        let (_, keys) = missing.question(0, 20, [peer(1)].into_iter()).expect("it asks");
        assert_eq!(keys.len(), FETCH_KEYS_MAX);
    }
}
