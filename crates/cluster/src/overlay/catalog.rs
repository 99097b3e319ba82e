//! The metadata catalog: who owns which ids, as a deterministic state machine that every replica
//! runs.

use std::collections::BTreeMap;

use super::creator_state::{CreatorState, digest_of_range, digest_of_run};
use super::edit::{
    Change, EDIT_IDS_MAX, Edit, FailoverGrant, LastRequest, MetadataRecord, Refusal, ReplicaSet,
    Snapshot, Summary, Version,
};
use super::view::Peer;
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::ranges::{MapLimits, Placement, Range, RangeMap};

/// The metadata of many creators. The result of [`Self::apply`] depends on earlier edits alone.
#[derive(Debug)]
pub struct Catalog {
    map: RangeMap,
    creators: BTreeMap<Creator, CreatorState>,
    /// Changes since the last [`Self::take_records`]; None while changes are not recorded.
    records: Option<Vec<MetadataRecord>>,
    /// The bytes of memory that `records` take.
    record_bytes: usize,
}

impl Default for Catalog {
    fn default() -> Self {
        Self {
            map: RangeMap::new(MapLimits::default()),
            creators: BTreeMap::new(),
            records: None,
            record_bytes: 0,
        }
    }
}

impl Catalog {
    /// Records all changes from now on.
    pub fn start_recording(&mut self) {
        self.records = Some(Vec::new());
    }

    /// The changes since the last call, in order.
    pub fn take_records(&mut self) -> Vec<MetadataRecord> {
        self.record_bytes = 0;
        self.records.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The bytes of memory of the changes since the last [`Self::take_records`].
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    fn log(&mut self, record: impl FnOnce() -> MetadataRecord) {
        if let Some(records) = &mut self.records {
            let record = record();
            self.record_bytes += record.memory_bytes();
            records.push(record);
        }
    }

    /// Repeats the change of a record. Promises are not part of the catalog.
    pub fn replay(&mut self, record: &MetadataRecord) {
        match record {
            MetadataRecord::Batch(creator, version, edits) => self.apply(*creator, *version, edits),
            MetadataRecord::Snapshot(snapshot) => self.install(snapshot),
            MetadataRecord::Restamp(creator, version) => self.restamp(*creator, *version),
            MetadataRecord::Removed(creator) => self.remove(*creator),
            MetadataRecord::Promises(_) => {}
        }
    }

    /// The version of a creator's metadata; None if the catalog has none.
    pub fn version(&self, creator: Creator) -> Option<Version> {
        self.creators.get(&creator).map(|state| state.version)
    }

    /// Version and digest of a creator's metadata.
    pub fn summary(&self, creator: Creator) -> Option<Summary> {
        let state = self.creators.get(&creator)?;
        Some(Summary { creator, version: state.version, digest: state.digest })
    }

    /// The summaries of all creators in the catalog.
    pub fn summaries(&self) -> impl Iterator<Item = Summary> {
        self.creators.iter().map(|(creator, state)| Summary {
            creator: *creator,
            version: state.version,
            digest: state.digest,
        })
    }

    /// The last request of a peer that was executed or refused.
    pub fn last_request(&self, creator: Creator, node: NodeId) -> Option<LastRequest> {
        self.creators.get(&creator)?.last_requests.get(&node).copied()
    }

    /// The epoch of a creator's metadata and the range that an id lies in; None if nobody owns it.
    pub fn find(&self, id: ChunkId) -> (u64, Option<Range>) {
        let epoch = self.version(id.creator()).map_or(0, |version| version.sequence);
        (epoch, self.map.find(id))
    }

    /// Applies a batch of edits of one creator, which becomes `version`.
    pub fn apply(&mut self, creator: Creator, version: Version, edits: &[Edit]) {
        let mut state =
            self.creators.remove(&creator).unwrap_or_else(|| CreatorState::new(version));
        let over = edits.iter().filter_map(|edit| match edit.change {
            Change::RemoveDead(peer) | Change::MarkLost(peer) => Some(peer),
            _ => None,
        });
        let dead: Vec<NodeId> =
            over.filter(|peer| state.names_peer(*peer)).map(|peer| peer.node).collect();
        for edit in edits {
            match edit.change {
                Change::RemoveDead(peer) => self.remove_dead(creator, peer, &dead, &mut state),
                Change::MarkLost(peer) => self.remove_dead(creator, peer, &[], &mut state),
                Change::Rejoin(peer, new) => self.rejoin(creator, peer, new, &mut state),
                _ => {}
            }
            if edit.change.is_of_leader() {
                continue;
            }
            let last = state.last_requests.get(&edit.request.peer.node);
            if last.is_some_and(|last| last.request >= edit.request) {
                continue;
            }
            let result = self.execute_edit(creator, edit, &mut state);
            state.set_last_request(LastRequest {
                request: edit.request,
                result: result.map(|()| version.sequence),
            });
        }
        state.version = version;
        self.creators.insert(creator, state);
        self.log(|| MetadataRecord::Batch(creator, version, edits.to_vec()));
    }

    fn execute_edit(
        &mut self,
        creator: Creator,
        edit: &Edit,
        state: &mut CreatorState,
    ) -> Result<(), Refusal> {
        let Edit { request, ids, change } = *edit;
        if ids.len() > EDIT_IDS_MAX && !creator.is_named() {
            return Err(Refusal::TooWide);
        }
        let node = request.peer.node;
        debug_assert_eq!(ids.first().creator(), creator, "the leader checked it");
        let set = match change {
            Change::Fence | Change::RemoveDead(_) | Change::MarkLost(_) | Change::Rejoin(..) => {
                return Ok(());
            }
            Change::Claim(set) if set.placement.owner() != node => {
                return Err(Refusal::NotOwner);
            }
            Change::Claim(set) => {
                if self.ranges(ids).next().is_some() {
                    return Err(Refusal::Owned);
                }
                Some(set)
            }
            _ if !self.is_owner(ids, request.peer, state) => return Err(Refusal::NotOwner),
            // A grant of an earlier leader may be outdated: its new owner would recover less than
            // others hold.
            Change::CompleteFailover(set, source) if source != request.peer => {
                if !state.to_recover.all(ids.start()..ids.end(), |held| *held == source) {
                    return Err(Refusal::NotOwner);
                }
                Some(set)
            }
            // The owner has nothing yet that it could transfer, or others replicate.
            _ if has_to_recover(ids, state, request.peer) => return Err(Refusal::NotOwner),
            Change::CompleteFailover(set, _) => Some(set),
            Change::Migrate(set) => Some(set),
            Change::Release => None,
        };
        let named: Vec<Peer> = set.iter().flat_map(ReplicaSet::peers).collect();
        let is_meant = |peer: &Peer| {
            let is_same = |incarnation: &u32| *incarnation == peer.incarnation;
            peer.incarnation > 0 && state.incarnations.get(&peer.node).is_none_or(is_same)
        };
        if !named.iter().all(is_meant) {
            return Err(Refusal::StalePeer);
        }
        named.into_iter().for_each(|peer| state.add_peer(peer));
        // Without a backup, the owner's own log is what the ids are recovered from.
        let is_own_backup = matches!(change, Change::CompleteFailover(set, _)
            if set.placement.backups().next().is_none());
        let source = is_own_backup.then_some(request.peer);
        self.assign(&[(ids, set.map(|set| set.placement))], &[source], state);
        Ok(())
    }

    /// Assigns placements to ranges of one creator, which are disjoint and ascending, and to each
    /// the source to recover from; updates the digest.
    fn assign(
        &mut self,
        edits: &[(IdRange, Option<Placement>)],
        sources: &[Option<Peer>],
        state: &mut CreatorState,
    ) {
        let ([(first, _), ..], [.., (last, _)]) = (edits, edits) else { return };
        let all = IdRange::from_bits(first.start(), last.end());
        let before = self.digest_around(all).wrapping_add(state.digest_of_to_recover(all));
        self.map.assign_all(edits);
        for ((ids, _), source) in edits.iter().zip(sources) {
            state.to_recover.assign(ids.start()..ids.end(), *source);
        }
        let after = self.digest_around(all).wrapping_add(state.digest_of_to_recover(all));
        state.digest = state.digest.wrapping_sub(before).wrapping_add(after);
    }

    /// Applies [`Change::RemoveDead`], and, with no other `dead` node, [`Change::MarkLost`].
    fn remove_dead(
        &mut self,
        creator: Creator,
        peer: Peer,
        dead: &[NodeId],
        state: &mut CreatorState,
    ) {
        if !state.names_peer(peer) {
            return;
        }
        let (mut edits, mut sources) = (Vec::new(), Vec::new());
        let mut is_named = false;
        for range in self.ranges_of(creator).filter(|range| names(range, peer.node)) {
            let placement = range.placement.without(peer.node);
            let was_owner = range.placement.owner() == peer.node;
            let is_last = nodes_of(&range).all(|node| dead.contains(&node));
            for (ids, source) in state.to_recover_in(range.ids) {
                if is_last && (placement.is_some() || source.is_some()) {
                    is_named = true;
                    continue;
                }
                edits.push((ids, placement));
                sources.push(source.or(was_owner.then_some(peer)).filter(|_| placement.is_some()));
            }
        }
        self.assign(&edits, &sources, state);
        if !is_named {
            state.remove_peer(peer);
        }
    }

    /// Applies [`Change::Rejoin`].
    fn rejoin(&mut self, creator: Creator, peer: Peer, new: u32, state: &mut CreatorState) {
        if !state.names_peer(peer) || new <= peer.incarnation {
            return;
        }
        let is_owned = |range: &Range| range.placement.owner() == peer.node;
        let (mut edits, mut sources) = (Vec::new(), Vec::new());
        for range in self.ranges_of(creator).filter(is_owned) {
            let placement = range.placement.without(peer.node);
            for (ids, source) in state.to_recover_in(range.ids) {
                // What it had yet to recover is in its log; what it served was in its memory.
                if source.is_none() {
                    edits.push((ids, placement));
                    sources.push(placement.map(|_| peer));
                }
            }
        }
        self.assign(&edits, &sources, state);
        state.remove_peer(peer);
        state.add_peer(Peer { incarnation: new, ..peer });
    }

    /// Returns the dead peers that are the last holders of some ids, and whether dead peers may be
    /// removed now. They may not while the only other holders of some range are `silent`.
    pub fn last_holders(
        &self,
        creator: Creator,
        dead: &[Peer],
        silent: &[Peer],
    ) -> (Vec<Peer>, bool) {
        let Some(state) = self.creators.get(&creator) else { return Default::default() };
        let is_dead = |node: NodeId| dead.iter().any(|peer| peer.node == node);
        let is_silent = |node: NodeId| silent.iter().any(|peer| peer.node == node);
        let (mut last, mut others) = (Vec::new(), Vec::new());
        let mut waits = false;
        for range in self.ranges_of(creator) {
            let has_copies = range.placement.backups().count() > 0
                || state.to_recover.over(range.ids.start()..range.ids.end()).next().is_some();
            let is_last = has_copies && nodes_of(&range).all(is_dead);
            waits |= has_copies
                && !is_last
                && nodes_of(&range).any(is_dead)
                && nodes_of(&range).all(|node| is_dead(node) || is_silent(node));
            let of = if is_last { &mut last } else { &mut others };
            of.extend(nodes_of(&range).filter(|node| is_dead(*node)));
        }
        let about = |nodes: &[NodeId], peer: &Peer| nodes.contains(&peer.node);
        let may_remove =
            !waits && dead.iter().any(|peer| about(&others, peer) || !about(&last, peer));
        (dead.iter().copied().filter(|peer| about(&last, peer)).collect(), may_remove)
    }

    /// Whether replicas that were written in the name of `source` may still be asked for, among the
    /// ids of this creator.
    pub fn needs(&self, creator: Creator, source: Peer) -> bool {
        self.creators.get(&creator).is_some_and(|state| {
            state.names_peer(source) || state.to_recover.iter().any(|(_, name)| *name == source)
        })
    }

    fn ranges_of(&self, creator: Creator) -> impl Iterator<Item = Range> {
        let first = ChunkId::new(creator, 0).expect("each creator has a first id");
        let ranges = self.map.ranges_from(first);
        ranges.take_while(move |range| range.ids.first().creator() == creator)
    }

    /// Owner and backups of each range of a creator, in the incarnations that are meant; for a
    /// range that is being recovered, the candidates.
    pub fn replica_sets(&self, creator: Creator) -> impl Iterator<Item = Vec<Peer>> {
        let peer_of = move |node: NodeId| Peer {
            node,
            incarnation: self.incarnation_of(creator, node).unwrap_or_default(),
        };
        self.ranges_of(creator).map(move |range| nodes_of(&range).map(peer_of).collect())
    }

    /// Peers that ranges of a creator name, or have named.
    pub fn named_peers(&self, creator: Creator) -> impl Iterator<Item = Peer> {
        self.creators.get(&creator).into_iter().flat_map(CreatorState::peers)
    }

    /// The incarnation in which ranges of a creator name a node.
    pub fn incarnation_of(&self, creator: Creator, node: NodeId) -> Option<u32> {
        self.creators.get(&creator)?.incarnations.get(&node).copied()
    }

    /// Whether the owner of an id has yet to recover it.
    pub fn needs_recovery(&self, id: ChunkId) -> bool {
        let Some(state) = self.creators.get(&id.creator()) else { return false };
        let Some(source) = state.to_recover.get(id.bits()) else { return false };
        self.map.find(id).is_some_and(|range| !is_own_backup(state, &range, *source))
    }

    /// Creators with ids that have yet to be recovered.
    pub fn creators_to_recover(&self) -> impl Iterator<Item = Creator> {
        let is_about = |state: &CreatorState, span: std::ops::Range<u64>, source: Peer| {
            let mut ranges = self.ranges(IdRange::from_bits(span.start, span.end));
            ranges.any(|range| !is_own_backup(state, &range, source))
        };
        let has_some = move |state: &CreatorState| {
            state.to_recover.iter().any(|(span, source)| is_about(state, span, *source))
        };
        let records = self.creators.iter().filter(move |(_, state)| has_some(state));
        records.map(|(creator, _)| *creator)
    }

    /// The grants for all ids of a creator that have yet to be recovered.
    pub fn failover_grants(&self, creator: Creator) -> Vec<FailoverGrant> {
        let Some(state) = self.creators.get(&creator) else { return Vec::new() };
        let epoch = state.version.sequence;
        let mut failover_grants = Vec::new();
        for (span, source) in state.to_recover.iter() {
            let ranges = self.ranges(IdRange::from_bits(span.start, span.end));
            for range in ranges.filter(|range| !is_own_backup(state, range, *source)) {
                let ids = IdRange::from_bits(
                    range.ids.start().max(span.start),
                    range.ids.end().min(span.end),
                );
                let nodes = nodes_of(&range);
                let incarnation =
                    |node: NodeId| state.incarnations.get(&node).copied().unwrap_or_default();
                let holders: Vec<Peer> =
                    nodes.map(|node| Peer { node, incarnation: incarnation(node) }).collect();
                // Named ids are sparse, and a partition has too many cells to grant each.
                let last = failover_grants.last_mut().filter(|last: &&mut FailoverGrant| {
                    let touches = last.ids.end() == ids.start() && creator.is_named();
                    touches && last.source == *source && last.holders == holders
                });
                if let Some(last) = last {
                    last.ids = IdRange::from_bits(last.ids.start(), ids.end());
                    continue;
                }
                failover_grants.push(FailoverGrant { ids, epoch, source: *source, holders });
            }
        }
        failover_grants
    }

    /// The ranges that overlap `ids`; the first is cut at the start of `ids`.
    fn ranges(&self, ids: IdRange) -> impl Iterator<Item = Range> {
        self.map.ranges_from(ids.first()).take_while(move |range| range.ids.first() <= ids.last())
    }

    fn is_owner(&self, ids: IdRange, peer: Peer, state: &CreatorState) -> bool {
        let node = peer.node;
        if state.incarnations.get(&node).is_some_and(|known| *known != peer.incarnation) {
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

    /// Digest of the ranges that an edit of `ids` can change: those that overlap or touch them.
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

    /// Sets the version of a creator's metadata without a change of its content.
    pub fn restamp(&mut self, creator: Creator, version: Version) {
        if let Some(state) = self.creators.get_mut(&creator)
            && state.version != version
        {
            state.version = version;
            self.log(|| MetadataRecord::Restamp(creator, version));
        }
    }

    /// All metadata of a creator.
    pub fn snapshot(&self, creator: Creator) -> Option<Snapshot> {
        let state = self.creators.get(&creator)?;
        let ranges = self.ranges_of(creator).collect();
        let last_requests = state.last_requests.values().copied().collect();
        let to_recover = state.to_recover.iter();
        let to_recover = to_recover
            .map(|(span, source)| (IdRange::from_bits(span.start, span.end), *source))
            .collect();
        let (version, incarnations) = (state.version, state.peers().collect());
        Some(Snapshot { creator, version, ranges, last_requests, incarnations, to_recover })
    }

    /// Replaces the metadata of a creator. Ranges of other creators in the snapshot are ignored.
    pub fn install(&mut self, snapshot: &Snapshot) {
        let creator = snapshot.creator;
        self.drop_all(creator);
        let mut state = CreatorState::new(snapshot.version);
        snapshot.last_requests.iter().for_each(|last| state.set_last_request(*last));
        snapshot.incarnations.iter().for_each(|peer| state.add_peer(*peer));
        for (ids, source) in snapshot.to_recover.iter().filter(|(ids, _)| is_of(*ids, creator)) {
            state.to_recover.assign(ids.start()..ids.end(), Some(*source));
            let run = digest_of_run(&(ids.start()..ids.end()), *source);
            state.digest = state.digest.wrapping_add(run);
        }
        for range in snapshot.ranges.iter().filter(|range| range.ids.first().creator() == creator) {
            self.map.assign(range.ids, Some(range.placement));
            state.digest = state.digest.wrapping_add(digest_of_range(range));
        }
        self.creators.insert(creator, state);
        self.log(|| MetadataRecord::Snapshot(snapshot.clone()));
    }

    /// Removes the metadata of a creator.
    pub fn remove(&mut self, creator: Creator) {
        if self.drop_all(creator) {
            self.log(|| MetadataRecord::Removed(creator));
        }
    }

    fn drop_all(&mut self, creator: Creator) -> bool {
        let was_held = self.creators.remove(&creator).is_some();
        if was_held {
            let all = ChunkId::new(creator, 0)
                .and_then(|id| IdRange::starting_at(id, crate::ids::COUNTER_MAX + 1));
            self.map.assign(all.expect("all ids of a creator"), None);
        }
        was_held
    }

    /// All ranges in ascending order.
    pub fn all_ranges(&self) -> impl Iterator<Item = Range> {
        self.map.ranges()
    }
}

/// The owner, then the backups.
fn nodes_of(range: &Range) -> impl Iterator<Item = NodeId> {
    std::iter::once(range.placement.owner()).chain(range.placement.backups())
}

/// Whether the ids would be recovered from the log of their present owner, who serves them without
/// another backup.
fn is_own_backup(state: &CreatorState, range: &Range, source: Peer) -> bool {
    range.placement.owner() == source.node && state.names_peer(source)
}

/// Whether something of these ids has yet to be recovered from another than their owner.
fn has_to_recover(ids: IdRange, state: &CreatorState, owner: Peer) -> bool {
    state.to_recover.over(ids.start()..ids.end()).any(|(_, source)| *source != owner)
}

fn names(range: &Range, node: NodeId) -> bool {
    nodes_of(range).any(|other| other == node)
}

fn is_of(ids: IdRange, creator: Creator) -> bool {
    ids.first().creator() == creator && ids.last().creator() == creator
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::edit::RequestId;
    use super::super::view::Term;
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

    fn of(number: u16) -> ReplicaSet {
        ReplicaSet::of_owner(peer(number))
    }

    #[test]
    fn a_dead_peer_is_removed() {
        let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
        let mut epoch = 0;
        let mut ask = |edit: Edit| {
            epoch += 1;
            catalog.apply(creator, version(epoch), &[edit]);
            let seen =
                catalog.last_request(creator, edit.request.peer.node).map(|seen| seen.result);
            let ranges = catalog.all_ranges().map(|range| format!("{:?}", range.placement));
            let grants = catalog.failover_grants(creator);
            let grants = grants.iter().map(|found| (found.source.node.get(), found.ids.len()));
            (seen, ranges.collect::<Vec<_>>(), grants.collect::<Vec<_>>())
        };
        let set = ReplicaSet::new(peer(1), &[peer(2), peer(3)]).expect("valid");
        ask(edit(1, 1, ids(0, 10), Change::Claim(set)));
        ask(edit(3, 1, ids(10, 5), Change::Claim(of(3))));
        let remove = |number| edit(9, 0, ids(0, 1), Change::RemoveDead(peer(number)));
        let (_, ranges, grants) = ask(remove(1));
        assert_eq!((&ranges[..], &grants[..]), (&["2+3".into(), "3".into()][..], &[(1, 10)][..]));
        let late = ask(edit(1, 2, ids(0, 10), Change::Migrate(of(1)))).0;
        assert_eq!(late, Some(Err(Refusal::NotOwner)), "it is deposed");
        let (_, ranges, grants) = ask(remove(2));
        assert_eq!(ranges, ["3"], "one range of two");
        assert_eq!(grants, [(1, 10)], "nobody recovered it: still in the name of the first");
        let again = Peer { incarnation: 2, ..peer(3) };
        let named = ReplicaSet::new(peer(3), &[peer(4)]).expect("valid");
        let with_other_life = ReplicaSet { incarnations: [2, 1, 0, 0], ..named };
        let refused =
            ask(edit(3, 2, ids(0, 10), Change::CompleteFailover(with_other_life, peer(1)))).0;
        assert_eq!(refused, Some(Err(Refusal::StalePeer)));
        let not_yet = ask(edit(3, 3, ids(0, 10), Change::Migrate(named))).0;
        assert_eq!(not_yet, Some(Err(Refusal::NotOwner)), "it has to recover them");
        let wrong = ask(edit(3, 4, ids(0, 10), Change::CompleteFailover(named, peer(2)))).0;
        assert_eq!(wrong, Some(Err(Refusal::NotOwner)), "in another name");
        let take = Change::CompleteFailover(named, peer(1));
        let (result, ranges, grants) = ask(edit(3, 5, ids(0, 10), take));
        assert_eq!(result.map(|result| result.is_ok()), Some(true));
        assert_eq!((ranges, grants), (vec!["3+4".into(), "3".into()], vec![]));
        let (_, ranges, grants) = ask(remove(3));
        assert_eq!((ranges, grants), (vec!["4".to_owned()], vec![(3, 10)]));
        let claim = Edit {
            request: RequestId { peer: again, sequence: 1 },
            ids: ids(10, 5),
            change: Change::Claim(ReplicaSet::of_owner(again)),
        };
        assert_eq!(ask(claim).1, ["4", "3"], "what had no backup is free");
    }

    #[test]
    fn ids_whose_holders_all_died_wait_for_one_to_rejoin() {
        let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
        let set = ReplicaSet::new(peer(1), &[peer(2), peer(3)]).expect("valid");
        let shared = ReplicaSet::new(peer(2), &[peer(1), peer(4)]).expect("valid");
        let claims = [
            edit(1, 1, ids(0, 10), Change::Claim(set)),
            edit(2, 1, ids(10, 5), Change::Claim(shared)),
            edit(3, 1, ids(20, 5), Change::Claim(of(3))),
        ];
        let mut epoch = 0;
        let mut ask = |catalog: &mut Catalog, changes: &[Change]| {
            epoch += 1;
            let edits: Vec<Edit> =
                changes.iter().map(|change| edit(9, 0, ids(0, 1), *change)).collect();
            let edits = if changes.is_empty() { &claims[..] } else { &edits };
            catalog.apply(creator, version(epoch), edits);
            let ranges = catalog.all_ranges().map(|range| format!("{:?}", range.placement));
            let grants = catalog.failover_grants(creator);
            let grants = grants.iter().map(|found| (found.source, found.ids.len()));
            (ranges.collect::<Vec<_>>(), grants.collect::<Vec<_>>())
        };
        ask(&mut catalog, &[]);
        let dead = [peer(1), peer(2), peer(3)];
        let (last, may_remove) = catalog.last_holders(creator, &dead, &[]);
        assert_eq!((last, may_remove), (dead.to_vec(), true));
        let all = [1, 2, 3, 4].map(peer);
        let (dead_first, silent) = (&all[..1], &all[1..]);
        assert_eq!(catalog.last_holders(creator, dead_first, silent), (vec![], false));
        assert_eq!(catalog.last_holders(creator, dead_first, &all[1..2]), (vec![], true));
        let removed = ask(&mut catalog, &dead.map(Change::RemoveDead));
        let waiting = ["1+2+3", "4"].map(str::to_owned).to_vec();
        assert_eq!(removed, (waiting.clone(), vec![(peer(2), 5)]), "what had no copy is free");
        assert_eq!(catalog.last_holders(creator, &dead, &[]), (dead.to_vec(), false));
        let again = ask(&mut catalog, &dead.map(Change::RemoveDead));
        assert_eq!(again.0, waiting);
        // The owner's memory is gone, whatever its log holds of others.
        let (ranges, grants) = ask(&mut catalog, &[Change::Rejoin(peer(1), 2)]);
        assert_eq!((&ranges[0][..], grants[0]), ("2+3", (peer(1), 10)));
        let (ranges, grants) = ask(&mut catalog, &[Change::Rejoin(peer(3), 2)]);
        assert_eq!((&ranges[0][..], grants[0]), ("2+3", (peer(1), 10)));
        let (ranges, grants) = ask(&mut catalog, &[Change::RemoveDead(peer(2))]);
        assert_eq!((&ranges[0][..], grants[0]), ("3", (peer(1), 10)));
        let holders = catalog.failover_grants(creator)[0].holders.clone();
        assert_eq!(holders, [Peer { incarnation: 2, ..peer(3) }], "in its new incarnation");
        assert!(catalog.needs(creator, peer(1)));
        // It dies too, and has nothing when it comes back.
        let dead_again = Peer { incarnation: 2, ..peer(3) };
        assert_eq!(ask(&mut catalog, &[Change::RemoveDead(dead_again)]).0[0], "3");
        assert_eq!(ask(&mut catalog, &[Change::MarkLost(dead_again)]).0, ["4"]);
        assert!(!catalog.needs(creator, peer(1)) && catalog.needs(creator, peer(2)));
    }

    #[test]
    fn ids_of_a_node_that_was_alone_are_recovered_from_its_own_log() {
        let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
        let mut epoch = 0;
        let mut ask = |catalog: &mut Catalog, edit: Edit| {
            epoch += 1;
            catalog.apply(creator, version(epoch), &[edit]);
            catalog.last_request(creator, edit.request.peer.node).map(|last| last.result.is_ok())
        };
        let all = ids(0, 10);
        let (alone, back) = (peer(1), Peer { incarnation: 2, ..peer(1) });
        ask(&mut catalog, edit(1, 1, all, Change::Claim(of(1))));
        let own_backup = Change::CompleteFailover(of(1), alone);
        assert_eq!(ask(&mut catalog, edit(1, 2, all, own_backup)), Some(true));
        assert!(!catalog.needs_recovery(all.first()), "it is served");
        assert_eq!(catalog.failover_grants(creator), []);
        assert_eq!(catalog.creators_to_recover().count(), 0);
        assert_eq!(catalog.last_holders(creator, &[alone], &[]), (vec![alone], false));
        ask(&mut catalog, edit(9, 0, all, Change::RemoveDead(alone)));
        ask(&mut catalog, edit(9, 0, all, Change::Rejoin(alone, 2)));
        let grants = catalog.failover_grants(creator);
        assert_eq!((grants[0].source, &grants[0].holders[..]), (alone, &[back][..]));
        assert!(catalog.needs_recovery(all.first()) && catalog.needs(creator, alone));
        // Another backup takes the place of the log.
        let by = |sequence, change| Edit {
            request: RequestId { peer: back, sequence },
            ids: all,
            change,
        };
        let recovered = by(1, Change::CompleteFailover(ReplicaSet::of_owner(back), alone));
        assert_eq!(ask(&mut catalog, recovered), Some(true));
        let with_backup = ReplicaSet::new(back, &[peer(2)]).expect("valid");
        assert_eq!(ask(&mut catalog, by(2, Change::Migrate(with_backup))), Some(true));
        ask(&mut catalog, edit(9, 0, all, Change::RemoveDead(back)));
        let grants = catalog.failover_grants(creator);
        assert_eq!((grants[0].source, &grants[0].holders[..]), (back, &[peer(2)][..]));
    }

    #[test]
    fn only_owners_give_away_and_requests_count_once() {
        let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
        let mut epoch = 0;
        let mut ask = |edit: Edit| {
            epoch += 1;
            catalog.apply(creator, version(epoch), &[edit]);
            catalog.last_request(creator, edit.request.peer.node).expect("it was seen").result
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
        /// The incrementally maintained digest equals that of the same content installed afresh.
        #[test]
        fn digests_depend_on_the_content_alone(
            steps in prop::collection::vec((1..4u16, 0..30u64, 1..9u64, 0..9u8), 1..80),
        ) {
            let (mut catalog, creator) = (Catalog::default(), Creator::from(peer(1).node));
            let mut replayed = Catalog::default();
            catalog.start_recording();
            for (step, (from, start, length, what)) in (1..).zip(steps) {
                let change = match what {
                    0 => Change::Claim(of(from)),
                    1 => Change::Migrate(of(from % 3 + 1)),
                    2 => Change::Migrate(of((from + 1) % 3 + 1)),
                    3 => Change::Release,
                    4 => Change::RemoveDead(peer(from)),
                    5 => Change::MarkLost(peer(from)),
                    6 => Change::Rejoin(peer(from), 1 + start as u32),
                    _ => {
                        let backups = [peer(from % 3 + 1)];
                        Change::Claim(ReplicaSet::new(peer(from), &backups).expect("two nodes"))
                    }
                };
                // Around the end of a cell, where ranges are cut.
                let ids = ids(1_999_990 + start, length);
                catalog.apply(creator, version(step), &[edit(from, step, ids, change)]);
                let mut other = Catalog::default();
                other.install(&catalog.snapshot(creator).expect("it has one"));
                prop_assert_eq!(other.summary(creator), catalog.summary(creator));
                for record in catalog.take_records() {
                    replayed.replay(&record);
                }
                prop_assert_eq!(replayed.summary(creator), catalog.summary(creator));
            }
        }
    }
}
