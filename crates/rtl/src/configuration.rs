//! The parameters of simulated hardware. The build script includes this file too.

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
    /// Binary logarithm of the number of hashed conflict counters; 0: addresses are compared.
    pub counter_bits: u32,
    /// Maximum number of line beats in flight from memory.
    pub return_beats: usize,
    /// Binary logarithm of the number of beats of the log of values.
    pub log_bits: u32,
    /// Bits of a position in the log, which begins again from 0.
    pub position_bits: u32,
    /// Bytes in a beat of the key and value streams, or of the Ethernet port.
    pub bus_bytes: usize,
    /// Number of tables, each with its own memory; more than one only behind a wide port.
    pub tables: usize,
}

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
            ("LogBits", self.log_bits as usize),
            ("BusBytes", self.bus_bytes),
        ];
        // Behind an Ethernet port it is not a parameter.
        if self.position_bits < 48 {
            parameters.push(("PositionBits", self.position_bits as usize));
        }
        if self.tables > 1 {
            parameters.push(("Tables", self.tables));
        }
        if self.counter_bits > 0 {
            parameters.push(("CounterBits", self.counter_bits as usize));
        }
        parameters
    }
}
