//! Items.

/// Names an item: the distance of its header from the start of the arena, in bytes. Fits 48 bits;
/// never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ItemRef(std::num::NonZeroU64);

impl ItemRef {
    /// The reference in 48 bits, as index words hold it.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The reference that `bits` holds, or none for 0.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        std::num::NonZeroU64::new(bits).map(Self)
    }
}
