//! The result of an operation.

use crate::Expiry;

/// The answer to an [`crate::Op`]. Where an outcome has an item to show (a hit of a `Get`), the
/// engine hands the item to the caller's sink before it returns the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A read found the item; it went to the sink.
    Hit(Hit),
    /// The key holds no item.
    NotFound,
    /// The value was written.
    Stored(Written),
    /// The mode refused: `add` of a present key, `replace`, `append` or `prepend` of a missing one.
    NotStored,
    /// The item's CAS id is not the one that the client sent.
    Exists,
    /// The item was removed.
    Deleted,
    /// The item stayed but was marked or emptied (meta delete with `I` or `x`).
    Invalidated,
    /// The item holds a new number.
    Number(Counted),
    /// `incr` or `decr` of a value that is not a decimal number below 2^64.
    NotANumber,
    /// The item would be longer than the index accepts.
    TooLarge,
    /// No memory: the index refuses new items, or nothing could be evicted in bounded time.
    OutOfMemory,
    /// The machine that holds the item could not be asked: nothing was read or changed.
    Unavailable,
    /// The machine that holds the item was asked and did not answer in time: the operation may have
    /// been executed, and will not be from now on.
    Unknown,
}

/// An item as a store left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The item's CAS id where one was asked for.
    pub cas: Option<u64>,
    /// Length of the whole value in bytes, after append and prepend too (meta `s`).
    pub value_bytes: usize,
}

/// An item as arithmetic left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The number that the item holds now.
    pub number: u64,
    /// The item was created by this operation.
    pub created: bool,
    /// The item's CAS id where one was asked for.
    pub cas: Option<u64>,
    /// The time when the item expires, or that the client asked for where the number got longer.
    pub expiry: Expiry,
    /// When the item ended before this operation (meta `t` ahead of `T`).
    pub expiry_before: Expiry,
}

/// The details of a hit of a `Get`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// This client should recache the item (meta `W`).
    pub won: bool,
    /// Another client was asked to before (meta `Z`).
    pub already_won: bool,
    /// The item was invalidated (meta `X`).
    pub stale: bool,
    /// The item was created by this operation.
    pub created: bool,
    /// When the item ended before this operation (meta `t` ahead of `T`).
    pub expiry_before: Expiry,
}
