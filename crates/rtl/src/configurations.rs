//! The configurations that are simulated. Made of rtl/configurations.toml.

use crate::configuration::Configuration;

/// The table of the paper's table 1: 192 bytes a slot, keys up to 168 bytes.
pub const PAPER: Configuration = Configuration {
    name: "paper",
    slots: 8,
    slots_per_beat: 2,
    stripe_bytes: 48,
    lines: 4,
    key_bytes: 168,
    header_bytes: 24,
    is_terms_last: false,
    bucket_bits: 10,
    is_ring: true,
    writers: 32,
    counter_bits: 0,
    return_beats: 128,
    log_bits: 14,
    position_bits: 48,
    bus_bytes: 8,
    tables: 1,
};

/// 10 Gb/s: the paper's table behind an Ethernet port, with beats of 192 bytes.
pub const GIGABITS_10: Configuration = Configuration {
    name: "10g",
    slots: 8,
    slots_per_beat: 4,
    stripe_bytes: 48,
    lines: 4,
    key_bytes: 168,
    header_bytes: 24,
    is_terms_last: false,
    bucket_bits: 10,
    is_ring: true,
    writers: 32,
    counter_bits: 0,
    return_beats: 128,
    log_bits: 16,
    position_bits: 48,
    bus_bytes: 8,
    tables: 1,
};

/// 40 Gb/s: four of the paper's tables behind a port of 256 bits.
pub const GIGABITS_40: Configuration = Configuration {
    name: "40g",
    slots: 8,
    slots_per_beat: 2,
    stripe_bytes: 48,
    lines: 4,
    key_bytes: 168,
    header_bytes: 24,
    is_terms_last: false,
    bucket_bits: 10,
    is_ring: true,
    writers: 32,
    counter_bits: 10,
    return_beats: 128,
    log_bits: 14,
    position_bits: 48,
    bus_bytes: 32,
    tables: 4,
};

/// 100 Gb/s: eight of the paper's tables behind a port of 512 bits.
pub const GIGABITS_100: Configuration = Configuration {
    name: "100g",
    slots: 8,
    slots_per_beat: 2,
    stripe_bytes: 48,
    lines: 4,
    key_bytes: 168,
    header_bytes: 24,
    is_terms_last: false,
    bucket_bits: 10,
    is_ring: true,
    writers: 32,
    counter_bits: 10,
    return_beats: 128,
    log_bits: 14,
    position_bits: 48,
    bus_bytes: 64,
    tables: 8,
};

/// `paper` in its full size, with a log of 2^21 beats for values.
pub const FULL: Configuration = Configuration {
    name: "full",
    slots: 8,
    slots_per_beat: 2,
    stripe_bytes: 48,
    lines: 4,
    key_bytes: 168,
    header_bytes: 24,
    is_terms_last: false,
    bucket_bits: 18,
    is_ring: true,
    writers: 32,
    counter_bits: 0,
    return_beats: 128,
    log_bits: 21,
    position_bits: 48,
    bus_bytes: 8,
    tables: 1,
};

/// The slot memory of the software engine, with six hash units.
pub const SOFTWARE: Configuration = Configuration {
    name: "software",
    slots: 8,
    slots_per_beat: 8,
    stripe_bytes: 8,
    lines: 4,
    key_bytes: 16,
    header_bytes: 8,
    is_terms_last: true,
    bucket_bits: 6,
    is_ring: false,
    writers: 16,
    counter_bits: 0,
    return_beats: 128,
    log_bits: 13,
    position_bits: 48,
    bus_bytes: 8,
    tables: 1,
};

/// The other layout of 192 bytes a slot: 16 slots, six hash units, streams of 256 bits.
pub const HALF_LINES: Configuration = Configuration {
    name: "half_lines",
    slots: 16,
    slots_per_beat: 8,
    stripe_bytes: 24,
    lines: 8,
    key_bytes: 168,
    header_bytes: 24,
    is_terms_last: false,
    bucket_bits: 6,
    is_ring: false,
    writers: 4,
    counter_bits: 0,
    return_beats: 64,
    log_bits: 9,
    position_bits: 48,
    bus_bytes: 32,
    tables: 1,
};

/// Four slots, one write at a time, the smallest buffers, streams of 512 bits.
pub const SMALL: Configuration = Configuration {
    name: "small",
    slots: 4,
    slots_per_beat: 4,
    stripe_bytes: 8,
    lines: 4,
    key_bytes: 16,
    header_bytes: 8,
    is_terms_last: true,
    bucket_bits: 6,
    is_ring: true,
    writers: 1,
    counter_bits: 0,
    return_beats: 4,
    log_bits: 10,
    position_bits: 14,
    bus_bytes: 64,
    tables: 1,
};

/// `small`, but with writes in flight whose conflicts are counted, four buckets to a counter.
pub const COUNTED: Configuration = Configuration {
    name: "counted",
    slots: 4,
    slots_per_beat: 4,
    stripe_bytes: 8,
    lines: 4,
    key_bytes: 16,
    header_bytes: 8,
    is_terms_last: true,
    bucket_bits: 6,
    is_ring: true,
    writers: 8,
    counter_bits: 4,
    return_beats: 16,
    log_bits: 10,
    position_bits: 14,
    bus_bytes: 8,
    tables: 1,
};

/// The tables that are simulated without an Ethernet port, through their streams.
pub const ALL: &[Configuration] = &[PAPER, SOFTWARE, HALF_LINES, SMALL, COUNTED];

/// Such tables that are too large for tests of all.
pub const LARGE: &[Configuration] = &[
    #[cfg(feature = "full")]
    FULL,
];

/// The tables that are simulated behind an Ethernet port.
pub const FRONTS: &[Configuration] = &[
    GIGABITS_10,
    #[cfg(feature = "wide")]
    GIGABITS_40,
    #[cfg(feature = "wide")]
    GIGABITS_100,
];
