//! The history of chunks as clients saw it, and its check for linearizability.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_cluster::ids::ChunkId;

/// What is known of a value. Each value is written once.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// `began_ms`: when the write began. `known_ms`: when the write, or the first read of the
    /// value, ended; the value was in force by then.
    began_ms: u64,
    known_ms: u64,
    /// When the last operation on the value began; the value was in force then or later.
    last_began_ms: u64,
    /// Whether the write was acknowledged, or the value was read.
    is_certain: bool,
}

impl Written {
    /// The zone of the value: whether it is a *forward zone* (the value was in force from the first
    /// time to the second), or else a *backward zone* (all its operations were concurrent within
    /// these times).
    fn zone(&self) -> (bool, u64, u64) {
        let (known, last) = (self.known_ms, self.last_began_ms);
        (known < last, known.min(last), known.max(last))
    }
}

/// The writes and reads of each chunk, where each value is written once: a register, whose
/// linearizability is decided exactly by the zones of its values (Gibbons and Korach, 1997). The
/// history is linearizable if no value is read before its write began, no two forward zones
/// overlap, and no backward zone lies within a forward one. Unacknowledged writes may or may not
/// have happened.
#[derive(Debug, Default)]
pub struct History {
    written: BTreeMap<(ChunkId, u64), Written>,
    /// Values of chunks whose creation is not acknowledged, and when it began.
    creating: BTreeMap<u64, u64>,
    /// Values whose writes were answered as not executed.
    refused: BTreeSet<u64>,
    /// When the first removal of a chunk began.
    removing: BTreeMap<ChunkId, u64>,
    wrong: Vec<String>,
    reads: usize,
    early_reads: u64,
    acknowledged: usize,
}

impl History {
    /// A write began.
    pub fn write_begins(&mut self, id: ChunkId, value: u64, at_ms: u64) {
        let (began_ms, last_began_ms) = (at_ms, at_ms);
        let (known_ms, is_certain) = (u64::MAX, false);
        let written = Written { began_ms, known_ms, last_began_ms, is_certain };
        self.written.entry((id, value)).or_insert(written);
    }

    /// A write was answered.
    pub fn write_ends(&mut self, id: ChunkId, value: u64, at_ms: u64) {
        self.acknowledged += 1;
        self.known(id, value, at_ms);
    }

    /// A write was answered as not executed: nobody may ever read its value.
    pub fn write_refused(&mut self, value: u64) {
        self.refused.insert(value);
    }

    fn known(&mut self, id: ChunkId, value: u64, at_ms: u64) {
        if let Some(written) = self.written.get_mut(&(id, value)) {
            written.known_ms = written.known_ms.min(at_ms);
            written.is_certain = true;
        }
    }

    /// A chunk is being created with a value; its id is unknown yet.
    pub fn creation_begins(&mut self, value: u64, at_ms: u64) {
        self.creating.insert(value, at_ms);
    }

    /// The creation of a chunk was acknowledged.
    pub fn creation_ends(&mut self, id: ChunkId, value: u64, at_ms: u64) {
        let began_ms = self.creating.remove(&value).unwrap_or(at_ms);
        self.write_begins(id, value, began_ms);
        self.write_ends(id, value, at_ms);
    }

    /// A chunk is being removed: a write of a value that nobody reads.
    pub fn removal_begins(&mut self, id: ChunkId, value: u64, at_ms: u64) {
        self.write_begins(id, value, at_ms);
        self.removing.entry(id).or_insert(at_ms);
    }

    /// An operation found no chunk, so a removal must have begun before.
    pub fn missing(&mut self, id: ChunkId, ended_ms: u64) {
        if self.removing.get(&id).is_none_or(|began_ms| *began_ms > ended_ms) {
            self.wrong.push(format!("{id} was gone at {ended_ms}, and nobody removed it"));
        }
    }

    /// A read began and ended.
    pub fn read(&mut self, id: ChunkId, value: u64, began_ms: u64, ended_ms: u64) {
        self.reads += 1;
        if let Some(created_ms) = self.creating.get(&value) {
            self.write_begins(id, value, *created_ms);
        }
        match self.written.get_mut(&(id, value)) {
            Some(written) => {
                written.last_began_ms = written.last_began_ms.max(began_ms);
                self.early_reads += u64::from(!written.is_certain);
                if ended_ms < written.began_ms {
                    self.wrong.push(format!("{id}: {value} was read before it was written"));
                }
            }
            None => self.wrong.push(format!("{id} held {value}, which nobody wrote")),
        }
        self.known(id, value, ended_ms);
    }

    /// Number of reads.
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// Number of reads that saw a write before it was acknowledged, if it ever was.
    pub fn early_reads(&self) -> u64 {
        self.early_reads
    }

    /// Number of acknowledged writes.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// What contradicts a linearizable register. A lost acknowledged write is among it as soon as
    /// the chunk is read again.
    pub fn violations(&self) -> Vec<String> {
        let mut violations = self.wrong.clone();
        let mut zones: BTreeMap<ChunkId, Vec<(u64, u64, bool, u64)>> = BTreeMap::new();
        for ((id, value), written) in self.written.iter().filter(|(_, value)| value.is_certain) {
            if self.refused.contains(value) {
                violations.push(format!("{id}: {value} was refused, and was read"));
            }
            let (is_forward, from, to) = written.zone();
            zones.entry(*id).or_default().push((from, to, is_forward, *value));
        }
        for (id, mut zones) in zones {
            zones.sort_unstable();
            // The forward zone with the latest end so far.
            let mut furthest: Option<(u64, u64)> = None;
            let forward = zones.iter().filter(|(_, _, is_forward, _)| *is_forward);
            for (from, to, _, value) in forward.clone() {
                if let Some((end, other)) = furthest.filter(|(end, _)| end > from) {
                    violations.push(format!("{id}: {value} from {from}, but {other} until {end}"));
                }
                furthest = furthest.max(Some((*to, *value)));
            }
            let forward: Vec<_> = forward.collect();
            for (from, to, is_forward, value) in &zones {
                let before = forward.partition_point(|(start, ..)| start < from);
                let around =
                    forward[..before].last().filter(|(_, end, ..)| !is_forward && end > to);
                if let Some((start, end, _, other)) = around {
                    let zone = format!("{from} to {to}, within {other} from {start} to {end}");
                    violations.push(format!("{id}: {value} at {zone}"));
                }
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
        history.missing(id, 60);
        assert_eq!(history.violations().len(), 3);
    }

    #[test]
    fn a_lost_write_is_noticed_and_one_that_nobody_saw_is_not() {
        let id = ChunkId::from_bits(5).expect("an id");
        let mut history = History::default();
        history.creation_begins(1, 0);
        history.creation_ends(id, 1, 10);
        history.write_begins(id, 2, 20);
        history.read(id, 1, 50, 55);
        assert_eq!(history.violations(), Vec::<String>::new(), "2 was not answered");
        history.write_ends(id, 2, 40);
        assert_eq!(history.violations().len(), 1, "1 was in force at 10 and at 50, 2 between");
        history.read(id, 2, 60, 61);
        assert!(!history.violations().is_empty());
    }

    #[test]
    fn a_refused_write_that_was_executed_is_noticed() {
        let id = ChunkId::from_bits(5).expect("an id");
        let mut history = History::default();
        for value in [1, 2] {
            history.write_begins(id, value, 10 * value);
            history.write_refused(value);
        }
        assert_eq!(history.violations(), Vec::<String>::new());
        history.read(id, 2, 30, 31);
        assert_eq!(history.violations().len(), 1);
    }

    #[test]
    fn values_that_come_back_are_noticed() {
        let id = ChunkId::from_bits(5).expect("an id");
        let mut history = History::default();
        for (value, at_ms) in [(1, 0), (2, 100)] {
            history.write_begins(id, value, at_ms);
        }
        history.read(id, 1, 10, 20);
        history.read(id, 2, 110, 120);
        assert_eq!(history.violations(), Vec::<String>::new());
        history.read(id, 1, 130, 140);
        history.read(id, 2, 150, 160);
        assert_eq!(history.violations().len(), 1, "neither write was answered");
        let mut removed = History::default();
        removed.write_begins(id, 1, 0);
        removed.write_ends(id, 1, 5);
        removed.removal_begins(id, 7, 10);
        removed.missing(id, 30);
        removed.write_ends(id, 7, 20);
        assert_eq!(removed.violations(), Vec::<String>::new());
        removed.read(id, 1, 40, 50);
        assert_eq!(removed.violations().len(), 1, "it was removed at 20");
    }
}
