//! The keys of a sample: those with hashes below a threshold, in fixed memory.
//!
//! A key has a position, by which the simulations name what they keep of it. A key is known while a
//! simulation knows of it: the last one that forgets it releases it.

/// The end of a list.
pub(super) const NONE: u16 = u16::MAX;

/// The hash of no key: above every threshold.
const NO_KEY: u64 = u64::MAX;

struct Entry {
    /// [`NO_KEY`] while the entry is free.
    hash: u64,
    /// The second at which the key's item expires; 0 for never.
    expiry_seconds: u32,
    /// The next entry in the bucket, or in the list of free entries.
    chain: u16,
    /// Whether the client was told lately that there is no such item. Its next store fills the
    /// cache: with more memory it would not be sent.
    is_missed: bool,
}

/// A sample of the keys.
pub(super) struct Keys {
    entries: Vec<Entry>,
    /// The most keys.
    most: usize,
    /// The first entry of each list of hashes.
    buckets: Box<[u16]>,
    free: u16,
    count: usize,
    /// One key in `1 << shift` is sampled.
    shift: u32,
    /// No item expires before this second.
    first_expiry_seconds: u32,
}

impl Keys {
    /// An empty sample of one key in `1 << shift`, and of `most` keys at most. Requires: the shift
    /// is not 0, and `most` is below [`NONE`].
    pub(super) fn new(shift: u32, most: usize) -> Self {
        Self {
            // The system gives memory as entries are written.
            entries: Vec::with_capacity(most),
            most,
            buckets: vec![NONE; most.next_power_of_two()].into(),
            free: NONE,
            count: 0,
            shift,
            first_expiry_seconds: u32::MAX,
        }
    }

    /// Bytes of a sample of `most` keys.
    pub(super) const fn most_bytes(most: usize) -> usize {
        size_of::<Self>() + most * size_of::<Entry>() + most.next_power_of_two() * size_of::<u16>()
    }

    /// Keys with hashes below this are sampled.
    pub(super) fn threshold(&self) -> u64 {
        u64::MAX >> self.shift
    }

    /// The share of all keys that is sampled.
    pub(super) fn rate(&self) -> f64 {
        1.0 / (1_u64 << self.shift) as f64
    }

    /// One key in `1 << shift` is sampled.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// The number of keys known.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether a new key has no room.
    pub(super) fn is_full(&self) -> bool {
        self.free == NONE && self.entries.len() == self.most
    }

    /// The positions of the keys known.
    pub(super) fn positions(&self) -> Vec<u16> {
        self.positions_of(|_| true)
    }

    /// Samples half as many keys. Returns the positions of the others, which the caller releases.
    pub(super) fn halve_rate(&mut self) -> Vec<u16> {
        self.shift += 1;
        let threshold = self.threshold();
        self.positions_of(|entry| entry.hash >= threshold)
    }

    /// The positions of the keys whose items are expired, which the caller releases.
    pub(super) fn expired(&mut self, seconds: u32) -> Vec<u16> {
        if seconds < self.first_expiry_seconds {
            return Vec::new();
        }
        let known = self.entries.iter().filter(|entry| entry.hash != NO_KEY);
        let expiries = known.map(|entry| entry.expiry_seconds);
        let later = expiries.filter(|expiry| *expiry > seconds).min();
        self.first_expiry_seconds = later.unwrap_or(u32::MAX);
        self.positions_of(|entry| (1..=seconds).contains(&entry.expiry_seconds))
    }

    fn positions_of(&self, is_meant: impl Fn(&Entry) -> bool) -> Vec<u16> {
        let entries = self.entries.iter().enumerate();
        let meant = entries.filter(|(_, entry)| entry.hash != NO_KEY && is_meant(entry));
        meant.map(|(at, _)| at as u16).collect()
    }

    /// The position of a key, if it is known.
    pub(super) fn find(&self, hash: u64) -> Option<u16> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let entry = &self.entries[usize::from(at)];
            if entry.hash == hash {
                return Some(at);
            }
            at = entry.chain;
        }
        None
    }

    /// Adds a key. Requires: it is sampled and not known, and the sample is not full.
    pub(super) fn insert(&mut self, hash: u64) -> u16 {
        let chain = self.buckets[self.bucket(hash)];
        let entry = Entry { hash, expiry_seconds: 0, chain, is_missed: false };
        let at = self.free;
        let at = if at == NONE {
            self.entries.push(entry);
            (self.entries.len() - 1) as u16
        } else {
            self.free = self.entries[usize::from(at)].chain;
            self.entries[usize::from(at)] = entry;
            at
        };
        let bucket = self.bucket(hash);
        self.buckets[bucket] = at;
        self.count += 1;
        at
    }

    /// Forgets a key that is known.
    pub(super) fn release(&mut self, at: u16) {
        let entry = &mut self.entries[usize::from(at)];
        let (hash, chain) = (std::mem::replace(&mut entry.hash, NO_KEY), entry.chain);
        let bucket = self.bucket(hash);
        let head = &mut self.buckets[bucket];
        if *head == at {
            *head = chain;
        } else {
            let mut before = *head;
            while self.entries[usize::from(before)].chain != at {
                before = self.entries[usize::from(before)].chain;
            }
            self.entries[usize::from(before)].chain = chain;
        }
        self.entries[usize::from(at)].chain = std::mem::replace(&mut self.free, at);
        self.count -= 1;
    }

    /// Sets the second at which the key's item expires; 0 for never.
    pub(super) fn set_expiry(&mut self, at: u16, expiry_seconds: u32) {
        self.entries[usize::from(at)].expiry_seconds = expiry_seconds;
        if expiry_seconds != 0 {
            self.first_expiry_seconds = self.first_expiry_seconds.min(expiry_seconds);
        }
    }

    /// Sets whether the client was told that the key has no item. Returns what was set before.
    pub(super) fn set_missed(&mut self, at: u16, is_missed: bool) -> bool {
        std::mem::replace(&mut self.entries[usize::from(at)].is_missed, is_missed)
    }

    /// The list of a hash.
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The hash of a key, if the position is that of one.
    #[cfg(test)]
    pub(super) fn hash(&self, at: u16) -> Option<u64> {
        let hash = self.entries.get(usize::from(at)).map(|entry| entry.hash);
        hash.filter(|hash| *hash != NO_KEY)
    }
}
