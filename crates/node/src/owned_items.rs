//! The items that this node owns, as a thread of the gateway executes operations on them: at once,
//! in the engine, without the event loop ([`amalgam_cluster::shard::Served`] says when that is
//! right). Whatever is refused here is for the event loop, or for another node.

use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_cluster::chunks::{
    ItemVerb, from_relative, to_relative, with_cas_ids, with_times, without_unasked_cas,
};
use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::shard::ServedThread;
use amalgam_index::{Cursor, Found, Sink};
use amalgam_op::{Expiry, ItemView, Key, Now, Op, Outcome};

use crate::clock::boot_ms;
use crate::node_engines::ItemWorker;
use crate::node_state::NodeState;

/// One thread's access to the items of its node.
pub struct OwnedItems<'i> {
    worker: Box<dyn ItemWorker + 'i>,
    state: &'i NodeState,
    /// None before the event loop runs.
    served: Option<ServedThread>,
    /// When the present batch began, in [`boot_ms`].
    began_ms: u64,
}

/// How a batch of reads ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// All keys were answered.
    All,
    /// The key behind those that were answered must be read elsewhere.
    Refused,
    /// The sink broke the batch.
    Broken,
}

impl<'i> OwnedItems<'i> {
    /// Access through an engine's worker.
    pub fn new(worker: Box<dyn ItemWorker + 'i>, state: &'i NodeState) -> Self {
        Self { worker, state, served: None, began_ms: 0 }
    }

    /// Looks at what the node serves now. Call it before each batch.
    #[inline]
    pub fn refresh(&mut self) {
        self.began_ms = boot_ms();
        match &mut self.served {
            Some(served) => served.refresh(),
            None => self.served = self.state.served().map(|served| Arc::clone(served).thread()),
        }
    }

    /// Whether this node serves the key, though it may not be readable here.
    pub fn serves(&self, key: &Key<'_>) -> bool {
        self.served.as_ref().is_some_and(|served| served.serves(ChunkId::named(key.hash())))
    }

    /// Whether the key's item may be read here.
    #[inline]
    pub fn may_read(&self, key: &Key<'_>) -> bool {
        self.served.as_ref().is_some_and(|served| served.may_read(ChunkId::named(key.hash())))
    }

    /// Whether the operation may be executed here.
    pub fn may_apply(&self, op: &Op<'_>) -> bool {
        let id = ChunkId::named(op.key.hash());
        self.served.as_ref().is_some_and(|served| match ItemVerb::may_write(&op.verb) {
            true => served.may_write(id),
            false => served.may_read(id),
        })
    }

    /// Reads keys of which [`Self::may_read`] was true. Passes them to the sink with positions from
    /// `first` on, and times of the clock `now`. Returns how many keys were answered.
    pub fn get_batch(
        &mut self,
        keys: &[Key<'_>],
        first: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> (usize, ReadEnd) {
        let Some(served) = &mut self.served else { return (0, ReadEnd::Refused) };
        let (here, began_ms) = (self.state.clock.at(self.began_ms), self.began_ms);
        let (clocks, end) = (Clocks { here, now }, ReadEnd::All);
        let mut checked = Checked { served, keys, first, clocks, began_ms, sink, end };
        let done = self.worker.get_batch(keys, &here, &mut checked);
        let end = checked.end;
        let answered = done - usize::from(end == ReadEnd::Refused);
        served.record(answered, |position| ChunkId::named(keys[position].hash()));
        (answered, end)
    }

    /// Executes an operation; None if it must be executed elsewhere, and was not here.
    pub fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Option<Outcome> {
        let served = self.served.as_mut()?;
        let id = ChunkId::named(op.key.hash());
        let is_write = ItemVerb::may_write(&op.verb);
        let began_ms = self.began_ms;
        if is_write && !served.begin_write(id, began_ms) || !is_write && !served.may_read(id) {
            return None;
        }
        let here = self.state.clock.at(began_ms);
        let clocks = Clocks { here, now };
        let verb = with_cas_ids(op.verb);
        let mut kept =
            OneAnswer { served, id, clocks, began_ms, is_write, sink, is_refused: false };
        let outcome = self.worker.apply(&Op { verb, ..*op }, &here, &mut kept);
        let is_refused = kept.is_refused;
        let is_in_time = !is_write || served.end_write(boot_ms());
        let may_answer = match outcome {
            // It was checked before it went to the sink, which has answered it then.
            Outcome::Hit(_) => !is_refused,
            _ if is_write => is_in_time,
            _ => served.may_answer(id, began_ms),
        };
        if !may_answer {
            // A read has changed nothing, so another node may execute it.
            return is_write.then_some(Outcome::Unknown);
        }
        served.record(1, |_| id);
        let outcome = without_unasked_cas(&op.verb, outcome);
        Some(with_times(outcome, |time| clocks.expiry(time)))
    }

    /// A hint, as [`amalgam_index::Worker::prefetch`].
    #[inline]
    pub fn prefetch(&self, key: &Key<'_>) {
        if self.may_read(key) {
            self.worker.prefetch(key);
        }
    }

    /// As [`amalgam_index::Worker::scan`].
    pub fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        self.worker.scan(from, budget, visit)
    }

    /// As [`amalgam_index::Worker::quiesce`].
    pub fn quiesce(&mut self) {
        self.worker.quiesce();
    }

    /// As [`amalgam_index::Worker::has_much_retired`].
    pub fn has_much_retired(&self) -> bool {
        self.worker.has_much_retired()
    }

    /// As [`amalgam_index::Worker::rest`].
    pub fn rest(&mut self) -> bool {
        self.worker.rest()
    }
}

/// The node's clock, at which the engine works, and the server's, for which items are shown.
#[derive(Clone, Copy)]
struct Clocks<'n> {
    here: Now,
    now: &'n Now,
}

impl Clocks<'_> {
    fn expiry(&self, expiry: Expiry) -> Expiry {
        from_relative(to_relative(expiry, &self.here), self.now)
    }

    fn show<'g>(&self, found: &Found<'g>) -> Found<'g> {
        let idle = |last: u32| self.here.seconds.saturating_sub(last);
        let last_access = |last: u32| self.now.seconds.saturating_sub(idle(last));
        found.with_item(ItemView {
            expiry: self.expiry(found.item.expiry),
            generation: self.now.generation,
            last_access_seconds: found.item.last_access_seconds.map(last_access),
            ..found.item
        })
    }
}

/// Passes on what a batch of reads found while it may be answered, and then breaks the batch.
struct Checked<'s, S> {
    served: &'s ServedThread,
    keys: &'s [Key<'s>],
    first: usize,
    clocks: Clocks<'s>,
    began_ms: u64,
    sink: &'s mut S,
    end: ReadEnd,
}

impl<S: Sink> Checked<'_, S> {
    /// Passes on by `pass` what was found at `position`.
    #[inline]
    fn pass(
        &mut self,
        position: usize,
        pass: impl FnOnce(&mut S, usize, &Clocks<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let id = ChunkId::named(self.keys[position].hash());
        if !self.served.may_answer(id, self.began_ms) {
            self.end = ReadEnd::Refused;
            return ControlFlow::Break(());
        }
        let flow = pass(self.sink, self.first + position, &self.clocks);
        if flow.is_break() {
            self.end = ReadEnd::Broken;
        }
        flow
    }
}

impl<S: Sink> Sink for Checked<'_, S> {
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.pass(position, |sink, position, clocks| sink.hit(position, &clocks.show(found)))
    }

    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        self.pass(position, |sink, position, _| sink.miss(position))
    }

    fn dead(&mut self, position: usize, is_flushed: bool) -> ControlFlow<()> {
        self.pass(position, |sink, position, _| sink.dead(position, is_flushed))
    }
}

/// Passes on the item of one operation if it may be answered.
struct OneAnswer<'s, S> {
    served: &'s ServedThread,
    id: ChunkId,
    clocks: Clocks<'s>,
    began_ms: u64,
    is_write: bool,
    sink: &'s mut S,
    is_refused: bool,
}

impl<S: Sink> Sink for OneAnswer<'_, S> {
    fn hit(&mut self, position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.is_refused = match self.is_write {
            true => !self.served.is_in_time(boot_ms()),
            false => !self.served.may_answer(self.id, self.began_ms),
        };
        match self.is_refused {
            true => ControlFlow::Break(()),
            false => self.sink.hit(position, &self.clocks.show(found)),
        }
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
