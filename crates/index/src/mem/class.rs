//! Size classes: the slot size for an item of a given length.

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// Slot sizes above [`FINE_BYTES`] are multiples of this.
const COARSE_STEP: usize = 16;
/// Up to this size every multiple of the slot alignment (8 or 16 bytes) has a class.
const FINE_BYTES: usize = 256;
/// Above [`FINE_BYTES`] a class is an eighth larger than the one before: at most 11.1 % of a slot
/// is unused. It is up to 20 % of a slot of the longest class, of which a page holds 4, and 5 of
/// the one before.
const GROWTH_DIVISOR: usize = 8;
/// Slots of which a page holds at most this many are as long as they can be without there being
/// fewer: the end of the page would be lost.
const FEW_SLOTS: usize = 64;
/// The class of sizes up to this comes from a table; larger ones take a binary search.
const TABLE_BYTES: usize = 2048;

/// The slot sizes of an index.
pub(super) struct Classes {
    slot_bytes: Vec<u32>,
    /// The class of a size, indexed by the size in units of 8 bytes, rounded up.
    small: Vec<u8>,
}

impl Classes {
    /// Classes for slots aligned to `step`, which is 8 or 16, in pages of this length. A page holds
    /// at least `least_slots` of the longest.
    pub(super) fn new(step: usize, page_bytes: usize, least_slots: usize) -> Self {
        // The line of the bitmap is the first of the page.
        let fill = |slots: usize| (page_bytes - LINE_BYTES) / slots / COARSE_STEP * COARSE_STEP;
        let longest = |bytes: usize| match (page_bytes - LINE_BYTES) / bytes {
            slots if slots > FEW_SLOTS => bytes,
            slots => fill(slots),
        };
        let largest = fill(least_slots);
        let mut slot_bytes = Vec::new();
        let mut bytes = 24_usize.next_multiple_of(step);
        while bytes < largest {
            slot_bytes.push(longest(bytes) as u32);
            let grown = (bytes + bytes / GROWTH_DIVISOR) / COARSE_STEP * COARSE_STEP;
            bytes = if bytes < FINE_BYTES { bytes + step } else { grown };
        }
        slot_bytes.push(largest as u32);
        slot_bytes.dedup();
        assert!(slot_bytes.len() <= usize::from(u8::MAX), "class numbers fit a byte");
        let class_of = |bytes| slot_bytes.partition_point(|slot| (*slot as usize) < bytes);
        let limit = TABLE_BYTES.min(largest);
        let small = (0..=limit / 8).map(|index| class_of(index * 8) as u8).collect();
        Self { slot_bytes, small }
    }

    /// The smallest class whose slots hold `bytes`; None if the item is large.
    #[inline]
    pub(super) fn of(&self, bytes: usize) -> Option<usize> {
        if let Some(class) = self.small.get(bytes.div_ceil(8)) {
            return Some(usize::from(*class)).filter(|class| *class < self.slot_bytes.len());
        }
        let class = self.slot_bytes.partition_point(|slot| (*slot as usize) < bytes);
        (class < self.slot_bytes.len()).then_some(class)
    }

    pub(super) fn slot_bytes(&self, class: usize) -> usize {
        self.slot_bytes[class] as usize
    }

    pub(super) fn count(&self) -> usize {
        self.slot_bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_class_that_fits_is_chosen() {
        for step in [8, 16] {
            let classes = Classes::new(step, 2 << 20, 4);
            for bytes in (1..20_000).step_by(if cfg!(miri) { 61 } else { 1 }) {
                let class = classes.of(bytes).expect("below the largest");
                assert!(classes.slot_bytes(class) >= bytes);
                assert!(class == 0 || classes.slot_bytes(class - 1) < bytes);
            }
            let largest = ((2 << 20) - LINE_BYTES) / 4;
            assert_eq!(classes.of(largest + 1), None);
            assert!(classes.of(largest / 16 * 16).is_some());
            assert!(
                (0..classes.count()).all(|class| classes.slot_bytes(class).is_multiple_of(step))
            );
        }
    }
}
