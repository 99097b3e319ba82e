//! Plain sets, the most frequent writes, decided without a look at the item that the key has.

use crate::{Decision, Expiry, ItemWrite, MetaFlags, Now, Op, Outcome, Part, StoreMode};
use crate::{Verb, Written};

/// A set that compares, chooses and tells no CAS id. It stores the same item whatever its key
/// holds, so an engine may build that item before it has found the key.
#[derive(Clone, Copy, Debug)]
pub struct PlainSet<'a> {
    /// The value to be stored.
    pub value: &'a [u8],
    /// The client's flags; see [`crate::ItemView::flags`].
    pub flags: u32,
    /// The time when the item expires; see [`crate::ItemView::expiry`].
    pub expiry: Expiry,
}

impl<'a> PlainSet<'a> {
    /// The plain set that `op` is, if it is one.
    #[inline]
    pub fn of(op: &Op<'a>, now: &Now) -> Option<Self> {
        let Verb::Store(store) = &op.verb else { return None };
        let expiry = Expiry::from_client(store.expiry, now);
        let set = Self { value: store.value, flags: store.flags, expiry };
        Self::is(&op.verb).then_some(set)
    }

    /// Whether `verb` is a plain set.
    #[inline]
    pub fn is(verb: &Verb<'_>) -> bool {
        let Verb::Store(store) = verb else { return false };
        store.mode == StoreMode::Set
            && store.compare.is_none()
            && store.new_cas.is_none()
            && !store.wants_cas
    }

    /// The outcome of the set, if it is not refused for want of memory.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        Outcome::Stored(Written { cas: None, value_bytes: self.value.len() })
    }

    /// The decision of [`crate::decide`] on the set, whatever the current item is.
    pub fn decision(&self) -> Decision<'a> {
        let item_write = ItemWrite {
            parts: [Part::Bytes(self.value), Part::Empty],
            flags: self.flags,
            expiry: self.expiry,
            cas: None,
            meta_flags: MetaFlags::default(),
        };
        Decision::Replace(item_write, self.outcome())
    }
}
