//! Reading again what is kept, before somebody needs it.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::super::record::value_of;
use super::super::{BackupMessage, Name};
use super::Vault;
use super::stream::Held;
use crate::chunks::{ItemTime, ReplicaItem};
use crate::ids::ChunkId;
use crate::log::LogError;
use crate::overlay::Peer;
use crate::wire::Wire;

impl Vault {
    /// Reads again what it keeps, so many chunks and items from where it stopped, and asks owners
    /// for what cannot be read any more, and whether items are gone that have ended or were
    /// dropped. Returns the ids of the former.
    pub fn scrub(
        &mut self,
        copies: usize,
        time: &ItemTime,
        out: &mut Vec<(Peer, BackupMessage)>,
    ) -> BTreeMap<Peer, Vec<ChunkId>> {
        // Nothing may follow what was committed last.
        self.failed = self.failed.or(self.log.vouch().err());
        let mut damaged: BTreeMap<Peer, Vec<ChunkId>> = BTreeMap::new();
        let mut asked: BTreeMap<Peer, Vec<Name>> = BTreeMap::new();
        for _ in 0..copies {
            let Some((owner, name, held)) = self.next_held() else {
                self.scrubbed = None;
                break;
            };
            self.scrubbed = Some((owner, name));
            let record = self.log.read(held.place);
            let is_damaged = record == Err(LogError::Damaged);
            let is_dead = |record: Vec<u8>| {
                let value = value_of(&record).filter(|_| name.id.creator().is_named());
                let kept = value.and_then(|value| ReplicaItem::decode_all(&value).ok());
                kept.is_some_and(|kept| kept.is_dead(time))
            };
            if is_damaged {
                damaged.entry(owner).or_default().push(name.id);
            }
            if is_damaged || record.is_ok_and(is_dead) {
                asked.entry(owner).or_default().push(name);
            }
        }
        for (owner, names) in asked {
            let link = self.stream(owner).link;
            out.push((owner, BackupMessage::Lacking { link, names }));
        }
        damaged
    }

    /// What comes after what was read again last.
    fn next_held(&self) -> Option<(Peer, Name, Held)> {
        let from = match self.scrubbed {
            Some((owner, name)) => {
                let after = (Bound::Excluded(name), Bound::Unbounded);
                let copies = self.streams.get(&owner).map(|stream| stream.copies.held(after));
                if let Some((name, held)) = copies.and_then(|mut copies| copies.next()) {
                    return Some((owner, name, held));
                }
                Bound::Excluded(owner)
            }
            None => Bound::Unbounded,
        };
        let streams = self.streams.range((from, Bound::Unbounded));
        let mut firsts = streams.filter_map(|(owner, stream)| {
            stream.copies.held(..).next().map(|(name, held)| (*owner, name, held))
        });
        firsts.next()
    }
}
