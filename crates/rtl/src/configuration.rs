//! The parameter sets that are built and tested. The build script includes this file too.

/// Parameters of the hardware, named as in `rtl/src/ht_top.sv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Name of the simulated model.
    pub name: &'static str,
    /// Slots of a bucket.
    pub slots: usize,
    /// Slots whose stripes a beat of the memory port holds.
    pub slots_per_beat: usize,
    /// Bytes of a slot in each memory line (its stripe).
    pub stripe_bytes: usize,
    /// Memory lines of a bucket.
    pub lines: usize,
    /// Maximum key length in bytes.
    pub key_bytes: usize,
    /// Bytes of a record before the key, if the terms precede the key as well.
    pub header_bytes: usize,
    /// Whether the terms are a slot's last word, as in the software engine, or its second.
    pub is_terms_last: bool,
    /// Binary logarithm of the number of buckets.
    pub bucket_bits: u32,
    /// Whether one C-slow ring replaces the six lookup3 units.
    pub is_ring: bool,
    /// Maximum number of writes in flight.
    pub writers: usize,
    /// Maximum number of line beats in flight from memory.
    pub return_beats: usize,
    /// Binary logarithm of the number of blocks of each of the three block sizes.
    pub block_bits: u32,
    /// Bytes in a beat of the key and value streams, or of the Ethernet port.
    pub bus_bytes: usize,
    /// Number of tables, each with its own memory; more than one only behind a wide port.
    pub tables: usize,
}

/// The slot memory of the software engine.
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
    return_beats: 128,
    block_bits: 7,
    bus_bytes: 8,
    tables: 1,
};

/// As printed: 192 bytes a slot in four lines of 384 bytes, six hash units, keys up to 168.
pub const PRINTED: Configuration = Configuration {
    name: "printed",
    slots: 8,
    slots_per_beat: 2,
    stripe_bytes: 48,
    lines: 4,
    key_bytes: 168,
    header_bytes: 24,
    is_terms_last: false,
    bucket_bits: 10,
    is_ring: false,
    writers: 32,
    return_beats: 128,
    block_bits: 12,
    bus_bytes: 8,
    tables: 1,
};

/// The other layout of 192 bytes a slot, with twice the slots, the ring, few writers, and streams
/// of 256 bits.
pub const RING: Configuration = Configuration {
    name: "ring",
    slots: 16,
    slots_per_beat: 8,
    stripe_bytes: 24,
    lines: 8,
    is_ring: true,
    writers: 4,
    return_beats: 64,
    bucket_bits: 6,
    block_bits: 8,
    bus_bytes: 32,
    ..PRINTED
};

/// Few slots, one write at a time, minimal buffers for lines in flight, the ring, and streams of
/// 512 bits.
pub const SMALL: Configuration = Configuration {
    name: "small",
    slots: 4,
    slots_per_beat: 4,
    is_ring: true,
    writers: 1,
    return_beats: 4,
    bus_bytes: 64,
    ..SOFTWARE
};

/// The printed table behind an Ethernet port, with beats of 192 bytes, so that the memory port can
/// use the full bandwidth of `ddr600`.
pub const ETHERNET: Configuration =
    Configuration { name: "ethernet", slots_per_beat: 4, is_ring: true, block_bits: 10, ..PRINTED };

/// The tables that are simulated without an Ethernet port, through their streams.
pub const ALL: &[Configuration] = &[SOFTWARE, PRINTED, RING, SMALL];

/// Four tables as printed behind a port of 256 bits, for 40 Gb/s.
pub const ETHERNET_40: Configuration = Configuration {
    name: "ethernet40",
    slots_per_beat: PRINTED.slots_per_beat,
    bucket_bits: 10,
    block_bits: 8,
    bus_bytes: 32,
    tables: 4,
    ..ETHERNET
};

/// Eight tables as printed behind a port of 512 bits, for 100 Gb/s.
pub const ETHERNET_100: Configuration =
    Configuration { name: "ethernet100", bus_bytes: 64, tables: 8, ..ETHERNET_40 };

/// The tables that are simulated behind an Ethernet port.
pub const FRONTS: &[Configuration] = &[
    ETHERNET,
    #[cfg(feature = "wide")]
    ETHERNET_40,
    #[cfg(feature = "wide")]
    ETHERNET_100,
];

impl Configuration {
    /// Number of 8-byte words in a slot's record.
    pub const fn record_words(&self) -> usize {
        self.lines * self.stripe_bytes / 8
    }

    /// Index of the record's word at which the key begins.
    pub const fn key_word(&self) -> usize {
        if self.is_terms_last { 1 } else { self.header_bytes / 8 }
    }

    /// Index of the record's word that holds the terms.
    pub const fn terms_word(&self) -> usize {
        if self.is_terms_last { self.record_words() - 1 } else { 1 }
    }

    /// Bytes of a beat of the memory port.
    pub const fn beat_bytes(&self) -> usize {
        self.slots_per_beat * self.stripe_bytes
    }

    /// Memory address of a word of a slot's record, in 8-byte words.
    pub const fn word_address(&self, bucket: usize, slot: usize, word: usize) -> usize {
        let stripe_words = self.stripe_bytes / 8;
        let (line, place) = (word / stripe_words, word % stripe_words);
        ((bucket * self.lines + line) * self.slots + slot) * stripe_words + place
    }

    /// The hardware's parameters by name.
    pub fn parameters(&self) -> Vec<(&'static str, usize)> {
        let mut parameters = vec![
            ("Slots", self.slots),
            ("SlotsPerBeat", self.slots_per_beat),
            ("StripeBytes", self.stripe_bytes),
            ("Lines", self.lines),
            ("KeyBytes", self.key_bytes),
            ("HeaderBytes", self.header_bytes),
            ("TermsLast", usize::from(self.is_terms_last)),
            ("BucketBits", self.bucket_bits as usize),
            ("HashRing", usize::from(self.is_ring)),
            ("Writers", self.writers),
            ("ReturnBeats", self.return_beats),
            ("BlockBits", self.block_bits as usize),
            ("BusBytes", self.bus_bytes),
        ];
        if self.tables > 1 {
            parameters.push(("Tables", self.tables));
        }
        parameters
    }
}
