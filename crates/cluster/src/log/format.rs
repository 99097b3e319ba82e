//! What a segment looks like.
//!
//! A head of 32 bytes: magic, format version (2 bytes), 2 of zeros, cluster (8), the number of the
//! segment's use (8), CRC32C of those 24, 4 of zeros. Then records: CRC32C (4), length (4), bytes;
//! the checksum covers the number of the use, the offset, the length and the bytes. The highest bit
//! of a length *vouches* for all that lies before it in the segment: it had been committed when
//! this was written. Marks have no bytes: that the segment is complete has the length 0x7FFF_FFFF;
//! one that does nothing but vouch has the length 0 and that bit. Numbers are little endian.

use std::cell::OnceCell;

use super::LogError;
use super::range_checksums::RangeChecksums;

const MAGIC: [u8; 4] = *b"AMLG";
/// Of the segments that are written. In those of version 4 nobody adopts another's copies. Those of
/// version 3 are read alike, but nothing in them vouches for anything; nor are there items in those
/// of version 2. Those of version 1 are read, too: their
/// records begin with no kind, and nothing says whose log it was.
pub(super) const VERSION: u16 = 5;
/// What is written today can stand beside what has been written since this version.
pub(super) const CURRENT_SINCE: u16 = 2;
/// Since this version bits of lengths vouch.
pub(super) const VOUCHING_SINCE: u16 = 4;
pub(super) const HEAD_BYTES: u32 = 32;
/// Checksum and length.
pub(super) const PREFIX_BYTES: u32 = 8;
const VOUCHES: u32 = 1 << 31;
/// No record is so long. Before there were bits that vouch, this mark had all bits.
pub(super) const COMPLETE: u32 = VOUCHES - 1;
/// Numbers of uses are less.
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

/// What a segment begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The number of its use, and its format's version.
    Used(u64, u16),
    /// Never used, freed, or torn while it was begun or freed: nothing in it counts.
    Free,
    /// Nobody wrote that.
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

/// Whether a head was written over zeros up to some byte.
fn is_begun(head: &[u8]) -> bool {
    let written = head.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let checksum = crc32c::crc32c(&head[..24]).to_le_bytes();
    written <= 24 || written <= 28 && checksum.starts_with(&head[24..written])
}

/// Whether zeros were written over a head up to some byte. What they left is checked while the
/// number of the use is there.
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

/// Appends a record that will lie at `offset`.
pub(super) fn encode(sequence: u64, offset: u32, bytes: &[u8], vouches: bool, to: &mut Vec<u8>) {
    let length = u32::try_from(bytes.len()).expect("it fits into a segment");
    encode_with(sequence, offset, length | bit(vouches), bytes, to);
}

/// Appends the mark that the segment is complete.
pub(super) fn encode_complete(sequence: u64, offset: u32, vouches: bool, to: &mut Vec<u8>) {
    encode_with(sequence, offset, COMPLETE | bit(vouches), &[], to);
}

/// Appends the mark that all before it had been committed.
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

/// Whether `bytes` are the record, whole, that was appended at an offset.
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

/// How many bytes follow a length.
fn body(length: u32) -> u32 {
    if length & !VOUCHES == COMPLETE { 0 } else { length & !VOUCHES }
}

/// What lies at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned<'s> {
    Record(&'s [u8]),
    /// What lies before it had been committed.
    Committed,
    /// The segment is complete.
    Complete,
    /// Nothing that is whole.
    Nothing,
}

/// A part of a segment that is looked through.
#[derive(Debug)]
pub(super) struct SegmentPart<'s> {
    bytes: &'s [u8],
    /// Where it begins in the segment.
    base: u32,
    sequence: u64,
    /// Made when something is broken.
    sums: OnceCell<RangeChecksums<'s>>,
}

impl<'s> SegmentPart<'s> {
    pub(super) fn new(bytes: &'s [u8], base: u32, sequence: u64) -> Self {
        Self { bytes, base, sequence, sums: OnceCell::new() }
    }

    /// Looks at an offset.
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

    /// What lies from an offset on: all that is whole, and before it once where it begins if
    /// something is not. The last is the mark that the segment is complete, or nothing.
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

    /// Where the last lies that vouches for what is before it; 0 if none does.
    pub(super) fn vouched(&self, from: u32) -> u32 {
        let vouches = |offset: u32| {
            prefix(self.bytes, (offset - self.base) as usize)
                .is_some_and(|(_, length)| length & VOUCHES != 0)
        };
        let whole = self.walk(from).filter(|(_, found)| *found != Scanned::Nothing);
        whole.map(|(offset, _)| offset).filter(|offset| vouches(*offset)).last().unwrap_or(0)
    }

    /// Whether something whole lies where what is broken at an offset says that it ends.
    pub(super) fn goes_on_behind(&self, offset: u32) -> bool {
        let prefix = prefix(self.bytes, (offset - self.base) as usize);
        prefix.filter(|(_, length)| *length != 0).is_some_and(|(_, length)| {
            let next = u64::from(offset) + u64::from(PREFIX_BYTES) + u64::from(body(length));
            let is_in = next - u64::from(self.base) < self.bytes.len() as u64;
            is_in && self.find(next as u32) != Scanned::Nothing
        })
    }

    /// Whether what begins at an offset may end behind the part, which is not behind `end`.
    pub(super) fn is_cut(&self, offset: u32, end: u32) -> bool {
        let at = (offset - self.base) as usize;
        prefix(self.bytes, at).is_none_or(|(_, length)| {
            let whole = u64::from(PREFIX_BYTES) + u64::from(body(length));
            at as u64 + whole > self.bytes.len() as u64 && u64::from(offset) + whole <= end.into()
        })
    }

    /// Where the first lies behind an offset that is whole, wherever that is.
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
