//! The locator: a node's cache of owners, its lookups at super peers, and its edits.

use std::collections::{BTreeMap, VecDeque};

use super::edit::{Change, Edit, Refusal, RequestId};
use super::message::{Message, OverlayCommand};
use super::named_owners::{self, NamedOwners};
use super::ring::position;
use super::view::{OverlaySettings, Peer};
use crate::hash::IntHashMap;
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::interval_map::IntervalMap;
use crate::ranges::{Range, RangeCache};

/// Tries of a lookup before it counts as unanswered.
const ATTEMPTS_MAX: u32 = 50;
/// The owners of named ids are cached in an array where it takes at most a quarter of the cache.
const NAMED_OWNERS_SHARE: usize = 4;
/// Epochs of single ids that are cached in addition to those of creators.
const EPOCHS_MAX: usize = 10_000;

/// The known location of an id, and what a request to its owner must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The range that the id lies in.
    pub range: Range,
    /// The owner, in the incarnation in which it owned the range.
    pub owner: Peer,
    /// An epoch at or before which the owner had the range.
    pub epoch: u64,
    /// Whether a leader just confirmed it from committed metadata.
    pub is_certain: bool,
}

/// The result of a lookup or an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The location of the id, for the lookup with this token.
    Located(u64, Located),
    /// Nobody owns the id.
    Unowned(u64, ChunkId),
    /// No super peer answered the lookup.
    Unanswered(u64, ChunkId),
    /// An edit was executed, effective from this epoch, or refused.
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

/// A node's client of the super peers (DXRAM, section 3.3).
///
/// Invariants:
/// 1. The epoch that it states for an id is at most the one at which the answer was given. A lower
///    epoch is safe and may cost a retry, so one per creator suffices; an id for which it was too
///    low gets its own.
/// 2. Edits of one creator are sent one after the other, so that none is refused as outdated.
/// 3. Memory is bounded: the cache has its own limit, and so do the epochs of single ids.
#[derive(Debug)]
pub struct Locator {
    me: Peer,
    settings: OverlaySettings,
    cache: RangeCache,
    /// A part of what `cache` knows, if there is room for it.
    named_owners: Option<NamedOwners>,
    /// The epoch of all cached ranges of a creator.
    epochs: IntHashMap<Creator, u64>,
    /// Epochs of ids that moved after that.
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
    /// Creates a locator that knows these super peers and caches ranges in `cache_bytes`.
    pub fn new(
        me: Peer,
        settings: OverlaySettings,
        cache_bytes: usize,
        super_peers: Vec<Peer>,
    ) -> Self {
        let has_array = cache_bytes >= NAMED_OWNERS_SHARE * named_owners::BYTES;
        let array_bytes = if has_array { named_owners::BYTES } else { 0 };
        Self {
            me,
            settings,
            cache: RangeCache::new(cache_bytes - array_bytes),
            named_owners: has_array.then(NamedOwners::default),
            epochs: IntHashMap::default(),
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

    /// The owner of an id, and an epoch at or before which it had the id, if they are cached.
    pub fn find(&mut self, id: ChunkId) -> Option<(Peer, u64)> {
        let node = match self.named_owners.as_ref().and_then(|owners| owners.get(id)) {
            Some(node) => node,
            None => self.find_range(id)?.placement.owner(),
        };
        let incarnation = *self.incarnations.get(&node)?;
        let of_creator = self.epochs.get(&id.creator());
        let epoch = *self.later_epochs.get(id.bits()).or(of_creator)?;
        Some((Peer { node, incarnation }, epoch))
    }

    fn find_range(&mut self, id: ChunkId) -> Option<Range> {
        let range = self.cache.find(id)?;
        if let Some(owners) = &mut self.named_owners {
            owners.note(range.ids, range.placement.owner());
        }
        Some(range)
    }

    /// Drops ids whose owner said that it no longer owns them.
    pub fn forget(&mut self, ids: IdRange) {
        self.cache.forget(ids);
        if let Some(owners) = &mut self.named_owners {
            owners.forget(ids);
        }
    }

    /// Memory of the cached ranges, in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Starts a lookup of an id; the returned token names it in [`Answer`]s.
    pub fn look_up(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<OverlayCommand>) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let lookup = PendingLookup { id, attempts: 0, sent_ms: now_ms };
        self.lookups.insert(token, lookup);
        self.send_lookup(token, lookup, out);
        token
    }

    /// Starts an edit. It is sent until it is answered.
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

    /// Lookups and edits that are not answered.
    pub fn waiting(&self) -> usize {
        self.lookups.len() + self.edits.values().map(VecDeque::len).sum::<usize>()
    }

    /// Advances the time to `now_ms`: repeats what is overdue at the next super peer.
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

    /// Handles a message of a super peer.
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
            // A second answer to the same lookup adds nothing.
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
            // Clear everything rather than drop an epoch that is still needed.
            self.cache.clear();
            self.named_owners.iter_mut().for_each(NamedOwners::clear);
            self.epochs.clear();
            self.later_epochs = IntervalMap::default();
        }
        let known = self.epochs.entry(id.creator()).or_insert(epoch);
        *known = epoch.min(*known);
        let known = *known;
        // The rest of the range can use the creator's epoch; for this id it was too low, or
        // unknown.
        let bits = id.bits();
        let later = (epoch > known).then_some(epoch);
        self.later_epochs.assign(bits..bits + 1, later);
        self.incarnations.insert(owner.node, incarnation);
        self.cache.learn(range);
        if let Some(owners) = &mut self.named_owners {
            owners.forget(range.ids);
        }
        Located { range, owner, epoch, is_certain: false }
    }

    fn send_lookup(&self, token: u64, lookup: PendingLookup, out: &mut Vec<OverlayCommand>) {
        let id = lookup.id;
        if let Some(to) = self.super_peer_of(id.creator(), lookup.attempts) {
            let hops = u8::from(lookup.attempts > 0);
            let message = Message::LookUp { origin: self.me, token, id, hops };
            out.push(OverlayCommand::Send(to, message));
        }
    }

    fn send_edit(&self, pending: PendingEdit, out: &mut Vec<OverlayCommand>) {
        let creator = pending.edit.ids.first().creator();
        if let Some(to) = self.super_peer_of(creator, pending.attempts) {
            out.push(OverlayCommand::Send(to, Message::Change { edit: pending.edit, hops: 0 }));
        }
    }

    /// The super peer to ask: the responsible one, then after each failed try the next on the ring.
    fn super_peer_of(&self, creator: Creator, attempts: u32) -> Option<Peer> {
        let at = position(creator);
        let first = self.super_peers.partition_point(|peer| u64::from(peer.node.get()) < at);
        let count = self.super_peers.len();
        let place = (first + attempts as usize).checked_rem(count)?;
        self.super_peers.get(place).copied()
    }
}
