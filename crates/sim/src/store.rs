//! Chunks of a simulated node, and what is said of them.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{ChunkStore, StoreError};
use amalgam_cluster::ids::ChunkId;

/// A map, in place of an engine.
#[derive(Debug, Default)]
pub struct MemoryStore(BTreeMap<ChunkId, Vec<u8>>);

impl ChunkStore for MemoryStore {
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool {
        let value = self.0.get(&id);
        if let Some(value) = value {
            read(value);
        }
        value.is_some()
    }

    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError> {
        self.0.insert(id, value.to_vec());
        Ok(())
    }

    fn remove(&mut self, id: ChunkId) -> bool {
        self.0.remove(&id).is_some()
    }
}

/// A value, which is written once: when the write began, and when it was in force at the latest.
#[derive(Clone, Copy, Debug)]
struct Written {
    began_ms: u64,
    known_ms: u64,
}

/// What clients wrote and read of each chunk.
///
/// Reads of one register whose writes differ: a read may return a value unless another value was
/// written wholly after it and wholly before the read began. A value is in force at the latest when
/// its write was answered or when a read of it ended. This finds stale reads and lost writes.
#[derive(Debug, Default)]
pub struct History {
    written: BTreeMap<(ChunkId, u64), Written>,
    reads: Vec<(ChunkId, u64, u64)>,
}

impl History {
    /// A write began.
    pub fn write_begins(&mut self, id: ChunkId, value: u64, at_ms: u64) {
        self.written.insert((id, value), Written { began_ms: at_ms, known_ms: u64::MAX });
    }

    /// A write was answered.
    pub fn write_ends(&mut self, id: ChunkId, value: u64, at_ms: u64) {
        if let Some(written) = self.written.get_mut(&(id, value)) {
            written.known_ms = written.known_ms.min(at_ms);
        }
    }

    /// A read began and ended.
    pub fn read(&mut self, id: ChunkId, value: u64, began_ms: u64, ended_ms: u64) {
        self.reads.push((id, value, began_ms));
        self.write_ends(id, value, ended_ms);
    }

    /// How many reads there were.
    pub fn reads(&self) -> usize {
        self.reads.len()
    }

    /// What no register would have answered.
    pub fn violations(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for (id, value, began_ms) in &self.reads {
            let Some(read) = self.written.get(&(*id, *value)) else {
                violations.push(format!("{id} held {value}, which nobody wrote"));
                continue;
            };
            let others = self.written.range((*id, 0)..=(*id, u64::MAX));
            let between = others
                .into_iter()
                .find(|(_, other)| other.began_ms > read.known_ms && other.known_ms < *began_ms);
            if let Some(((_, later), _)) = between {
                violations.push(format!("{id}: {value} was read at {began_ms}, after {later}"));
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_read_is_noticed_and_a_concurrent_one_is_not() {
        let id = ChunkId::from_bits(5).expect("an id");
        let mut history = History::default();
        history.write_begins(id, 1, 0);
        history.write_ends(id, 1, 10);
        history.write_begins(id, 2, 20);
        history.read(id, 1, 25, 28);
        history.read(id, 2, 26, 29);
        history.write_ends(id, 2, 40);
        assert_eq!(history.violations(), Vec::<String>::new());
        history.read(id, 1, 30, 31);
        assert_eq!(history.violations().len(), 1, "2 was seen at 29");
        history.read(id, 9, 50, 51);
        assert_eq!(history.violations().len(), 2);
    }
}
