//! Timing models of the memories that the hardware is measured with.

/// The memory's timing, in cycles.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Latency from a read to its first beat.
    pub latency: u16,
    /// Minimum number of cycles between the starts of two bursts.
    pub burst: u8,
    /// Fraction of a cycle to add to `burst`, in 48ths.
    pub burst_48ths: u8,
    /// Whether an access within the previous access's burst, in the same direction, costs no burst
    /// of its own.
    pub is_merging: bool,
    /// Cycles between opening two rows of a bank; 0 models no banks. There are eight banks, and a
    /// row holds a bucket.
    pub row_cycle: u8,
    /// Extra cycles when the direction changes between reads and writes.
    pub turn: u8,
    /// Cycles from refresh to refresh; 0 means never.
    pub refresh_every: u16,
    /// Duration of a refresh.
    pub refresh: u8,
    /// Bit mask of the random number of cycles added to the latency.
    pub jitter: u8,
    /// Number of cycles, of 256, in which no access is accepted.
    pub stall: u8,
}

impl Memory {
    /// The profile `fit31`, what the paper's figures fit: 60 cycles, a line of 384 bytes in 5.
    pub const FIT31: Self = Self {
        latency: 60,
        burst: 5,
        burst_48ths: 0,
        is_merging: false,
        row_cycle: 0,
        turn: 0,
        refresh_every: 0,
        refresh: 0,
        jitter: 0,
        stall: 0,
    };

    /// The profile `ddr600` at 156.25 MHz: 384 bits wide, 600 million transfers a second, bursts of
    /// eight, so 384 bytes in 13.3 ns (2 cycles and 4 48ths) and 28.8 GB/s; 8 banks with a row
    /// cycle of 51 ns, 19 ns whenever the direction changes, and every 7.8 us a refresh of 262 ns.
    pub const DDR600: Self = Self {
        burst: 2,
        burst_48ths: 4,
        is_merging: true,
        row_cycle: 8,
        turn: 3,
        refresh_every: 1219,
        refresh: 41,
        ..Self::FIT31
    };

    /// The memory of each table behind a wide port: a line of 384 bytes in 4 cycles, latency 120
    /// cycles. At 322 MHz that is 31 GB/s, two pseudo-channels of HBM.
    pub const FAST: Self = Self { latency: 120, burst: 4, ..Self::FIT31 };
}
