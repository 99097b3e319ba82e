//! One thread's access to a store.
//!
//! A write looks, decides and fills its item without a lock; then it exchanges the word that it saw
//! for the new one, under the lock of one stripe, and starts over if the word is gone. Only inserts
//! of new keys take two stripes, and only they displace others.

use std::cell::Cell;
use std::hint::select_unpredictable;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use amalgam_op::{Decision, ItemView, ItemWrite, Key, Now, Op, Outcome, Value, decide};

use super::cuckoo::{Insertion, Place, Spot, View, first_word};
use super::factors::{Factors, WithoutTags};
use super::path::{PathFinder, next_random};
use super::probe::Probe;
use super::store::Store;
use super::table::Bucket;
use super::word::{Geometry, Word};
use crate::mem::{
    Attempt, Guard, HeaderPredictor, Item, ItemLayout, ItemRef, Pool, Shortage, Slot, Swap, Writer,
    prefetch,
};
use crate::simd::each_way;
use crate::software_pipeline;
use crate::{Cursor, Found, Sink, Worker, show_outcome};

/// Buckets that an insert helps to move while the table grows: twice as many as are needed to be
/// done before it could be full again.
const HELP_BUCKETS: usize = 2;
/// Hints between asking for a key's buckets and for its item.
const HINTS_AHEAD: usize = 8;
/// A worker looks whether the table should grow once in so many inserts.
const INSERTS_PER_CHECK: u32 = 256;

/// See the head of this file.
pub(super) struct StoreWorker<'i, const SLOTS: usize> {
    store: &'i Store<SLOTS>,
    pool: Pool<'i>,
    paths: PathFinder,
    predictor: HeaderPredictor,
    inserts: u32,
    random: u64,
    hints: Hints,
}

/// Hashes of keys that are written soon: once a key's buckets have had time to arrive, the item
/// that is written over is asked for as well, so that a run of writes waits for neither.
#[derive(Default)]
struct Hints {
    waiting: [Cell<u64>; HINTS_AHEAD],
    /// How many were given, and for how many items were asked for.
    given: Cell<usize>,
    followed: Cell<usize>,
}

/// An operation under way.
struct Writing<'a, 'k> {
    op: &'a Op<'k>,
    spot: Spot,
    now: &'a Now,
    /// Memory for the item to be written.
    slot: &'a mut Option<Slot>,
}

/// The item that a read or write found.
struct Seen<'g, const SLOTS: usize> {
    place: Place<'g, SLOTS>,
    item: Item<'g>,
    view: ItemView<'g>,
}

impl<'i, const SLOTS: usize> StoreWorker<'i, SLOTS> {
    pub(super) fn new(store: &'i Store<SLOTS>) -> Self {
        let pool = Pool::new(&store.memory);
        let random = std::ptr::from_ref(store).addr() as u64 | 1;
        Self {
            store,
            pool,
            paths: store.paths(),
            predictor: HeaderPredictor::UNTRAINED,
            inserts: 0,
            random,
            hints: Hints::default(),
        }
    }

    /// The item of `key`, wherever it is.
    #[inline(never)]
    fn validated_lookup<'g>(
        &self,
        view: &View<'g, SLOTS>,
        spot: &Spot,
        key: &Key<'_>,
        guard: &'g Guard<'_>,
    ) -> Option<Item<'g>>
    where
        'i: 'g,
    {
        let is_wanted = |word| self.store.item(word, guard).has_key(key.bytes());
        view.find(spot, is_wanted).map(|place| self.store.item(place.word, guard))
    }

    /// Answers a key whose item `word` most likely names: at once if it does and the item looks
    /// like the last ones, as nearly all do where items are of a kind. Always inlined: of what it
    /// hands to the sink most is never looked at, and the fewer instructions a read has, the more
    /// reads the processor overlaps.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the parts of one read")]
    fn answer<'g>(
        &mut self,
        view: &View<'g, SLOTS>,
        position: usize,
        key: &Key<'_>,
        word: Word,
        now: &Now,
        guard: &'g Guard<'_>,
        sink: &mut impl Sink,
    ) -> ControlFlow<()>
    where
        'i: 'g,
    {
        let is_likely = word.tag() == Geometry::<SLOTS>::tag(key.hash());
        if is_likely && self.predictor.template().is_live(now) {
            let item = self.store.item(word, guard);
            if let Some(seen) = item.view_as(self.predictor.template(), key.bytes()) {
                return sink.hit(position, &self.found(&item, seen));
            }
        }
        let word = if is_likely { word } else { Word::EMPTY };
        self.answer_slow_path(view, position, key, word, now, guard, sink)
    }

    /// As [`Self::answer`], for items that look different, and for keys that are not there or not
    /// where they were first looked for. `word` is empty if it does not have the key's tag.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "the parts of one read")]
    fn answer_slow_path<'g>(
        &mut self,
        view: &View<'g, SLOTS>,
        position: usize,
        key: &Key<'_>,
        word: Word,
        now: &Now,
        guard: &'g Guard<'_>,
        sink: &mut impl Sink,
    ) -> ControlFlow<()>
    where
        'i: 'g,
    {
        let likely = word.is_item().then(|| self.store.item(word, guard));
        let item = likely.filter(|item| item.has_key(key.bytes())).or_else(|| {
            let spot = Spot::of::<SLOTS>(key.hash());
            self.validated_lookup(view, &spot, key, guard)
        });
        self.answer_any(position, item, now, sink)
    }

    /// Hands what was found, or that nothing was, to the sink.
    fn answer_any<'g>(
        &mut self,
        position: usize,
        item: Option<Item<'g>>,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()>
    where
        'i: 'g,
    {
        let Some(item) = item else { return sink.miss(position) };
        let memory = &self.store.memory;
        self.predictor.show(&item, item.header(), position, now, memory, sink)
    }

    #[inline]
    fn found<'g>(&self, item: &Item<'g>, view: ItemView<'g>) -> Found<'g>
    where
        'i: 'g,
    {
        let memory: &'i std::sync::Arc<crate::mem::Memory> = &self.store.memory;
        Found::in_memory(view, memory, item.reference())
    }

    /// A read of one key. Short, because the processor overlaps as many of them as it can hold.
    #[inline]
    fn get_one<P: Probe>(&mut self, key: &Key<'_>, now: &Now, sink: &mut impl Sink) {
        let guard = self.pool.pin();
        let view = self.store.view(&guard);
        let spot = Spot::of::<SLOTS>(key.hash());
        let word = view.glance_at_word::<P>(&spot);
        // There is nothing behind this key that a break could keep from being read.
        let _ = self.answer(&view, 0, key, word, now, &guard, sink);
    }

    /// Reads one by one, without what a measurement leaves out.
    #[inline(never)]
    fn get_with(
        &mut self,
        factors: Factors,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        let store = self.store;
        let guard = self.pool.pin();
        let view = store.view(&guard);
        for (position, key) in keys.iter().enumerate() {
            let spot = Spot::of::<SLOTS>(key.hash());
            let is_wanted = |word| store.item(word, &guard).has_key(key.bytes());
            let place = view.find_with(factors, &spot, is_wanted);
            let item = place.map(|place| store.item(place.word, &guard));
            if self.answer_any(position, item, now, sink).is_break() {
                return position + 1;
            }
        }
        keys.len()
    }

    /// A batch of reads. Random lines are what it takes its time for, and most keys lie in their
    /// first bucket: so the second is asked for only if the first has no such tag. Which of both
    /// it will be is as good as random, so no branch depends on it.
    #[inline]
    fn get_many<P: Probe>(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        let store = self.store;
        let guard = self.pool.pin();
        let view = store.view(&guard);
        // Of a key: the bucket that it is in if it is there, then its word there.
        let nowhere = (view.likely_bucket(0), Word::EMPTY);
        software_pipeline::run::<2, 16, _, _>(
            self,
            keys.len(),
            nowhere,
            |_, at| view.prefetch_bucket(keys[at].hash()),
            |worker, at, look, (bucket, word)| {
                let spot = Spot::of::<SLOTS>(keys[at].hash());
                if look == 0 {
                    (*bucket, *word) = worker.look_first::<P>(&view, &spot);
                } else {
                    (*word, _) = first_word::<P, SLOTS>(bucket, spot.tag);
                    worker.prefetch_item(*word);
                }
            },
            |worker, at, (_, word)| worker.answer(&view, at, &keys[at], word, now, &guard, sink),
        )
    }

    /// Looks at a key's first bucket: if its tag is there its item is asked for, else its second
    /// bucket. Returns the bucket that has the key if any does.
    #[inline(always)]
    fn look_first<'g, P: Probe>(
        &self,
        view: &View<'g, SLOTS>,
        spot: &Spot,
    ) -> (&'g Bucket<SLOTS>, Word) {
        let [first, second] = spot.buckets.map(|bucket| view.likely_bucket(bucket));
        let (word, is_there) = first_word::<P, SLOTS>(first, spot.tag);
        // A word of another key costs a line that nobody wanted.
        let item = self.store.memory.address_of(word.reference());
        let next = select_unpredictable(is_there, item, second.as_ptr().cast());
        let reach_bytes = select_unpredictable(is_there, self.predictor.reach_bytes(), 0);
        prefetch(next);
        prefetch(next.wrapping_add(reach_bytes));
        (select_unpredictable(is_there, first, second), Word::EMPTY)
    }

    #[inline]
    fn prefetch_item(&self, word: Word) {
        if let Some(reference) = ItemRef::from_bits(word.reference()) {
            self.store.memory.prefetch_item(reference);
            self.store.memory.prefetch_item_at(reference, self.predictor.reach_bytes());
        }
    }

    /// Asks for the item of the oldest hint.
    fn follow_hint(&self, view: &View<'_, SLOTS>) {
        let followed = self.hints.followed.get();
        let hash = self.hints.waiting[followed % HINTS_AHEAD].get();
        self.hints.followed.set(followed.wrapping_add(1));
        let spot = Spot::of::<SLOTS>(hash);
        each_way!(self.store.probe, P => self.prefetch_item(view.glance_at_word::<P>(&spot)));
    }

    /// The writes that hints were given for have begun.
    #[inline]
    fn follow_hints(&self, view: &View<'_, SLOTS>) {
        while self.hints.followed.get() != self.hints.given.get() {
            self.follow_hint(view);
        }
    }

    /// The item of `key`, dead or alive, for a write.
    fn see<'g>(
        &self,
        view: &View<'g, SLOTS>,
        spot: &Spot,
        key: &[u8],
        guard: &'g Guard<'_>,
    ) -> Option<Seen<'g, SLOTS>>
    where
        'i: 'g,
    {
        let is_wanted = |word| self.store.item(word, guard).has_key(key);
        let place = match self.store.factors {
            Some(factors) => view.find_with(factors, spot, is_wanted)?,
            None => match each_way!(self.store.probe, P => view.optimistic_probe::<P>(spot)) {
                place if place.word.tag() == spot.tag && is_wanted(place.word) => place,
                _ => view.find(spot, is_wanted)?,
            },
        };
        let item = self.store.item(place.word, guard);
        Some(Seen { place, item, view: item.view() })
    }

    fn attempt(&mut self, mut writing: Writing<'_, '_>, sink: &mut impl Sink) -> Attempt {
        let guard = self.pool.pin();
        let view = self.store.view(&guard);
        self.follow_hints(&view);
        let key = writing.op.key.bytes();
        let seen = self.see(&view, &writing.spot, key, &guard);
        let current = seen.as_ref().map(|seen| &seen.view);
        match decide(current, writing.op, writing.now, self.pool.fresh_cas(writing.op, current)) {
            Decision::Keep(outcome) => {
                if let Some(seen) = &seen {
                    show_outcome(
                        writing.op,
                        &seen.item,
                        seen.view,
                        outcome,
                        writing.now,
                        &self.store.memory,
                        sink,
                    );
                }
                Attempt::Done(outcome)
            }
            Decision::Remove(outcome) => match seen {
                Some(seen) => self.remove(&view, &seen, writing.now, outcome),
                None => Attempt::Done(outcome),
            },
            Decision::Replace(item_write, outcome) => match seen {
                Some(seen) => {
                    self.replace(&view, &mut writing, &seen, &item_write, outcome, &guard, sink)
                }
                None => self.insert(&view, &mut writing, &item_write, outcome, &guard, sink),
            },
        }
    }

    fn remove(
        &mut self,
        view: &View<'_, SLOTS>,
        seen: &Seen<'_, SLOTS>,
        now: &Now,
        outcome: Outcome,
    ) -> Attempt {
        let writer = self.store.lock_writer();
        let is_removed = view.exchange(&seen.place, Word::EMPTY, || true);
        drop(writer);
        if !is_removed {
            return Attempt::Again;
        }
        // SAFETY: the exchange took it out of its only slot.
        unsafe { self.pool.retire(seen.item.reference()) };
        self.pool.note_if_dead(now, &seen.view);
        Attempt::Done(outcome)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one write")]
    fn replace(
        &mut self,
        view: &View<'_, SLOTS>,
        writing: &mut Writing<'_, '_>,
        seen: &Seen<'_, SLOTS>,
        item_write: &ItemWrite<'_>,
        outcome: Outcome,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let item = &seen.item;
        // The word may change until we hold the lock: what depends on it has to be the same then.
        let is_same = || match seen.view.value {
            Value::Word(word, _) if item_write.depends_on_value(writing.op) => {
                item.word().load(Ordering::Relaxed) == u64::from_le_bytes(word)
            }
            _ => true,
        };
        if let Some(word) = item_write.sole_word_change(&seen.view, writing.now) {
            let writer = self.store.lock_writer();
            let is_done = view.under_lock(&seen.place, || {
                is_same() && {
                    item.change_word(word, item_write.meta_flags.fetched);
                    true
                }
            });
            drop(writer);
            if is_done != Some(true) {
                return Attempt::Again;
            }
            let length = seen.view.value.len();
            let changed = ItemView { value: Value::Word(word, length), ..seen.view };
            show_outcome(writing.op, item, changed, outcome, writing.now, &self.store.memory, sink);
            return Attempt::Done(outcome);
        }
        let current = seen.view.value.as_bytes();
        let new = match self.write(writing, item_write, current) {
            Ok(new) => new,
            Err(attempt) => return attempt,
        };
        let word = Word::new(writing.spot.tag, new.to_bits());
        // The view before the item is published: afterwards others may change its word.
        let new_item = self.store.item(word, guard);
        let shown = new_item.view();
        let writer = self.store.lock_writer();
        let is_replaced = view.exchange(&seen.place, word, is_same);
        drop(writer);
        if !is_replaced {
            // SAFETY: never published.
            unsafe { self.pool.retire(new) };
            return Attempt::Again;
        }
        // SAFETY: the exchange took it out of its only slot.
        unsafe { self.pool.retire(item.reference()) };
        self.pool.note_if_dead(writing.now, &seen.view);
        show_outcome(writing.op, &new_item, shown, outcome, writing.now, &self.store.memory, sink);
        Attempt::Done(outcome)
    }

    fn insert(
        &mut self,
        view: &View<'_, SLOTS>,
        writing: &mut Writing<'_, '_>,
        item_write: &ItemWrite<'_>,
        outcome: Outcome,
        guard: &Guard<'_>,
        sink: &mut impl Sink,
    ) -> Attempt {
        let new = match self.write(writing, item_write, &[]) {
            Ok(new) => new,
            Err(attempt) => return attempt,
        };
        let word = Word::new(writing.spot.tag, new.to_bits());
        let new_item = self.store.item(word, guard);
        let shown = new_item.view();
        let writer = self.store.lock_writer();
        let insertion = self.link(view, writing, word, guard);
        drop(writer);
        match insertion {
            Insertion::Done => {}
            Insertion::Evicted(victim) => {
                let victim = self.store.item(victim, guard);
                // SAFETY: the insert took it out of its only slot.
                unsafe { self.pool.evict(&victim, writing.now) };
            }
            Insertion::Present | Insertion::Full | Insertion::Again => {
                // SAFETY: never published.
                unsafe { self.pool.retire(new) };
                return match insertion {
                    Insertion::Full => Attempt::Done(Outcome::OutOfMemory),
                    _ => Attempt::Again,
                };
            }
        }
        self.inserts += 1;
        if self.inserts.is_multiple_of(INSERTS_PER_CHECK) {
            self.store.check_growth(view);
        }
        show_outcome(writing.op, &new_item, shown, outcome, writing.now, &self.store.memory, sink);
        Attempt::Done(outcome)
    }

    /// Links an item in an empty slot, or one that a path empties, or that growth makes, or where
    /// another item was.
    fn link<'g>(
        &mut self,
        view: &View<'g, SLOTS>,
        writing: &Writing<'_, '_>,
        word: Word,
        guard: &'g Guard<'_>,
    ) -> Insertion
    where
        'i: 'g,
    {
        let store = self.store;
        let key = writing.op.key.bytes();
        let is_same_key = |word| store.item(word, guard).has_key(key);
        let keyed = store.keyed(guard);
        // Each round but the last moves buckets, so a table's worth of them is enough.
        let rounds = 2 + view.last().table.len();
        for _ in 0..rounds {
            let view = store.view(guard);
            if view.root.next().is_some() {
                view.step(HELP_BUCKETS, &keyed);
                store.finish_growth(&view, &self.pool);
            }
            // Of the layer that is searched or, if another is added meanwhile, of the one before.
            let slots = view.last().table.slots();
            let paths = &mut self.paths;
            let insertion = match store.factors {
                Some(Factors { no_tag: true, .. }) => {
                    let keyed = WithoutTags(&keyed);
                    view.insert(&writing.spot, word, is_same_key, &keyed, paths)
                }
                _ => view.insert(&writing.spot, word, is_same_key, &keyed, paths),
            };
            match insertion {
                Insertion::Again => {}
                Insertion::Full if store.relieve(&view, slots, &self.pool, guard) => {}
                Insertion::Full => break,
                insertion => return insertion,
            }
        }
        if !store.evicts {
            return Insertion::Full;
        }
        let start = next_random(&mut self.random) as usize;
        view.insert_over(&writing.spot, word, is_same_key, |words| {
            // The first that was not read lately, from a random one on.
            let is_cold = |slot: &usize| !store.item(words[*slot], guard).header().is_recent();
            let slots = (0..SLOTS).map(|step| (start + step) % SLOTS);
            slots.into_iter().find(is_cold).unwrap_or(start % SLOTS)
        })
    }

    /// Writes an item into the slot at hand, if its shape is right.
    fn write(
        &mut self,
        writing: &mut Writing<'_, '_>,
        item_write: &ItemWrite<'_>,
        current: &[u8],
    ) -> Result<ItemRef, Attempt> {
        let key = writing.op.key.bytes();
        let Some(shape) = ItemLayout::new(key.len(), item_write, current.len(), writing.now) else {
            return Err(Attempt::Done(Outcome::TooLarge));
        };
        let reserved = writing.slot.take_if(|slot| slot.layout() == shape);
        let Some(slot) = reserved.or_else(|| self.pool.reserve_at_hand(shape)) else {
            return Err(Attempt::Needs(shape));
        };
        Ok(self.pool.fill(slot, key, item_write, current))
    }

    /// Lets the pool evict and move items through the table.
    fn with_swap<R>(&mut self, work: impl FnOnce(&mut Pool<'i>, &mut Swap<'_>) -> R) -> R {
        let store = self.store;
        // SAFETY: the pinner is gone when this function returns; the pool lives in `self`.
        let pinner = unsafe { self.pool.pinner() };
        work(&mut self.pool, &mut |hash, old, new| store.swap(hash, old, new, &pinner.pin()))
    }
}

impl<'i, const SLOTS: usize> Writer<'i> for StoreWorker<'i, SLOTS> {
    fn pool(&mut self) -> &mut Pool<'i> {
        &mut self.pool
    }

    fn make_room(&mut self, shortage: Shortage, now: &Now) -> bool {
        self.with_swap(|pool, swap| pool.make_room(shortage, now, swap))
    }
}

/// The background half of [`crate::Engine`].
impl<const SLOTS: usize> StoreWorker<'_, SLOTS> {
    /// See [`crate::Engine::compare_exchange_item`].
    pub(super) fn compare_exchange_item(
        &mut self,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        self.store.swap(hash, old, new, &self.pool.pin())
    }

    /// See [`crate::Engine::maintain`].
    pub(super) fn maintain(&mut self, now: &Now) -> bool {
        let more = self.store.step(&self.pool);
        self.store.drop_layers(&self.pool);
        self.with_swap(|pool, swap| pool.step(now, swap)) || more
    }
}

impl<const SLOTS: usize> Worker for StoreWorker<'_, SLOTS> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        if let Some(factors) = self.store.factors {
            return self.get_with(factors, keys, now, sink);
        }
        if let [key] = keys {
            each_way!(self.store.probe, P => self.get_one::<P>(key, now, sink));
            return 1;
        }
        each_way!(self.store.probe, P => self.get_many::<P>(keys, now, sink))
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        let spot = Spot::of::<SLOTS>(op.key.hash());
        self.until_done(now, |worker, slot| worker.attempt(Writing { op, spot, now, slot }, sink))
    }

    #[inline]
    fn prefetch(&self, key: &Key<'_>) {
        let guard = self.pool.pin();
        let view = self.store.view(&guard);
        view.prefetch(&Spot::of::<SLOTS>(key.hash()));
        let given = self.hints.given.get();
        if given.wrapping_sub(self.hints.followed.get()) == HINTS_AHEAD {
            self.follow_hint(&view);
        }
        self.hints.waiting[given % HINTS_AHEAD].set(key.hash());
        self.hints.given.set(given.wrapping_add(1));
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let guard = self.pool.pin();
        let store = self.store;
        let mut visit_word = |word| visit(&store.item(word, &guard).view());
        store.view(&guard).scan(from, budget, &mut visit_word)
    }

    #[inline]
    fn quiesce(&mut self) {
        self.pool.quiesce();
        self.store.drop_layers(&self.pool);
    }
}
