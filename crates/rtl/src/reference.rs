//! The reference model: the table's expected answers and memory content. It executes the rules of
//! docs/pipeline.md request by request, with the hardware's log of values.

use std::collections::BTreeMap;

use amalgam_op::lookup3;

use crate::{Configuration, Request, Response, opcode, status};

/// Bytes in front of a value in the log.
const VALUE_HEADER_BYTES: usize = 8;
/// Maximum value length in bytes.
const MAX_VALUE_BYTES: u32 = 1024;

/// A simple, unoptimised model of the table.
pub struct Reference {
    configuration: Configuration,
    /// Records of all slots, bucket by bucket, words of 8 bytes.
    records: Vec<u64>,
    /// The position of the next value in the log. Here positions never begin again.
    head: u64,
    /// The position of each slot's value.
    positions: Vec<u64>,
    /// Flags and value at each position.
    values: BTreeMap<u64, (u32, Vec<u8>)>,
    /// Whether a SET into a full bucket evicts an item.
    pub evicts: bool,
    /// Whether values are stored elsewhere, so that nothing is appended.
    pub is_table_only: bool,
    /// The seed of the hash, its lower and its upper half.
    pub seed: [u32; 2],
}

/// A key as the table sees it.
struct Sought {
    bucket: usize,
    tag: u64,
    words: Vec<u64>,
}

impl Reference {
    /// Creates an empty table.
    pub fn new(configuration: Configuration) -> Self {
        let slots = configuration.slots << configuration.bucket_bits;
        Self {
            configuration,
            records: vec![0; slots * configuration.record_words()],
            head: 1,
            positions: vec![0; slots],
            values: BTreeMap::new(),
            evicts: true,
            is_table_only: false,
            seed: [0; 2],
        }
    }

    /// Takes the words of keys over from a memory whose headers are clear, which holds anything.
    pub fn power_on(&mut self, mut memory: impl FnMut(usize, usize, usize) -> u64) {
        let terms = self.configuration.terms_word();
        for bucket in 0..1 << self.configuration.bucket_bits {
            for slot in 0..self.configuration.slots {
                for word in (1..self.configuration.record_words()).filter(|word| *word != terms) {
                    *self.word_mut(bucket, slot, word) = memory(bucket, slot, word);
                }
            }
        }
    }

    /// Returns a word of a slot's record.
    pub fn word(&self, bucket: usize, slot: usize, word: usize) -> u64 {
        self.records[self.place(bucket, slot, word)]
    }

    /// The position at which the log goes on, as the hardware counts it.
    pub fn log_head(&self) -> u64 {
        self.pointer(self.head)
    }

    /// A position as the hardware stores it.
    fn pointer(&self, position: u64) -> u64 {
        position & ((1 << self.configuration.position_bits) - 1)
    }

    /// Whether a slot's item was stored and its value is no longer in the log.
    pub fn is_overwritten(&self, bucket: usize, slot: usize) -> bool {
        self.word(bucket, slot, 0) != 0
            && self.age(bucket, slot) >= 1 << self.configuration.log_bits
    }

    /// Number of slots that hold a key, expired or not.
    pub fn taken(&self) -> usize {
        let words = self.configuration.record_words();
        self.records.iter().step_by(words).filter(|locator| **locator != 0).count()
    }

    /// The bucket of a key.
    pub fn bucket(&self, key: &[u8]) -> usize {
        self.sought(key).bucket
    }

    fn place(&self, bucket: usize, slot: usize, word: usize) -> usize {
        (bucket * self.configuration.slots + slot) * self.configuration.record_words() + word
    }

    fn word_mut(&mut self, bucket: usize, slot: usize, word: usize) -> &mut u64 {
        let place = self.place(bucket, slot, word);
        &mut self.records[place]
    }

    fn sought(&self, key: &[u8]) -> Sought {
        let hash = lookup3(key, self.seed[0], self.seed[1]);
        let words = key.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        Sought {
            bucket: (hash as u32 >> (32 - self.configuration.bucket_bits)) as usize,
            tag: (key.len() as u64) << 8 | hash >> 56,
            words: words.collect(),
        }
    }

    fn find(&self, sought: &Sought) -> Option<usize> {
        let key_word = self.configuration.key_word();
        (0..self.configuration.slots).find(|slot| {
            let word = |word| self.word(sought.bucket, *slot, word);
            let mut words = sought.words.iter().enumerate();
            // An item without its value is none.
            !self.is_overwritten(sought.bucket, *slot)
                && word(0) != 0
                && word(0) >> 48 == sought.tag
                && words.all(|(place, wanted)| word(key_word + place) == *wanted)
        })
    }

    /// Whether a slot's item has expired or lost its value.
    fn is_gone(&self, bucket: usize, slot: usize, now: u32) -> bool {
        let expiry = self.word(bucket, slot, self.configuration.terms_word()) as u32;
        (expiry != 0 && expiry <= now) || self.is_overwritten(bucket, slot)
    }

    /// Beats that a value takes.
    fn beats_of(&self, value_bytes: usize) -> u64 {
        (value_bytes + VALUE_HEADER_BYTES).div_ceil(self.configuration.beat_bytes()) as u64
    }

    /// The position of a slot's value.
    fn position(&self, bucket: usize, slot: usize) -> u64 {
        self.positions[bucket * self.configuration.slots + slot]
    }

    /// Beats that were appended since a slot's value was, and its own.
    fn age(&self, bucket: usize, slot: usize) -> u64 {
        self.head - self.position(bucket, slot)
    }

    /// Appends a value of this length in bytes and returns its position.
    fn append(&mut self, value_bytes: usize) -> u64 {
        let position = self.head;
        if !self.is_table_only {
            self.head += self.beats_of(value_bytes);
        }
        let oldest = self.head.saturating_sub(1 << self.configuration.log_bits);
        while self.values.first_key_value().is_some_and(|(position, _)| *position < oldest) {
            self.values.pop_first();
        }
        position
    }

    fn clear(&mut self, bucket: usize, slot: usize) {
        *self.word_mut(bucket, slot, 0) = 0;
        let terms = self.configuration.terms_word();
        *self.word_mut(bucket, slot, terms) = 0;
    }

    /// Executes one request at second `now`; None if no answer is sent.
    pub fn apply(&mut self, request: &Request, now: u32) -> Option<Response> {
        let mut response = Response {
            id: request.id,
            opcode: request.opcode,
            status: status::OK,
            pointer: 0,
            flags: 0,
            value: None,
        };
        let is_quiet;
        (response.status, is_quiet) = match request.opcode {
            opcode::GET | opcode::GETK => (self.get(request, now, &mut response), false),
            opcode::GETQ | opcode::GETKQ => {
                let status = self.get(request, now, &mut response);
                (status, status == status::NOT_FOUND)
            }
            opcode::SET | opcode::DELETE => (self.write(request, now, &mut response), false),
            opcode::SETQ | opcode::DELETEQ => {
                let status = self.write(request, now, &mut response);
                (status, status == status::OK)
            }
            opcode::NOOP | opcode::VERSION => (status::OK, false),
            _ => (status::UNKNOWN, false),
        };
        (!is_quiet).then_some(response)
    }

    fn is_key_valid(&self, request: &Request) -> bool {
        (1..=self.configuration.key_bytes).contains(&usize::from(request.key_bytes))
    }

    /// Whether the key and value streams have the lengths that the request states.
    fn is_true(&self, request: &Request) -> bool {
        request.key.len() == usize::from(request.key_bytes)
            && request.value.len() == request.value_bytes as usize
    }

    fn get(&self, request: &Request, now: u32, response: &mut Response) -> u16 {
        if !self.is_key_valid(request) || !self.is_true(request) {
            return status::INVALID;
        }
        let sought = self.sought(&request.key);
        let Some(slot) = self.find(&sought) else { return status::NOT_FOUND };
        if self.is_gone(sought.bucket, slot, now) {
            return status::NOT_FOUND;
        }
        let position = self.position(sought.bucket, slot);
        let (flags, value) = &self.values[&position];
        response.pointer = self.pointer(position);
        response.flags = *flags;
        response.value = Some(value.clone());
        status::OK
    }

    fn write(&mut self, request: &Request, now: u32, response: &mut Response) -> u16 {
        // Without an effect, so the lengths do not matter.
        if self.is_key_valid(request) && request.cas != 0 {
            return status::NOT_SUPPORTED;
        }
        if !self.is_key_valid(request) || !self.is_true(request) {
            return status::INVALID;
        }
        let sought = self.sought(&request.key);
        let matched = self.find(&sought);
        for slot in 0..self.configuration.slots {
            if Some(slot) != matched && self.is_gone(sought.bucket, slot, now) {
                self.clear(sought.bucket, slot);
            }
        }
        let is_set = matches!(request.opcode, opcode::SET | opcode::SETQ);
        if is_set && request.value_bytes <= MAX_VALUE_BYTES {
            return self.store(request, &sought, matched, response);
        }
        let was_live = matched.is_some_and(|slot| !self.is_gone(sought.bucket, slot, now));
        if let Some(slot) = matched {
            self.clear(sought.bucket, slot);
        }
        match (is_set, was_live) {
            (true, _) => status::TOO_LARGE,
            (false, true) => status::OK,
            (false, false) => status::NOT_FOUND,
        }
    }

    fn store(
        &mut self,
        request: &Request,
        sought: &Sought,
        matched: Option<usize>,
        response: &mut Response,
    ) -> u16 {
        let bucket = sought.bucket;
        let slots = self.configuration.slots;
        let free = (0..slots).find(|slot| self.word(bucket, *slot, 0) == 0);
        let check = sought.tag as usize & 0xff;
        let Some(slot) = matched.or(free).or(self.evicts.then_some(check % slots)) else {
            return status::NO_MEMORY;
        };
        // A young value's place is taken again, an older one's is left to the log.
        let old_bytes = self.word(bucket, slot, self.configuration.terms_word()) >> 32;
        let is_young = self.age(bucket, slot) < 1 << (self.configuration.log_bits - 1);
        let fits = self.beats_of(request.value.len()) <= self.beats_of(old_bytes as usize);
        let position = if matched.is_some() && is_young && fits {
            self.position(bucket, slot)
        } else {
            self.append(request.value.len())
        };
        self.positions[bucket * slots + slot] = position;
        let pointer = self.pointer(position);
        *self.word_mut(bucket, slot, 0) = sought.tag << 48 | pointer;
        let terms = self.configuration.terms_word();
        *self.word_mut(bucket, slot, terms) =
            u64::from(request.value_bytes) << 32 | u64::from(request.expiry);
        if matched.is_none() {
            let key_word = self.configuration.key_word();
            for (place, word) in sought.words.iter().enumerate() {
                *self.word_mut(bucket, slot, key_word + place) = *word;
            }
        }
        self.values.insert(position, (request.flags, request.value.clone()));
        response.pointer = pointer;
        status::OK
    }
}
