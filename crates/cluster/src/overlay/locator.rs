//! A node's way to the super peers: what it remembers of their answers, and what it still asks.

use std::collections::{BTreeMap, VecDeque};

use super::edit::{Change, Edit, Refusal, RequestId};
use super::message::{Message, OverlayCommand};
use super::ring::position;
use super::view::{OverlaySettings, Peer};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::interval_map::IntervalMap;
use crate::ranges::{Range, RangeCache};

/// How often a question is asked before it counts as unanswered.
const ATTEMPTS_MAX: u32 = 50;
/// Epochs that are remembered beside those of whole creators.
const EPOCHS_MAX: usize = 10_000;

/// Where an id is, as far as is known, and what a request there must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The range.
    pub range: Range,
    /// The owner, in the life in which it owned the range.
    pub owner: Peer,
    /// An epoch at or before which the owner had it.
    pub epoch: u64,
    /// Whether a leader said so just now, of what is committed.
    pub is_certain: bool,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Where the id is.
    Located(u64, Located),
    /// Nobody owns the id.
    Unowned(u64, ChunkId),
    /// No super peer answered.
    Unanswered(u64, ChunkId),
    /// An edit was carried out, from that epoch on, or refused.
    Changed(RequestId, Result<u64, Refusal>),
}

#[derive(Clone, Copy, Debug)]
struct PendingLookup {
    id: ChunkId,
    attempts: u32,
    sent_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct PendingEdit {
    edit: Edit,
    attempts: u32,
    sent_ms: u64,
}

/// The client of super peers (DXRAM, section 3.3).
///
/// Invariants:
/// 1. The epoch that it states for an id is at most the one at which the answer was given. A lower
///    one is safe and may cost a retry, so one for each creator suffices; an id for which it was
///    too low gets its own.
/// 2. Edits of one creator are asked for one after the other, so that none is answered as outdated.
/// 3. Memory is bounded: the cache has its own bound, epochs of single ids theirs.
#[derive(Debug)]
pub struct Locator {
    me: Peer,
    settings: OverlaySettings,
    cache: RangeCache,
    /// For all cached ranges of a creator.
    epochs: BTreeMap<Creator, u64>,
    /// For ids that moved later than that.
    later_epochs: IntervalMap<u64>,
    incarnations: BTreeMap<NodeId, u32>,
    super_peers: Vec<Peer>,
    revision: u64,
    lookups: BTreeMap<u64, PendingLookup>,
    edits: BTreeMap<Creator, VecDeque<PendingEdit>>,
    next_token: u64,
    next_sequence: u64,
}

impl Locator {
    /// Knows the super peers that it is told here, and remembers ranges in `cache_bytes`.
    pub fn new(
        me: Peer,
        settings: OverlaySettings,
        cache_bytes: usize,
        super_peers: Vec<Peer>,
    ) -> Self {
        Self {
            me,
            settings,
            cache: RangeCache::new(cache_bytes),
            epochs: BTreeMap::new(),
            later_epochs: IntervalMap::default(),
            incarnations: BTreeMap::new(),
            super_peers,
            revision: 0,
            lookups: BTreeMap::new(),
            edits: BTreeMap::new(),
            next_token: 0,
            next_sequence: 1,
        }
    }

    /// Where an id is, if an answer is remembered.
    pub fn find(&mut self, id: ChunkId) -> Option<Located> {
        let range = self.cache.find(id)?;
        let node = range.placement.owner();
        let incarnation = *self.incarnations.get(&node)?;
        let of_creator = self.epochs.get(&id.creator());
        let epoch = *self.later_epochs.get(id.bits()).or(of_creator)?;
        let owner = Peer { node, incarnation };
        Some(Located { range, owner, epoch, is_certain: false })
    }

    /// Forgets where ids are: their owner said that it is another.
    pub fn forget(&mut self, ids: IdRange) {
        self.cache.forget(ids);
    }

    /// Memory for answers that are remembered, in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Asks where an id is; [`Answer`]s name the question by the number that comes back.
    pub fn look_up(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<OverlayCommand>) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let lookup = PendingLookup { id, attempts: 0, sent_ms: now_ms };
        self.lookups.insert(token, lookup);
        self.send_lookup(token, lookup, out);
        token
    }

    /// Asks to change who owns ids. It is asked for until it is answered.
    pub fn change(
        &mut self,
        ids: IdRange,
        change: Change,
        now_ms: u64,
        out: &mut Vec<OverlayCommand>,
    ) -> RequestId {
        let request = RequestId { peer: self.me, sequence: self.next_sequence };
        self.next_sequence += 1;
        let pending =
            PendingEdit { edit: Edit { request, ids, change }, attempts: 0, sent_ms: now_ms };
        let edits = self.edits.entry(ids.first().creator()).or_default();
        edits.push_back(pending);
        if edits.len() == 1 {
            self.send_edit(pending, out);
        }
        request
    }

    /// Questions and edits without an answer so far.
    pub fn waiting(&self) -> usize {
        self.lookups.len() + self.edits.values().map(VecDeque::len).sum::<usize>()
    }

    /// Time went on: asks again, somebody else.
    pub fn on_tick(
        &mut self,
        now_ms: u64,
        out: &mut Vec<OverlayCommand>,
        answers: &mut Vec<Answer>,
    ) {
        let retry_ms = self.settings.retry_ms;
        let mut again = Vec::new();
        self.lookups.retain(|token, lookup| {
            if now_ms >= lookup.sent_ms + retry_ms {
                (lookup.attempts, lookup.sent_ms) = (lookup.attempts + 1, now_ms);
                if lookup.attempts >= ATTEMPTS_MAX {
                    answers.push(Answer::Unanswered(*token, lookup.id));
                    return false;
                }
                again.push((*token, *lookup));
            }
            true
        });
        for (token, lookup) in again {
            self.send_lookup(token, lookup, out);
        }
        let mut late = Vec::new();
        for pending in self.edits.values_mut().filter_map(VecDeque::front_mut) {
            if now_ms >= pending.sent_ms + retry_ms {
                (pending.attempts, pending.sent_ms) = (pending.attempts.wrapping_add(1), now_ms);
                late.push(*pending);
            }
        }
        late.into_iter().for_each(|pending| self.send_edit(pending, out));
    }

    /// A super peer said something.
    pub fn on_message(
        &mut self,
        message: &Message,
        now_ms: u64,
        out: &mut Vec<OverlayCommand>,
        answers: &mut Vec<Answer>,
    ) {
        match message {
            Message::SuperPeers { revision, super_peers }
                if *revision > self.revision && !super_peers.is_empty() =>
            {
                (self.revision, self.super_peers) = (*revision, super_peers.clone());
            }
            // A late answer to a question that was answered says nothing new.
            Message::Found { token, id, epoch, found, is_certain }
                if self.lookups.get(token).is_some_and(|lookup| lookup.id == *id) =>
            {
                self.lookups.remove(token);
                answers.push(match found {
                    Some((range, incarnation)) if range.ids.contains(*id) => {
                        let located = self.learn(*id, *range, *epoch, *incarnation);
                        Answer::Located(*token, Located { is_certain: *is_certain, ..located })
                    }
                    _ => Answer::Unowned(*token, *id),
                });
            }
            Message::Changed { request, creator, result } => {
                let Some(edits) = self.edits.get_mut(creator) else { return };
                if edits.front().is_some_and(|pending| pending.edit.request == *request) {
                    edits.pop_front();
                    answers.push(Answer::Changed(*request, *result));
                    match edits.front_mut() {
                        Some(next) => {
                            next.sent_ms = now_ms;
                            let next = *next;
                            self.send_edit(next, out);
                        }
                        None => {
                            self.edits.remove(creator);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn learn(&mut self, id: ChunkId, range: Range, epoch: u64, incarnation: u32) -> Located {
        let owner = Peer { node: range.placement.owner(), incarnation };
        if self.later_epochs.len() >= EPOCHS_MAX {
            // Start anew rather than forget an epoch that is needed.
            self.cache.clear();
            self.epochs.clear();
            self.later_epochs = IntervalMap::default();
        }
        let known = self.epochs.entry(id.creator()).or_insert(epoch);
        *known = epoch.min(*known);
        let known = *known;
        // The rest of the range may do with the creator's epoch; this id did not, or was not known.
        let bits = id.bits();
        let later = (epoch > known).then_some(epoch);
        self.later_epochs.assign(bits..bits + 1, later);
        self.incarnations.insert(owner.node, incarnation);
        self.cache.learn(range);
        Located { range, owner, epoch, is_certain: false }
    }

    fn send_lookup(&self, token: u64, lookup: PendingLookup, out: &mut Vec<OverlayCommand>) {
        let id = lookup.id;
        if let Some(to) = self.super_peer_of(id.creator(), lookup.attempts) {
            let message = Message::LookUp { origin: self.me, token, id, hops: 0 };
            out.push(OverlayCommand::Send(to, message));
        }
    }

    fn send_edit(&self, pending: PendingEdit, out: &mut Vec<OverlayCommand>) {
        let creator = pending.edit.ids.first().creator();
        if let Some(to) = self.super_peer_of(creator, pending.attempts) {
            out.push(OverlayCommand::Send(to, Message::Change { edit: pending.edit, hops: 0 }));
        }
    }

    /// Whom to ask: who is responsible, and after each failure the next on the ring.
    fn super_peer_of(&self, creator: Creator, attempts: u32) -> Option<Peer> {
        let at = position(creator);
        let first = self.super_peers.partition_point(|peer| u64::from(peer.node.get()) < at);
        let count = self.super_peers.len();
        let place = (first + attempts as usize).checked_rem(count)?;
        self.super_peers.get(place).copied()
    }
}
