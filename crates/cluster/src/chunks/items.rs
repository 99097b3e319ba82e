//! Operations on named items, as they travel from any node to the owner of the key.
//!
//! A key hashes to a named id, which determines the owner of the item; the full key identifies the
//! item. The owner executes the whole operation on its engine, so it is atomic whoever asked.
//!
//! Invariants of this module:
//! 1. Expiry times travel relative to the sender's clock, as remaining seconds plus one, 0 for
//!    never. So the clocks of nodes need not agree.
//! 2. [`ItemVerb::changes`] tells which operations must not be executed twice.
//! 3. Replicas of items ([`ReplicaItem`]) outlive clocks and processes: their times are calendar
//!    times, and flushes are counted from the cluster's first.

use amalgam_op::{
    Arithmetic, Compare, Delete, Expiry, Get, Hit, Now, Outcome, Store, StoreMode, Verb,
};

/// One operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemOp {
    /// The key, 1 to 250 bytes.
    pub key: Vec<u8>,
    /// The operation on its item.
    pub verb: ItemVerb,
}

/// An operation on an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemVerb {
    /// Reads the item.
    Read,
    /// Reads the item and may change it: touch, vivify, recache.
    Get(Get),
    /// Stores a value.
    Store(StoreHead, Vec<u8>),
    /// Increments or decrements.
    Arithmetic(Arithmetic),
    /// Deletes the item, or drops its value.
    Delete(Delete),
}

/// All of a [`Store`] except its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreHead {
    /// The condition for storing.
    pub mode: StoreMode,
    /// The client's opaque 32 bits.
    pub flags: u32,
    /// The expiry as the client sent it.
    pub expiry: i64,
    /// Stores only after this comparison.
    pub compare: Option<Compare>,
    /// Expiry with which append or prepend creates a missing item; None if they do not.
    pub vivify: Option<i64>,
    /// Whether to answer with the new CAS id.
    pub wants_cas: bool,
    /// The CAS id to assign; None for a fresh one.
    pub new_cas: Option<u64>,
}

impl From<Verb<'_>> for ItemVerb {
    fn from(verb: Verb<'_>) -> Self {
        match verb {
            Verb::Get(get) => Self::Get(get),
            Verb::Store(store) => {
                let Store { mode, value, flags, expiry, compare, vivify, wants_cas, new_cas } =
                    store;
                let head = StoreHead { mode, flags, expiry, compare, vivify, wants_cas, new_cas };
                Self::Store(head, value.to_vec())
            }
            Verb::Arithmetic(arithmetic) => Self::Arithmetic(arithmetic),
            Verb::Delete(delete) => Self::Delete(delete),
        }
    }
}

impl ItemVerb {
    /// The verb for the engine; None for a plain read, which is executed as a batch of one.
    pub fn as_verb(&self) -> Option<Verb<'_>> {
        Some(match self {
            Self::Read => return None,
            Self::Get(get) => Verb::Get(*get),
            Self::Store(head, value) => {
                let StoreHead { mode, flags, expiry, compare, vivify, wants_cas, new_cas } = *head;
                let value = &value[..];
                Verb::Store(Store {
                    mode,
                    value,
                    flags,
                    expiry,
                    compare,
                    vivify,
                    wants_cas,
                    new_cas,
                })
            }
            Self::Arithmetic(arithmetic) => Verb::Arithmetic(*arithmetic),
            Self::Delete(delete) => Verb::Delete(*delete),
        })
    }

    /// Whether a repetition could do or answer something else. Repeated touches and requests for a
    /// CAS id are harmless.
    pub fn changes(&self) -> bool {
        match self {
            Self::Read => false,
            Self::Get(get) => {
                get.vivify.is_some() || get.recache_below_seconds.is_some() || get.checks_stale
            }
            Self::Store(..) | Self::Arithmetic(_) | Self::Delete(_) => true,
        }
    }

    /// Whether the item may differ afterwards for its replicas. Replicas do not keep access times.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Get(Get { touch: Some(_), .. })) || self.changes()
    }

    /// Whether it may store an item that was not there.
    pub fn stores(&self) -> bool {
        match self {
            Self::Read | Self::Delete(_) => false,
            Self::Get(get) => get.vivify.is_some(),
            Self::Store(..) => true,
            Self::Arithmetic(arithmetic) => arithmetic.initial.is_some(),
        }
    }

    /// [`Self::writes`] of the verb that becomes `verb`.
    pub fn may_write(verb: &Verb<'_>) -> bool {
        match verb {
            Verb::Get(get) => Self::Get(*get).writes(),
            Verb::Store(_) | Verb::Arithmetic(_) | Verb::Delete(_) => true,
        }
    }
}

/// The verb for an engine in which every item has a CAS id from the start, so that reading the id
/// needs no memory for another copy of the item.
pub fn with_cas_ids(mut verb: Verb<'_>) -> Verb<'_> {
    match &mut verb {
        Verb::Store(store) => store.wants_cas = true,
        Verb::Arithmetic(arithmetic) => arithmetic.wants_cas = true,
        Verb::Get(get) => get.wants_cas |= get.vivify.is_some(),
        // The item has an id already, and one that stays as stale gets a new one.
        Verb::Delete(_) => {}
    }
    verb
}

/// Removes a CAS id that nobody asked for from the outcome of [`with_cas_ids`] of `asked`.
pub fn without_unasked_cas(asked: &Verb<'_>, mut outcome: Outcome) -> Outcome {
    match (asked, &mut outcome) {
        (Verb::Store(store), Outcome::Stored(written)) if !store.wants_cas => {
            written.cas = store.new_cas;
        }
        (Verb::Arithmetic(arithmetic), Outcome::Number(counted)) if !arithmetic.wants_cas => {
            counted.cas = arithmetic.new_cas;
        }
        _ => {}
    }
    outcome
}

/// The answer to an operation on an item. Times are relative (invariant 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemAnswer {
    /// The engine's outcome; a plain read that finds the item is an [`Outcome::Hit`] too.
    pub outcome: Outcome,
    /// The item of an [`Outcome::Hit`].
    pub item: Option<ItemRecord>,
}

impl ItemAnswer {
    /// Whether the operation may have changed what replicas keep of the item, as far as the answer
    /// tells. After an out-of-memory error the old item may be gone.
    pub fn may_have_changed(&self, verb: &ItemVerb) -> bool {
        match (self.outcome, verb) {
            (Outcome::NotFound | Outcome::NotStored | Outcome::Exists | Outcome::NotANumber, _) => {
                false
            }
            // Replicas do not keep who is to recache it.
            (Outcome::Hit(hit), ItemVerb::Get(get)) => hit.created || get.touch.is_some(),
            _ => true,
        }
    }

    /// Whether a repetition of the operation must be given this answer, as it could do or answer
    /// something else. A read that only could have changed the item need not: its answer, with the
    /// item's value, is neither cached nor replicated.
    pub fn must_be_cached(&self, verb: &ItemVerb) -> bool {
        match (self.outcome, verb) {
            (Outcome::Hit(hit), ItemVerb::Get(_)) => hit.created || hit.won,
            (Outcome::NotFound, ItemVerb::Get(_)) => false,
            _ => true,
        }
    }
}

impl From<Outcome> for ItemAnswer {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, item: None }
    }
}

/// Bytes of the value that an operation has added to. All of them were copied.
pub(crate) fn added_to_bytes(op: &ItemOp, outcome: &Outcome) -> usize {
    match (&op.verb, outcome) {
        (ItemVerb::Store(head, _), Outcome::Stored(written))
            if matches!(head.mode, StoreMode::Append | StoreMode::Prepend) =>
        {
            written.value_bytes
        }
        _ => 0,
    }
}

/// An item without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRecord {
    /// The value.
    pub value: Vec<u8>,
    /// The client's opaque 32 bits.
    pub flags: u32,
    /// The expiry.
    pub expiry: Expiry,
    /// Its CAS id; None if it has none.
    pub cas: Option<u64>,
    /// Whether a client has read it.
    pub fetched: bool,
    /// Whether it was invalidated.
    pub stale: bool,
    /// Whether a client was told to recache it.
    pub won: bool,
    /// Seconds since the last access; None if the engine does not know.
    pub idle_seconds: Option<u32>,
}

/// An item that moves to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovingItem {
    /// Its key.
    pub key: Vec<u8>,
    /// The flush generation when it was read, as in [`Now`]: an item read before a flush must not
    /// arrive after it.
    pub generation: u8,
    /// The item; None if it no longer exists.
    pub item: Option<ItemRecord>,
}

/// The time of items: the owner's clock, and the number of flushes of all items in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemTime {
    /// The time at which engines execute operations.
    pub now: Now,
    /// What [`Now::generation`] counts, but counted from the cluster's first flush.
    pub flushes: u64,
}

impl ItemTime {
    /// Second 1, before any flush.
    pub const FIRST: Self = Self { now: Now::at(1), flushes: 0 };

    /// The calendar time in seconds since 1970.
    pub fn unix_seconds(&self) -> i64 {
        self.now.epoch_unix_seconds + i64::from(self.now.seconds)
    }
}

/// An item as replicas keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaItem {
    /// Expiry in seconds since 1970; 0 for never.
    pub ends_unix_seconds: i64,
    /// Flushes in the cluster when it was replicated.
    pub flushes: u64,
    /// Its key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The client's opaque 32 bits.
    pub flags: u32,
    /// Its CAS id; None if it has none.
    pub cas: Option<u64>,
    /// Whether it was invalidated.
    pub stale: bool,
}

impl ReplicaItem {
    /// Whether it has expired by then, or was flushed.
    pub fn is_dead(&self, time: &ItemTime) -> bool {
        let has_ended = self.ends_unix_seconds > 0 && self.ends_unix_seconds <= time.unix_seconds();
        has_ended || self.flushes < time.flushes
    }
}

/// Converts an expiry of the owner's clock to a relative one.
pub fn to_relative(expiry: Expiry, now: &Now) -> Expiry {
    Expiry(expiry.remaining_seconds(now).map_or(0, |left| left.saturating_add(1)))
}

/// Converts a relative expiry to this clock.
pub fn from_relative(expiry: Expiry, now: &Now) -> Expiry {
    Expiry(expiry.0.checked_sub(1).map_or(0, |left| now.seconds.saturating_add(left).max(1)))
}

/// Maps the times in an outcome.
pub fn with_times(outcome: Outcome, change: impl Fn(Expiry) -> Expiry) -> Outcome {
    match outcome {
        Outcome::Hit(hit) => Outcome::Hit(Hit { expiry_before: change(hit.expiry_before), ..hit }),
        Outcome::Number(mut counted) => {
            counted.expiry = change(counted.expiry);
            counted.expiry_before = change(counted.expiry_before);
            Outcome::Number(counted)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_arrive_on_a_clock_that_differs() {
        let (here, there) = (Now::at(1_000), Now::at(7));
        for (sent, arrives) in [(0, 0), (1_100, 107), (1_001, 8), (999, 7), (u32::MAX, u32::MAX)] {
            let relative = to_relative(Expiry(sent), &here);
            let arrived = from_relative(relative, &there).0;
            assert!(arrived.abs_diff(arrives) <= 994 * u32::from(sent == u32::MAX), "{sent}");
        }
    }

    #[test]
    fn replica_items_expire_by_the_calendar_or_a_flush() {
        let mut kept = ReplicaItem {
            ends_unix_seconds: 1_050,
            flushes: 3,
            key: b"key".to_vec(),
            value: Vec::new(),
            flags: 0,
            cas: None,
            stale: false,
        };
        let at = |seconds, flushes| {
            let now = Now { epoch_unix_seconds: 1_000, ..Now::at(seconds) };
            ItemTime { now, flushes }
        };
        assert!(!kept.is_dead(&at(49, 3)) && kept.is_dead(&at(50, 3)));
        assert!(kept.is_dead(&at(1, 4)), "it was dropped");
        assert!(!kept.is_dead(&at(1, 2)), "by a node that is behind");
        kept.ends_unix_seconds = 0;
        assert!(!kept.is_dead(&at(5_000, 3)));
    }

    #[test]
    fn a_verb_survives_the_conversion() {
        let mut store = Store::new(StoreMode::Append, b"value", 7, -1);
        store.compare = Some(Compare { cas: 5, accepts_older_as_stale: true });
        let owned = ItemVerb::from(Verb::Store(store));
        let Some(Verb::Store(back)) = owned.as_verb() else { panic!("a store") };
        assert_eq!(ItemVerb::from(Verb::Store(back)), owned);
        assert!(owned.changes() && !ItemVerb::Read.changes());
        let touch = Get { touch: Some(3), ..Get::default() };
        assert!(!ItemVerb::Get(touch).changes(), "twice is as once");
        assert!(ItemVerb::Get(Get { vivify: Some(3), ..touch }).changes());
        assert!(ItemVerb::Get(touch).writes() && !ItemVerb::Get(Get::default()).writes());
    }
}
