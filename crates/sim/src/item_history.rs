//! What clients were told about named items, and whether one server could have said it.

use std::collections::{BTreeMap, BTreeSet};

/// What clients were answered about names.
#[derive(Debug, Default)]
pub struct ItemHistory {
    /// How often each key was stored by an `add`.
    pub stored: BTreeMap<Vec<u8>, u64>,
    /// When each key was counted up, as far as that was answered.
    pub(crate) counted_ms: BTreeMap<Vec<u8>, Vec<u64>>,
    /// How often it was begun to add a key or to count it up, and nobody was answered: who asked
    /// may be gone.
    pub(crate) unknown: BTreeMap<Vec<u8>, u64>,
    /// When each key that is set was answered about first.
    pub(crate) known_ms: BTreeMap<Vec<u8>, u64>,
    /// How often each key that is set was deleted: it goes on under another name.
    pub(crate) deleted: BTreeMap<u64, u64>,
    /// What counters showed in the end, and which added keys were there.
    pub(crate) read: BTreeMap<Vec<u8>, u64>,
    pub(crate) present: BTreeSet<Vec<u8>>,
    /// Operations that were answered.
    pub answered: u64,
    /// Moves that began.
    pub moves: u64,
}

impl ItemHistory {
    /// How many keys were counted up.
    pub fn counters(&self) -> usize {
        self.counted_ms.len()
    }

    /// Writes that were acknowledged, but for those of keys that are set.
    pub fn acknowledged(&self) -> usize {
        let counted: usize = self.counted_ms.values().map(Vec::len).sum();
        self.stored.values().sum::<u64>() as usize + counted
    }

    /// What is not as on one server, once all was read.
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
