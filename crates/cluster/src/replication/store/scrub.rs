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
use crate::log::LogError;
use crate::overlay::Peer;

impl ReplicaStore {
    /// Rereads N records from where the last call stopped, or none if a read would wait for the
    /// disk. Asks owners to send damaged records
    /// again, and about items that look expired or flushed. Returns the ids of the damaged records
    /// by owner.
    pub fn scrub(
        &mut self,
        records: usize,
        time: &ItemTime,
        out: &mut Vec<(Peer, ReplicationMessage)>,
    ) -> BTreeMap<Peer, Vec<ChunkId>> {
        if !self.log.has_prefetched() {
            return BTreeMap::new();
        }
        // Possibly nothing follows the last commit, so vouch for it.
        self.failure = self.failure.or(self.log.vouch().err());
        let mut damaged: BTreeMap<Peer, Vec<ChunkId>> = BTreeMap::new();
        let mut asked: BTreeMap<Peer, Vec<RecordKey>> = BTreeMap::new();
        for _ in 0..records {
            let Some((owner, key, held)) = self.next_held(self.scrubbed) else {
                self.scrubbed = None;
                break;
            };
            self.scrubbed = Some((owner, key));
            let record = self.log.read(held.position);
            let is_damaged = record == Err(LogError::Damaged);
            let is_dead = |record: Vec<u8>| {
                let value = value_of(&record).filter(|_| key.id.creator().is_named());
                let kept = value.and_then(|value| ReplicaItem::decode_all(&value).ok());
                kept.is_some_and(|kept| kept.is_dead(time))
            };
            if is_damaged {
                damaged.entry(owner).or_default().push(key.id);
            }
            if is_damaged || record.is_ok_and(is_dead) {
                asked.entry(owner).or_default().push(key);
            }
        }
        // What the next call reads, so that it does not wait for the disk.
        let mut next = self.scrubbed;
        for _ in 0..records {
            let Some((owner, key, held)) = self.next_held(next) else { break };
            next = Some((owner, key));
            self.log.prefetch(held.position);
        }
        for (owner, keys) in asked {
            let stream = self.replica(owner).stream;
            out.push((owner, ReplicationMessage::Resend { stream, keys }));
        }
        damaged
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
