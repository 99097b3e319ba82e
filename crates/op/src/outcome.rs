//! What became of an operation.

/// The answer to an [`crate::Op`]. Where an outcome has an item to show (a hit of a `Get`), the
/// engine hands the item to the caller's sink before it returns the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A read found the item; it went to the sink.
    Hit(Hit),
    /// The key holds no item.
    NotFound,
    /// The value was written; the item's CAS id where one was asked for.
    Stored(Option<u64>),
    /// The mode refused: `add` of a present key, `replace`, `append` or `prepend` of a missing one.
    NotStored,
    /// The CAS ids differ.
    Exists,
    /// The item is gone.
    Deleted,
    /// The item stayed but was marked or emptied (meta delete with `I` or `x`).
    Invalidated,
    /// The new number, and the item's CAS id where one was asked for.
    Number(u64, Option<u64>),
    /// `incr` or `decr` of something that is no decimal number below 2^64.
    NotANumber,
    /// The item would be longer than the index accepts.
    TooLarge,
    /// No memory: the index refuses new items, or nothing could be evicted in bounded time.
    OutOfMemory,
}

/// How a `Get` hit.
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
}
