//! The metadata itself: who owns which ids, as a state machine that replicas run alike.

use std::collections::BTreeMap;

use super::view::{Peer, Term};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::ranges::{BACKUPS_MAX, Limits, Placement, PlacementError, Range, RangeMap};
use crate::spans::Spans;

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

/// A placement in which each node is meant in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The owner and its backups.
    pub placement: Placement,
    /// Their lives, in the same order; 0 for a backup that is missing.
    pub lives: [u32; BACKUPS_MAX + 1],
}

impl Placed {
    /// An owner without backups.
    pub fn of_owner(owner: Peer) -> Self {
        Self::new(owner, &[]).expect("one node is there once")
    }

    /// An owner and its backups.
    ///
    /// # Errors
    ///
    /// As [`Placement::new`].
    pub fn new(owner: Peer, backups: &[Peer]) -> Result<Self, PlacementError> {
        let nodes: Vec<NodeId> = backups.iter().map(|backup| backup.node).collect();
        let placement = Placement::new(owner.node, &nodes)?;
        let mut lives = [0; BACKUPS_MAX + 1];
        let peers = std::iter::once(&owner).chain(backups);
        lives.iter_mut().zip(peers).for_each(|(life, peer)| *life = peer.incarnation);
        Ok(Self { placement, lives })
    }

    /// The owner, then the backups.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        let nodes = std::iter::once(self.placement.owner()).chain(self.placement.backups());
        nodes.zip(self.lives).map(|(node, incarnation)| Peer { node, incarnation })
    }
}

/// What shall become of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ids that nobody owns become the asker's.
    Claim(Placed),
    /// Ids of the asker become somebody else's, or get other backups.
    Migrate(Placed),
    /// Ids that the asker inherited in that name are recovered, and get backups.
    Take(Placed, Peer),
    /// Ids of the asker become nobody's.
    Release,
    /// Nothing but that no older request of the asker is carried out any more.
    Fence,
    /// Of the leader: that life is over. Where it was the owner the first backup takes its place,
    /// and has to recover what it has of it; elsewhere it is a backup no more. What had no backup
    /// is nobody's.
    Bury(Peer),
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

impl Change {
    /// The placement that it gives, if it does.
    pub fn placed(&self) -> Option<Placed> {
        match self {
            Self::Claim(placed) | Self::Migrate(placed) | Self::Take(placed, _) => Some(*placed),
            Self::Release | Self::Fence | Self::Bury(_) => None,
        }
    }
}

impl Edit {
    /// The same, naming lives that nobody has: it will be refused as [`Refusal::Gone`].
    pub(super) fn refused(self) -> Self {
        let gone = |placed: Placed| Placed { lives: [0; BACKUPS_MAX + 1], ..placed };
        let change = match self.change {
            Change::Claim(placed) => Change::Claim(gone(placed)),
            Change::Migrate(placed) => Change::Migrate(gone(placed)),
            Change::Take(placed, source) => Change::Take(gone(placed), source),
            other => other,
        };
        Self { change, ..self }
    }
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
    /// Somebody is named in a life that is over, or whose former one is not buried yet.
    Gone,
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
    /// In which life each node is meant that ranges name, or did.
    lives: BTreeMap<NodeId, u32>,
    /// Ids whose owner has yet to recover them, and in whose name they were backed up.
    inherited: Spans<Peer>,
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
    /// In which life nodes are meant.
    pub lives: Vec<Peer>,
    /// Ids that their owners have yet to recover, and in whose name they were backed up.
    pub inherited: Vec<(IdRange, Peer)>,
}

/// Ids that a node owns and has to recover first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    /// The ids.
    pub ids: IdRange,
    /// The epoch at which this is so.
    pub epoch: u64,
    /// In whose name they were backed up.
    pub source: Peer,
    /// Owner and backups: each has all that was acknowledged.
    pub holders: Vec<Peer>,
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
            if let Change::Bury(peer) = edit.change {
                self.bury(creator, peer, &mut record);
                continue;
            }
            let last = record.seen.get(&edit.request.peer.node);
            if last.is_some_and(|last| last.request >= edit.request) {
                continue;
            }
            let result = self.carry_out(creator, edit, &mut record);
            record.note(Seen { request: edit.request, result: result.map(|()| version.sequence) });
        }
        record.version = version;
        self.records.insert(creator, record);
    }

    fn carry_out(
        &mut self,
        creator: Creator,
        edit: &Edit,
        record: &mut Record,
    ) -> Result<(), Refusal> {
        let Edit { request, ids, change } = *edit;
        if ids.len() > EDIT_IDS_MAX && !creator.is_named() {
            return Err(Refusal::TooWide);
        }
        let node = request.peer.node;
        debug_assert_eq!(ids.first().creator(), creator, "who asks is told so before");
        let placed = match change {
            Change::Fence | Change::Bury(_) => return Ok(()),
            Change::Claim(placed) if placed.placement.owner() != node => {
                return Err(Refusal::NotOwner);
            }
            Change::Claim(placed) => {
                if self.ranges(ids).next().is_some() {
                    return Err(Refusal::Owned);
                }
                Some(placed)
            }
            _ if !self.is_owner(ids, request.peer, record) => return Err(Refusal::NotOwner),
            // Who was told so by a leader of old would take up what is older than others have.
            Change::Take(placed, source) => {
                if !record.inherited.all(ids.start()..ids.end(), |held| *held == source) {
                    return Err(Refusal::NotOwner);
                }
                Some(placed)
            }
            // It has nothing that it could give away, or others could back up.
            _ if record.inherited.over(ids.start()..ids.end()).next().is_some() => {
                return Err(Refusal::NotOwner);
            }
            Change::Migrate(placed) => Some(placed),
            Change::Release => None,
        };
        let lives: Vec<Peer> = placed.iter().flat_map(Placed::peers).collect();
        let is_meant = |peer: &Peer| {
            let is_same = |life: &u32| *life == peer.incarnation;
            peer.incarnation > 0 && record.lives.get(&peer.node).is_none_or(is_same)
        };
        if !lives.iter().all(is_meant) {
            return Err(Refusal::Gone);
        }
        lives.into_iter().for_each(|peer| record.note_life(peer));
        self.assign(ids, placed.map(|placed| placed.placement), None, record);
        Ok(())
    }

    /// Gives ids a placement and says whether they are to be recovered, and keeps up the digest.
    fn assign(
        &mut self,
        ids: IdRange,
        placement: Option<Placement>,
        source: Option<Peer>,
        record: &mut Record,
    ) {
        let before = self.digest_around(ids).wrapping_add(record.digest_of_inherited(ids));
        self.map.assign(ids, placement);
        record.inherited.assign(ids.start()..ids.end(), source);
        let after = self.digest_around(ids).wrapping_add(record.digest_of_inherited(ids));
        record.digest = record.digest.wrapping_sub(before).wrapping_add(after);
    }

    /// Carries out [`Change::Bury`].
    fn bury(&mut self, creator: Creator, peer: Peer, record: &mut Record) {
        if record.lives.get(&peer.node) != Some(&peer.incarnation) {
            return;
        }
        let names = |range: &Range| {
            let nodes = std::iter::once(range.placement.owner()).chain(range.placement.backups());
            nodes.into_iter().any(|node| node == peer.node)
        };
        let named: Vec<Range> = self.ranges_of(creator).filter(names).collect();
        for range in named {
            let placement = range.placement.without(peer.node);
            let was_owner = range.placement.owner() == peer.node;
            for (ids, source) in record.inherited_in(range.ids) {
                let source = source.or(was_owner.then_some(peer)).filter(|_| placement.is_some());
                self.assign(ids, placement, source, record);
            }
        }
        record.forget_life(peer);
    }

    fn ranges_of(&self, creator: Creator) -> impl Iterator<Item = Range> {
        let first = ChunkId::new(creator, 0).expect("each creator has a first id");
        let ranges = self.map.ranges_from(first);
        ranges.take_while(move |range| range.ids.first().creator() == creator)
    }

    /// Owner and backups of each range of a creator, in the lives that are meant; for a range that
    /// is to be recovered, whoever may.
    pub fn placed(&self, creator: Creator) -> impl Iterator<Item = Vec<Peer>> {
        let life = move |node: NodeId| Peer {
            node,
            incarnation: self.life(creator, node).unwrap_or_default(),
        };
        self.ranges_of(creator).map(move |range| {
            let nodes = std::iter::once(range.placement.owner()).chain(range.placement.backups());
            nodes.map(life).collect()
        })
    }

    /// Lives that ranges of a creator name, or did.
    pub fn lives(&self, creator: Creator) -> impl Iterator<Item = Peer> {
        self.records.get(&creator).into_iter().flat_map(Record::lives)
    }

    /// The life in which a node is meant that a range of a creator names.
    pub fn life(&self, creator: Creator, node: NodeId) -> Option<u32> {
        self.records.get(&creator)?.lives.get(&node).copied()
    }

    /// Whether the owner of an id has yet to recover it.
    pub fn is_inherited(&self, id: ChunkId) -> bool {
        let record = self.records.get(&id.creator());
        record.is_some_and(|record| record.inherited.get(id.bits()).is_some())
    }

    /// What the owners of a creator's ids have yet to recover.
    pub fn inheritances(&self, creator: Creator) -> Vec<Inheritance> {
        let Some(record) = self.records.get(&creator) else { return Vec::new() };
        let epoch = record.version.sequence;
        let mut inheritances = Vec::new();
        for (span, source) in record.inherited.iter() {
            for range in self.ranges(IdRange::from_bits(span.start, span.end)) {
                let ids = IdRange::from_bits(
                    range.ids.start().max(span.start),
                    range.ids.end().min(span.end),
                );
                let nodes =
                    std::iter::once(range.placement.owner()).chain(range.placement.backups());
                let life = |node: NodeId| record.lives.get(&node).copied().unwrap_or_default();
                let holders = nodes.map(|node| Peer { node, incarnation: life(node) }).collect();
                inheritances.push(Inheritance { ids, epoch, source: *source, holders });
            }
        }
        inheritances
    }

    /// The ranges that overlap `ids`; the first without what lies before them.
    fn ranges(&self, ids: IdRange) -> impl Iterator<Item = Range> {
        self.map.ranges_from(ids.first()).take_while(move |range| range.ids.first() <= ids.last())
    }

    fn is_owner(&self, ids: IdRange, peer: Peer, record: &Record) -> bool {
        let node = peer.node;
        if record.lives.get(&node).is_some_and(|life| *life != peer.incarnation) {
            return false;
        }
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
        let ranges = self.ranges_of(creator).collect();
        let seen = record.seen.values().copied().collect();
        let inherited = record.inherited.iter();
        let inherited = inherited
            .map(|(span, source)| (IdRange::from_bits(span.start, span.end), *source))
            .collect();
        let (version, lives) = (record.version, record.lives().collect());
        Some(Snapshot { creator, version, ranges, seen, lives, inherited })
    }

    /// Holds that and nothing else of a creator. Ranges of other creators are left out.
    pub fn install(&mut self, snapshot: &Snapshot) {
        let creator = snapshot.creator;
        self.remove(creator);
        let mut record = Record::new(snapshot.version);
        snapshot.seen.iter().for_each(|seen| record.note(*seen));
        snapshot.lives.iter().for_each(|peer| record.note_life(*peer));
        for (ids, source) in snapshot.inherited.iter().filter(|(ids, _)| is_of(*ids, creator)) {
            record.inherited.assign(ids.start()..ids.end(), Some(*source));
            let run = digest_of_run(&(ids.start()..ids.end()), *source);
            record.digest = record.digest.wrapping_add(run);
        }
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

fn is_of(ids: IdRange, creator: Creator) -> bool {
    ids.first().creator() == creator && ids.last().creator() == creator
}

impl Record {
    fn new(version: Version) -> Self {
        let (seen, lives, inherited) = Default::default();
        Self { version, digest: 0, seen, lives, inherited }
    }

    fn lives(&self) -> impl Iterator<Item = Peer> {
        self.lives.iter().map(|(node, life)| Peer { node: *node, incarnation: *life })
    }

    fn note_life(&mut self, peer: Peer) {
        if self.lives.insert(peer.node, peer.incarnation).is_none() {
            self.digest = self.digest.wrapping_add(digest_of_life(peer));
        }
    }

    fn forget_life(&mut self, peer: Peer) {
        if self.lives.remove(&peer.node).is_some() {
            self.digest = self.digest.wrapping_sub(digest_of_life(peer));
        }
    }

    /// Parts of `ids` and in whose name each is to be recovered, if it is.
    fn inherited_in(&self, ids: IdRange) -> Vec<(IdRange, Option<Peer>)> {
        let (mut parts, mut at) = (Vec::new(), ids.start());
        for (span, source) in self.inherited.over(ids.start()..ids.end()) {
            if at < span.start {
                parts.push((IdRange::from_bits(at, span.start), None));
            }
            at = span.end;
            parts.push((IdRange::from_bits(span.start, span.end), Some(*source)));
        }
        if at < ids.end() {
            parts.push((IdRange::from_bits(at, ids.end()), None));
        }
        parts
    }

    /// Of the runs that an assignment to `ids` can change: those that overlap or touch them.
    fn digest_of_inherited(&self, ids: IdRange) -> u64 {
        let runs = self.inherited.iter();
        let near = runs.filter(|(span, _)| span.start <= ids.end() && span.end >= ids.start());
        near.fold(0, |sum: u64, (span, source)| sum.wrapping_add(digest_of_run(&span, *source)))
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

fn digest_of_run(span: &std::ops::Range<u64>, source: Peer) -> u64 {
    let Peer { node, incarnation } = source;
    mix(&[3, span.start, span.end, u64::from(node.get()), u64::from(incarnation)])
}

fn digest_of_life(peer: Peer) -> u64 {
    mix(&[4, u64::from(peer.node.get()), u64::from(peer.incarnation)])
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

    fn of(number: u16) -> Placed {
        Placed::of_owner(peer(number))
    }

    #[test]
    fn a_life_that_is_over_is_buried() {
        let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
        let mut epoch = 0;
        let mut ask = |edit: Edit| {
            epoch += 1;
            catalog.apply(creator, version(epoch), &[edit]);
            let seen = catalog.seen(creator, edit.request.peer.node).map(|seen| seen.result);
            let ranges = catalog.all_ranges().map(|range| format!("{:?}", range.placement));
            let inherited = catalog.inheritances(creator);
            let inherited =
                inherited.iter().map(|found| (found.source.node.get(), found.ids.len()));
            (seen, ranges.collect::<Vec<_>>(), inherited.collect::<Vec<_>>())
        };
        let placed = Placed::new(peer(1), &[peer(2), peer(3)]).expect("valid");
        ask(edit(1, 1, ids(0, 10), Change::Claim(placed)));
        ask(edit(3, 1, ids(10, 5), Change::Claim(of(3))));
        let bury = |number| edit(9, 0, ids(0, 1), Change::Bury(peer(number)));
        let (_, ranges, inherited) = ask(bury(1));
        assert_eq!(
            (&ranges[..], &inherited[..]),
            (&["2+3".into(), "3".into()][..], &[(1, 10)][..])
        );
        let late = ask(edit(1, 2, ids(0, 10), Change::Migrate(of(1)))).0;
        assert_eq!(late, Some(Err(Refusal::NotOwner)), "it is deposed");
        let (_, ranges, inherited) = ask(bury(2));
        assert_eq!(ranges, ["3"], "one range of two");
        assert_eq!(inherited, [(1, 10)], "nobody recovered it: still in the name of the first");
        let again = Peer { incarnation: 2, ..peer(3) };
        let named = Placed::new(peer(3), &[peer(4)]).expect("valid");
        let with_other_life = Placed { lives: [2, 1, 0, 0], ..named };
        let refused = ask(edit(3, 2, ids(0, 10), Change::Take(with_other_life, peer(1)))).0;
        assert_eq!(refused, Some(Err(Refusal::Gone)));
        let not_yet = ask(edit(3, 3, ids(0, 10), Change::Migrate(named))).0;
        assert_eq!(not_yet, Some(Err(Refusal::NotOwner)), "it has to recover them");
        let wrong = ask(edit(3, 4, ids(0, 10), Change::Take(named, peer(2)))).0;
        assert_eq!(wrong, Some(Err(Refusal::NotOwner)), "in another name");
        let take = Change::Take(named, peer(1));
        let (result, ranges, inherited) = ask(edit(3, 5, ids(0, 10), take));
        assert_eq!(result.map(|result| result.is_ok()), Some(true));
        assert_eq!((ranges, inherited), (vec!["3+4".into(), "3".into()], vec![]));
        let (_, ranges, inherited) = ask(bury(3));
        assert_eq!((ranges, inherited), (vec!["4".to_owned()], vec![(3, 10)]));
        let claim = Edit {
            request: RequestId { peer: again, sequence: 1 },
            ids: ids(10, 5),
            change: Change::Claim(Placed::of_owner(again)),
        };
        assert_eq!(ask(claim).1, ["4", "3"], "what had no backup is free");
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
            steps in prop::collection::vec((1..4u16, 0..30u64, 1..9u64, 0..6u8), 1..80),
        ) {
            let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
            for (step, (from, start, length, what)) in (1..).zip(steps) {
                let change = match what {
                    0 => Change::Claim(of(from)),
                    1 => Change::Migrate(of(from % 3 + 1)),
                    2 => Change::Migrate(of((from + 1) % 3 + 1)),
                    3 => Change::Release,
                    4 => Change::Bury(peer(from)),
                    _ => {
                        let backups = [peer(from % 3 + 1)];
                        Change::Claim(Placed::new(peer(from), &backups).expect("two nodes"))
                    }
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
