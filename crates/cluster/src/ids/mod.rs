//! Identifiers of chunks and nodes.
//!
//! Invariants of this module:
//! 1. A chunk id is a creator (16 bits) and that creator's counter (48 bits), so the ids that a
//!    node allocates are consecutive (DXRAM, section 2.1).
//! 2. 0xFFFF is neither a node nor a creator. So one past the last id still fits 64 bits, and a
//!    placement can mark a missing backup.
//! 3. An [`IdRange`] is not empty and has one creator.

mod allocator;

pub use allocator::{AllocatorError, IdAllocator};

use std::fmt;

/// Bits of the counter in an id.
pub const COUNTER_BITS: u32 = 48;
/// The largest counter.
pub const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;
/// The first creator that is a partition of the named ids rather than a node.
pub const NAMED_FIRST: u16 = 0xF000;
/// Partitions of the named ids. The last 16-bit number is reserved, so its hashes go to the
/// partition before it.
pub const PARTITIONS: u16 = NOBODY - NAMED_FIRST;
/// The reserved 16-bit number.
const NOBODY: u16 = u16::MAX;

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u16);

impl NodeId {
    /// # Errors
    ///
    /// [`IdError::Reserved`] for 0xFFFF.
    pub const fn new(number: u16) -> Result<Self, IdError> {
        if number == NOBODY { Err(IdError::Reserved) } else { Ok(Self(number)) }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The creator of an id: a node, or a partition of the named ids. It is not always the chunk's
/// owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Creator(u16);

impl Creator {
    /// # Errors
    ///
    /// [`IdError::Reserved`] for 0xFFFF.
    pub const fn new(number: u16) -> Result<Self, IdError> {
        if number == NOBODY { Err(IdError::Reserved) } else { Ok(Self(number)) }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether it is a partition of the named ids.
    #[inline]
    pub const fn is_named(self) -> bool {
        self.0 >= NAMED_FIRST
    }

    /// All partitions of the named ids.
    pub fn partitions() -> impl Iterator<Item = Self> {
        (NAMED_FIRST..NOBODY).map(Self)
    }

    /// All ids of the creator.
    pub const fn ids(self) -> IdRange {
        let first = (self.0 as u64) << COUNTER_BITS;
        IdRange { first: ChunkId(first), last: ChunkId(first | COUNTER_MAX) }
    }
}

impl From<NodeId> for Creator {
    fn from(node: NodeId) -> Self {
        Self(node.0)
    }
}

/// The id of a chunk: its creator in the upper 16 bits, a counter in the lower 48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(u64);

impl ChunkId {
    /// # Errors
    ///
    /// [`IdError::CounterTooLarge`] above [`COUNTER_MAX`].
    pub const fn new(creator: Creator, counter: u64) -> Result<Self, IdError> {
        if counter > COUNTER_MAX {
            return Err(IdError::CounterTooLarge);
        }
        Ok(Self((creator.0 as u64) << COUNTER_BITS | counter))
    }

    /// The id with these bits, as on the wire.
    ///
    /// # Errors
    ///
    /// [`IdError::Reserved`] if the creator is 0xFFFF.
    pub const fn from_bits(bits: u64) -> Result<Self, IdError> {
        if bits >= END { Err(IdError::Reserved) } else { Ok(Self(bits)) }
    }

    /// The named id of a key with this hash; it determines the item's owner. It does not identify
    /// the item, the full key does.
    #[inline]
    pub const fn named(hash: u64) -> Self {
        let partition = (hash >> COUNTER_BITS) as u16 >> 4;
        let partition = if partition < PARTITIONS { partition } else { PARTITIONS - 1 };
        let creator = (NAMED_FIRST + partition) as u64;
        Self(creator * (COUNTER_MAX + 1) + (hash & COUNTER_MAX))
    }

    /// The bits of the id, as on the wire.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The creator.
    #[inline]
    pub const fn creator(self) -> Creator {
        Creator((self.0 >> COUNTER_BITS) as u16)
    }

    /// The counter of the creator.
    #[inline]
    pub const fn counter(self) -> u64 {
        self.0 & COUNTER_MAX
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}", self.creator().0, self.counter())
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One past the largest id, in bits.
pub(crate) const END: u64 = (NOBODY as u64) << COUNTER_BITS;

/// Consecutive ids of one creator, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdRange {
    first: ChunkId,
    last: ChunkId,
}

impl IdRange {
    /// From `first` to `last`, both included.
    ///
    /// # Errors
    ///
    /// [`IdError::Empty`] if `last` is before `first`, [`IdError::TwoCreators`] if they differ in
    /// their creator.
    pub const fn new(first: ChunkId, last: ChunkId) -> Result<Self, IdError> {
        if last.0 < first.0 {
            return Err(IdError::Empty);
        }
        if first.creator().0 != last.creator().0 {
            return Err(IdError::TwoCreators);
        }
        Ok(Self { first, last })
    }

    /// `length` ids from `first` on.
    ///
    /// # Errors
    ///
    /// [`IdError::Empty`] for length 0, [`IdError::CounterTooLarge`] if the range ends beyond the
    /// creator's last counter.
    pub const fn starting_at(first: ChunkId, length: u64) -> Result<Self, IdError> {
        if length == 0 {
            return Err(IdError::Empty);
        }
        if length - 1 > COUNTER_MAX - first.counter() {
            return Err(IdError::CounterTooLarge);
        }
        Ok(Self { first, last: ChunkId(first.0 + (length - 1)) })
    }

    /// A range of one id.
    #[inline]
    pub const fn single(id: ChunkId) -> Self {
        Self { first: id, last: id }
    }

    /// The ids from `start` to before `end`. Requires: they form a range.
    pub(crate) fn from_bits(start: u64, end: u64) -> Self {
        debug_assert!(start < end && end <= END && start >> COUNTER_BITS == (end - 1) >> 48);
        Self { first: ChunkId(start), last: ChunkId(end - 1) }
    }

    /// The ids of a span, cut where creators end.
    pub(crate) fn cut(span: std::ops::Range<u64>) -> impl Iterator<Item = Self> {
        let creators = span.start >> COUNTER_BITS..=(span.end - 1) >> COUNTER_BITS;
        creators.map(move |creator| {
            let first = creator << COUNTER_BITS;
            Self::from_bits(span.start.max(first), span.end.min((first | COUNTER_MAX) + 1))
        })
    }

    /// The first id.
    #[inline]
    pub const fn first(self) -> ChunkId {
        self.first
    }

    /// The last id.
    #[inline]
    pub const fn last(self) -> ChunkId {
        self.last
    }

    /// Number of ids; at least one.
    #[expect(clippy::len_without_is_empty, reason = "no range is empty")]
    pub const fn len(self) -> u64 {
        self.last.0 - self.first.0 + 1
    }

    /// Whether `id` is one of them.
    pub const fn contains(self, id: ChunkId) -> bool {
        self.first.0 <= id.0 && id.0 <= self.last.0
    }

    /// Whether both have an id in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start() < other.end() && other.start() < self.end()
    }

    /// The first id's bits.
    #[inline]
    pub(crate) const fn start(self) -> u64 {
        self.first.0
    }

    /// One past the last id's bits.
    #[inline]
    pub(crate) const fn end(self) -> u64 {
        self.last.0 + 1
    }
}

impl fmt::Debug for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.first, self.last.counter())
    }
}

/// The reason for which something is not an id or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdError {
    /// 0xFFFF is reserved.
    Reserved,
    /// A counter has 48 bits.
    CounterTooLarge,
    /// A range holds at least one id.
    Empty,
    /// A range has one creator.
    TwoCreators,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reserved => "0xffff names neither a node nor a creator",
            Self::CounterTooLarge => "the counter of an id has 48 bits",
            Self::Empty => "a range of ids ends before it begins",
            Self::TwoCreators => "a range of ids has two creators",
        })
    }
}

impl std::error::Error for IdError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_creator_and_a_counter() {
        let creator = Creator::new(0xF00D).expect("a creator");
        let id = ChunkId::new(creator, 0xABCD).expect("an id");
        assert_eq!((id.bits(), id.counter()), (0xF00D_0000_0000_ABCD, 0xABCD));
        assert_eq!((id.creator(), ChunkId::from_bits(id.bits())), (creator, Ok(id)));
        assert_eq!(id.to_string(), "f00d:43981");
        assert_eq!(Creator::from(NodeId::new(7).expect("a node")).get(), 7);
    }

    #[test]
    fn every_hash_has_a_named_id() {
        for hash in [0, 1, u64::MAX, u64::MAX - 1, 0x1234_5678_9ABC_DEF0] {
            let id = ChunkId::named(hash);
            assert!(id.creator().is_named() && ChunkId::from_bits(id.bits()) == Ok(id));
            assert_eq!(id.counter(), hash & COUNTER_MAX);
        }
        assert_eq!(Creator::partitions().count(), usize::from(PARTITIONS));
        assert!(Creator::partitions().all(|partition| partition.ids().len() == COUNTER_MAX + 1));
        assert_ne!(ChunkId::named(0).creator(), ChunkId::named(1 << 52).creator());
    }

    #[test]
    fn invalid_ids_are_refused() {
        assert_eq!(NodeId::new(u16::MAX), Err(IdError::Reserved));
        assert_eq!(Creator::new(u16::MAX), Err(IdError::Reserved));
        for bits in [u64::MAX, END] {
            assert_eq!(ChunkId::from_bits(bits), Err(IdError::Reserved));
        }
        let creator = Creator::new(0xFFFE).expect("a creator");
        assert_eq!(ChunkId::new(creator, COUNTER_MAX + 1), Err(IdError::CounterTooLarge));
        assert!(ChunkId::new(creator, COUNTER_MAX).is_ok_and(|id| id.bits() == END - 1));
    }

    #[test]
    fn invalid_ranges_are_refused() {
        let id = |bits| ChunkId::from_bits(bits).expect("an id");
        assert_eq!(IdRange::new(id(5), id(4)), Err(IdError::Empty));
        assert_eq!(IdRange::new(id(5), id(5 << 48)), Err(IdError::TwoCreators));
        assert_eq!(IdRange::starting_at(id(5), 0), Err(IdError::Empty));
        let past = COUNTER_MAX - 5 + 2;
        assert_eq!(IdRange::starting_at(id(5), past), Err(IdError::CounterTooLarge));
        assert_eq!(IdRange::starting_at(id(5), u64::MAX), Err(IdError::CounterTooLarge));
        let whole = IdRange::starting_at(id(5), past - 1).expect("a range");
        assert_eq!((whole.last().counter(), whole.len()), (COUNTER_MAX, past - 1));
        assert!(whole.contains(id(5)) && !whole.contains(id(4)));
    }
}
