//! This node's metadata records, which share the log with the records of replicas.

use std::collections::{BTreeMap, BTreeSet};

use super::super::record::{METADATA, creator_of};
use super::{ReplicaStore, UNWRITTEN_METADATA_BYTES_MAX};
use crate::codec::Wire;
use crate::ids::Creator;
use crate::log::{LogError, LogPosition, StorageError};
use crate::overlay::{MetadataRecord, Snapshot};

/// When one creator has more metadata records than this, they are replaced by one snapshot.
const METADATA_RECORDS_MAX: usize = if cfg!(test) { 8 } else { 256 };

impl ReplicaStore {
    /// Whether metadata is recorded now, or has to wait in memory as [`Self::has_room`] says.
    /// `waiting_bytes` are those of memory that wait already: above
    /// `UNWRITTEN_METADATA_BYTES_MAX`, with what waits for the disk,
    /// [`Self::metadata_failure`] returns an error from now on.
    pub fn has_room_for_metadata(&mut self, waiting_bytes: usize) -> bool {
        let has_room = self.has_room();
        let unwritten_bytes = self.log.unwritten_bytes().saturating_add(waiting_bytes);
        if !has_room && unwritten_bytes >= UNWRITTEN_METADATA_BYTES_MAX {
            let stalled = LogError::Storage(StorageError::Stalled);
            self.metadata_failure = self.metadata_failure.or(Some(stalled));
        }
        has_room
    }

    /// Records changes of the metadata; `whole` returns the present metadata of a creator. The
    /// records are durable once the commit [`Self::metadata_commit`] is carried out, unless
    /// [`Self::metadata_failure`] returns an error.
    pub fn append_metadata(
        &mut self,
        metadata: &[MetadataRecord],
        whole: &dyn Fn(Creator) -> Option<Snapshot>,
    ) {
        let mut long = BTreeSet::new();
        for note in metadata {
            let creator = creator_of(note);
            if let Err(error) = self.append_metadata_record(note) {
                self.metadata_failure = Some(error);
                return;
            }
            long.extend(creator.filter(|creator| {
                self.metadata_snapshots
                    .get(creator)
                    .is_some_and(|positions| positions.len() > METADATA_RECORDS_MAX)
            }));
        }
        for creator in long {
            let result = whole(creator)
                .map(|snapshot| self.append_metadata_record(&MetadataRecord::Snapshot(snapshot)));
            // A snapshot that is too long for a record is left in pieces.
            if let Some(Err(error)) = result.filter(|result| *result != Err(LogError::Length)) {
                self.metadata_failure = Some(error);
            }
        }
        if !metadata.is_empty()
            && let Err(error) = self.clean()
        {
            self.metadata_failure = Some(error);
        }
    }

    fn append_metadata_record(&mut self, note: &MetadataRecord) -> Result<(), LogError> {
        let mut record = vec![METADATA];
        self.take_number().encode(&mut record);
        note.encode(&mut record);
        self.charge_cleaner(record.len());
        if self.log.unwritten_bytes() >= UNWRITTEN_METADATA_BYTES_MAX {
            return Err(LogError::Storage(StorageError::Stalled));
        }
        let position = self.log.append_reserved(&record)?;
        self.has_uncommitted_metadata = true;
        let Some(creator) = creator_of(note) else {
            if let Some(last) = self.promises.replace(position) {
                self.log.release(last);
            }
            return Ok(());
        };
        let chapter = self.metadata_snapshots.entry(creator).or_default();
        if matches!(note, MetadataRecord::Snapshot(_) | MetadataRecord::Removed(_)) {
            for position in chapter.drain(..) {
                self.log.release(position);
                self.metadata_creators.remove(&position);
            }
        }
        chapter.push(position);
        self.metadata_creators.insert(position, creator);
        Ok(())
    }

    /// Keeps the newest metadata records of each creator and of promises, and releases the rest.
    pub(super) fn replay_metadata(
        &mut self,
        mut metadata: Vec<(u64, LogPosition, MetadataRecord)>,
    ) -> Vec<MetadataRecord> {
        metadata.sort_by_key(|(number, position, _)| (*number, *position));
        let log = &mut self.log;
        metadata.dedup_by(|(number, position, _), (earlier, other, _)| {
            // The cleaner had appended it again and was not done with the segment.
            let is_same = number == earlier;
            if is_same {
                log.release(std::mem::replace(other, *position));
            }
            is_same
        });
        self.next_number = self.next_number.max(metadata.last().map_or(0, |last| last.0) + 1);
        let is_base = |note: &MetadataRecord| {
            matches!(note, MetadataRecord::Snapshot(_) | MetadataRecord::Removed(_))
        };
        let mut bases: BTreeMap<Creator, u64> = BTreeMap::new();
        let mut last_promises = 0;
        for (number, _, note) in &metadata {
            match creator_of(note) {
                Some(creator) if is_base(note) => drop(bases.insert(creator, *number)),
                Some(_) => {}
                None => last_promises = *number,
            }
        }
        let mut counting = Vec::new();
        for (number, position, note) in metadata {
            let from = match creator_of(&note) {
                Some(creator) => bases.get(&creator).copied().unwrap_or(0),
                None => last_promises,
            };
            if number < from {
                self.log.release(position);
                continue;
            }
            match creator_of(&note) {
                Some(creator) => {
                    self.metadata_snapshots.entry(creator).or_default().push(position);
                    self.metadata_creators.insert(position, creator);
                }
                None => self.promises = Some(position),
            }
            counting.push(note);
        }
        counting
    }

    /// The cleaner moved a metadata or writer record.
    pub(super) fn move_metadata_record(&mut self, from: LogPosition, to: LogPosition) {
        let creator = self.metadata_creators.remove(&from);
        let chapter = creator.and_then(|creator| {
            self.metadata_creators.insert(to, creator);
            self.metadata_snapshots.get_mut(&creator)
        });
        let positions = chapter.into_iter().flatten();
        let positions = positions.chain(&mut self.promises).chain(&mut self.writer);
        positions.filter(|position| **position == from).for_each(|position| *position = to);
    }
}
