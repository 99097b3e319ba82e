//! Scrubbing: rereads stored records before they are needed.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::super::record::value_of;
use super::super::{RecordKey, ReplicationMessage};
use super::ReplicaStore;
use super::owner_replica::StoredRecord;
use crate::chunks::{ItemTime, ReplicaItem};
use crate::codec::Wire;
use crate::ids::ChunkId;
use crate::log::RecordLoads;
use crate::overlay::Peer;

/// The most bytes that are read at once; one record may exceed it.
const SCRUB_BYTES_MAX: u64 = 1 << 20;

impl ReplicaStore {
    /// Rereads N records from where the last call stopped, or those that were still being loaded
    /// then. Asks owners to send damaged records again, and about items that look expired or
    /// flushed. Returns the ids of the damaged records by owner.
    pub fn scrub(
        &mut self,
        records: usize,
        time: &ItemTime,
        out: &mut Vec<(Peer, ReplicationMessage)>,
    ) -> BTreeMap<Peer, Vec<ChunkId>> {
        let mut damaged = BTreeMap::new();
        if self.scrubbing.as_ref().is_some_and(|loads| !loads.is_loaded()) {
            return damaged;
        }
        // Possibly nothing follows the last commit, so vouch for it.
        self.failure = self.failure.or(self.log.vouch().err());
        if let Some(loads) = self.scrubbing.take() {
            self.check(&loads, time, &mut damaged, out);
        }
        let loads = self.load_to_scrub(records);
        match loads.is_loaded() {
            true => self.check(&loads, time, &mut damaged, out),
            false => self.scrubbing = Some(loads),
        }
        damaged
    }

    fn load_to_scrub(&mut self, records: usize) -> RecordLoads<(Peer, RecordKey)> {
        let (mut held, mut bytes) = (Vec::new(), 0);
        while held.len() < records && bytes < SCRUB_BYTES_MAX {
            let Some((owner, key, stored)) = self.next_held(self.scrubbed) else {
                self.scrubbed = None;
                break;
            };
            self.scrubbed = Some((owner, key));
            bytes += stored.position.bytes();
            held.push((stored.position, (owner, key)));
        }
        self.log.load(held)
    }

    fn check(
        &self,
        loads: &RecordLoads<(Peer, RecordKey)>,
        time: &ItemTime,
        damaged: &mut BTreeMap<Peer, Vec<ChunkId>>,
        out: &mut Vec<(Peer, ReplicationMessage)>,
    ) {
        let mut asked: BTreeMap<Peer, Vec<RecordKey>> = BTreeMap::new();
        loads.each(|position, (owner, key), record| {
            let held = self.replicas.get(owner).and_then(|replica| replica.records.get(key));
            // What was written again or moved meanwhile is new.
            if held.is_none_or(|held| held.position != position) {
                return;
            }
            let is_dead = |record: &[u8]| {
                let value = value_of(record).filter(|_| key.id.creator().is_named());
                let kept = value.and_then(|value| ReplicaItem::decode_all(&value).ok());
                kept.is_some_and(|kept| kept.is_dead(time))
            };
            if record.is_none() {
                damaged.entry(*owner).or_default().push(key.id);
            }
            if record.is_none_or(is_dead) {
                asked.entry(*owner).or_default().push(*key);
            }
        });
        for (owner, keys) in asked {
            let stream = self.replicas.get(&owner).map_or(0, |replica| replica.stream);
            out.push((owner, ReplicationMessage::Resend { stream, keys }));
        }
    }

    /// The record that follows another one; the first one if there is none.
    fn next_held(
        &self,
        last: Option<(Peer, RecordKey)>,
    ) -> Option<(Peer, RecordKey, StoredRecord)> {
        let from = match last {
            Some((owner, key)) => {
                let after = (Bound::Excluded(key), Bound::Unbounded);
                let records =
                    self.replicas.get(&owner).map(|replica| replica.records.stored(after));
                if let Some((key, held)) = records.and_then(|mut records| records.next()) {
                    return Some((owner, key, held));
                }
                Bound::Excluded(owner)
            }
            None => Bound::Unbounded,
        };
        let replicas = self.replicas.range((from, Bound::Unbounded));
        let mut firsts = replicas.filter_map(|(owner, replica)| {
            replica.records.stored(..).next().map(|(key, held)| (*owner, key, held))
        });
        firsts.next()
    }
}
