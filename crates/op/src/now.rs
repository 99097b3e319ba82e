//! The server's time, sampled once per batch and passed down as an argument.

/// 30 days in seconds. memcached reads an expiry up to this as relative, and a larger one as Unix
/// time.
const LONGEST_RELATIVE_SECONDS: i64 = 60 * 60 * 24 * 30;

/// How far an item's flush generation may lie behind before it cannot be distinguished from one
/// that lies ahead. A sweep must have removed older items by then.
const GENERATIONS: u8 = 64;

/// The time at which a batch runs.
///
/// It must be sampled after the requests of the batch were received: then no request that a client
/// sent after another client's `flush_all` was answered runs under the old generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Seconds since [`Now::epoch_unix_seconds`]; never 0, and never decreasing.
    pub seconds: u32,
    /// The Unix time at which `seconds` was 0, in seconds.
    pub epoch_unix_seconds: i64,
    /// Counts `flush_all`, modulo 64. An item written under an older generation is dead.
    pub generation: u8,
}

impl Now {
    /// The time `seconds` after the epoch in generation 0; for tests and benchmarks.
    pub const fn at(seconds: u32) -> Self {
        Self { seconds, epoch_unix_seconds: 0, generation: 0 }
    }

    /// The generation after `generation`.
    pub const fn next_generation(generation: u8) -> u8 {
        (generation + 1) % GENERATIONS
    }

    /// Whether an item with this expiry and generation is live.
    ///
    /// An item of a *newer* generation than `self` is alive: the flush happened after this batch
    /// sampled its time.
    #[inline]
    pub const fn is_live(&self, expiry: Expiry, item_generation: u8) -> bool {
        let behind = self.generation.wrapping_sub(item_generation) % GENERATIONS;
        let flushed = behind != 0 && behind < GENERATIONS / 2;
        !flushed && !expiry.has_passed(self)
    }

    /// How many generations `item_generation` lies behind (0 when it is current or ahead).
    pub const fn generations_behind(&self, item_generation: u8) -> u8 {
        let behind = self.generation.wrapping_sub(item_generation) % GENERATIONS;
        if behind < GENERATIONS / 2 { behind } else { 0 }
    }
}

/// When an item expires, in [`Now::seconds`]; 0 means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Expiry(pub u32);

impl Expiry {
    /// An item that does not expire.
    pub const NEVER: Self = Self(0);

    /// Converts an expiry as clients send it: 0 means never, a negative one is already over, one of
    /// up to 30 days is relative, and a larger one is a Unix time. What is already over was over a
    /// second ago, so that it is for a batch that sampled its time in the second before this one,
    /// and does not count as an item that has waited for longer.
    #[inline]
    pub fn from_client(seconds: i64, now: &Now) -> Self {
        let at = match seconds {
            0 => return Self::NEVER,
            1..=LONGEST_RELATIVE_SECONDS => i64::from(now.seconds) + seconds,
            // Negative numbers too: whatever is over is so since a second.
            _ => seconds.saturating_sub(now.epoch_unix_seconds),
        };
        let at = at.max(i64::from(now.seconds) - 1).max(1);
        Self(u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// Whether the expiry lies at or before `now`.
    #[inline]
    pub const fn has_passed(&self, now: &Now) -> bool {
        self.0 != 0 && self.0 <= now.seconds
    }

    /// Seconds left; None for an item that does not expire.
    pub fn remaining_seconds(&self, now: &Now) -> Option<u32> {
        (self.0 != 0).then(|| self.0.saturating_sub(now.seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_of_up_to_thirty_days_is_relative() {
        let now = Now { epoch_unix_seconds: 1_700_000_000, ..Now::at(100) };
        for (sent, expected) in [
            (0, 0),
            (-1, 99),
            (i64::MIN, 99),
            (1, 101),
            (2_592_000, 2_592_100),
            (2_592_001, 99),
            (1_700_000_000, 99),
            (1_700_000_500, 500),
            (i64::MAX, u32::MAX),
        ] {
            assert_eq!(Expiry::from_client(sent, &now), Expiry(expected), "{sent}");
        }
        assert_eq!(Expiry::from_client(-1, &Now::at(1)), Expiry(1), "0 would be never");
    }

    #[test]
    fn what_has_passed_has_no_seconds_left() {
        let expected = [(0, None), (99, Some(0)), (100, Some(0)), (101, Some(1)), (160, Some(60))];
        for (expiry, left) in expected {
            assert_eq!(Expiry(expiry).remaining_seconds(&Now::at(100)), left, "{expiry}");
        }
    }

    /// Of 64 generations, the 31 before the present one are older, and the others newer.
    #[test]
    fn an_item_of_an_older_generation_is_dead() {
        for (behind, present) in (0..GENERATIONS).zip((0..GENERATIONS).rev().cycle()) {
            let now = Now { generation: present, ..Now::at(100) };
            let items = present.wrapping_sub(behind) % GENERATIONS;
            let is_older = (1..32).contains(&behind);
            assert_eq!(now.is_live(Expiry::NEVER, items), !is_older, "{behind}");
            assert_eq!(now.generations_behind(items), if is_older { behind } else { 0 });
        }
        assert_eq!([0, 62, 63].map(Now::next_generation), [1, 63, 0]);
    }
}
