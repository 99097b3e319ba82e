//! A permutation of the numbers below a bound, which spreads popular keys over memory.

use amalgam_op::mix64;

/// A permutation of `0..count` that takes constant memory and differs from seed to seed.
///
/// Popular ranks are small numbers, and keys are loaded in the order of their ids: without this
/// step the hottest items would lie side by side in memory.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    mask: u64,
    shift: u32,
    multipliers: [u64; 3],
}

impl Permutation {
    /// A permutation of `0..count`.
    ///
    /// # Panics
    ///
    /// If `count` is 0 or above 2^63.
    pub fn new(count: u64, seed: u64) -> Self {
        assert!(count > 0 && count <= 1 << 63, "cannot permute {count} numbers");
        let bits = count.next_power_of_two().trailing_zeros().max(2);
        let multiplier = |i: u64| mix64(seed.wrapping_mul(3).wrapping_add(i)) | 1;
        Self {
            count,
            mask: (1 << bits) - 1,
            shift: bits / 2,
            multipliers: [multiplier(0), multiplier(1), multiplier(2)],
        }
    }

    /// The image of `number`.
    ///
    /// # Panics
    ///
    /// If `number` is not below the count.
    pub fn apply(&self, number: u64) -> u64 {
        assert!(number < self.count, "{number} lies outside of the permutation");
        // Cycle walking: a permutation of the next power of two is applied until the result is
        // below `count`. That takes fewer than two steps on average, because more than half of the
        // numbers are below `count` (of the smallest bounds a quarter).
        let mut place = number;
        loop {
            place = self.permute_bits(place);
            if place < self.count {
                return place;
            }
        }
    }

    /// A bijection on the bits of the power of two: odd multiplications, additions and shifted
    /// exclusive-ors are each invertible.
    fn permute_bits(&self, number: u64) -> u64 {
        self.multipliers.iter().fold(number, |x, multiplier| {
            let x = x.wrapping_mul(*multiplier).wrapping_add(*multiplier >> 7) & self.mask;
            x ^ (x >> self.shift)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_taken_once() {
        for count in [1, 2, 3, 4, 5, 7, 8, 100, 1000, 1024, 1025] {
            let scatter = Permutation::new(count, count ^ 17);
            let mut places: Vec<u64> = (0..count).map(|number| scatter.apply(number)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count), "count {count}");
        }
    }

    #[test]
    fn seeds_and_neighbours_differ() {
        let count = 1 << 20;
        let one = Permutation::new(count, 1);
        let two = Permutation::new(count, 2);
        let agreeing = (0..1000).filter(|rank| one.apply(*rank) == two.apply(*rank)).count();
        assert!(agreeing < 5, "{agreeing} of 1000 ranks agree between two seeds");
        let near =
            (1..1000).filter(|rank| one.apply(*rank).abs_diff(one.apply(*rank - 1)) < 1024).count();
        assert!(near < 20, "{near} of 1000 neighbours stayed near each other");
    }
}
