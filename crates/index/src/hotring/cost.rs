//! The cost of a worker's accesses: the number of items visited beyond those that heads led to, on
//! average over some thousands of requests. A high average calls for a rehash (section 3.4); an
//! average clearly above the usual one means that other keys have become popular, to which heads
//! should move soon.
//!
//! Thread safety: a `Cost` belongs to one worker.

/// The number of requests in one average.
const REQUESTS: u32 = 4096;
/// An average is surprising if it exceeds the usual one by more than 1/SURPRISE of it and by more
/// than [`NOISE`].
const SURPRISE: u32 = 4;
/// The smallest relevant difference of averages, in items per [`REQUESTS`].
const NOISE: u32 = REQUESTS / 32;
/// A surprise ends, as heads have found the new keys, when the average exceeds the usual one by at
/// most 1/CALM of it.
const CALM: u32 = 16;
/// After this many averages, 32 million requests, a surprising average becomes the usual one.
const MOST_SURPRISING: u32 = 8192;

#[derive(Default)]
pub(super) struct Cost {
    /// The worker's number of requests when the current average began.
    since: u32,
    /// The items visited since.
    visited: u32,
    /// The usual average, in items per [`REQUESTS`]; 0 at first, so that the first averages are
    /// surprising.
    usual: u32,
    /// The number of averages that may still be surprising; 0 if the last one was not.
    surprising: u32,
}

impl Cost {
    /// Adds the `visited` items of the worker's `requests`-th request. Returns whether the average
    /// is complete.
    #[inline]
    pub(super) fn note(&mut self, visited: u32, requests: u32) -> bool {
        self.visited = self.visited.wrapping_add(visited);
        requests.wrapping_sub(self.since) >= REQUESTS
    }

    /// Whether heads probably still lead to keys that were popular before.
    #[inline]
    pub(super) fn is_surprising(&self) -> bool {
        self.surprising > 0
    }

    /// Ends the average at the worker's `requests`-th request. Returns the number of items visited,
    /// and the number of requests.
    pub(super) fn conclude(&mut self, requests: u32) -> (u32, u32) {
        let visited = std::mem::take(&mut self.visited);
        let count = requests.wrapping_sub(self.since);
        self.since = requests;
        // A batch may end an average late.
        let average = u64::from(visited) * u64::from(REQUESTS) / u64::from(count.max(1));
        self.compare(u32::try_from(average).unwrap_or(u32::MAX));
        (visited, count)
    }

    fn compare(&mut self, average: u32) {
        let above = average.saturating_sub(self.usual);
        if self.surprising == 0 {
            if above > self.usual / SURPRISE + NOISE {
                self.surprising = MOST_SURPRISING;
            } else {
                self.usual = (u64::from(self.usual) * 7 + u64::from(average)).div_ceil(8) as u32;
            }
        } else {
            self.surprising -= 1;
            if above <= self.usual / CALM {
                self.surprising = 0;
            } else if self.surprising == 0 {
                self.usual = average;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Averages of `items` a request, `count` times.
    fn averages(cost: &mut Cost, items: u32, count: u32) {
        for _ in 0..count {
            let mut requests = cost.since;
            loop {
                requests = requests.wrapping_add(1);
                if cost.note(items, requests) {
                    break;
                }
            }
            assert_eq!(cost.conclude(requests), (items * REQUESTS, REQUESTS));
        }
    }

    #[test]
    fn a_rise_is_surprising_until_it_is_over_or_usual() {
        let mut cost = Cost::default();
        averages(&mut cost, 4, MOST_SURPRISING);
        assert!(cost.is_surprising());
        averages(&mut cost, 4, 1);
        assert!(!cost.is_surprising(), "it was for long");

        averages(&mut cost, 5, 1);
        assert!(!cost.is_surprising(), "a quarter more");
        averages(&mut cost, 4, 100);
        averages(&mut cost, 6, 1);
        assert!(cost.is_surprising());
        averages(&mut cost, 5, 100);
        assert!(cost.is_surprising(), "not back yet");
        averages(&mut cost, 4, 1);
        assert!(!cost.is_surprising());
    }

    #[test]
    fn a_fall_is_the_usual_soon() {
        let mut cost = Cost { usual: 8 * REQUESTS, ..Cost::default() };
        averages(&mut cost, 1, 40);
        assert!(!cost.is_surprising());
        averages(&mut cost, 2, 1);
        assert!(cost.is_surprising());
    }

    #[test]
    fn requests_wrap_around() {
        let mut cost = Cost { since: u32::MAX - 5, ..Cost::default() };
        averages(&mut cost, 1, 2);
        assert_eq!(cost.since, 2 * REQUESTS - 6);
    }
}
