//! How often a worker yields its core.
//!
//! Where more workers are busy than there are cores, a waiting worker would otherwise wait until a
//! time slice ends, which takes milliseconds. On a machine that other programs keep busy a yield
//! gives the core to each of them in turn: it then costs more than it gains, and is made rarely.

use std::time::{Duration, Instant};

/// The number of iterations of a worker's loop between two yields while yields are short.
const LEAST_ITERATIONS: u32 = 4;

/// The number of iterations between two yields at most.
const MOST_ITERATIONS: u32 = 1 << 14;

/// A longer yield gave the core to other programs: another worker seldom runs for so long before it
/// waits for events or yields in turn.
const LONG_YIELD: Duration = Duration::from_micros(250);

/// Decides in which iterations a worker yields.
#[derive(Debug)]
pub struct Yielder {
    interval: u32,
    left: u32,
}

impl Default for Yielder {
    fn default() -> Self {
        Self { interval: LEAST_ITERATIONS, left: LEAST_ITERATIONS }
    }
}

impl Yielder {
    /// Yields the core if it is time to. Call it once an iteration.
    pub fn iterate(&mut self) {
        if self.is_due() {
            let start = Instant::now();
            std::thread::yield_now();
            self.learn(start.elapsed());
        }
    }

    fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// Doubles the interval after a long yield, and shortens it by a quarter after a short one: of
    /// a mixture no more than about two in seven are long.
    fn learn(&mut self, took: Duration) {
        let interval =
            if took > LONG_YIELD { self.interval * 2 } else { self.interval - self.interval / 4 };
        self.interval = interval.clamp(LEAST_ITERATIONS, MOST_ITERATIONS);
        self.left = self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of yields in `iterations` if each takes `took`.
    fn yields(yielder: &mut Yielder, iterations: u32, took: Duration) -> u32 {
        let mut yields = 0;
        for _ in 0..iterations {
            if yielder.is_due() {
                yielder.learn(took);
                yields += 1;
            }
        }
        yields
    }

    #[test]
    fn yields_are_frequent_while_they_are_short() {
        let mut yielder = Yielder::default();
        assert_eq!(yields(&mut yielder, 4000, Duration::from_micros(20)), 1000);
        // Other programs take the core: 12 yields until the interval is at its longest.
        let rare = yields(&mut yielder, 100_000, Duration::from_millis(60));
        assert!((13..20).contains(&rare), "{rare}");
        // They end: the interval gets shorter at each yield.
        let again = yields(&mut yielder, 80_000, Duration::from_micros(20));
        assert!(again > 1000, "{again}");
    }

    /// One yield in two is long: the interval is at its longest nevertheless.
    #[test]
    fn a_mixture_counts_as_long() {
        let mut yielder = Yielder::default();
        for took in [20, 500].repeat(200) {
            yielder.learn(Duration::from_micros(took));
        }
        assert!(yielder.interval > MOST_ITERATIONS / 2, "{}", yielder.interval);
    }
}
