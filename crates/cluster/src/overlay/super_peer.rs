//! A super peer: a replica of the metadata of segments, and the leader of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::attempt::Takeover;
use super::catalog::Catalog;
use super::edit::{Change, Edit, MetadataRecord, Refusal, RequestId, Snapshot, Summary, Version};
use super::message::{HOPS_MAX, Message, OverlayCommand, OverlayEvent};
use super::ring::{RingSegment, position};
use super::view::{Group, OverlaySettings, Peer, Term, View};
use crate::ids::{ChunkId, Creator, IdRange};
use crate::interval_map::IntervalMap;

/// Edits in one batch at most.
const BATCH_EDITS_MAX: usize = 256;
/// Questions at a time to nodes that have joined again, whether they still hold the replicas of
/// their former incarnations. After all nodes have, there are some for each of the 4,096
/// partitions, which are not served before they are answered.
const ASKED_MAX: usize = 4_096;

/// The super peer's state machine. Every node has one; it is idle while the node is an ordinary
/// peer.
///
/// The metadata of a segment is held by a group of super peers and led by the responsible one (see
/// the head of [`super`]). Messages go in, commands come out, in the order of the calls.
#[derive(Debug)]
pub struct SuperPeer {
    pub(super) me: Peer,
    pub(super) settings: OverlaySettings,
    pub(super) view: View,
    pub(super) catalog: Catalog,
    /// The latest term that this replica follows, by position.
    pub(super) promised: IntervalMap<Term>,
    pub(super) takeover: Option<Takeover>,
    /// Terms that this node has led, so that each is logged once.
    pub(super) terms_led: IntervalMap<Term>,
    /// The first incarnation of this node whose promises and replicas are here.
    pub(super) since: u32,
    /// Whether promises changed since the last [`Self::take_records`]; only set while recording.
    promises_changed: bool,
    is_recording: bool,
    /// The coordinator's last revision in which a member joined or left.
    members_revision: u64,
    /// Peers that answered a probe, and the revision at which they were asked.
    alive: BTreeMap<Peer, u64>,
    /// The revision at which all creators were last scanned for dead peers.
    scanned_revision: Option<u64>,
    /// Creators that named dead peers at that scan or later.
    creators_with_dead: BTreeSet<Creator>,
    batches: BTreeMap<Creator, Batch>,
    queues: BTreeMap<Creator, VecDeque<Edit>>,
    watch: watch::MemberWatch,
    /// Ring positions of what this node owns, as last told.
    owned: BTreeSet<u64>,
    next_retry_ms: u64,
    next_compare_ms: u64,
    next_announce_ms: u64,
}

/// Edits that this leader holds and a majority of its group may not.
#[derive(Debug)]
struct Batch {
    version: Version,
    edits: Vec<Edit>,
    held_by: BTreeSet<Peer>,
}

impl SuperPeer {
    /// Creates a super peer without metadata.
    pub fn new(me: Peer, settings: OverlaySettings) -> Self {
        Self {
            me,
            settings,
            view: View::default(),
            catalog: Catalog::default(),
            promised: IntervalMap::default(),
            takeover: None,
            terms_led: IntervalMap::default(),
            since: me.incarnation,
            promises_changed: false,
            is_recording: false,
            members_revision: 0,
            alive: BTreeMap::new(),
            scanned_revision: None,
            creators_with_dead: BTreeSet::new(),
            batches: BTreeMap::new(),
            queues: BTreeMap::new(),
            watch: watch::MemberWatch::default(),
            owned: BTreeSet::new(),
            next_retry_ms: 0,
            next_compare_ms: 0,
            next_announce_ms: 0,
        }
    }

    /// Records all promises and metadata from now on ([`Self::take_records`]), starting from the
    /// records of earlier incarnations from `since` on. Requires: the records are complete, and
    /// this is the first call. Calls `on_record` after each record.
    pub fn resume(&mut self, since: u32, records: &[MetadataRecord], on_record: &mut dyn FnMut()) {
        for record in records {
            self.catalog.replay(record);
            if let MetadataRecord::Promises(terms) = record {
                self.promised = IntervalMap::default();
                for (first, last, term) in terms {
                    self.promised.assign(*first..last.saturating_add(1), Some(*term));
                }
            }
            on_record();
        }
        self.since = since.min(self.me.incarnation);
        self.is_recording = true;
        self.catalog.start_recording();
    }

    /// The changes since the last call. They must be safe in the log before any command that was
    /// returned meanwhile is sent.
    pub fn take_records(&mut self) -> Vec<MetadataRecord> {
        let mut records = self.catalog.take_records();
        if std::mem::take(&mut self.promises_changed) {
            let terms = self.promised.iter();
            let terms = terms.map(|(span, term)| (span.start, span.end - 1, *term));
            records.push(MetadataRecord::Promises(terms.collect()));
        }
        records
    }

    /// Promises to follow a term at these positions.
    pub(super) fn promise(&mut self, part: std::ops::Range<u64>, term: Term) {
        self.promised.assign(part, Some(term));
        self.promises_changed = self.is_recording;
    }

    /// Whether it has the promises and replicas of this incarnation of its node.
    pub(super) fn speaks_for(&self, peer: Peer) -> bool {
        let incarnations = self.since..=self.me.incarnation;
        peer.node == self.me.node && incarnations.contains(&peer.incarnation)
    }

    /// Whether this is its own node and incarnation.
    pub fn is(&self, peer: Peer) -> bool {
        self.me == peer
    }

    /// The metadata that it holds, of its own segment and of others.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The latest view of the coordinator that arrived here.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The group that this node leads at a position; None if it does not lead there.
    pub fn leads(&self, position: u64) -> Option<&Group> {
        let group = self.view.groups.get(position)?;
        let is_mine = group.members.first() == Some(&self.me);
        let is_in_force = self.promised.get(position) == Some(&group.term);
        (is_mine && is_in_force).then_some(group)
    }

    /// Whether this node has the metadata of a creator as a member of its group, as of the term in
    /// force.
    fn follows(&self, creator: Creator) -> bool {
        let Some(group) = self.view.groups.get(position(creator)) else { return false };
        let held = self.catalog.version(creator).map(|version| version.term);
        let is_in_force = self.promised.get(position(creator)) == Some(&group.term);
        is_in_force && held == Some(group.term) && group.members.contains(&self.me)
    }

    /// Takes a new view of the coordinator.
    pub fn on_view(&mut self, view: &View, out: &mut Vec<OverlayCommand>) {
        if view.revision <= self.view.revision {
            return;
        }
        if !self.view.peers().eq(view.peers()) {
            self.members_revision = view.revision;
            self.alive.retain(|peer, _| view.has(*peer));
            // All are asked anew: those who could have made them owners meanwhile may be gone now.
            if let Some(takeover) = &mut self.takeover {
                takeover.ask_anew();
            }
        }
        self.view = view.clone();
        let in_force: BTreeMap<Creator, Option<Term>> = {
            let creators = self.batches.keys().chain(self.queues.keys());
            let term = |creator| self.leads(position(creator)).map(|group| group.term);
            creators.map(|creator| (*creator, term(*creator))).collect()
        };
        self.batches.retain(|creator, batch| in_force[creator] == Some(batch.version.term));
        self.queues.retain(|creator, _| in_force[creator].is_some());
        self.record_leadership(out);
        self.drop_replicas();
        self.reconsider(out);
        self.next_retry_ms = 0;
        self.next_announce_ms = 0;
    }

    /// Whether lost metadata may begin empty: then [`Self::set_owned`] has to be called.
    pub fn may_begin_empty(&self) -> bool {
        self.settings.begins_empty
    }

    /// Tells the ring positions of what this node owns. Where metadata may begin empty, call it
    /// ahead of each view and message of a takeover.
    pub fn set_owned(&mut self, positions: impl Iterator<Item = u64>) {
        self.owned = positions.collect();
    }

    /// Whether metadata begins empty if it is lost and nobody owns anything in the segment. Others
    /// that own something do not say that they have nothing.
    pub(super) fn begins_empty(&self, segment: RingSegment) -> bool {
        self.settings.begins_empty && !self.owned.iter().any(|at| segment.contains(*at))
    }

    /// Drops the replicas of segments whose group has no member here. Replicas stay where this node
    /// has promised a term that is not active yet: it may have reported that it holds the same, and
    /// count towards a majority.
    fn drop_replicas(&mut self) {
        let is_foreign = |summary: &Summary| {
            let at = position(summary.creator);
            let attempt =
                self.takeover.as_ref().is_some_and(|takeover| takeover.segment.contains(at));
            let group = self.view.groups.get(at);
            !attempt
                && group.is_some_and(|group| {
                    let promised = self.promised.get(at).is_none_or(|term| *term <= group.term);
                    promised && !group.members.iter().any(|member| self.speaks_for(*member))
                })
        };
        let foreign: Vec<Summary> = self.catalog.summaries().filter(is_foreign).collect();
        foreign.iter().for_each(|summary| self.catalog.remove(summary.creator));
    }

    /// Advances the time to `now_ms`.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Vec<OverlayCommand>) {
        if now_ms < self.next_retry_ms {
            return;
        }
        self.next_retry_ms = now_ms + self.settings.retry_ms;
        self.promote(out);
        if !self.view.is_super(self.me) {
            return;
        }
        self.reconsider(out);
        self.retry_takeover(out);
        for creator in self.batches.keys().copied().collect::<Vec<_>>() {
            self.send_batch(creator, out);
        }
        self.remove_dead_members(out);
        self.watch_members(now_ms, out);
        self.send_failover_grants(out);
        if now_ms >= self.next_compare_ms {
            self.next_compare_ms = now_ms + self.settings.compare_ms;
            self.compare_all(out);
        }
        if now_ms >= self.next_announce_ms {
            self.next_announce_ms = now_ms + self.settings.announce_ms;
            self.announce(out);
        }
    }

    /// Nobody is answered, so the edit needs no sequence number.
    fn own_edit(&self, creator: Creator, change: Change) -> Edit {
        let first = ChunkId::new(creator, 0).expect("each creator has a first id");
        let request = RequestId { peer: self.me, sequence: 0 };
        Edit { request, ids: IdRange::single(first), change }
    }

    /// As a leader: a node reports whether it has all replicas of a former incarnation.
    fn on_replica_status(
        &mut self,
        from: Peer,
        (creator, former): (Creator, Peer),
        is_whole: bool,
        out: &mut Vec<OverlayCommand>,
    ) {
        let is_later = from.node == former.node && from.incarnation > former.incarnation;
        if self.leads(position(creator)).is_none() || !is_later || !self.view.has(from) {
            return;
        }
        // A batch may be uncommitted; it does not change what the node has.
        let (_, last) = self.removals(creator);
        if !last.contains(&former) {
            return;
        }
        let change = match is_whole {
            true => Change::Rejoin(former, from.incarnation),
            false => Change::MarkLost(former),
        };
        if !is_whole && last.len() == 1 {
            out.push(OverlayCommand::Log(OverlayEvent::ReplicaLost(creator, former)));
        }
        let edit = self.own_edit(creator, change);
        let queue = self.queues.entry(creator).or_default();
        if !queue.contains(&edit) {
            queue.push_front(edit);
        }
        self.start_batch(creator, out);
    }

    /// As a leader: answers if nobody needs the replicas in the name of a dead peer.
    fn on_query_needed(
        &self,
        from: Peer,
        creator: Creator,
        source: Peer,
        out: &mut Vec<OverlayCommand>,
    ) {
        let is_settled =
            self.leads(position(creator)).is_some() && !self.batches.contains_key(&creator);
        if is_settled && !self.view.has(source) && !self.catalog.needs(creator, source) {
            out.push(OverlayCommand::Send(from, Message::NotNeeded { creator, source }));
        }
    }

    /// As a leader: tells new owners what they have to recover. Repeated until they have done so.
    fn send_failover_grants(&self, out: &mut Vec<OverlayCommand>) {
        for creator in self.catalog.creators_to_recover() {
            self.send_grants_of(creator, out);
        }
    }

    /// Tells the new owners of one creator's ids, as far as that is committed.
    fn send_grants_of(&self, creator: Creator, out: &mut Vec<OverlayCommand>) {
        if self.leads(position(creator)).is_none() || self.batches.contains_key(&creator) {
            return;
        }
        for grant in self.catalog.failover_grants(creator) {
            let owner = grant.holders[0];
            out.push(OverlayCommand::Send(owner, Message::GrantFailover(grant)));
        }
    }

    /// Whether this leader knows all peers of an edit as members.
    fn is_known(&self, edit: &Edit) -> bool {
        let set = edit.change.replica_set();
        set.is_none_or(|set| set.peers().all(|peer| self.view.has(peer)))
    }

    /// Handles a message.
    pub fn on_message(&mut self, from: Peer, message: Message, out: &mut Vec<OverlayCommand>) {
        match message {
            Message::LookUp { origin, token, id, hops } => {
                self.look_up(origin, token, id, hops, out);
            }
            Message::Change { edit, hops } => self.change(edit, hops, out),
            Message::Append { creator, version, edits } => {
                self.append(from, creator, version, &edits, out);
            }
            Message::Appended { creator, version } => self.appended(from, creator, version, out),
            Message::Compare { segment, term, held } => {
                self.compare(from, segment, term, &held, out)
            }
            Message::Missing { term, creators } => self.send_lacking(from, term, &creators, out),
            Message::Seal { segment, term } => self.seal(from, segment, term, out),
            Message::Sealed { segment, term, held, since } => {
                self.sealed((from, since), segment, term, held, out);
            }
            Message::Matches { segment, term } => self.same(from, segment, term, out),
            Message::Fetch { creator } => self.send_snapshot(from, creator, out),
            Message::Install { snapshot } => self.install(from, &snapshot, out),
            Message::Overruled { at, promised } => self.on_overruled(u64::from(at), promised),
            Message::QueryReplica { creator, former } => {
                let is_whole = self.speaks_for(former) && former != self.me;
                let answer = Message::ReplicaStatus { creator, former, is_whole };
                out.push(OverlayCommand::Send(from, answer));
            }
            Message::ReplicaStatus { creator, former, is_whole } => {
                self.on_replica_status(from, (creator, former), is_whole, out);
            }
            Message::Probe { revision } => {
                out.push(OverlayCommand::Send(from, Message::Alive { revision }));
            }
            Message::Alive { revision } => self.on_alive(from, revision),
            Message::QueryNeeded { creator, source, revision }
                if revision <= self.view.revision =>
            {
                self.on_query_needed(from, creator, source, out);
            }
            // These are answers to peers, not to super peers.
            Message::Found { .. } | Message::Changed { .. } | Message::NotNeeded { .. } => {}
            Message::SuperPeers { .. }
            | Message::GrantFailover(_)
            | Message::QueryNeeded { .. } => {}
        }
    }

    /// Forwards a request to the leader of a position, and sends the requester the list of super
    /// peers. If there is no leader yet, or the request was forwarded too often, the requester
    /// repeats it.
    fn forward(
        &self,
        (origin, at, hops): (Peer, u64, u8),
        message: Message,
        out: &mut Vec<OverlayCommand>,
    ) {
        if origin != self.me {
            out.push(OverlayCommand::Send(origin, self.list()));
        }
        let leader = self.view.groups.get(at).and_then(|group| group.members.first());
        if let Some(leader) = leader.filter(|leader| **leader != self.me && hops < HOPS_MAX) {
            out.push(OverlayCommand::Send(*leader, message));
        }
    }

    /// Answers a lookup as the leader, or as a follower one that has come a detour: its replica may
    /// lag behind, which costs the requester another try, but a leader that is silent would cost it
    /// all.
    fn look_up(
        &self,
        origin: Peer,
        token: u64,
        id: ChunkId,
        hops: u8,
        out: &mut Vec<OverlayCommand>,
    ) {
        let at = position(id.creator());
        let is_leader = self.leads(at).is_some();
        let (epoch, range) = self.catalog.find(id);
        let may_answer = is_leader || hops > 0 && range.is_some() && self.follows(id.creator());
        if !may_answer {
            let message = Message::LookUp { origin, token, id, hops: hops.saturating_add(1) };
            return self.forward((origin, at, hops), message, out);
        }
        let found = range.map(|range| {
            let owner = range.placement.owner();
            let incarnation = self.catalog.incarnation_of(id.creator(), owner);
            (range, incarnation.or_else(|| self.view.incarnation(owner)).unwrap_or_default())
        });
        // An id in failover was not transferred by a move, and must not look as if it had been.
        let is_settled = !self.catalog.needs_recovery(id);
        let is_certain = is_leader && is_settled && !self.batches.contains_key(&id.creator());
        let message = Message::Found { token, id, epoch, found, is_certain };
        out.push(OverlayCommand::Send(origin, message));
    }

    fn change(&mut self, edit: Edit, hops: u8, out: &mut Vec<OverlayCommand>) {
        let creator = edit.ids.first().creator();
        let (origin, at) = (edit.request.peer, position(creator));
        if self.leads(at).is_none() {
            let message = Message::Change { edit, hops: hops.saturating_add(1) };
            return self.forward((origin, at, hops), message, out);
        }
        // A requester that is not known yet will repeat the request; one that is dead is ignored.
        if !self.view.has(origin) || edit.change.is_of_leader() {
            return;
        }
        if let Change::Claim(set) = edit.change
            && set.placement.owner() != origin.node
        {
            return out.push(answer(&edit, Err(Refusal::NotOwner)));
        }
        let queue = self.queues.entry(creator).or_default();
        if queue.len() < self.settings.queue_max && !queue.contains(&edit) {
            queue.push_back(edit);
        }
        self.start_batch(creator, out);
    }

    /// Makes a batch of queued edits, unless one is uncommitted. So at most one is.
    fn start_batch(&mut self, creator: Creator, out: &mut Vec<OverlayCommand>) {
        if self.batches.contains_key(&creator) {
            return;
        }
        let Some(term) = self.leads(position(creator)).map(|group| group.term) else { return };
        let Some(mut queue) = self.queues.remove(&creator) else { return };
        let mut edits = Vec::new();
        while let Some(edit) = queue.pop_front() {
            if edit.change.is_of_leader() {
                edits.push(edit);
                continue;
            }
            match self.catalog.last_request(creator, edit.request.peer.node) {
                // Everything in the catalog is committed here: no batch is under way.
                Some(last) if last.request == edit.request => out.push(answer(&edit, last.result)),
                Some(last) if last.request > edit.request => {
                    out.push(answer(&edit, Err(Refusal::Outdated)));
                }
                // The refusal is committed in order, so that a late repetition is not executed.
                _ if !self.is_known(&edit) => edits.push(edit.refused()),
                _ => {
                    edits.extend(self.removals_before(creator, &edit));
                    edits.push(edit);
                }
            }
            if edits.len() >= BATCH_EDITS_MAX {
                break;
            }
        }
        if !queue.is_empty() {
            self.queues.insert(creator, queue);
        }
        if edits.is_empty() {
            return;
        }
        let sequence = self.catalog.version(creator).map_or(0, |version| version.sequence) + 1;
        let version = Version { term, sequence };
        out.push(OverlayCommand::Log(OverlayEvent::Proposed(creator, version, edits.clone())));
        self.catalog.apply(creator, version, &edits);
        // An edit of the leader's own may name a peer that was a member when it was queued.
        self.creators_with_dead.insert(creator);
        let batch = Batch { version, edits, held_by: BTreeSet::from([self.me]) };
        self.batches.insert(creator, batch);
        self.send_batch(creator, out);
        self.commit_if_held(creator, out);
    }

    /// Removals of the former incarnations of peers that an edit names; they precede the edit.
    fn removals_before(&self, creator: Creator, edit: &Edit) -> Vec<Edit> {
        let Some(set) = edit.change.replica_set() else { return Vec::new() };
        let is_former = |peer: Peer| {
            let incarnation = self.catalog.incarnation_of(creator, peer.node);
            let former = incarnation.map(|incarnation| Peer { incarnation, ..peer });
            former.is_some_and(|former| former != peer && !self.view.has(former))
        };
        if set.peers().any(is_former) { self.removals(creator).0 } else { Vec::new() }
    }

    fn send_batch(&self, creator: Creator, out: &mut Vec<OverlayCommand>) {
        let Some(batch) = self.batches.get(&creator) else { return };
        let Some(group) = self.leads(position(creator)) else { return };
        for member in group.members.iter().filter(|member| !batch.held_by.contains(member)) {
            let (version, edits) = (batch.version, batch.edits.clone());
            out.push(OverlayCommand::Send(*member, Message::Append { creator, version, edits }));
        }
    }

    fn appended(
        &mut self,
        from: Peer,
        creator: Creator,
        version: Version,
        out: &mut Vec<OverlayCommand>,
    ) {
        let is_member = |group: &Group| group.members.contains(&from);
        if !self.leads(position(creator)).is_some_and(is_member) {
            return;
        }
        if let Some(batch) = self.batches.get_mut(&creator)
            && batch.version == version
        {
            batch.held_by.insert(from);
            self.commit_if_held(creator, out);
        }
    }

    /// Answers a batch once a majority holds it: from here on it is in the catalog of every later
    /// leader (the linearization point of its edits).
    fn commit_if_held(&mut self, creator: Creator, out: &mut Vec<OverlayCommand>) {
        let Some(group) = self.leads(position(creator)) else { return };
        let majority = group.majority();
        if self.batches.get(&creator).is_none_or(|batch| batch.held_by.len() < majority) {
            return;
        }
        let batch = self.batches.remove(&creator).expect("it was there");
        out.push(OverlayCommand::Log(OverlayEvent::Committed(creator, batch.version)));
        for edit in &batch.edits {
            let last = self.catalog.last_request(creator, edit.request.peer.node);
            // A later request of the same peer in the same batch answers for both.
            if let Some(last) = last.filter(|last| last.request == edit.request) {
                out.push(answer(edit, last.result));
            }
        }
        self.start_batch(creator, out);
        // Nobody serves the dead owner's ids meanwhile, so this does not wait for the next tick.
        if batch.edits.iter().any(|edit| matches!(edit.change, Change::RemoveDead(_))) {
            self.send_grants_of(creator, out);
        }
    }

    /// As a member: applies the next batch of a leader.
    fn append(
        &mut self,
        from: Peer,
        creator: Creator,
        version: Version,
        edits: &[Edit],
        out: &mut Vec<OverlayCommand>,
    ) {
        let at = position(creator);
        let is_leaders = version.term.leader == from;
        if !is_leaders || !self.follow(from, Some(at..at + 1), version.term, out) {
            return;
        }
        let held = self.catalog.version(creator);
        let is_next = match held {
            Some(held) => held.term == version.term && held.sequence + 1 == version.sequence,
            None => version.sequence == 1,
        };
        if is_next {
            self.catalog.apply(creator, version, edits);
        } else if held < Some(version) {
            let message = Message::Missing { term: version.term, creators: vec![creator] };
            return out.push(OverlayCommand::Send(from, message));
        } else if held != Some(version) {
            return;
        }
        out.push(OverlayCommand::Send(from, Message::Appended { creator, version }));
    }

    /// Whether a term may be followed at some positions; promises it if it is the latest there.
    pub(super) fn follow(
        &mut self,
        from: Peer,
        parts: impl IntoIterator<Item = std::ops::Range<u64>> + Clone,
        term: Term,
        out: &mut Vec<OverlayCommand>,
    ) -> bool {
        let later = parts.clone().into_iter().filter_map(|part| {
            let mut later = self.promised.over(part).filter(|(_, promised)| **promised > term);
            later.next().map(|(span, promised)| (span.start as u16, *promised))
        });
        if let Some((at, promised)) = later.min() {
            out.push(OverlayCommand::Send(from, Message::Overruled { at, promised }));
            return false;
        }
        for part in parts {
            if !self.promised.all(part.clone(), |promised| *promised == term) {
                self.promise(part, term);
            }
        }
        true
    }

    /// As a leader or candidate: a member has promised a later term. The next tick tries again with
    /// a later term, if this node still should lead there.
    fn on_overruled(&mut self, at: u64, promised: Term) {
        let is_led = self.leads(at).is_some_and(|group| group.term < promised);
        let attempt = self.takeover.as_ref().filter(|takeover| takeover.segment.contains(at));
        if is_led || attempt.is_some_and(|takeover| takeover.term < promised) {
            self.promise(at..at + 1, promised);
        }
    }

    /// As a member: makes the metadata of a segment equal to the leader's.
    fn compare(
        &mut self,
        from: Peer,
        segment: RingSegment,
        term: Term,
        leaders: &[Summary],
        out: &mut Vec<OverlayCommand>,
    ) {
        if from != term.leader || !self.follow(from, segment.parts().collect::<Vec<_>>(), term, out)
        {
            return;
        }
        let known: BTreeSet<Creator> = leaders.iter().map(|summary| summary.creator).collect();
        for held in self.held(segment) {
            // Metadata of this term arrived after the comparison was sent.
            if !known.contains(&held.creator) && held.version.term < term {
                self.catalog.remove(held.creator);
            }
        }
        let mut creators = Vec::new();
        for leader in leaders.iter().filter(|leader| segment.contains(position(leader.creator))) {
            let Some(held) = self.catalog.summary(leader.creator) else {
                creators.push(leader.creator);
                continue;
            };
            let is_same = held.digest == leader.digest;
            if held.version.sequence == leader.version.sequence && is_same {
                self.catalog.restamp(held.creator, held.version.max(leader.version));
            } else if held.version == leader.version {
                out.push(OverlayCommand::Log(OverlayEvent::ReplicaDiverged(
                    held.creator,
                    held.version,
                )));
                creators.push(leader.creator);
            } else if held.version < leader.version {
                creators.push(leader.creator);
            }
        }
        let message = if creators.is_empty() {
            Message::Matches { segment, term }
        } else {
            Message::Missing { term, creators }
        };
        out.push(OverlayCommand::Send(from, message));
    }

    /// As a leader: sends what a member lacks.
    fn send_lacking(
        &self,
        to: Peer,
        term: Term,
        creators: &[Creator],
        out: &mut Vec<OverlayCommand>,
    ) {
        for creator in creators {
            if self.catalog.version(*creator).is_some_and(|version| version.term == term) {
                self.send_snapshot(to, *creator, out);
            }
        }
    }

    fn send_snapshot(&self, to: Peer, creator: Creator, out: &mut Vec<OverlayCommand>) {
        if let Some(snapshot) = self.catalog.snapshot(creator) {
            out.push(OverlayCommand::Send(to, Message::Install { snapshot }));
        }
    }

    fn install(&mut self, from: Peer, snapshot: &Snapshot, out: &mut Vec<OverlayCommand>) {
        if self.fetched(from, snapshot, out) {
            return;
        }
        let (creator, version, at) =
            (snapshot.creator, snapshot.version, position(snapshot.creator));
        // The holder may follow a later attempt by now, which was given up or is not active yet.
        // What it sends carries that term, and what was asked for no longer exists.
        self.on_overruled(at, version.term);
        let is_leaders = version.term.leader == from && from != self.me;
        // The leader of this term may correct a replica that differs, without another comparison.
        if !is_leaders || !self.follow(from, Some(at..at + 1), version.term, out) {
            return;
        }
        if self.catalog.version(creator) <= Some(version) {
            self.catalog.install(snapshot);
            out.push(OverlayCommand::Send(from, Message::Appended { creator, version }));
        }
    }

    /// Versions and digests of the metadata held in a segment.
    pub(super) fn held(&self, segment: RingSegment) -> Vec<Summary> {
        let is_inside = |summary: &Summary| segment.contains(position(summary.creator));
        self.catalog.summaries().filter(is_inside).collect()
    }

    /// As a leader: asks the groups to compare their metadata.
    fn compare_all(&self, out: &mut Vec<OverlayCommand>) {
        let Some(segment) = self.view.segment(self.me) else { return };
        for (part, group) in self.view.groups_of(segment) {
            if self.leads(part.start).is_none() {
                continue;
            }
            let part = RingSegment { first: part.start as u16, last: (part.end - 1) as u16 };
            for member in group.members.iter().filter(|member| **member != self.me) {
                let (term, held) = (group.term, self.held(part));
                let message = Message::Compare { segment: part, term, held };
                out.push(OverlayCommand::Send(*member, message));
            }
        }
    }

    fn list(&self) -> Message {
        Message::SuperPeers {
            revision: self.view.revision,
            super_peers: self.view.supers().collect(),
        }
    }

    /// Sends the list of super peers to the peers in the own segment.
    fn announce(&self, out: &mut Vec<OverlayCommand>) {
        let Some(segment) = self.view.segment(self.me) else { return };
        for (node, member) in &self.view.members {
            if segment.contains(u64::from(node.get())) {
                let peer = Peer { node: *node, incarnation: member.incarnation };
                out.push(OverlayCommand::Send(peer, self.list()));
            }
        }
    }
}

fn answer(edit: &Edit, result: Result<u64, Refusal>) -> OverlayCommand {
    let (request, creator) = (edit.request, edit.ids.first().creator());
    OverlayCommand::Send(request.peer, Message::Changed { request, creator, result })
}

mod removal;
#[cfg(test)]
mod tests;
mod watch;
