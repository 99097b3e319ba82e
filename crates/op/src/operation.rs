//! Operations that clients request, independent of any wire format.

use crate::Key;

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub struct Op<'a> {
    /// The key that the operation concerns.
    pub key: Key<'a>,
    /// What the operation does with the item of the key.
    pub verb: Verb<'a>,
}

/// The verbs of all memcached protocols. Expiry times are as the client sent them; they are read
/// against [`crate::Now`] when the operation runs.
#[derive(Clone, Copy, Debug)]
pub enum Verb<'a> {
    /// A read with side effects or of more than the value: gets, gat, gats, touch, meta get with
    /// any of `N T R u l h`. A plain get goes through the engine's batched read and is no `Op`.
    Get(Get),
    /// A set, add, replace, append, prepend, cas or meta set.
    Store(Store<'a>),
    /// An incr, a decr or meta arithmetic.
    Arithmetic(Arithmetic),
    /// A delete or a meta delete.
    Delete(Delete),
}

impl Verb<'_> {
    /// Whether the item's CAS id is compared, or told to the client.
    pub fn uses_cas(&self) -> bool {
        match self {
            Self::Get(get) => get.wants_cas,
            Self::Store(store) => store.wants_cas || store.compare.is_some(),
            Self::Arithmetic(arithmetic) => arithmetic.wants_cas || arithmetic.compare.is_some(),
            Self::Delete(delete) => delete.compare.is_some(),
        }
    }

    /// Whether the outcome depends on the item that the key has: that of a plain set does not.
    pub fn depends_on_item(&self) -> bool {
        match self {
            Self::Store(store) => store.mode != StoreMode::Set || store.compare.is_some(),
            Self::Get(_) | Self::Arithmetic(_) | Self::Delete(_) => true,
        }
    }
}

/// A read that may change the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get {
    /// Set the expiry to this (touch, gat, meta `T`).
    pub touch: Option<i64>,
    /// Create an empty item with this expiry on a miss (meta `N`).
    pub vivify: Option<i64>,
    /// Hand out the right to recache when fewer seconds than this remain (meta `R`).
    pub recache_below_seconds: Option<i64>,
    /// Give the item a CAS id if it has none (gets, gats, meta `c`, binary).
    pub wants_cas: bool,
    /// The CAS id for an item that this operation creates (meta `E`).
    pub new_cas: Option<u64>,
    /// Tell the client whose read creates the item, and the first that asks for a stale one, to
    /// recache it (every meta get that is not refused).
    pub checks_stale: bool,
    /// `recache_below_seconds` looks at the expiry that `touch` set, not at the one before.
    pub touches_before_recache: bool,
    /// Leave what is known of the item's reads unchanged (meta `u`).
    pub is_quiet_access: bool,
}

/// Which items a store accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Whether the item exists or not.
    Set,
    /// Only if the item does not exist.
    Add,
    /// Only if the item exists.
    Replace,
    /// Only if the item exists: the value is appended to its value.
    Append,
    /// Only if the item exists: the value is prepended to its value.
    Prepend,
}

/// How an operation compares CAS ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The id that the item must have.
    pub cas: u64,
    /// A compare that fails because the client's id is *older* stores or marks the item stale
    /// instead of refusing (meta `I`).
    pub accepts_older_as_stale: bool,
}

/// A write of a value.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a> {
    /// The condition under which the store is accepted.
    pub mode: StoreMode,
    /// The value to be stored.
    pub value: &'a [u8],
    /// The client's opaque 32 bits (append and prepend keep the item's).
    pub flags: u32,
    /// The expiry as the client sent it (append and prepend keep the item's).
    pub expiry: i64,
    /// Compare CAS ids first; None stores without a comparison. With it, a miss in mode `Set` is an
    /// error, as in `cas`.
    pub compare: Option<Compare>,
    /// Append or prepend to a missing key creates it with this expiry (meta `N`).
    pub vivify: Option<i64>,
    /// Answer with the new CAS id, so give the item one.
    pub wants_cas: bool,
    /// The CAS id to give (meta `E`).
    pub new_cas: Option<u64>,
}

impl<'a> Store<'a> {
    /// A plain store of `value` under `mode`.
    pub fn new(mode: StoreMode, value: &'a [u8], flags: u32, expiry: i64) -> Self {
        Self {
            mode,
            value,
            flags,
            expiry,
            compare: None,
            vivify: None,
            wants_cas: false,
            new_cas: None,
        }
    }
}

/// Addition to, or subtraction from, a value of decimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// The amount to add or subtract.
    pub delta: u64,
    /// Subtract, stopping at 0; an addition wraps at 2^64.
    pub is_decrement: bool,
    /// On a miss create the item with this number (meta `J` with `N`, binary).
    pub initial: Option<u64>,
    /// The expiry of an item that is created with `initial`.
    pub initial_expiry: i64,
    /// Set the expiry to this, unless the number gets longer (meta `T`).
    pub touch: Option<i64>,
    /// The id that the item must have.
    pub compare: Option<u64>,
    /// Answer with the new CAS id, so give the item one.
    pub wants_cas: bool,
    /// The CAS id to give, unless the number gets longer (meta `E`).
    pub new_cas: Option<u64>,
}

/// Removal of an item, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// The id that the item must have.
    pub compare: Option<u64>,
    /// Mark the item stale instead of removing it (meta `I`).
    pub marks_stale: bool,
    /// Empty the value and clear the flags instead of removing the item (meta `x`).
    pub drops_value: bool,
    /// The flags of an item whose value was dropped (meta `F`).
    pub flags: u32,
    /// With `marks_stale` or `drops_value`: set the expiry to this (meta `T`). An item whose value
    /// was dropped does not expire without it.
    pub touch: Option<i64>,
    /// The CAS id to give an item that stays (meta `E`).
    pub new_cas: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_set_does_not_depend_on_the_item() {
        let set = Store::new(StoreMode::Set, b"", 0, 0);
        let compare = Some(Compare { cas: 1, accepts_older_as_stale: false });
        for (verb, depends) in [
            (Verb::Store(set), false),
            (Verb::Store(Store { wants_cas: true, ..set }), false),
            (Verb::Store(Store { compare, ..set }), true),
            (Verb::Store(Store { mode: StoreMode::Add, ..set }), true),
            (Verb::Store(Store { mode: StoreMode::Append, ..set }), true),
            (Verb::Get(Get::default()), true),
            (Verb::Arithmetic(Arithmetic::default()), true),
            (Verb::Delete(Delete::default()), true),
        ] {
            assert_eq!(verb.depends_on_item(), depends, "{verb:?}");
        }
    }

    #[test]
    fn an_id_is_used_if_it_is_compared_or_told() {
        let set = Store::new(StoreMode::Set, b"", 0, 0);
        let compare = Some(Compare { cas: 1, accepts_older_as_stale: false });
        let (count, compared) = (Arithmetic::default(), Some(1));
        for (verb, uses) in [
            (Verb::Get(Get::default()), false),
            (Verb::Get(Get { wants_cas: true, ..Get::default() }), true),
            (Verb::Store(set), false),
            (Verb::Store(Store { wants_cas: true, ..set }), true),
            (Verb::Store(Store { compare, ..set }), true),
            (Verb::Arithmetic(count), false),
            (Verb::Arithmetic(Arithmetic { wants_cas: true, ..count }), true),
            (Verb::Arithmetic(Arithmetic { compare: compared, ..count }), true),
            (Verb::Delete(Delete::default()), false),
            (Verb::Delete(Delete { compare: compared, ..Delete::default() }), true),
        ] {
            assert_eq!(verb.uses_cas(), uses, "{verb:?}");
        }
    }
}
