//! What somebody wants to be told of requests: counts by prefix, and lines for watchers. Nobody
//! does, usually, and then requests pay for one comparison.

use std::ops::ControlFlow;

use amalgam_index::{Found, Sink, Worker};
use amalgam_op::{Expiry, Get as GetOp, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use crate::server::Shared;
use crate::statistics::{Deed, Prefixes};
use crate::watch::{Events, Get, Lines, Stored};

/// Who is to be told in this turn.
#[derive(Clone, Copy)]
pub struct Observer<'s> {
    prefixes: Option<&'s Prefixes>,
    lines: Lines<'s>,
}

/// An operation on one key, as watchers are told of it.
pub struct Seen<'o, 'k> {
    /// What was to be done.
    pub op: &'o Op<'k>,
    /// What came of it.
    pub outcome: &'o Outcome,
    /// What the key held before.
    pub before: Get,
    /// Whether it was a meta command.
    pub is_meta: bool,
    /// The number of the connection.
    pub number: i32,
}

/// The kinds of lines that requests make.
const REQUESTS: [Events; 3] = [Events::FETCHERS, Events::MUTATIONS, Events::DELETIONS];

impl<'s> Observer<'s> {
    /// Whoever wants to be told now; none if nobody does.
    #[inline]
    pub fn of<I: amalgam_index::Store>(shared: &'s Shared<I>) -> Option<Self> {
        let prefixes = shared.prefixes.is_on().then_some(&shared.prefixes);
        let lines = Lines { log: &shared.log, wanted: shared.log.wanted() };
        let is_watched = REQUESTS.iter().any(|kind| lines.wanted.meets(*kind));
        (is_watched || prefixes.is_some()).then_some(Self { prefixes, lines })
    }

    /// A key was read.
    #[cold]
    pub fn read(&self, key: &[u8], get: Get, number: i32) {
        if let Some(prefixes) = self.prefixes {
            prefixes.count(key, Deed::Get { is_hit: matches!(get, Get::Found(_)) });
        }
        if self.lines.wanted.meets(Events::FETCHERS) {
            self.lines.get(key, get, number);
        }
    }

    /// What a key holds before an operation on it, as far as somebody wants to know: that somebody
    /// else changes it in between can make a line wrong.
    #[cold]
    pub fn look<W: Worker>(&self, index: &mut W, key: &Key<'_>, now: &Now) -> Get {
        struct Length(Get);
        impl Sink for Length {
            fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
                self.0 = Get::Found(found.item.value.len());
                ControlFlow::Continue(())
            }
            fn miss(&mut self, _: usize) -> ControlFlow<()> {
                ControlFlow::Continue(())
            }
        }
        let mut length = Length(Get::NotFound);
        if REQUESTS.iter().any(|kind| self.lines.wanted.meets(*kind)) {
            let verb = Verb::Get(GetOp { is_quiet_access: true, ..GetOp::default() });
            index.apply(&Op { key: *key, verb }, now, &mut length);
        }
        length.0
    }

    /// An operation was carried out.
    #[cold]
    pub fn applied(&self, seen: &Seen<'_, '_>, now: &Now) {
        let Seen { op, outcome, before, is_meta, number } = *seen;
        let key = op.key.bytes();
        let wanted = self.lines.wanted;
        let mut deed = None;
        match op.verb {
            Verb::Get(_) => return self.read(key, before, number),
            Verb::Store(store) => {
                deed = Some(Deed::Set);
                if wanted.meets(Events::FETCHERS) {
                    self.lines.get(key, before, number);
                }
                if wanted.meets(Events::MUTATIONS) {
                    self.lines.stored(key, &stored(&store, outcome, now), number);
                }
            }
            Verb::Delete(_) => {
                deed = Some(Deed::Delete);
                if let (Outcome::Deleted, Get::Found(bytes)) = (outcome, before)
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
        if let (Some(prefixes), Some(deed)) = (self.prefixes, deed) {
            prefixes.count(key, deed);
        }
    }
}

fn stored<'s>(store: &Store<'_>, outcome: &Outcome, now: &Now) -> Stored<'s> {
    let status = match outcome {
        Outcome::Stored(_) => "stored",
        Outcome::Exists => "exists",
        Outcome::NotFound => "not_found",
        Outcome::TooLarge => "too_large",
        Outcome::OutOfMemory => "no_memory",
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
    Stored { status, command, ttl_seconds: ttl.unwrap_or(0), value_bytes: store.value.len() }
}
