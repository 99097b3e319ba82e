//! One thread's access: each operation takes the lock.

use std::ops::ControlFlow;

use amalgam_index::{Cursor, Found, Sink, Worker};
use amalgam_op::{Decision, ItemView, ItemWrite, Key, Now, Op, Outcome, Value, Verb, decide};

use super::Memcached14;
use super::layout::{ItemIndex, item_bytes};
use super::state::State;

/// Buckets that a write moves while the table grows, in addition to those that maintenance moves.
const BUCKETS_PER_WRITE: usize = 2;

/// A worker of [`Memcached14`].
pub struct Memcached14Worker<'i> {
    pub(super) index: &'i Memcached14,
    /// The buffer that keys are copied to before a visitor sees them.
    key: Vec<u8>,
    value: Vec<u8>,
    /// The buffer in which new values are assembled.
    fresh: Vec<u8>,
}

/// Shows the item of `key`: a short value as a word, a longer one copied to `value`.
#[inline]
fn view<'c>(
    state: &State,
    index: ItemIndex,
    key: &'c [u8],
    value: &'c mut Vec<u8>,
) -> ItemView<'c> {
    let fields = state.words.fields(index);
    let value = if fields.value_bytes <= 8 {
        Value::Word(state.words.read_word(index, &fields), fields.value_bytes)
    } else {
        value.clear();
        state.words.read_value(index, &fields, value);
        Value::Bytes(value)
    };
    ItemView {
        key,
        value,
        flags: fields.flags,
        expiry: fields.expiry,
        cas: fields.cas,
        generation: fields.generation,
        fetched: fields.meta_flags.fetched,
        stale: fields.meta_flags.stale,
        won: fields.meta_flags.won,
        last_access_seconds: Some(state.words.accessed(index)),
    }
}

impl<'i> Memcached14Worker<'i> {
    pub(super) fn new(index: &'i Memcached14) -> Self {
        Self { index, key: Vec::new(), value: Vec::new(), fresh: Vec::new() }
    }

    /// Writes the item that `item_write` describes in place of `current`.
    fn replace(
        &mut self,
        state: &mut State,
        op: &Op<'_>,
        item_write: &ItemWrite<'_>,
        current: Option<ItemIndex>,
        now: &Now,
    ) -> Result<ItemIndex, Outcome> {
        let (hash, key) = (op.key.hash(), op.key.bytes());
        let bytes = item_bytes(key.len(), self.fresh.len(), item_write.flags);
        if bytes > state.max_item_bytes {
            return Err(Outcome::TooLarge);
        }
        let Some((index, class)) = state.allocate(bytes, current) else {
            return Err(Outcome::OutOfMemory);
        };
        if let Some(current) = current {
            state.remove(hash, current);
        }
        state.words.write(index, class, key, item_write, &self.fresh, now);
        state.link(hash, index);
        Ok(index)
    }
}

impl Worker for Memcached14Worker<'_> {
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        for (position, key) in keys.iter().enumerate() {
            let mut state = self.index.lock();
            let flow = match state.find(key.hash(), key.bytes()) {
                Some(index) => match state.words.fields(index) {
                    item if now.is_live(item.expiry, item.generation) => {
                        let shown = view(&state, index, key.bytes(), &mut self.value);
                        let flow = sink.hit(position, &Found::new(shown));
                        state.words.set_fetched(index);
                        state.bump(index, now);
                        flow
                    }
                    item => sink.dead(position, now.generations_behind(item.generation) > 0),
                },
                None => sink.miss(position),
            };
            if flow.is_break() {
                return position + 1;
            }
        }
        keys.len()
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        let mut state = self.index.lock();
        let state = &mut *state;
        for _ in 0..BUCKETS_PER_WRITE {
            state.grow();
        }
        let current = state.find(op.key.hash(), op.key.bytes());
        let fresh_cas = state.fresh_cas();
        let key = op.key.bytes();
        let mut value = std::mem::take(&mut self.value);
        let shown = current.map(|index| view(state, index, key, &mut value));
        let (outcome, index) = match decide(shown.as_ref(), op, now, fresh_cas) {
            Decision::Keep(outcome) => (outcome, current),
            Decision::Remove(outcome) => {
                if let Some(index) = current {
                    state.remove(op.key.hash(), index);
                }
                if outcome != Outcome::Deleted {
                    state.note_reclaimed();
                }
                (outcome, None)
            }
            Decision::Replace(item_write, outcome) => {
                let old = shown.as_ref().map_or(&[][..], |item| item.value.as_bytes());
                let bytes = item_write.value_bytes(old.len());
                if bytes > state.max_item_bytes {
                    (Outcome::TooLarge, None)
                } else {
                    self.fresh.clear();
                    self.fresh.resize(bytes, 0);
                    item_write.write_value(old, &mut self.fresh);
                    match self.replace(state, op, &item_write, current, now) {
                        Ok(index) => (outcome, Some(index)),
                        Err(refused) => (refused, None),
                    }
                }
            }
        };
        if let (Outcome::Hit(_), Some(index)) = (outcome, index) {
            let _ = sink.hit(0, &Found::new(view(state, index, key, &mut value)));
            if let Verb::Get(get) = op.verb
                && !get.is_quiet_access
            {
                state.words.set_fetched(index);
                state.bump(index, now);
            }
        }
        self.value = value;
        outcome
    }

    fn prefetch(&self, _key: &Key<'_>) {
        // Prefetching is left out: the table may be replaced at any time, and reading it takes the
        // lock.
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let state = self.index.lock();
        let mut from = from.0;
        for _ in 0..budget.max(1) {
            let (items, next) = state.chain_at(from);
            for index in items {
                self.key.clear();
                state.words.read_key(index, &state.words.fields(index), &mut self.key);
                if visit(&view(&state, index, &self.key, &mut self.value)).is_break() {
                    return Some(Cursor(from));
                }
            }
            from = next?;
        }
        Some(Cursor(from))
    }

    fn quiesce(&mut self) {}
}
