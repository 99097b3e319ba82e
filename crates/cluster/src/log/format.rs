//! What a segment looks like.
//!
//! A head of 32 bytes: magic, format version (2 bytes), 2 of zeros, cluster (8), the number of the
//! segment's use (8), CRC32C of those 24, 4 of zeros. Then records: CRC32C (4), length (4), bytes;
//! the checksum covers the number of the use, the offset, the length and the bytes. A mark that the
//! segment is complete has the length 0xFFFF_FFFF and no bytes; zeros follow the last record of one
//! that is not. Numbers are little endian.

use super::LogError;

const MAGIC: [u8; 4] = *b"AMLG";
/// Of the segments that are written. Those of version 2 are read alike: they have no items. Those
/// of version 1 are read, too: their records begin with no kind, and nothing says whose log it was.
pub(super) const VERSION: u16 = 3;
/// What is written today can stand beside what has been written since this version.
pub(super) const CURRENT_SINCE: u16 = 2;
pub(super) const HEAD_BYTES: u32 = 32;
/// Checksum and length.
pub(super) const PREFIX_BYTES: u32 = 8;
const COMPLETE: u32 = u32::MAX;

pub(super) fn head(cluster: u64, sequence: u64) -> [u8; HEAD_BYTES as usize] {
    let mut head = [0; HEAD_BYTES as usize];
    head[..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[8..16].copy_from_slice(&cluster.to_le_bytes());
    head[16..24].copy_from_slice(&sequence.to_le_bytes());
    let checksum = crc32c::crc32c(&head[..24]);
    head[24..28].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// What a segment begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The number of its use, and its format's version.
    Used(u64, u16),
    /// Never used, freed, or torn while it was begun: nothing in it was committed.
    Free,
    /// Nobody wrote that.
    Damaged,
}

pub(super) fn parse_head(head: &[u8], cluster: u64) -> Result<Head, LogError> {
    let Some(head) = head.get(..HEAD_BYTES as usize) else { return Ok(Head::Free) };
    let checksum = crc32c::crc32c(&head[..24]).to_le_bytes();
    if head[24..28] != checksum {
        // What is torn is whole up to some byte, and zeros after it: a segment is freed by zeros.
        let written = head.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let is_torn = written <= 24 || checksum.starts_with(&head[24..written.min(28)]);
        return Ok(if is_torn && written <= 28 { Head::Free } else { Head::Damaged });
    }
    if head[..4] != MAGIC {
        return Ok(Head::Damaged);
    }
    let (version, owner) = (number(&head[4..6]) as u16, number(&head[8..16]));
    if version > VERSION {
        return Err(LogError::Later(version));
    }
    if owner != cluster {
        return Err(LogError::Foreign(owner));
    }
    Ok(Head::Used(number(&head[16..24]), version))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn checksum(sequence: u64, offset: u32, length: u32, bytes: &[u8]) -> u32 {
    let mut prefix = [0; 16];
    prefix[..8].copy_from_slice(&sequence.to_le_bytes());
    prefix[8..12].copy_from_slice(&offset.to_le_bytes());
    prefix[12..].copy_from_slice(&length.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&prefix), bytes)
}

/// Appends a record that will lie at `offset`.
pub(super) fn encode(sequence: u64, offset: u32, bytes: &[u8], to: &mut Vec<u8>) {
    let length = u32::try_from(bytes.len()).expect("it fits into a segment");
    to.extend_from_slice(&checksum(sequence, offset, length, bytes).to_le_bytes());
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Appends the mark that the segment is complete.
pub(super) fn encode_complete(sequence: u64, offset: u32, to: &mut Vec<u8>) {
    to.extend_from_slice(&checksum(sequence, offset, COMPLETE, &[]).to_le_bytes());
    to.extend_from_slice(&COMPLETE.to_le_bytes());
}

/// What lies at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'s> {
    Record(&'s [u8]),
    /// The segment is complete.
    Complete,
    /// No record that is whole. If a whole one follows where it says that it ends: there.
    Nothing(Option<u32>),
}

/// Looks at a part of a segment, from `base` on.
pub(super) fn find(part: &[u8], base: u32, sequence: u64, offset: u32) -> Found<'_> {
    if let Some(found) = record_at(part, base, sequence, offset) {
        return found;
    }
    // Each of several that are damaged still says where it ends, if that is whole.
    let mut at = offset;
    loop {
        let length = prefix(part, at - base).map_or(0, |(_, length)| length);
        let next = at.checked_add(PREFIX_BYTES).and_then(|at| at.checked_add(length));
        let next = next.filter(|next| length > 0 && ((next - base) as usize) < part.len());
        let Some(next) = next else { return Found::Nothing(None) };
        if record_at(part, base, sequence, next).is_some() {
            return Found::Nothing(Some(next));
        }
        at = next;
    }
}

/// Whether `bytes` are the record, whole, that was appended at an offset.
pub(super) fn is_record(bytes: &[u8], sequence: u64, offset: u32) -> bool {
    prefix(bytes, 0).is_some_and(|(expected, length)| {
        let record = &bytes[PREFIX_BYTES as usize..];
        record.len() == length as usize && checksum(sequence, offset, length, record) == expected
    })
}

fn prefix(segment: &[u8], offset: u32) -> Option<(u32, u32)> {
    let prefix = segment.get(offset as usize..)?.get(..PREFIX_BYTES as usize)?;
    Some((number(&prefix[..4]) as u32, number(&prefix[4..]) as u32))
}

fn record_at(part: &[u8], base: u32, sequence: u64, offset: u32) -> Option<Found<'_>> {
    let (expected, length) = prefix(part, offset - base)?;
    let from = (offset - base + PREFIX_BYTES) as usize;
    let is_complete = length == COMPLETE;
    let bytes = if is_complete { &[][..] } else { part.get(from..)?.get(..length as usize)? };
    if length == 0 || checksum(sequence, offset, length, bytes) != expected {
        return None;
    }
    Some(if is_complete { Found::Complete } else { Found::Record(bytes) })
}
