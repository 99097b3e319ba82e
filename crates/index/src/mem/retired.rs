//! Memory that was unlinked and waits for its grace period.

use super::ItemRef;

/// An item, or an emptied page (odd number), that waits for its grace period.
#[derive(Clone, Copy)]
pub(super) struct Retired(u64);

impl Retired {
    pub(super) fn item(item: ItemRef) -> Self {
        Self(item.to_bits())
    }

    pub(super) fn page(page: u32) -> Self {
        Self(u64::from(page) << 1 | 1)
    }

    /// The item; None for a page.
    pub(super) fn as_item(self) -> Option<ItemRef> {
        ItemRef::from_bits(self.0).filter(|_| self.0 & 1 == 0)
    }

    /// The number of the page. Requires: it is no item.
    pub(super) fn as_page(self) -> u32 {
        (self.0 >> 1) as u32
    }
}

/// A batch of retired memory that waits for the same grace period.
pub(super) struct Bag {
    pub(super) epoch: u64,
    pub(super) retired: Vec<Retired>,
    pub(super) bytes: usize,
}
