//! The reference model: the table's expected answers and memory content. It executes the rules of
//! docs/pipeline.md request by request, with the hardware's rules for allocating addresses.

use std::collections::{BTreeMap, VecDeque};

use amalgam_op::lookup3;

use crate::{Configuration, Request, Response, opcode, status};

/// Number of block sizes of the value store, and the ratio of each to the one before.
const CLASSES: usize = 3;
const CLASS_SHIFT: usize = 3;
/// Bytes before the value in its block.
const BLOCK_HEADER_BYTES: usize = 8;
/// Maximum value length in bytes.
const MAX_VALUE_BYTES: u32 = 1024;

/// A simple, unoptimised model of the table.
pub struct Reference {
    configuration: Configuration,
    /// Records of all slots, bucket by bucket, words of 8 bytes.
    records: Vec<u64>,
    /// Free addresses of each block size, in beats, in the order of allocation.
    addresses: [VecDeque<u64>; CLASSES],
    /// Flags and value at each pointer.
    values: BTreeMap<u64, (u32, Vec<u8>)>,
    /// Whether a SET into a full bucket evicts an item.
    pub evicts: bool,
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
        let blocks = 1_u64 << configuration.block_bits;
        let mut base = 1 << (CLASS_SHIFT * (CLASSES - 1));
        let addresses = std::array::from_fn(|class| {
            let beats = 1_u64 << (CLASS_SHIFT * class);
            let first = base;
            base += blocks * beats;
            (0..blocks).map(|block| first + block * beats).collect()
        });
        Self {
            configuration,
            records: vec![0; slots * configuration.record_words()],
            addresses,
            values: BTreeMap::new(),
            evicts: true,
            seed: [0; 2],
        }
    }

    /// Returns a word of a slot's record.
    pub fn word(&self, bucket: usize, slot: usize, word: usize) -> u64 {
        self.records[self.place(bucket, slot, word)]
    }

    /// Number of free addresses of each block size.
    pub fn free_addresses(&self) -> [usize; CLASSES] {
        std::array::from_fn(|class| self.addresses[class].len())
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
            word(0) != 0
                && word(0) >> 48 == sought.tag
                && words.all(|(place, wanted)| word(key_word + place) == *wanted)
        })
    }

    fn expiry(&self, bucket: usize, slot: usize) -> u32 {
        self.word(bucket, slot, self.configuration.terms_word()) as u32
    }

    fn class_of(&self, value_bytes: usize) -> usize {
        let fits = |class: &usize| {
            value_bytes + BLOCK_HEADER_BYTES
                <= self.configuration.beat_bytes() << (CLASS_SHIFT * class)
        };
        (0..CLASSES).find(fits).unwrap_or(CLASSES - 1)
    }

    fn pointer_shift(&self) -> u32 {
        self.configuration.beat_bytes().next_power_of_two().trailing_zeros()
    }

    /// Address of a slot's value in bytes, and the value's length.
    fn value_of(&self, bucket: usize, slot: usize) -> (u64, usize) {
        let terms = self.word(bucket, slot, self.configuration.terms_word());
        (self.word(bucket, slot, 0) & ((1 << 48) - 1), (terms >> 32) as usize)
    }

    fn return_address(&mut self, bucket: usize, slot: usize) {
        let (pointer, value_bytes) = self.value_of(bucket, slot);
        let class = self.class_of(value_bytes);
        self.addresses[class].push_back(pointer >> self.pointer_shift());
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
        if is_expired(self.expiry(sought.bucket, slot), now) {
            return status::NOT_FOUND;
        }
        let (pointer, _) = self.value_of(sought.bucket, slot);
        let (flags, value) = &self.values[&pointer];
        response.pointer = pointer;
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
            if Some(slot) != matched && is_expired(self.expiry(sought.bucket, slot), now) {
                self.return_address(sought.bucket, slot);
                self.clear(sought.bucket, slot);
            }
        }
        let is_set = matches!(request.opcode, opcode::SET | opcode::SETQ);
        if is_set && request.value_bytes <= MAX_VALUE_BYTES {
            return self.store(request, &sought, matched, response);
        }
        let was_live =
            matched.is_some_and(|slot| !is_expired(self.expiry(sought.bucket, slot), now));
        if let Some(slot) = matched {
            self.return_address(sought.bucket, slot);
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
        let class = self.class_of(request.value.len());
        let (old_pointer, old_bytes) = self.value_of(bucket, slot);
        let pointer = if matched.is_some() && self.class_of(old_bytes) == class {
            old_pointer
        } else {
            if old_pointer != 0 {
                self.return_address(bucket, slot);
                self.clear(bucket, slot);
            }
            let Some(address) = self.addresses[class].pop_front() else {
                return status::NO_MEMORY;
            };
            address << self.pointer_shift()
        };
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
        self.values.insert(pointer, (request.flags, request.value.clone()));
        response.pointer = pointer;
        status::OK
    }
}

fn is_expired(expiry: u32, now: u32) -> bool {
    expiry != 0 && expiry <= now
}
