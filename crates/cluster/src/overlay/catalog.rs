//! The metadata itself: who owns which ids, as a state machine that replicas run alike.

use std::collections::BTreeMap;

use super::view::{Peer, Term};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::ranges::{Limits, Placement, Range, RangeMap};

/// Ids that one edit names at most, but for named ids, which are sparse.
pub const EDIT_IDS_MAX: u64 = 1 << 31;

/// How far a replica of a creator's metadata is. Sequences go on over terms, and count the batches
/// of edits; they are the *epochs* that data requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Under whose lead it was written.
    pub term: Term,
    /// How many batches it holds.
    pub sequence: u64,
}

/// Names a request for ever: a peer counts its edits of each creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who asks.
    pub peer: Peer,
    /// The number of the request, ascending.
    pub sequence: u64,
}

/// What shall become of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ids that nobody owns become the asker's.
    Claim(Placement),
    /// Ids of the asker become somebody else's, or get other backups.
    Migrate(Placement),
    /// Ids of the asker become nobody's.
    Release,
    /// Nothing but that no older request of the asker is carried out any more.
    Fence,
}

/// A request to change who owns ids of one creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Its name. A repetition is answered as the first was, an older one refused.
    pub request: RequestId,
    /// The ids.
    pub ids: IdRange,
    /// What shall become of them.
    pub change: Change,
}

/// Why an edit changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody owns one of the ids already.
    Owned,
    /// The asker does not own all of them, or claims for somebody else.
    NotOwner,
    /// A later request of the asker was carried out before.
    Outdated,
    /// More than [`EDIT_IDS_MAX`] ids.
    TooWide,
}

/// The last request of a peer, and how it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The request.
    pub request: RequestId,
    /// From which epoch on, or why not.
    pub result: Result<u64, Refusal>,
}

#[derive(Clone, Debug)]
struct Record {
    version: Version,
    /// Sum over ranges and seen requests: the same for the same content, however it came about.
    digest: u64,
    seen: BTreeMap<NodeId, Seen>,
}

/// How far a replica is, and a fingerprint of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whose ids.
    pub creator: Creator,
    /// How far.
    pub version: Version,
    /// Of ranges and requests.
    pub digest: u64,
}

/// All metadata of a creator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose ids.
    pub creator: Creator,
    /// How far.
    pub version: Version,
    /// Who owns them.
    pub ranges: Vec<Range>,
    /// The last request of each peer.
    pub seen: Vec<Seen>,
}

/// The metadata of many creators. What [`Self::apply`] answers depends on the edits before it and
/// on nothing else.
#[derive(Debug)]
pub struct Catalog {
    map: RangeMap,
    records: BTreeMap<Creator, Record>,
}

impl Default for Catalog {
    fn default() -> Self {
        Self { map: RangeMap::new(Limits::default()), records: BTreeMap::new() }
    }
}

impl Catalog {
    /// How far the metadata of a creator is; none if there is none.
    pub fn version(&self, creator: Creator) -> Option<Version> {
        self.records.get(&creator).map(|record| record.version)
    }

    /// Version and fingerprint.
    pub fn summary(&self, creator: Creator) -> Option<Summary> {
        let record = self.records.get(&creator)?;
        Some(Summary { creator, version: record.version, digest: record.digest })
    }

    /// Those of all creators that there are.
    pub fn summaries(&self) -> impl Iterator<Item = Summary> {
        self.records.iter().map(|(creator, record)| Summary {
            creator: *creator,
            version: record.version,
            digest: record.digest,
        })
    }

    /// The last request of a peer that was carried out or refused.
    pub fn seen(&self, creator: Creator, node: NodeId) -> Option<Seen> {
        self.records.get(&creator)?.seen.get(&node).copied()
    }

    /// The range of an id and the epoch at which that is known; no range if nobody owns it.
    pub fn find(&self, id: ChunkId) -> (u64, Option<Range>) {
        let epoch = self.version(id.creator()).map_or(0, |version| version.sequence);
        (epoch, self.map.find(id))
    }

    /// Carries out a batch of edits of one creator, which becomes `version`.
    pub fn apply(&mut self, creator: Creator, version: Version, edits: &[Edit]) {
        let mut record = self.records.remove(&creator).unwrap_or_else(|| Record::new(version));
        for edit in edits {
            let last = record.seen.get(&edit.request.peer.node);
            if last.is_some_and(|last| last.request >= edit.request) {
                continue;
            }
            let result = self.carry_out(creator, edit, &mut record.digest);
            record.note(Seen { request: edit.request, result: result.map(|()| version.sequence) });
        }
        record.version = version;
        self.records.insert(creator, record);
    }

    fn carry_out(
        &mut self,
        creator: Creator,
        edit: &Edit,
        digest: &mut u64,
    ) -> Result<(), Refusal> {
        let Edit { request, ids, change } = *edit;
        if ids.len() > EDIT_IDS_MAX && !creator.is_named() {
            return Err(Refusal::TooWide);
        }
        let node = request.peer.node;
        debug_assert_eq!(ids.first().creator(), creator, "who asks is told so before");
        let placement = match change {
            Change::Fence => return Ok(()),
            Change::Claim(placement) if placement.owner() != node => return Err(Refusal::NotOwner),
            Change::Claim(placement) => {
                if self.ranges(ids).next().is_some() {
                    return Err(Refusal::Owned);
                }
                Some(placement)
            }
            Change::Migrate(_) | Change::Release if !self.is_owner(ids, node) => {
                return Err(Refusal::NotOwner);
            }
            Change::Migrate(placement) => Some(placement),
            Change::Release => None,
        };
        *digest = digest.wrapping_sub(self.digest_around(ids));
        self.map.assign(ids, placement);
        *digest = digest.wrapping_add(self.digest_around(ids));
        Ok(())
    }

    /// The ranges that overlap `ids`; the first without what lies before them.
    fn ranges(&self, ids: IdRange) -> impl Iterator<Item = Range> {
        self.map.ranges_from(ids.first()).take_while(move |range| range.ids.first() <= ids.last())
    }

    fn is_owner(&self, ids: IdRange, node: NodeId) -> bool {
        let mut next = ids.start();
        for range in self.ranges(ids) {
            if range.ids.start() != next || range.placement.owner() != node {
                return false;
            }
            next = range.ids.end();
        }
        next >= ids.end()
    }

    /// Of the ranges that an edit of `ids` can change: those that overlap or touch them.
    fn digest_around(&self, ids: IdRange) -> u64 {
        let creator = ids.first().creator();
        let before = if ids.first().counter() == 0 { ids.start() } else { ids.start() - 1 };
        let before = ChunkId::from_bits(before).expect("it has the same creator");
        let first = self.map.find(before).map_or(before, |range| range.ids.first());
        let ranges = self.map.ranges_from(first);
        let near = ranges.take_while(|range| {
            range.ids.start() <= ids.end() && range.ids.first().creator() == creator
        });
        near.fold(0, |sum, range| sum.wrapping_add(digest_of_range(&range)))
    }

    /// Says that what is held of a creator is held under another version.
    pub fn restamp(&mut self, creator: Creator, version: Version) {
        if let Some(record) = self.records.get_mut(&creator) {
            record.version = version;
        }
    }

    /// All that is held of a creator.
    pub fn snapshot(&self, creator: Creator) -> Option<Snapshot> {
        let record = self.records.get(&creator)?;
        let ranges = self.map.ranges_from(ChunkId::new(creator, 0).ok()?);
        let ranges = ranges.take_while(|range| range.ids.first().creator() == creator).collect();
        let seen = record.seen.values().copied().collect();
        Some(Snapshot { creator, version: record.version, ranges, seen })
    }

    /// Holds that and nothing else of a creator. Ranges of other creators are left out.
    pub fn install(&mut self, snapshot: &Snapshot) {
        let creator = snapshot.creator;
        self.remove(creator);
        let mut record = Record::new(snapshot.version);
        snapshot.seen.iter().for_each(|seen| record.note(*seen));
        for range in snapshot.ranges.iter().filter(|range| range.ids.first().creator() == creator) {
            self.map.assign(range.ids, Some(range.placement));
            record.digest = record.digest.wrapping_add(digest_of_range(range));
        }
        self.records.insert(creator, record);
    }

    /// Forgets a creator.
    pub fn remove(&mut self, creator: Creator) {
        if self.records.remove(&creator).is_some() {
            let all = ChunkId::new(creator, 0)
                .and_then(|id| IdRange::starting_at(id, crate::ids::COUNTER_MAX + 1));
            self.map.assign(all.expect("all ids of a creator"), None);
        }
    }

    /// All ranges, ascending.
    pub fn all_ranges(&self) -> impl Iterator<Item = Range> {
        self.map.ranges()
    }
}

impl Record {
    fn new(version: Version) -> Self {
        Self { version, digest: 0, seen: BTreeMap::new() }
    }

    fn note(&mut self, seen: Seen) {
        self.digest = self.digest.wrapping_add(digest_of_seen(&seen));
        if let Some(last) = self.seen.insert(seen.request.peer.node, seen) {
            self.digest = self.digest.wrapping_sub(digest_of_seen(&last));
        }
    }
}

fn digest_of_range(range: &Range) -> u64 {
    mix(&[1, range.ids.start(), range.ids.end(), range.placement.bits()])
}

fn digest_of_seen(seen: &Seen) -> u64 {
    let result = match seen.result {
        Ok(epoch) => epoch,
        Err(refusal) => u64::MAX - refusal as u64,
    };
    let Peer { node, incarnation } = seen.request.peer;
    mix(&[2, u64::from(node.get()), u64::from(incarnation), seen.request.sequence, result])
}

/// Finds differences that happen, not those that somebody makes on purpose.
fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x243f_6a88_85a3_08d3, |state: u64, word| {
        let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(number: u16) -> Peer {
        Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 }
    }

    fn ids(start: u64, length: u64) -> IdRange {
        let first = ChunkId::new(Creator::from(peer(1).node), start).expect("an id");
        IdRange::starting_at(first, length).expect("a range")
    }

    fn version(sequence: u64) -> Version {
        Version { term: Term { number: 1, leader: peer(0) }, sequence }
    }

    fn edit(from: u16, sequence: u64, ids: IdRange, change: Change) -> Edit {
        Edit { request: RequestId { peer: peer(from), sequence }, ids, change }
    }

    fn of(number: u16) -> Placement {
        Placement::of_owner(peer(number).node)
    }

    #[test]
    fn only_owners_give_away_and_requests_count_once() {
        let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
        let mut epoch = 0;
        let mut ask = |edit: Edit| {
            epoch += 1;
            catalog.apply(creator, version(epoch), &[edit]);
            catalog.seen(creator, edit.request.peer.node).expect("it was seen").result
        };
        assert_eq!(ask(edit(1, 1, ids(0, 10), Change::Claim(of(1)))), Ok(1));
        assert_eq!(ask(edit(2, 1, ids(9, 2), Change::Claim(of(2)))), Err(Refusal::Owned));
        assert_eq!(ask(edit(1, 2, ids(4, 1), Change::Migrate(of(2)))), Ok(3));
        assert_eq!(ask(edit(1, 2, ids(4, 1), Change::Migrate(of(2)))), Ok(3), "it was seen");
        assert_eq!(ask(edit(1, 3, ids(3, 2), Change::Migrate(of(2)))), Err(Refusal::NotOwner));
        assert_eq!(ask(edit(2, 3, ids(4, 1), Change::Migrate(of(1)))), Ok(6));
        assert_eq!(ask(edit(2, 2, ids(4, 1), Change::Fence)), Ok(6), "a late one is left out");
        assert_eq!(ask(edit(1, 4, ids(0, 10), Change::Release)), Ok(8));
        assert_eq!(ask(edit(1, 5, ids(10, 1), Change::Release)), Err(Refusal::NotOwner));
        assert_eq!(ask(edit(1, 6, ids(0, 1 << 32), Change::Claim(of(1)))), Err(Refusal::TooWide));
        assert_eq!(ask(edit(1, 7, ids(0, 1), Change::Claim(of(3)))), Err(Refusal::NotOwner));
        assert_eq!(catalog.all_ranges().count(), 0);
    }

    proptest! {
        /// The digest that edits keep up is that of the same content put in anew.
        #[test]
        fn digests_depend_on_the_content_alone(
            steps in prop::collection::vec((1..4u16, 0..30u64, 1..9u64, 0..4u8), 1..80),
        ) {
            let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
            for (step, (from, start, length, what)) in (1..).zip(steps) {
                let change = match what {
                    0 => Change::Claim(of(from)),
                    1 => Change::Migrate(of(from % 3 + 1)),
                    2 => Change::Migrate(of((from + 1) % 3 + 1)),
                    _ => Change::Release,
                };
                // Around the end of a cell, where ranges are cut.
                let ids = ids(1_999_990 + start, length);
                catalog.apply(creator, version(step), &[edit(from, step, ids, change)]);
                let mut other = Catalog::default();
                other.install(&catalog.snapshot(creator).expect("it has one"));
                prop_assert_eq!(other.summary(creator), catalog.summary(creator));
            }
        }
    }
}
