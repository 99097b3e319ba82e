//! The history of named items as clients saw it, and its check against a single server.

use std::collections::{BTreeMap, BTreeSet};

/// What clients observed about named items.
#[derive(Debug, Default)]
pub struct ItemHistory {
    /// How often each key was stored by an `add`.
    pub stored: BTreeMap<Vec<u8>, u64>,
    /// When each increment of a key was acknowledged.
    pub(crate) counted_ms: BTreeMap<Vec<u8>, Vec<u64>>,
    /// Number of `add`s and increments of a key that began and were never answered; their client
    /// may be dead.
    pub(crate) unknown: BTreeMap<Vec<u8>, u64>,
    /// When each set key was first known to exist.
    pub(crate) known_ms: BTreeMap<Vec<u8>, u64>,
    /// How often each set key was deleted; each deletion changes the key's name.
    pub(crate) deleted: BTreeMap<u64, u64>,
    /// `read`: the final values of counters. `present`: added keys that were there in the end.
    pub(crate) read: BTreeMap<Vec<u8>, u64>,
    pub(crate) present: BTreeSet<Vec<u8>>,
    /// Operations that were answered.
    pub answered: u64,
    /// Moves that were started.
    pub moves: u64,
}

impl ItemHistory {
    /// Number of keys with an acknowledged increment.
    pub fn counters(&self) -> usize {
        self.counted_ms.len()
    }

    /// Acknowledged writes, without those of set keys.
    pub fn acknowledged(&self) -> usize {
        let counted: usize = self.counted_ms.values().map(Vec::len).sum();
        self.stored.values().sum::<u64>() as usize + counted
    }

    /// What a single server would not have answered, once all keys have been read.
    pub fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let unknown = |key| self.unknown.get(key).copied().unwrap_or(0);
        for (key, stored) in &self.stored {
            let name = String::from_utf8_lossy(key);
            if *stored > 1 || *stored == 0 && unknown(key) == 0 {
                wrong.push(format!("{name} was added {stored} times"));
            }
            if !self.present.contains(key) {
                wrong.push(format!("{name} was added, and is gone"));
            }
        }
        for (key, counted_ms) in &self.counted_ms {
            let (least, read) = (counted_ms.len() as u64, self.read.get(key).copied());
            if !read.is_some_and(|read| (least..=least + unknown(key)).contains(&read)) {
                let name = String::from_utf8_lossy(key);
                let more = unknown(key);
                wrong.push(format!("{name} is {read:?}, not {least} or up to {more} more"));
            }
        }
        wrong
    }
}
