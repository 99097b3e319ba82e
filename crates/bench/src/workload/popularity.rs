//! The distribution of requests over keys.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Zipf};

/// A distribution of ranks, of which 0 is the most popular.
///
/// Zipfian ranks are exact for every theta, above 1 too; YCSB's generator is an approximation that
/// holds below 1 only. The memory is constant at any count.
#[derive(Clone, Copy, Debug)]
pub enum Popularity {
    /// Every rank below the count is equally likely.
    Uniform(u64),
    /// Rank r with a probability proportional to 1 / (r + 1)^theta.
    Zipfian(u64, Zipf<f64>),
}

impl Popularity {
    /// A distribution of the ranks below `count` with skew `theta`; 0 is uniform.
    ///
    /// # Errors
    ///
    /// If `count` is 0, or `theta` is negative or not finite.
    pub fn new(count: u64, theta: f64) -> anyhow::Result<Self> {
        anyhow::ensure!(count > 0, "there must be at least one key");
        anyhow::ensure!(theta >= 0.0 && theta.is_finite(), "theta must be 0 or more");
        if theta == 0.0 {
            return Ok(Self::Uniform(count));
        }
        Ok(Self::Zipfian(count, Zipf::new(count as f64, theta)?))
    }

    /// Draws a rank.
    #[inline]
    pub fn draw(&self, random: &mut impl Rng) -> u64 {
        match self {
            Self::Uniform(count) => random.random_range(0..*count),
            // Rounding may move a sample one beyond either end.
            Self::Zipfian(count, zipf) => (zipf.sample(random) as u64).clamp(1, *count) - 1,
        }
    }
}

/// The share of accesses that goes to the hottest `part` (0 to 1) of `count` keys (HotRing, formula
/// 2).
pub fn share_of_top(count: u64, theta: f64, part: f64) -> f64 {
    let top = (count as f64 * part).round() as u64;
    harmonic(top, theta) / harmonic(count, theta)
}

/// The sum of 1 / k^theta for k up to `count`: exact terms, then Euler and Maclaurin.
fn harmonic(count: u64, theta: f64) -> f64 {
    let exact = count.min(10_000);
    let head: f64 = (1..=exact).map(|k| (k as f64).powf(-theta)).sum();
    if exact == count {
        return head;
    }
    let (from, to) = (exact as f64, count as f64);
    let integral = if theta == 1.0 {
        (to / from).ln()
    } else {
        (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta)
    };
    head + integral + (to.powf(-theta) - from.powf(-theta)) / 2.0
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    /// Chi-square of draws over rank ranges against theory. With 30 degrees of freedom a correct
    /// generator exceeds 80 once in a million seeds, and these seeds are fixed.
    #[test]
    fn ranks_follow_the_distribution() {
        const DRAWS: u64 = 400_000;
        for count in [1_000u64, 250_000_000] {
            for theta in [0.0, 0.2, 0.5, 0.7, 0.9, 0.99, 1.0, 1.11, 1.22, 1.5, 2.0] {
                let popularity = Popularity::new(count, theta).expect("valid");
                let mut random = SmallRng::seed_from_u64(7);
                let mut bounds: Vec<u64> = (0..9).collect();
                let ratio = (count as f64 / 8.0).powf(1.0 / 20.0);
                bounds.extend((1..=20).map(|i| (8.0 * ratio.powi(i)) as u64));
                *bounds.last_mut().expect("not empty") = count;
                let mut seen = vec![0u64; bounds.len() - 1];
                for _ in 0..DRAWS {
                    let rank = popularity.draw(&mut random);
                    assert!(rank < count);
                    seen[bounds.partition_point(|bound| *bound <= rank) - 1] += 1;
                }
                let total = harmonic(count, theta);
                let mut chi_square = 0.0;
                for (range, seen) in bounds.windows(2).zip(seen) {
                    let share = (harmonic(range[1], theta) - harmonic(range[0], theta)) / total;
                    let expected = share * DRAWS as f64;
                    if expected >= 5.0 {
                        chi_square += (seen as f64 - expected).powi(2) / expected;
                    } else {
                        assert!(seen < 40, "{seen} draws where {expected} were expected");
                    }
                }
                assert!(chi_square < 80.0, "count {count} theta {theta}: {chi_square}");
            }
        }
    }

    /// Table 2 of HotRing: the share of accesses that goes to the hottest part of 250 million
    /// keys. Three of its 36 entries (57.7, 71.9 and 82.2) contradict the formula that the paper
    /// states for them, by up to 2.9 points; there we follow the formula.
    #[test]
    fn hot_shares_are_those_that_hotring_prints() {
        const SHARES: [f64; 6] = [0.01, 0.1, 0.2, 0.3, 0.4, 0.5];
        const PRINTED: [(f64, [f64; 6]); 6] = [
            (0.5, [9.9, 31.6, 44.7, 54.8, 63.2, 70.7]),
            (0.7, [24.9, 50.0, 61.6, 69.6, 75.9, 81.2]),
            (0.9, [57.3, 76.2, 82.8, 86.9, 89.9, 92.2]),
            (0.99, [75.1, 87.4, 91.2, 93.4, 94.9, 96.2]),
            (1.11, [91.7, 96.4, 97.6, 98.2, 98.7, 99.0]),
            (1.22, [97.8, 99.2, 99.5, 99.6, 99.7, 99.8]),
        ];
        const KEYS: u64 = 250_000_000;
        const DRAWS: u32 = 200_000;
        for (theta, printed) in PRINTED {
            for (share, printed) in SHARES.into_iter().zip(printed) {
                assert!((100.0 * share_of_top(KEYS, theta, share) - printed).abs() < 0.15);
            }
            let popularity = Popularity::new(KEYS, theta).expect("valid");
            let mut random = SmallRng::seed_from_u64(11);
            let mut seen = [0u32; 6];
            for _ in 0..DRAWS {
                let place = popularity.draw(&mut random) as f64 / KEYS as f64;
                for (seen, share) in seen.iter_mut().zip(SHARES) {
                    *seen += u32::from(place < share);
                }
            }
            for ((seen, share), printed) in seen.iter().zip(SHARES).zip(printed) {
                let percent = f64::from(*seen) * 100.0 / f64::from(DRAWS);
                // Four standard errors of 200,000 draws are at most 0.45 points.
                assert!(
                    (percent - printed).abs() < 0.45,
                    "theta {theta}, top {share}: {percent} where the table has {printed}"
                );
            }
        }
    }
}
