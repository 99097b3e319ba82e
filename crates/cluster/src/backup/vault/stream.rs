//! What is kept in the name of one life of an owner.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, RangeBounds};

use super::super::Name;
use super::super::entry::{Answer, EntryRef};
use crate::bits::BitsMap;
use crate::chunks::{ClientId, SessionState};
use crate::ids::{COUNTER_MAX, ChunkId, IdRange};
use crate::log::Place;
use crate::overlay::Peer;
use crate::spans::Spans;

/// Answers that are kept of one client at most; the oldest go first.
const ANSWERS_MAX: usize = 1 << 12;
/// Changes that are remembered: two backups of one owner differ in about as many as may wait for
/// one ([`super::super::CopySettings::window`]). Where they differ in more, all is copied.
const RECENT_MAX: usize = if cfg!(test) { 8 } else { 1 << 13 };
/// The bits of an id that differ among the chunks of one map.
const SHARD_MASK: u64 = 0xFFFF;

/// A chunk or an item as it was last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub place: Place,
    pub is_removed: bool,
}

/// Copies by name. Most that come replace one that is there, and find it without the order that
/// others ask for.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// By their first ids: no map is so large that its growth is a pause, and all of one can go at
    /// once.
    shards: BTreeMap<u64, Shard>,
    /// When those that are removals were first written: what is older may still be in the log
    /// until then is gone.
    born: BTreeMap<Name, u64>,
    /// The highest version in a shard that is not there any more.
    gone: u64,
}

/// Copies whose ids are neighbours.
#[derive(Debug, Default)]
struct Shard {
    held: BitsMap<Name, Held>,
    /// All names in it.
    names: BTreeSet<Name>,
    /// The highest version of what came.
    last: u64,
}

impl Shard {
    /// Takes out those of some ids; `first` is the first name that one of them could have.
    fn split(&mut self, ids: IdRange, first: Name) -> Self {
        let mut part = Self::default();
        let names = self.names.range(first..).copied();
        for name in names.take_while(|name| ids.contains(name.id)).collect::<Vec<_>>() {
            self.names.remove(&name);
            part.names.insert(name);
            part.held.extend(self.held.remove(&name).map(|held| (name, held)));
        }
        part
    }
}

/// The first id of a shard: of neighbouring chunks, or of a partition of items, which are sparse.
fn shard_of(name: &Name) -> u64 {
    let bits = name.id.bits();
    if name.id.creator().is_named() { bits & !COUNTER_MAX } else { bits & !SHARD_MASK }
}

impl Kept {
    /// How it lies, if it is there.
    pub fn get(&self, name: &Name) -> Option<Held> {
        self.shards.get(&shard_of(name))?.held.get(name).copied()
    }

    /// Keeps what came under some version, a removal if it says since when. Returns what was there
    /// before.
    pub fn insert(
        &mut self,
        (name, version): (Name, u64),
        place: Place,
        removed: Option<u64>,
    ) -> Option<Held> {
        let held = Held { place, is_removed: removed.is_some() };
        let shard = self.shards.entry(shard_of(&name)).or_default();
        shard.last = shard.last.max(version);
        let old = shard.held.insert(name, held);
        if old.is_none() {
            shard.names.insert(name);
        }
        match removed {
            Some(born) => drop(self.born.insert(name, born)),
            None if old.is_some_and(|old| old.is_removed) => drop(self.born.remove(&name)),
            None => {}
        }
        old
    }

    /// It lies elsewhere now.
    pub fn set_place(&mut self, name: &Name, place: Place) {
        let shard = self.shards.get_mut(&shard_of(name));
        if let Some(held) = shard.and_then(|shard| shard.held.get_mut(name)) {
            held.place = place;
        }
    }

    /// Drops one.
    fn remove(&mut self, name: &Name) -> Option<Held> {
        let number = shard_of(name);
        let shard = self.shards.get_mut(&number)?;
        let held = shard.held.remove(name)?;
        shard.names.remove(name);
        if shard.names.is_empty() {
            self.gone = self.gone.max(shard.last);
            self.shards.remove(&number);
        }
        if held.is_removed {
            self.born.remove(name);
        }
        Some(held)
    }

    /// Takes out those of some ids: neighbours together, however many they are.
    pub fn split(&mut self, ids: IdRange) -> Self {
        let (first, last) = (Name::from(ids.first()), ids.last());
        let shards = self.shards.range(shard_of(&first)..=shard_of(&Name::from(last)));
        let numbers: Vec<u64> = shards.map(|(number, _)| *number).collect();
        let mut taken = Self::default();
        for number in numbers {
            let Some(mut shard) = self.shards.remove(&number) else { continue };
            let is_all = shard.names.first().is_some_and(|name| ids.contains(name.id))
                && shard.names.last().is_some_and(|name| ids.contains(name.id));
            if is_all {
                taken.shards.insert(number, shard);
                continue;
            }
            let part = shard.split(ids, first);
            if !part.names.is_empty() {
                taken.shards.insert(number, part);
            }
            if !shard.names.is_empty() {
                self.shards.insert(number, shard);
            }
        }
        let removed = self.born.range(Name::all(ids)).map(|(name, _)| *name);
        for name in removed.collect::<Vec<_>>() {
            taken.born.extend(self.born.remove(&name).map(|born| (name, born)));
        }
        taken
    }

    /// No change of some ids came under a later version.
    pub fn last(&self, ids: IdRange) -> u64 {
        let numbers = shard_of(&Name::from(ids.first()))..=shard_of(&Name::from(ids.last()));
        let lasts = self.shards.range(numbers).map(|(_, shard)| shard.last);
        lasts.fold(self.gone, u64::max)
    }

    /// Takes over others that it does not have itself; where the rest lay. What is gone here is to
    /// stay so though it is found there, `newest` at the latest.
    pub fn add(&mut self, others: Self, newest: u64) -> Vec<Place> {
        let mut known = Vec::new();
        let mut born = others.born;
        for (number, mut shard) in others.shards {
            // Nearly always there is little, or nothing: what differed.
            let own = self.shards.remove(&number).unwrap_or_default();
            shard.last = own.last;
            for (name, held) in own.held {
                let Some(other) = shard.held.insert(name, held) else {
                    shard.names.insert(name);
                    continue;
                };
                known.push(other.place);
                born.remove(&name);
                if held.is_removed {
                    born.insert(name, newest);
                }
            }
            self.shards.insert(number, shard);
        }
        self.born.append(&mut born);
        known
    }

    /// Where they lie.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.shards.values().flat_map(|shard| shard.held.values().map(|held| held.place))
    }

    /// Names in their order.
    pub fn range(&self, names: impl RangeBounds<Name>) -> impl Iterator<Item = Name> {
        let bounds = (names.start_bound().cloned(), names.end_bound().cloned());
        let shards = (bounds.0.as_ref().map(shard_of), bounds.1.as_ref().map(shard_of));
        // Of the first and the last shard some may be within.
        let closed = |bound| match bound {
            Bound::Excluded(number) => Bound::Included(number),
            bound => bound,
        };
        let shards = self.shards.range((closed(shards.0), closed(shards.1)));
        shards.flat_map(move |(_, shard)| shard.names.range(bounds).copied())
    }

    /// The same, and how they lie.
    pub fn held(&self, names: impl RangeBounds<Name>) -> impl Iterator<Item = (Name, Held)> {
        self.range(names).filter_map(|name| Some((name, self.get(&name)?)))
    }

    pub fn len(&self) -> usize {
        self.shards.values().map(|shard| shard.names.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }
}

/// See the head of this module.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub link: u64,
    /// The number of the entry that comes next.
    pub next: u64,
    pub is_sealed: bool,
    pub copies: Kept,
    pub sessions: BTreeMap<ClientId, SessionState>,
    /// Whether a former life of this node took some of it, as a backup of other ids perhaps: then
    /// versions do not say of which ids all is here up to where.
    pub is_resumed: bool,
    /// The highest version that was taken.
    pub last: u64,
    /// The chunks that were changed last, and under which versions; of those above `floor` all are
    /// here.
    recent: VecDeque<(u64, ChunkId)>,
    floor: u64,
    /// Under which version this node was last told all that there is of ids.
    pub begun: Spans<u64>,
    /// Ids of which what it has not said itself is what was kept of a life before.
    pub adopted: Spans<Peer>,
}

impl SessionState {
    fn has(&self, number: u64) -> bool {
        // Most that is asked for is older.
        number >= self.answered_below && self.answers.iter().any(|(held, ..)| *held == number)
    }
}

impl Stream {
    /// Takes out copies, and forgets what was answered about them.
    pub fn drop_copies(&mut self, ids: IdRange) -> Kept {
        self.adopted.assign(ids.start()..ids.end(), None);
        self.begun.assign(ids.start()..ids.end(), None);
        let copies = self.copies.split(ids);
        for session in self.sessions.values_mut() {
            session.answers.retain(|(_, id, _)| !ids.contains(*id));
        }
        if self.is_sealed && self.copies.is_empty() && self.adopted.is_empty() {
            self.sessions.clear();
        }
        copies
    }

    /// What clients were answered about some chunks and items.
    pub fn answers(&self, is_about: impl Fn(ChunkId) -> bool) -> Vec<SessionState> {
        let sessions = self.sessions.values().filter_map(|session| {
            let about = session.answers.iter().filter(|(_, id, _)| is_about(*id));
            let answers: Vec<_> = about.cloned().collect();
            (!answers.is_empty()).then(|| SessionState { answers, ..session.clone() })
        });
        sessions.collect()
    }

    /// A chunk was changed.
    pub fn remember(&mut self, version: u64, id: ChunkId) {
        if self.recent.len() >= RECENT_MAX
            && let Some((version, _)) = self.recent.pop_front()
        {
            self.floor = version;
        }
        self.recent.push_back((version, id));
    }

    /// Which of some ids changed after a version; none if that is not known.
    pub fn beyond(&self, version: u64, ids: IdRange) -> Option<Vec<Name>> {
        let mut begun = self.begun.over(ids.start()..ids.end());
        if self.is_resumed || begun.any(|(_, begun)| *begun > version) {
            return None;
        }
        // Most changes were of other ids, with other backups.
        if version >= self.copies.last(ids) {
            return Some(Vec::new());
        }
        if version < self.floor {
            return None;
        }
        let later = self.recent.iter().rev().take_while(|(later, _)| *later > version);
        let names = later.filter(|(_, id)| ids.contains(*id)).map(|(_, id)| Name::from(*id));
        let mut names: Vec<Name> = names.collect();
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    /// Whether a copy lies there and is to go on; a removal is not when all that is older is gone.
    pub fn keeps(&mut self, (name, place): (Name, Place), oldest: u64) -> bool {
        let Some(held) = self.copies.get(&name).filter(|held| held.place == place) else {
            return false;
        };
        // Where all is adopted that is not said to be gone, what is older counts.
        let is_over = held.is_removed
            && self.adopted.get(name.id.bits()).is_none()
            && self.copies.born.get(&name).is_none_or(|born| *born < oldest);
        if is_over {
            self.copies.remove(&name);
        }
        !is_over
    }

    /// The answers of an entry that somebody may ask for again.
    pub fn needed(&self, entry: &EntryRef<'_>) -> Option<Vec<SessionState>> {
        // Nearly always there are none.
        let (mut from, mut is_needed) = (entry.session_reader(), false);
        while let Some((client, _, _, count)) = from.next_session() {
            let held = self.sessions.get(&client);
            for _ in 0..count {
                let number = from.number();
                is_needed |= held.zip(number).is_some_and(|(held, number)| held.has(number));
            }
        }
        if !is_needed {
            return None;
        }
        let mut sessions = entry.sessions();
        sessions.retain_mut(|session| {
            let Some(held) = self.sessions.get(&session.client) else { return false };
            session.answers.retain(|(number, ..)| held.has(*number));
            !session.answers.is_empty()
        });
        Some(sessions)
    }

    /// An entry was kept.
    pub fn take(&mut self, entry: &EntryRef<'_>) {
        let mut from = entry.session_reader();
        while let Some((client, lease_ms, answered_below, count)) = from.next_session() {
            let answers = (0..count).map_while(|_| from.answer());
            self.note((client, lease_ms, answered_below), answers);
        }
        self.next += 1;
        self.last = self.last.max(entry.version);
    }

    /// What a client was answered; whose session, its lease, and below which number it has all
    /// answers.
    pub fn note(
        &mut self,
        (client, lease_ms, answered_below): (ClientId, u64, u64),
        answers: impl Iterator<Item = Answer>,
    ) {
        let held = self.sessions.entry(client).or_insert_with(|| SessionState {
            client,
            lease_ms,
            answered_below,
            answers: Vec::new(),
        });
        held.lease_ms = lease_ms;
        if answered_below > held.answered_below {
            held.answered_below = answered_below;
            held.answers.retain(|(number, ..)| *number >= answered_below);
        }
        let below = held.answered_below;
        // All are read, or those of the next session would be taken for these.
        answers.filter(|(number, ..)| *number >= below).for_each(|one| held.answers.push(one));
        let excess = held.answers.len().saturating_sub(ANSWERS_MAX);
        if excess > 0 {
            held.answers.drain(..excess);
        }
    }
}
