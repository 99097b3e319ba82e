//! The policies of eviction that the engines know, and what a cache keeps of an item's reads for
//! them.

/// A policy that the engines know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// CLOCK with one recency bit.
    Clock,
    /// CLOCK with a count.
    GClock,
    /// CLOCK with a count, and new items that are not read leave sooner.
    Probation,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; POLICIES] = [Self::Clock, Self::GClock, Self::Probation];
}

/// The number of policies.
pub(super) const POLICIES: usize = 3;

// The numbers of `amalgam_index::mem`'s header: a change of the one is a change of the other.
const UNREAD: u8 = 0;
/// Read once, and not spared any more.
const ONCE: u8 = 1;
/// Read more than once, and not spared any more.
const AGAIN: u8 = 3;
/// How often the hand spares an item after its first read, and after any later one.
const SPARED_ONCE: u8 = 1;
const SPARED_AGAIN: u8 = 3;

/// The reads of an item since it was stored, and how often CLOCK's hand still spares it.
#[derive(Clone, Copy)]
pub(super) struct Reads(u8);

impl Reads {
    /// Those of an item that was just stored.
    pub(super) const NONE: Self = Self(UNREAD);

    /// Records a read.
    pub(super) fn add(&mut self) {
        self.0 = if self.is_some() { AGAIN + SPARED_AGAIN } else { ONCE + SPARED_ONCE };
    }

    /// Whether there were any.
    pub(super) fn is_some(self) -> bool {
        self.0 != UNREAD
    }

    /// Whether the hand spares the item, which is recorded.
    pub(super) fn spare(&mut self, policy: Policy) -> bool {
        if matches!(self.0, UNREAD | ONCE | AGAIN) {
            return false;
        }
        let least = if self.0 > AGAIN { AGAIN } else { ONCE };
        self.0 = if policy == Policy::Clock { least } else { self.0 - 1 };
        true
    }
}
