//! A backup: other nodes' chunks in a log.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::EntryRef;
use super::{BackupMessage, Entries, Entry, What};
use crate::chunks::{Export, SessionExport};
use crate::ids::{ChunkId, IdRange};
use crate::log::{Log, LogError, LogSettings, Place, Replay, Storage};
use crate::overlay::Peer;
use crate::wire::Wire;

/// Owners' lives that are kept at most.
const STREAMS_MAX: usize = 1 << 16;
/// Answers that are kept of one client at most; the oldest go first.
const ANSWERS_MAX: usize = 1 << 12;

/// A chunk as it was last changed.
#[derive(Clone, Copy, Debug)]
struct Held {
    place: Place,
    is_removed: bool,
    /// When a removal was first written: what is older may still be in the log until then is gone.
    born: u64,
}

/// What is kept in the name of one life of an owner.
#[derive(Debug, Default)]
struct Stream {
    link: u64,
    /// The number of the entry that comes next.
    next: u64,
    is_sealed: bool,
    chunks: BTreeMap<ChunkId, Held>,
    sessions: BTreeMap<crate::chunks::ClientId, SessionExport>,
}

/// What was kept of an owner.
#[derive(Debug, Default)]
pub struct Heritage {
    /// Chunks that it had.
    pub chunks: u64,
    /// What clients were answered.
    pub export: Export,
    /// Chunks that cannot be read any more.
    pub damaged: Vec<ChunkId>,
}

/// The backup's side. Not shared: one thread calls it.
#[derive(Debug)]
pub struct Vault {
    log: Log<Box<dyn Storage>>,
    streams: BTreeMap<Peer, Stream>,
    /// Owners that wait for [`Self::flush`].
    unanswered: BTreeSet<Peer>,
    failed: Option<LogError>,
    replay: Replay,
    /// The record that is being made.
    record: Vec<u8>,
}

impl Vault {
    /// Opens the log and checks what is in it. None of it counts: this is a new life (invariant 4).
    ///
    /// # Errors
    ///
    /// As [`Log::open`].
    pub fn open(
        storage: Box<dyn Storage>,
        cluster: u64,
        settings: LogSettings,
    ) -> Result<Self, LogError> {
        let mut places = Vec::new();
        let mut each = |place, _: &[u8]| places.push(place);
        let (mut log, replay) = Log::open(storage, cluster, settings, &mut each)?;
        places.into_iter().for_each(|place| log.release(place));
        let (streams, unanswered) = Default::default();
        Ok(Self { log, streams, unanswered, failed: None, replay, record: Vec::new() })
    }

    /// What the log held when it was opened.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Why nothing is kept any more, if so.
    pub fn failed(&self) -> Option<LogError> {
        self.failed
    }

    /// Chunks that are kept, and in the name of how many lives.
    pub fn holdings(&self) -> (usize, usize) {
        (self.streams.values().map(|stream| stream.chunks.len()).sum(), self.streams.len())
    }

    /// The medium.
    pub fn into_storage(self) -> Box<dyn Storage> {
        self.log.into_storage()
    }

    /// An owner's changes. They are answered by [`Self::flush`].
    pub fn on_append(&mut self, from: Peer, link: u64, first: u64, entries: impl Into<Entries>) {
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&from) {
            self.failed = self.failed.or(Some(LogError::Full));
        }
        let stream = self.streams.entry(from).or_default();
        if link < stream.link {
            return;
        }
        if link > stream.link {
            (stream.link, stream.next) = (link, 1);
        }
        self.unanswered.insert(from);
        if stream.is_sealed || self.failed.is_some() || first > stream.next {
            return;
        }
        let (known, entries) = (stream.next - first, entries.into());
        for entry in entries.iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
            match self.keep(from, entry) {
                Ok(()) => self.stream(from).next += 1,
                Err(error) => {
                    self.failed = Some(error);
                    return;
                }
            }
        }
    }

    fn stream(&mut self, owner: Peer) -> &mut Stream {
        self.streams.entry(owner).or_default()
    }

    fn keep(&mut self, owner: Peer, entry: EntryRef<'_>) -> Result<(), LogError> {
        match entry.what {
            What::Put(id, _) | What::Remove(id) => {
                self.record.clear();
                owner.encode(&mut self.record);
                self.record.extend_from_slice(entry.bytes);
                let place = self.log.append(&self.record)?;
                let born = self.log.sequence(place);
                let is_removed = matches!(entry.what, What::Remove(_));
                let held = Held { place, is_removed, born };
                if let Some(old) = self.stream(owner).chunks.insert(id, held) {
                    self.log.release(old.place);
                }
                self.clean()?;
            }
            What::Clear(ids) => self.drop_chunks(owner, ids),
            What::Bury(source, ids) if self.is_sealed(source) || source != owner => {
                self.drop_chunks(source, ids);
            }
            What::Bury(..) | What::Answers => {}
        }
        let stream = self.stream(owner);
        entry.sessions().into_iter().for_each(|session| stream.note(session));
        Ok(())
    }

    fn drop_chunks(&mut self, owner: Peer, ids: IdRange) {
        let Some(stream) = self.streams.get_mut(&owner) else { return };
        let mut rest = stream.chunks.split_off(&ids.first());
        if let Ok(end) = ChunkId::from_bits(ids.end()) {
            stream.chunks.extend(rest.split_off(&end));
        }
        for held in rest.into_values() {
            self.log.release(held.place);
        }
        for session in stream.sessions.values_mut() {
            session.answers.retain(|(_, id, _)| !ids.contains(*id));
        }
        if stream.is_sealed && stream.chunks.is_empty() {
            stream.sessions.clear();
        }
    }

    /// Makes room where little of a segment is live. A removal goes when all that is older did.
    fn clean(&mut self) -> Result<(), LogError> {
        let Some(victim) = self.log.victim() else { return Ok(()) };
        let oldest = self.log.oldest(victim);
        let streams = &mut self.streams;
        let mut owners = BTreeMap::new();
        let mut is_live = |place: Place, record: &[u8]| {
            let Some((owner, id)) = owner_and_id(record) else { return false };
            let Some(stream) = streams.get_mut(&owner) else { return false };
            let Some(held) = stream.chunks.get(&id).filter(|held| held.place == place) else {
                return false;
            };
            if held.is_removed && held.born < oldest {
                stream.chunks.remove(&id);
                return false;
            }
            owners.insert(place, (owner, id));
            true
        };
        for (from, to) in self.log.clean(victim, &mut is_live)? {
            let (owner, id) = owners[&from];
            if let Some(held) = self.stream(owner).chunks.get_mut(&id) {
                held.place = to;
            }
        }
        Ok(())
    }

    /// Makes safe what was appended, all at once, and answers it.
    pub fn flush(&mut self, out: &mut Vec<(Peer, BackupMessage)>) {
        if self.unanswered.is_empty() {
            return;
        }
        if self.failed.is_none() {
            self.failed = self.log.commit().err();
        }
        let failed = self.failed.is_some();
        for owner in std::mem::take(&mut self.unanswered) {
            let Stream { link, next, is_sealed, .. } = *self.stream(owner);
            out.push((
                owner,
                match is_sealed || failed {
                    true => BackupMessage::Refused { link, is_sealed },
                    false => BackupMessage::Appended { link, next },
                },
            ));
        }
    }

    /// Takes nothing of a life of an owner any more (invariant 3).
    pub fn seal(&mut self, owner: Peer) {
        self.stream(owner).is_sealed = true;
    }

    fn is_sealed(&self, owner: Peer) -> bool {
        self.streams.get(&owner).is_some_and(|stream| stream.is_sealed)
    }

    /// Reads what was kept of a life of an owner that is sealed, in the order of the log.
    pub fn recover(
        &mut self,
        owner: Peer,
        ids: IdRange,
        each: &mut dyn FnMut(ChunkId, Vec<u8>),
    ) -> Heritage {
        let mut heritage = Heritage::default();
        let Some(stream) = self.streams.get(&owner) else { return heritage };
        let held = stream.chunks.range(ids.first()..=ids.last());
        let mut places: Vec<(Place, ChunkId)> =
            held.filter(|(_, held)| !held.is_removed).map(|(id, held)| (held.place, *id)).collect();
        self.log.read_many(&mut places, &mut |id, record| match record.and_then(value_of) {
            Some(value) => {
                heritage.chunks += 1;
                each(*id, value);
            }
            None => heritage.damaged.push(*id),
        });
        heritage.damaged.sort_unstable();
        for session in stream.sessions.values() {
            let about = session.answers.iter().filter(|(_, id, _)| ids.contains(*id));
            let answers: Vec<_> = about.cloned().collect();
            if !answers.is_empty() {
                heritage.export.sessions.push(SessionExport { answers, ..session.clone() });
            }
        }
        heritage
    }
}

fn owner_and_id(record: &[u8]) -> Option<(Peer, ChunkId)> {
    let (owner, entry) = <(Peer, Entry)>::decode_all(record).ok()?;
    match entry.what {
        What::Put(id, _) | What::Remove(id) => Some((owner, id)),
        _ => None,
    }
}

fn value_of(record: &[u8]) -> Option<Vec<u8>> {
    match <(Peer, Entry)>::decode_all(record).ok()?.1.what {
        What::Put(_, value) => Some(value),
        _ => None,
    }
}

impl Stream {
    fn note(&mut self, session: SessionExport) {
        let held = self
            .sessions
            .entry(session.client)
            .or_insert_with(|| SessionExport { answers: Vec::new(), ..session.clone() });
        held.lease_ms = session.lease_ms;
        if session.answered_below > held.answered_below {
            held.answered_below = session.answered_below;
            let below = held.answered_below;
            held.answers.retain(|(number, ..)| *number >= below);
        }
        let below = held.answered_below;
        let new = session.answers.into_iter().filter(|(number, ..)| *number >= below);
        held.answers.extend(new);
        let excess = held.answers.len().saturating_sub(ANSWERS_MAX);
        held.answers.drain(..excess);
    }
}
