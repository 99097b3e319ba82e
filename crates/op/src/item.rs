//! An item as an engine shows it to [`crate::decide`] and to the response being built.

use crate::Expiry;

/// The value of an item, as one consistent read found it.
#[derive(Clone, Copy, Debug)]
pub enum Value<'g> {
    /// A value of at most 8 bytes, loaded in one atomic read (the item's in-place word). The first
    /// `usize` bytes count.
    Word([u8; 8], usize),
    /// A longer value. It never changes after publication; the guard keeps it in memory.
    Bytes(&'g [u8]),
}

impl Value<'_> {
    /// The bytes of the value.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Word(bytes, length) => &bytes[..*length],
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Word(_, length) => *length,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An item under an engine's guard: one consistent state of it.
#[derive(Clone, Copy, Debug)]
pub struct ItemView<'g> {
    /// The item's full key.
    pub key: &'g [u8],
    /// The item's value.
    pub value: Value<'g>,
    /// The client's opaque 32 bits.
    pub flags: u32,
    /// The time when the item expires.
    pub expiry: Expiry,
    /// The item's CAS id, if a client ever asked for one since it was last written.
    pub cas: Option<u64>,
    /// The flush generation the item was written under.
    pub generation: u8,
    /// Whether a client has read the item since it was written (meta `h`).
    pub fetched: bool,
    /// Whether the item was invalidated but may still be served (meta `X`).
    pub stale: bool,
    /// Whether a client was told to recache the item (meta `W`, later `Z`).
    pub won: bool,
    /// The second of the last access before this one, in [`crate::Now::seconds`] (meta `l`).
    /// None if the engine does not keep it. An engine that keeps only its low bits takes the others
    /// from the current time.
    pub last_access_seconds: Option<u32>,
}
