//! Reports about requests: counts by key prefix (`stats detail`) and lines for watchers. Usually
//! neither is asked for, and requests pay for one comparison.

use std::ops::ControlFlow;

use amalgam_index::{Found, Patience, Sink, Store, Worker};
use amalgam_op::{Expiry, Get, Key, Now, Op, Outcome, StoreMode, Verb};

use crate::metrics::prefixes::{KeyOperation, Prefixes};
use crate::state::server_state::ServerState;
use crate::watch::events::Events;
use crate::watch::lines::{Lines, ReadResult, StoreEvent};

/// The destinations of reports about the requests of one batch.
#[derive(Clone, Copy)]
pub struct Observer<'s> {
    prefixes: Option<&'s Prefixes>,
    lines: Lines<'s>,
}

/// An executed operation on one key, as it is reported.
pub struct AppliedOperation<'o, 'k> {
    /// The operation.
    pub op: &'o Op<'k>,
    /// Its outcome.
    pub outcome: &'o Outcome,
    /// What the key held before; `NotFound` if no watcher asked.
    pub before: ReadResult,
    /// Whether the request was a meta command.
    pub is_meta: bool,
    /// The file descriptor of the connection.
    pub number: i32,
}

/// The kinds of lines that requests make.
const REQUESTS: [Events; 3] = [Events::FETCHERS, Events::MUTATIONS, Events::DELETIONS];

impl<'s> Observer<'s> {
    /// An observer; None if there is neither a watcher of requests nor `stats detail on`.
    #[inline]
    pub fn new<S: Store>(state: &'s ServerState<S>) -> Option<Self> {
        let prefixes = state.prefixes.is_on().then_some(&state.prefixes);
        let lines = Lines { log: &state.log, wanted: state.log.wanted() };
        let is_watched = REQUESTS.iter().any(|kind| lines.wanted.meets(*kind));
        (is_watched || prefixes.is_some()).then_some(Self { prefixes, lines })
    }

    /// A key was read.
    #[cold]
    pub fn read(&self, key: &[u8], result: ReadResult, number: i32) {
        if let Some(prefixes) = self.prefixes {
            prefixes
                .count(key, KeyOperation::Get { is_hit: matches!(result, ReadResult::Found(_)) });
        }
        if self.lines.wanted.meets(Events::FETCHERS) {
            self.lines.get(key, result, number);
        }
    }

    /// Looks up what a key holds before an operation on it, if a watcher asked. Another worker may
    /// change the key between this lookup and the operation: then the line is wrong.
    #[cold]
    pub fn lookup_before<W: Worker>(&self, index: &mut W, key: &Key<'_>, now: &Now) -> ReadResult {
        struct Length(ReadResult);
        impl Sink for Length {
            fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
                self.0 = ReadResult::Found(found.item.value.len());
                ControlFlow::Continue(())
            }
            fn miss(&mut self, _: usize) -> ControlFlow<()> {
                ControlFlow::Continue(())
            }
            fn patience(&self, _: usize) -> Patience {
                Patience::Never
            }
        }
        let mut length = Length(ReadResult::NotFound);
        if REQUESTS.iter().any(|kind| self.lines.wanted.meets(*kind)) {
            let verb = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
            index.apply(&Op { key: *key, verb }, now, &mut length);
        }
        length.0
    }

    /// Reports an executed operation.
    #[cold]
    pub fn applied(&self, applied: &AppliedOperation<'_, '_>, now: &Now) {
        let AppliedOperation { op, outcome, before, is_meta, number } = *applied;
        let key = op.key.bytes();
        let wanted = self.lines.wanted;
        let mut operation = None;
        match op.verb {
            Verb::Get(_) => return self.read(key, before, number),
            Verb::Store(store) => {
                operation = Some(KeyOperation::Set);
                if wanted.meets(Events::FETCHERS) {
                    self.lines.get(key, before, number);
                }
                if wanted.meets(Events::MUTATIONS) {
                    self.lines.stored(key, &stored(&store, outcome, now), number);
                }
            }
            Verb::Delete(_) => {
                operation = Some(KeyOperation::Delete);
                if let (Outcome::Deleted, ReadResult::Found(bytes)) = (outcome, before)
                    && wanted.meets(Events::DELETIONS)
                {
                    self.lines.deleted(key, if is_meta { "md" } else { "delete" }, bytes);
                }
            }
            Verb::Arithmetic(_) if wanted.meets(Events::FETCHERS) => {
                self.lines.get(key, before, number);
            }
            Verb::Arithmetic(_) => {}
        }
        if let (Some(prefixes), Some(operation)) = (self.prefixes, operation) {
            prefixes.count(key, operation);
        }
    }
}

/// A store, as a watcher's line shows it.
fn stored<'s>(store: &amalgam_op::Store<'_>, outcome: &Outcome, now: &Now) -> StoreEvent<'s> {
    let status = match outcome {
        Outcome::Stored(_) => "stored",
        Outcome::Exists => "exists",
        Outcome::NotFound => "not_found",
        Outcome::TooLarge => "too_large",
        Outcome::OutOfMemory => "no_memory",
        Outcome::Unavailable | Outcome::Unknown => "unavailable",
        _ => "not_stored",
    };
    let command = match store.mode {
        _ if store.compare.is_some() => "cas",
        StoreMode::Set => "set",
        StoreMode::Add => "add",
        StoreMode::Replace => "replace",
        StoreMode::Append => "append",
        StoreMode::Prepend => "prepend",
    };
    let ttl = Expiry::from_client(store.expiry, now).remaining_seconds(now);
    StoreEvent { status, command, ttl_seconds: ttl.unwrap_or(0), value_bytes: store.value.len() }
}
