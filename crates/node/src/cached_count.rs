//! Counts that are expensive to take and often asked for.

use std::time::{Duration, Instant};

/// Counting takes at most 1/N of the time.
const COST_PARTS: u32 = 50;
/// The age at which a count is always taken again.
const AGE_MAX: Duration = Duration::from_secs(5);

/// The last count, which is returned again as long as a new one would cost too much.
#[derive(Debug, Default)]
pub struct CachedCount<T> {
    last: Option<(T, Instant)>,
}

impl<T: Copy> CachedCount<T> {
    /// The cached count, or a new one if that is not too expensive or the cached one too old.
    pub fn get(&mut self, clock: impl Fn() -> Instant, count: impl FnOnce() -> T) -> T {
        let begin = clock();
        match self.last {
            Some((counted, until)) if begin < until => counted,
            _ => {
                let counted = count();
                let end = clock();
                self.last = Some((counted, end + AGE_MAX.min((end - begin) * COST_PARTS)));
                counted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn expensive_counts_are_cached_longer() {
        let (now, counted) = (Cell::new(Instant::now()), Cell::new(0));
        let pass = |ms| now.set(now.get() + Duration::from_millis(ms));
        let mut cached = CachedCount::default();
        let mut count_after = |ms, takes_ms| {
            pass(ms);
            let count = || {
                pass(takes_ms);
                counted.set(counted.get() + 1);
                counted.get()
            };
            cached.get(|| now.get(), count)
        };
        // A count that takes no time is taken anew for each caller.
        assert_eq!([count_after(0, 0), count_after(0, 0), count_after(0, 10)], [1, 2, 3]);
        assert_eq!([count_after(0, 10), count_after(499, 10)], [3, 3], "one part in fifty");
        assert_eq!([count_after(1, 60_000), count_after(4_999, 0), count_after(1, 0)], [4, 4, 5]);
    }
}
