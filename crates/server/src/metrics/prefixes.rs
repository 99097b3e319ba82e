//! `stats detail`: counts of operations by key prefix, the part of the key before the delimiter.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_op::IgnorePoison;

/// Prefixes that are counted, at most; memcached's bound.
const MAX_PREFIXES: usize = 1 << 16;

/// The counts of one prefix.
#[derive(Clone, Copy, Debug, Default)]
struct PrefixCounts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// An operation on a key, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOperation {
    /// A read.
    Get {
        /// Whether it found an item.
        is_hit: bool,
    },
    /// A store, successful or not.
    Set,
    /// A delete, successful or not.
    Delete,
}

/// Counts of operations by key prefix. Shared by all threads. Counting takes a lock, so it is off
/// by default.
pub struct Prefixes {
    is_on: AtomicBool,
    delimiter: u8,
    table: Mutex<BTreeMap<Vec<u8>, PrefixCounts>>,
}

impl Prefixes {
    /// Empty counts for prefixes that end before `delimiter`.
    pub fn new(delimiter: u8, is_on: bool) -> Self {
        Self { is_on: AtomicBool::new(is_on), delimiter, table: Mutex::default() }
    }

    /// Whether counting is on.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Turns counting on or off; the counts stay.
    pub fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Vec<u8>, PrefixCounts>> {
        self.table.lock().ignore_poison()
    }

    /// Counts an operation. A key without the delimiter has no prefix and is not counted.
    pub fn count(&self, key: &[u8], operation: KeyOperation) {
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let mut table = self.lock();
        if table.len() >= MAX_PREFIXES && !table.contains_key(&key[..end]) {
            return;
        }
        let counts = table.entry(key[..end].to_vec()).or_default();
        match operation {
            KeyOperation::Get { is_hit } => {
                counts.gets += 1;
                counts.hits += u64::from(is_hit);
            }
            KeyOperation::Set => counts.sets += 1,
            KeyOperation::Delete => counts.deletes += 1,
        }
    }

    /// Removes all counts.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Appends lines of `stats detail dump`, without `END`: of at most `count` prefixes, which come
    /// after `after`, or are the first. Returns the last of them; None if it is the last of all.
    pub fn dump(&self, after: Option<&[u8]>, count: usize, text: &mut Vec<u8>) -> Option<Vec<u8>> {
        let table = self.lock();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut entries = table.range::<[u8], _>((start, Bound::Unbounded));
        let mut last = None;
        for (prefix, PrefixCounts { gets, hits, sets, deletes }) in entries.by_ref().take(count) {
            text.extend_from_slice(b"PREFIX ");
            text.extend_from_slice(prefix);
            // Writing to memory does not fail.
            let _ = write!(text, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
            last = Some(prefix);
        }
        let last = last.cloned();
        last.filter(|_| entries.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_under_their_prefix() {
        let prefixes = Prefixes::new(b'/', true);
        for key in [&b"a/1"[..], b"a/2", b"plain", b"/x"] {
            prefixes.count(key, KeyOperation::Get { is_hit: key == b"a/2" });
        }
        prefixes.count(b"a/3", KeyOperation::Set);
        prefixes.count(b"b/", KeyOperation::Delete);
        let expected = "PREFIX  get 1 hit 0 set 0 del 0\r\nPREFIX a get 2 hit 1 set 1 del 0\r\n\
                        PREFIX b get 0 hit 0 set 0 del 1\r\n";
        for count in 1..5 {
            let (mut text, mut last, mut slices) = (Vec::new(), None, 0);
            loop {
                last = prefixes.dump(last.as_deref(), count, &mut text);
                slices += 1;
                if last.is_none() {
                    break;
                }
            }
            assert_eq!((str::from_utf8(&text), slices), (Ok(expected), 3_usize.div_ceil(count)));
        }
        prefixes.clear();
        let mut text = Vec::new();
        assert_eq!((prefixes.dump(None, 9, &mut text), text.len()), (None, 0));
    }

    #[test]
    fn the_table_is_bounded() {
        let prefixes = Prefixes::new(b':', true);
        for number in 0..MAX_PREFIXES + 10 {
            prefixes.count(format!("{number}:").as_bytes(), KeyOperation::Set);
        }
        assert_eq!(prefixes.lock().len(), MAX_PREFIXES);
    }
}
