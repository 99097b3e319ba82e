//! The layout of a segment.
//!
//! A header of 32 bytes: magic, format version (2 bytes), 2 zeros, cluster (8), the sequence of the
//! segment's use (8), CRC32C of those 24, 4 zeros. Then records: CRC32C (4), length (4), bytes; the
//! checksum covers the sequence, the offset, the length and the bytes. The highest bit of a length
//! *vouches* for everything before it in the segment: all of that had been committed when this was
//! written. Marks have no bytes: length 0x7FFF_FFFF marks the segment as complete; length 0 with
//! the highest bit does nothing except vouch. Numbers are little endian.

use std::cell::OnceCell;

use super::LogError;
use super::range_checksums::RangeChecksums;

const MAGIC: [u8; 4] = *b"AMLG";
/// Format of the segments that are written. Version 4 has no owner changes. Version 3 is read
/// alike, but nothing in it vouches. Version 2 has no items. Version 1 is read too: its records
/// have no kind, and nothing says which node wrote them.
pub(super) const VERSION: u16 = 5;
/// Segments of this version or later may stand next to present ones.
pub(super) const CURRENT_SINCE: u16 = 2;
/// The first version in which lengths can vouch.
pub(super) const VOUCHING_SINCE: u16 = 4;
pub(super) const HEAD_BYTES: u32 = 32;
/// Bytes of the checksum and length before each record.
pub(super) const PREFIX_BYTES: u32 = 8;
const VOUCHES: u32 = 1 << 31;
/// Length of the mark of a complete segment; no record is that long. Before lengths could vouch,
/// this mark had all bits set.
pub(super) const COMPLETE: u32 = VOUCHES - 1;
/// Sequences are below this.
const SEQUENCE_MAX: u64 = 1 << 63;

pub(super) fn head(cluster: u64, sequence: u64) -> [u8; HEAD_BYTES as usize] {
    head_of(VERSION, cluster, sequence)
}

fn head_of(version: u16, cluster: u64, sequence: u64) -> [u8; HEAD_BYTES as usize] {
    let mut head = [0; HEAD_BYTES as usize];
    head[..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&version.to_le_bytes());
    head[8..16].copy_from_slice(&cluster.to_le_bytes());
    head[16..24].copy_from_slice(&sequence.to_le_bytes());
    let checksum = crc32c::crc32c(&head[..24]);
    head[24..28].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// State of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// In use: the sequence, and the format's version.
    Used(u64, u16),
    /// Never used, freed, or torn while it was begun or freed: none of its contents count.
    Free,
    /// Damaged: the log never writes this.
    Damaged,
}

pub(super) fn parse_head(head: &[u8], cluster: u64) -> Result<Head, LogError> {
    let Some(head) = head.get(..HEAD_BYTES as usize) else { return Ok(Head::Free) };
    if head[24..28] != crc32c::crc32c(&head[..24]).to_le_bytes() {
        let is_torn = is_begun(head) || is_freed(head, cluster);
        return Ok(if is_torn { Head::Free } else { Head::Damaged });
    }
    let (version, owner) = (number(&head[4..6]) as u16, number(&head[8..16]));
    let sequence = number(&head[16..24]);
    if head[..4] != MAGIC || sequence >= SEQUENCE_MAX {
        return Ok(Head::Damaged);
    }
    if version > VERSION {
        return Err(LogError::Later(version));
    }
    if owner != cluster {
        return Err(LogError::Foreign(owner));
    }
    Ok(Head::Used(sequence, version))
}

/// Whether the header is a prefix of one written over zeros.
fn is_begun(head: &[u8]) -> bool {
    let written = head.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let checksum = crc32c::crc32c(&head[..24]).to_le_bytes();
    written <= 24 || written <= 28 && checksum.starts_with(&head[24..written])
}

/// Whether zeros were written over a prefix of the header. The rest is checked as long as the
/// sequence is still there.
fn is_freed(head: &[u8], cluster: u64) -> bool {
    let zeros = head.iter().take_while(|byte| **byte == 0).count();
    let is_head = |version| {
        let mut whole = head_of(version, cluster, 0);
        whole[zeros..].copy_from_slice(&head[zeros..]);
        whole[24..28] == crc32c::crc32c(&whole[..24]).to_le_bytes()
    };
    zeros > 16 || zeros > 0 && (1..=VERSION).any(is_head)
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

/// Encodes a record that will lie at `offset`.
pub(super) fn encode(sequence: u64, offset: u32, bytes: &[u8], vouches: bool, to: &mut Vec<u8>) {
    let length = u32::try_from(bytes.len()).expect("it fits into a segment");
    encode_with(sequence, offset, length | bit(vouches), bytes, to);
}

/// Encodes the mark that the segment is complete.
pub(super) fn encode_complete(sequence: u64, offset: u32, vouches: bool, to: &mut Vec<u8>) {
    encode_with(sequence, offset, COMPLETE | bit(vouches), &[], to);
}

/// Encodes the mark that vouches for everything before it.
pub(super) fn encode_committed(sequence: u64, offset: u32, to: &mut Vec<u8>) {
    encode_with(sequence, offset, VOUCHES, &[], to);
}

fn bit(vouches: bool) -> u32 {
    if vouches { VOUCHES } else { 0 }
}

fn encode_with(sequence: u64, offset: u32, length: u32, bytes: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(&checksum(sequence, offset, length, bytes).to_le_bytes());
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Whether `bytes` are the whole record that was appended at `offset`.
pub(super) fn is_record(bytes: &[u8], sequence: u64, offset: u32) -> bool {
    prefix(bytes, 0).is_some_and(|(expected, length)| {
        let record = &bytes[PREFIX_BYTES as usize..];
        let is_all = record.len() == (length & !VOUCHES) as usize;
        is_all && checksum(sequence, offset, length, record) == expected
    })
}

fn prefix(part: &[u8], at: usize) -> Option<(u32, u32)> {
    let prefix = part.get(at..)?.get(..PREFIX_BYTES as usize)?;
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    Some((number(&prefix[..4]), number(&prefix[4..])))
}

/// The number of bytes that follow a length.
fn body(length: u32) -> u32 {
    if length & !VOUCHES == COMPLETE { 0 } else { length & !VOUCHES }
}

/// The result of looking at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned<'s> {
    Record(&'s [u8]),
    /// A mark that vouches for what lies before it.
    Committed,
    /// The mark that the segment is complete.
    Complete,
    /// Nothing valid.
    Nothing,
}

/// A part of a segment that is scanned.
#[derive(Debug)]
pub(super) struct SegmentPart<'s> {
    bytes: &'s [u8],
    /// The part's offset in the segment.
    base: u32,
    sequence: u64,
    /// Computed once when something is damaged.
    sums: OnceCell<RangeChecksums<'s>>,
}

impl<'s> SegmentPart<'s> {
    pub(super) fn new(bytes: &'s [u8], base: u32, sequence: u64) -> Self {
        Self { bytes, base, sequence, sums: OnceCell::new() }
    }

    /// Looks at one offset.
    pub(super) fn find(&self, offset: u32) -> Scanned<'s> {
        let at = (offset - self.base) as usize;
        let Some((expected, length)) = prefix(self.bytes, at) else { return Scanned::Nothing };
        let bytes = &self.bytes[at + PREFIX_BYTES as usize..];
        match bytes.get(..body(length) as usize) {
            Some(bytes) if checksum(self.sequence, offset, length, bytes) == expected => {
                match length {
                    0 => Scanned::Nothing,
                    VOUCHES => Scanned::Committed,
                    _ if length & !VOUCHES == COMPLETE => Scanned::Complete,
                    _ => Scanned::Record(bytes),
                }
            }
            _ => Scanned::Nothing,
        }
    }

    /// Everything valid from an offset on, and a `Nothing` at the start of each damaged stretch.
    /// The last item is the mark of completion or `Nothing`.
    pub(super) fn walk(&self, from: u32) -> impl Iterator<Item = (u32, Scanned<'s>)> {
        let mut last = None;
        std::iter::from_fn(move || {
            let offset = match last {
                None => from,
                Some((offset, Scanned::Record(bytes))) => {
                    offset + PREFIX_BYTES + bytes.len() as u32
                }
                Some((offset, Scanned::Committed)) => offset + PREFIX_BYTES,
                Some((offset, Scanned::Nothing)) => self.next_whole(offset)?,
                Some((_, Scanned::Complete)) => return None,
            };
            last = Some((offset, self.find(offset)));
            last
        })
    }

    /// Offset of the last record or mark that vouches for everything before it; 0 if none does.
    pub(super) fn vouched(&self, from: u32) -> u32 {
        let vouches = |offset: u32| {
            prefix(self.bytes, (offset - self.base) as usize)
                .is_some_and(|(_, length)| length & VOUCHES != 0)
        };
        let whole = self.walk(from).filter(|(_, found)| *found != Scanned::Nothing);
        whole.map(|(offset, _)| offset).filter(|offset| vouches(*offset)).last().unwrap_or(0)
    }

    /// Whether something valid lies where the damaged record at an offset claims to end.
    pub(super) fn goes_on_behind(&self, offset: u32) -> bool {
        let prefix = prefix(self.bytes, (offset - self.base) as usize);
        prefix.filter(|(_, length)| *length != 0).is_some_and(|(_, length)| {
            let next = u64::from(offset) + u64::from(PREFIX_BYTES) + u64::from(body(length));
            let is_in = next - u64::from(self.base) < self.bytes.len() as u64;
            is_in && self.find(next as u32) != Scanned::Nothing
        })
    }

    /// Whether the record at an offset may end behind this part, though not behind `end`.
    pub(super) fn is_cut(&self, offset: u32, end: u32) -> bool {
        let at = (offset - self.base) as usize;
        prefix(self.bytes, at).is_none_or(|(_, length)| {
            let whole = u64::from(PREFIX_BYTES) + u64::from(body(length));
            at as u64 + whole > self.bytes.len() as u64 && u64::from(offset) + whole <= end.into()
        })
    }

    /// The offset of the first valid record or mark behind `offset`.
    pub(super) fn next_whole(&self, offset: u32) -> Option<u32> {
        let mut positions = offset + 1..self.end().checked_sub(PREFIX_BYTES)? + 1;
        if positions.is_empty() {
            return None;
        }
        let sums = self.sums.get_or_init(|| RangeChecksums::new(self.bytes));
        positions.find(|position| {
            let at = (position - self.base) as usize;
            let Some((expected, length)) = prefix(self.bytes, at) else { return false };
            let from = at + PREFIX_BYTES as usize;
            let to = from + body(length) as usize;
            let may_be = length != 0 && to <= self.bytes.len();
            may_be
                && sums.append(checksum(self.sequence, *position, length, &[]), from, to)
                    == expected
        })
    }

    fn end(&self) -> u32 {
        self.base + self.bytes.len() as u32
    }
}
