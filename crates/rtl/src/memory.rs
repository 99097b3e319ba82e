//! Memories in front of which the hardware is measured.

/// The memory's timing, in cycles.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// From a read to its first beat.
    pub latency: u16,
    /// Between the beginnings of two bursts, at least.
    pub burst: u8,
    /// And so many 48ths of a cycle.
    pub burst_48ths: u8,
    /// Whether an access to what lies in the burst before it, in the same direction, costs no burst
    /// of its own.
    pub is_merging: bool,
    /// Between two rows of a bank; 0 if there are no banks. Eight banks, a bucket a row.
    pub row_cycle: u8,
    /// More of them when the direction changes.
    pub turn: u8,
    /// From refresh to refresh; 0 never.
    pub refresh_every: u16,
    /// Of a refresh.
    pub refresh: u8,
    /// Mask of random cycles on top of the latency.
    pub jitter: u8,
    /// Of 256 cycles, those in which nothing is accepted.
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

    /// For the tables of a wide port, each of which has one: a line of 384 bytes in 4 cycles, 120
    /// cycles away. At 322 MHz that is 31 GB/s, two pseudo-channels of HBM.
    pub const FAST: Self = Self { latency: 120, burst: 4, ..Self::FIT31 };
}
