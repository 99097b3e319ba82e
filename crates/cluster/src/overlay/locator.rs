//! A node's way to the super peers: what it remembers of their answers, and what it still asks.

use std::collections::{BTreeMap, VecDeque};

use super::edit::{Change, Edit, Refusal, RequestId};
use super::message::{Command, Message};
use super::ring::position;
use super::view::{Peer, Settings};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::ranges::{Range, RangeCache};
use crate::spans::Spans;

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
struct Question {
    id: ChunkId,
    attempts: u32,
    sent_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Wish {
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
    settings: Settings,
    cache: RangeCache,
    /// For all cached ranges of a creator.
    epochs: BTreeMap<Creator, u64>,
    /// For ids that moved later than that.
    later_epochs: Spans<u64>,
    incarnations: BTreeMap<NodeId, u32>,
    supers: Vec<Peer>,
    revision: u64,
    questions: BTreeMap<u64, Question>,
    wishes: BTreeMap<Creator, VecDeque<Wish>>,
    next_token: u64,
    next_sequence: u64,
}

impl Locator {
    /// Knows the super peers that it is told here, and remembers ranges in `cache_bytes`.
    pub fn new(me: Peer, settings: Settings, cache_bytes: usize, supers: Vec<Peer>) -> Self {
        Self {
            me,
            settings,
            cache: RangeCache::new(cache_bytes),
            epochs: BTreeMap::new(),
            later_epochs: Spans::default(),
            incarnations: BTreeMap::new(),
            supers,
            revision: 0,
            questions: BTreeMap::new(),
            wishes: BTreeMap::new(),
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
    pub fn look_up(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<Command>) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let question = Question { id, attempts: 0, sent_ms: now_ms };
        self.questions.insert(token, question);
        self.ask(token, question, out);
        token
    }

    /// Asks to change who owns ids. It is asked for until it is answered.
    pub fn change(
        &mut self,
        ids: IdRange,
        change: Change,
        now_ms: u64,
        out: &mut Vec<Command>,
    ) -> RequestId {
        let request = RequestId { peer: self.me, sequence: self.next_sequence };
        self.next_sequence += 1;
        let wish = Wish { edit: Edit { request, ids, change }, attempts: 0, sent_ms: now_ms };
        let wishes = self.wishes.entry(ids.first().creator()).or_default();
        wishes.push_back(wish);
        if wishes.len() == 1 {
            self.wish(wish, out);
        }
        request
    }

    /// Questions and edits without an answer so far.
    pub fn waiting(&self) -> usize {
        self.questions.len() + self.wishes.values().map(VecDeque::len).sum::<usize>()
    }

    /// Time went on: asks again, somebody else.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Vec<Command>, answers: &mut Vec<Answer>) {
        let retry_ms = self.settings.retry_ms;
        let mut again = Vec::new();
        self.questions.retain(|token, question| {
            if now_ms >= question.sent_ms + retry_ms {
                (question.attempts, question.sent_ms) = (question.attempts + 1, now_ms);
                if question.attempts >= ATTEMPTS_MAX {
                    answers.push(Answer::Unanswered(*token, question.id));
                    return false;
                }
                again.push((*token, *question));
            }
            true
        });
        for (token, question) in again {
            self.ask(token, question, out);
        }
        let mut late = Vec::new();
        for wish in self.wishes.values_mut().filter_map(VecDeque::front_mut) {
            if now_ms >= wish.sent_ms + retry_ms {
                (wish.attempts, wish.sent_ms) = (wish.attempts.wrapping_add(1), now_ms);
                late.push(*wish);
            }
        }
        late.into_iter().for_each(|wish| self.wish(wish, out));
    }

    /// A super peer said something.
    pub fn on_message(
        &mut self,
        message: &Message,
        now_ms: u64,
        out: &mut Vec<Command>,
        answers: &mut Vec<Answer>,
    ) {
        match message {
            Message::Supers { revision, supers }
                if *revision > self.revision && !supers.is_empty() =>
            {
                (self.revision, self.supers) = (*revision, supers.clone());
            }
            // A late answer to a question that was answered says nothing new.
            Message::Found { token, id, epoch, found, is_certain }
                if self.questions.get(token).is_some_and(|question| question.id == *id) =>
            {
                self.questions.remove(token);
                answers.push(match found {
                    Some((range, incarnation)) if range.ids.contains(*id) => {
                        let located = self.learn(*id, *range, *epoch, *incarnation);
                        Answer::Located(*token, Located { is_certain: *is_certain, ..located })
                    }
                    _ => Answer::Unowned(*token, *id),
                });
            }
            Message::Changed { request, creator, result } => {
                let Some(wishes) = self.wishes.get_mut(creator) else { return };
                if wishes.front().is_some_and(|wish| wish.edit.request == *request) {
                    wishes.pop_front();
                    answers.push(Answer::Changed(*request, *result));
                    match wishes.front_mut() {
                        Some(next) => {
                            next.sent_ms = now_ms;
                            let next = *next;
                            self.wish(next, out);
                        }
                        None => {
                            self.wishes.remove(creator);
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
            self.later_epochs = Spans::default();
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

    fn ask(&self, token: u64, question: Question, out: &mut Vec<Command>) {
        let id = question.id;
        if let Some(to) = self.super_of(id.creator(), question.attempts) {
            let message = Message::LookUp { origin: self.me, token, id, hops: 0 };
            out.push(Command::Send(to, message));
        }
    }

    fn wish(&self, wish: Wish, out: &mut Vec<Command>) {
        let creator = wish.edit.ids.first().creator();
        if let Some(to) = self.super_of(creator, wish.attempts) {
            out.push(Command::Send(to, Message::Change { edit: wish.edit, hops: 0 }));
        }
    }

    /// Whom to ask: who is responsible, and after each failure the next on the ring.
    fn super_of(&self, creator: Creator, attempts: u32) -> Option<Peer> {
        let at = position(creator);
        let first = self.supers.partition_point(|peer| u64::from(peer.node.get()) < at);
        let count = self.supers.len();
        let place = (first + attempts as usize).checked_rem(count)?;
        self.supers.get(place).copied()
    }
}
