//! `stats detail`: what was done to keys, by the part of the key before the delimiter.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prefixes that are told apart; memcached's bound.
const MOST_PREFIXES: usize = 1 << 16;

/// What was done to the keys of one prefix.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A read, and whether it found an item.
    Get {
        /// See above.
        is_hit: bool,
    },
    /// A store, whatever came of it.
    Set,
    /// A delete, whatever came of it.
    Delete,
}

/// See the head of this module. Counting takes a lock: it is off unless somebody asks.
pub struct Prefixes {
    is_on: AtomicBool,
    delimiter: u8,
    table: Mutex<BTreeMap<Vec<u8>, Counts>>,
}

impl Prefixes {
    /// A table for prefixes that end before `delimiter`.
    pub fn new(delimiter: u8, is_on: bool) -> Self {
        Self { is_on: AtomicBool::new(is_on), delimiter, table: Mutex::default() }
    }

    /// Whether anything is counted.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins or ends to count; what was counted stays.
    pub fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Vec<u8>, Counts>> {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts; a key without a delimiter has no prefix.
    pub fn count(&self, key: &[u8], deed: Deed) {
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let mut table = self.lock();
        if table.len() >= MOST_PREFIXES && !table.contains_key(&key[..end]) {
            return;
        }
        let counts = table.entry(key[..end].to_vec()).or_default();
        match deed {
            Deed::Get { is_hit } => {
                counts.gets += 1;
                counts.hits += u64::from(is_hit);
            }
            Deed::Set => counts.sets += 1,
            Deed::Delete => counts.deletes += 1,
        }
    }

    /// Forgets all that was counted.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// The lines of `stats detail dump`, without the end.
    pub fn dump(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (prefix, Counts { gets, hits, sets, deletes }) in self.lock().iter() {
            let mut numbers = String::new();
            let _ = writeln!(numbers, " get {gets} hit {hits} set {sets} del {deletes}\r");
            text.extend_from_slice(b"PREFIX ");
            text.extend_from_slice(prefix);
            text.extend_from_slice(numbers.as_bytes());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_under_their_prefix() {
        let prefixes = Prefixes::new(b'/', true);
        for key in [&b"a/1"[..], b"a/2", b"plain", b"/x"] {
            prefixes.count(key, Deed::Get { is_hit: key == b"a/2" });
        }
        prefixes.count(b"a/3", Deed::Set);
        prefixes.count(b"b/", Deed::Delete);
        let expected = "PREFIX  get 1 hit 0 set 0 del 0\r\nPREFIX a get 2 hit 1 set 1 del 0\r\n\
                        PREFIX b get 0 hit 0 set 0 del 1\r\n";
        assert_eq!(String::from_utf8(prefixes.dump()).unwrap(), expected);
        prefixes.clear();
        assert!(prefixes.dump().is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let prefixes = Prefixes::new(b':', true);
        for number in 0..MOST_PREFIXES + 10 {
            prefixes.count(format!("{number}:").as_bytes(), Deed::Set);
        }
        assert_eq!(prefixes.lock().len(), MOST_PREFIXES);
    }
}
