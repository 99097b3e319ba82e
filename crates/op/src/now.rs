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
            i64::MIN..0 => 0,
            1..=LONGEST_RELATIVE_SECONDS => i64::from(now.seconds) + seconds,
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
