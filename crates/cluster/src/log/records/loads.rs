//! Records that are read without waiting for the medium.

use super::super::Storage;
use super::super::format::PREFIX_BYTES;
use super::super::loading::{LoadedPart, Loading};
use super::{Log, LogPosition};

/// Records with at most this many bytes between them are read together; these occupy memory too.
const GAP_BYTES: u32 = 512;
/// The most bytes that are read together: writes wait for one such read at most. A longer record is
/// read alone.
const PART_BYTES_MAX: u32 = 1 << 20;

/// Records that are being loaded, each with a value of the caller.
#[derive(Debug)]
pub struct RecordLoads<T> {
    parts: Vec<LoadedPart>,
    /// In the order of the log; the records of a part follow each other.
    records: Vec<(LogPosition, T)>,
}

impl<T> Default for RecordLoads<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), records: Vec::new() }
    }
}

impl<T> RecordLoads<T> {
    /// Bytes that it occupies once it is there, as far as the medium delivers them.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.length)).sum()
    }

    /// Whether all of it is there, so that [`Self::each`] can be called.
    pub fn is_loaded(&self) -> bool {
        // They come in this order.
        self.parts.iter().rev().all(LoadedPart::is_loaded)
    }

    /// Passes on each record with its position, or none for one that cannot be read: it is damaged,
    /// or was appended again elsewhere since it was asked for.
    pub fn each(&self, mut each: impl FnMut(LogPosition, &T, Option<&[u8]>)) {
        let mut at = 0;
        for (position, value) in &self.records {
            let begins = |part: &LoadedPart| {
                (part.segment, part.from) <= (position.segment, position.offset)
            };
            while self.parts.get(at + 1).is_some_and(begins) {
                at += 1;
            }
            let part = self.parts.get(at).filter(|part| part.segment == position.segment);
            let LogPosition { offset, length, .. } = *position;
            each(*position, value, part.and_then(|part| part.record(offset, length)));
        }
    }
}

impl<S: Storage> Log<S> {
    /// Asks for records; each is delivered with its value. Records that lie close to each other are
    /// read together.
    pub fn load<T>(&mut self, mut records: Vec<(LogPosition, T)>) -> RecordLoads<T> {
        records.sort_unstable_by_key(|(position, _)| *position);
        let end_of = |position: &LogPosition| position.offset + PREFIX_BYTES + position.length;
        let mut parts = Vec::new();
        let mut open: Option<(u32, u32, u32)> = None;
        for (position, _) in &records {
            let end = end_of(position);
            open = Some(match open {
                Some((segment, from, to))
                    if segment == position.segment
                        && position.offset <= to.saturating_add(GAP_BYTES)
                        && end.saturating_sub(from) <= PART_BYTES_MAX =>
                {
                    (segment, from, to.max(end))
                }
                done => {
                    parts.extend(done.and_then(|part| self.load_part(part)));
                    (position.segment, position.offset, end)
                }
            });
        }
        parts.extend(open.and_then(|part| self.load_part(part)));
        RecordLoads { parts, records }
    }

    /// Asks for the bytes of a segment between two offsets; none if it is not in use.
    pub(super) fn load_part(&mut self, (number, from, to): (u32, u32, u32)) -> Option<LoadedPart> {
        let segment = self.segments.get(&number)?;
        let (sequence, end) = (segment.sequence, segment.end);
        let buffered = if self.current == Some(number) { self.buffer.as_slice() } else { &[] };
        let written = end - buffered.len() as u32;
        let to = to.min(end);
        let rest = from.max(written)..to.max(written);
        let rest = (rest.start - written) as usize..(rest.end - written) as usize;
        let rest = buffered.get(rest).unwrap_or_default().to_vec();
        let stored = match to.min(written).checked_sub(from) {
            Some(bytes) if bytes > 0 => self.storage.load(number, from, bytes),
            _ => Loading::done(Ok(Vec::new())),
        };
        let length = to.saturating_sub(from);
        Some(LoadedPart { segment: number, sequence, from, length, stored, rest })
    }
}
