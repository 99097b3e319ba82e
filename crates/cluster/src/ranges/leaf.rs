//! A leaf: the placements of some ten thousand consecutive ids, in a few hundred bytes.
//!
//! Most ids of a leaf have one placement, its *default*. An *entry* gives the offset at which
//! another placement begins and the number of ids that have it (its *run*; 0 means until the next
//! entry or the end of the leaf); after a run the default applies again. So a chunk that migrated
//! alone is one entry, though it makes two ranges out of one.
//!
//! Three arrays follow each other in one allocation: offsets from the leaf's first id (2, 4 or 8
//! bytes, as the largest needs), values (a code of the dictionary, or the placement itself if one
//! of the leaf's placements has no code), and runs (one byte each; absent if every run is 1).
//!
//! Invariants:
//! 1. Offsets ascend strictly; an entry's ids end at or before the next offset and the leaf's end.
//! 2. Read from the left, a leaf covers its ids with *pieces*; neighbours differ in placement.
//! 3. An entry whose run is not 0 differs from the default.

use std::ops;

use super::dictionary::Dictionary;
use super::placement::PlacementBits;

/// The longest run that is stored.
const RUN_MAX: u64 = u8::MAX as u64;
/// Step by which the memory for entries grows, in bytes: eight entries of four.
const GROWTH_BYTES: usize = 32;
const CODE_BYTES: usize = 2;
const PLACEMENT_BYTES: usize = 8;
/// Two-byte offsets that a search compares first: a cache line.
const WINDOW: usize = 32;

/// Ids from `start` to the start of the next piece, with one placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First id, in bits.
    pub start: u64,
    pub placement: PlacementBits,
}

/// Appends a piece; one with the same placement as the last continues it.
pub fn push_piece(pieces: &mut Vec<Piece>, start: u64, placement: PlacementBits) {
    if pieces.last().is_none_or(|last| last.placement != placement) {
        pieces.push(Piece { start, placement });
    }
}

/// The pieces of a leaf or block that ends before `leaf_end`, after ids got other placements. The
/// `edits` are spans with their placements, disjoint and ascending.
pub(super) fn overwrite(
    pieces: &[Piece],
    leaf_end: u64,
    edits: &[(ops::Range<u64>, PlacementBits)],
) -> Vec<Piece> {
    let mut result = Vec::with_capacity(pieces.len() + 2 * edits.len());
    let mut next = 0;
    for (place, (ids, placement)) in edits.iter().enumerate() {
        let before = next + pieces[next..].partition_point(|piece| piece.start < ids.start);
        result.extend_from_slice(&pieces[next..before]);
        push_piece(&mut result, ids.start, *placement);
        next = before + pieces[before..].partition_point(|piece| piece.start <= ids.end);
        let is_next = edits.get(place + 1).is_some_and(|(next, _)| next.start == ids.end);
        if ids.end < leaf_end && !is_next {
            // The piece that contains `end` continues there.
            push_piece(&mut result, ids.end, pieces[next - 1].placement);
        }
    }
    result.extend_from_slice(&pieces[next..]);
    result
}

/// A piece of one leaf: offsets from the leaf's first id; `end` is not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundPiece {
    pub start: u64,
    pub end: u64,
    pub placement: PlacementBits,
}

/// A leaf; see the head of this module. Its first id and length are kept by its node.
#[derive(Debug)]
pub struct Leaf {
    default: PlacementBits,
    bytes: Vec<u8>,
    entries: u16,
    form: EntryFormat,
}

/// The layout of the arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryFormat {
    offset_bytes: u8,
    /// Whether values are codes rather than placements.
    has_codes: bool,
    has_runs: bool,
}

impl EntryFormat {
    fn value_bytes(self) -> usize {
        if self.has_codes { CODE_BYTES } else { PLACEMENT_BYTES }
    }

    fn entry_bytes(self) -> usize {
        usize::from(self.offset_bytes) + self.value_bytes() + usize::from(self.has_runs)
    }
}

/// Ids from an offset on whose placement is not the default.
#[derive(Clone, Copy)]
pub(super) struct LeafEntry {
    pub offset: u64,
    /// Number of ids; 0 means until the next entry or the end.
    pub run: u8,
    pub placement: PlacementBits,
}

/// The `N` bytes at position `index` of an array that begins at `base`.
#[inline]
fn field<const N: usize>(bytes: &[u8], base: usize, index: usize) -> [u8; N] {
    let at = base + index * N;
    bytes[at..at + N].try_into().expect("N bytes")
}

impl Leaf {
    /// A leaf whose ids all have `placement`.
    pub fn uniform(placement: PlacementBits) -> Self {
        let form = EntryFormat { offset_bytes: 2, has_codes: true, has_runs: false };
        Self { default: placement, bytes: Vec::new(), entries: 0, form }
    }

    /// Packs pieces into leaves of at most `entries_max` entries, with the first id of each. The
    /// pieces satisfy invariant 2 and the last one ends before `end`.
    pub fn pack(
        pieces: &[Piece],
        end: u64,
        entries_max: usize,
        dictionary: &mut Dictionary,
        packed: &mut Vec<(u64, Self)>,
    ) {
        let entries = to_entries(pieces, end, RUN_MAX, None);
        if entries.1.len() > entries_max && pieces.len() > 1 {
            let (left, right) = pieces.split_at(pieces.len() / 2);
            Self::pack(left, right[0].start, entries_max, dictionary, packed);
            Self::pack(right, end, entries_max, dictionary, packed);
        } else {
            packed.push((pieces[0].start, Self::write(entries.0, &entries.1, dictionary)));
        }
    }

    fn write(default: PlacementBits, entries: &[LeafEntry], dictionary: &mut Dictionary) -> Self {
        let codes: Vec<_> =
            entries.iter().map_while(|entry| dictionary.intern(entry.placement)).collect();
        let form = EntryFormat {
            offset_bytes: offset_bytes(entries.last().map_or(0, |entry| entry.offset)),
            has_codes: codes.len() == entries.len(),
            has_runs: entries.iter().any(|entry| entry.run != 1),
        };
        let mut bytes = Vec::new();
        bytes.reserve_exact(entries.len() * form.entry_bytes());
        for entry in entries {
            let offset = entry.offset.to_le_bytes();
            bytes.extend_from_slice(&offset[..usize::from(form.offset_bytes)]);
        }
        if form.has_codes {
            codes.iter().for_each(|code| bytes.extend_from_slice(&code.to_le_bytes()));
        } else {
            for entry in entries {
                bytes.extend_from_slice(&entry.placement.to_le_bytes());
            }
        }
        if form.has_runs {
            bytes.extend(entries.iter().map(|entry| entry.run));
        }
        Self { default, bytes, entries: entries.len() as u16, form }
    }

    /// Number of entries.
    #[inline]
    pub fn entries(&self) -> usize {
        usize::from(self.entries)
    }

    /// Memory without the struct itself, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The placement of ids outside of all entries.
    #[inline]
    pub fn default(&self) -> PlacementBits {
        self.default
    }

    /// The placement at an offset of a leaf of `length` ids.
    #[inline]
    pub fn get(&self, offset: u64, length: u64, dictionary: &Dictionary) -> PlacementBits {
        let before = self.entries_up_to(offset, length);
        let Some(last) = before.checked_sub(1) else { return self.default };
        let run = self.run(last);
        if run == 0 || offset - self.offset(last) < u64::from(run) {
            self.value(last, dictionary)
        } else {
            self.default
        }
    }

    /// Reads a byte of each cache line that a search for an offset will most likely read, so that
    /// the lines are fetched. It has no branch that waits for memory.
    #[inline]
    pub fn touch(&self, offset: u64, length: u64) -> u8 {
        let Some(last) = self.bytes.len().checked_sub(1) else { return 0 };
        let guess = guess(self.entries(), offset.min(u64::from(u16::MAX)) as u16, length);
        let offsets = guess.saturating_sub(WINDOW / 2) * 2;
        let places = [offsets, offsets + 2 * WINDOW - 1, self.values_at() + guess * CODE_BYTES];
        places.map(|place| self.bytes[place.min(last)]).into_iter().fold(0, u8::wrapping_add)
    }

    /// The piece at an offset of a leaf of `length` ids.
    pub fn find(&self, offset: u64, length: u64, dictionary: &Dictionary) -> FoundPiece {
        let before = self.entries_up_to(offset, length);
        let next = if before < self.entries() { self.offset(before) } else { length };
        let Some(last) = before.checked_sub(1) else {
            return FoundPiece { start: 0, end: next, placement: self.default };
        };
        let start = self.offset(last);
        let end = match self.run(last) {
            0 => next,
            run => start + u64::from(run),
        };
        if offset < end {
            FoundPiece { start, end, placement: self.value(last, dictionary) }
        } else {
            FoundPiece { start: end, end: next, placement: self.default }
        }
    }

    /// Appends the pieces of a leaf that holds the ids from `first` to before `end`.
    pub fn read(&self, first: u64, end: u64, dictionary: &Dictionary, pieces: &mut Vec<Piece>) {
        let mut covered = first;
        for index in 0..self.entries() {
            let start = first + self.offset(index);
            if covered < start {
                push_piece(pieces, covered, self.default);
            }
            push_piece(pieces, start, self.value(index, dictionary));
            covered = match self.run(index) {
                0 if index + 1 < self.entries() => first + self.offset(index + 1),
                0 => end,
                run => start + u64::from(run),
            };
        }
        if covered < end {
            push_piece(pieces, covered, self.default);
        }
    }

    /// Gives one id of a leaf of `length` ids, which has the default, another placement, if a new
    /// entry among at most `entries_max` suffices: the fast path. False otherwise; nothing has
    /// changed then.
    pub fn try_insert_single(
        &mut self,
        offset: u64,
        length: u64,
        placement: PlacementBits,
        entries_max: usize,
        dictionary: &mut Dictionary,
    ) -> bool {
        if placement == self.default
            || self.entries() >= entries_max
            || offset_bytes(offset) > self.form.offset_bytes
        {
            return false;
        }
        let place = self.entries_up_to(offset, length);
        if let Some(last) = place.checked_sub(1) {
            let run = u64::from(self.run(last));
            let past = offset - self.offset(last);
            let value = self.value(last, dictionary);
            // The id lies within an entry that is not a stored default, or begins or continues one.
            let is_taken = if run == 0 { past == 0 || value != self.default } else { past < run };
            if is_taken || (past == run && value == placement) {
                return false;
            }
        }
        if place < self.entries()
            && self.offset(place) == offset + 1
            && self.value(place, dictionary) == placement
        {
            return false;
        }
        if !self.form.has_codes {
            self.insert(place, offset, &placement.to_le_bytes());
            return true;
        }
        let Some(code) = dictionary.intern(placement) else { return false };
        self.insert(place, offset, &code.to_le_bytes());
        true
    }

    /// Inserts an entry with a run of 1.
    fn insert(&mut self, place: usize, offset: u64, value: &[u8]) {
        let needed = self.bytes.len() + self.form.entry_bytes();
        if needed > self.bytes.capacity() {
            self.bytes.reserve_exact(GROWTH_BYTES.max(self.form.entry_bytes()));
        }
        let (values, runs) = (self.values_at(), self.runs_at());
        // From the back, so that the arrays before stay in place.
        if self.form.has_runs {
            insert_bytes(&mut self.bytes, runs + place, &[1]);
        }
        insert_bytes(&mut self.bytes, values + place * value.len(), value);
        let width = usize::from(self.form.offset_bytes);
        insert_bytes(&mut self.bytes, place * width, &offset.to_le_bytes()[..width]);
        self.entries += 1;
    }

    /// Marks the codes that this leaf uses.
    pub fn mark_codes(&self, is_used: &mut [bool]) {
        if self.form.has_codes {
            for index in 0..self.entries() {
                is_used[usize::from(self.code(index))] = true;
            }
        }
    }

    /// Checks the invariants in a leaf of `length` ids.
    #[cfg(test)]
    pub fn check(&self, length: u64, dictionary: &Dictionary) {
        assert_eq!(self.bytes.len(), self.entries() * self.form.entry_bytes());
        let mut covered = 0;
        for index in 0..self.entries() {
            let (start, run) = (self.offset(index), u64::from(self.run(index)));
            assert!(start >= covered && start < length, "invariant 1: entry {index}");
            covered = start + run.max(1);
            assert!(run == 0 || self.value(index, dictionary) != self.default, "invariant 3");
        }
        assert!(covered <= length, "invariant 1");
        let mut at = 0;
        let mut last = None;
        while at < length {
            let piece = self.find(at, length, dictionary);
            assert!(piece.start == at && piece.end > at, "invariant 2: {piece:?} at {at}");
            assert_ne!(last.replace(piece.placement), Some(piece.placement), "invariant 2");
            at = piece.end;
        }
    }

    /// Number of entries that begin at or before `offset`, in a leaf of `length` ids.
    #[inline]
    fn entries_up_to(&self, offset: u64, length: u64) -> usize {
        let offsets = &self.bytes[..self.values_at()];
        match self.form.offset_bytes {
            2 if offset > u64::from(u16::MAX) => self.entries(),
            2 => count_up_to(offsets.as_chunks::<2>().0, offset as u16, length),
            4 => {
                let (fours, _) = offsets.as_chunks::<4>();
                fours.partition_point(|four| u64::from(u32::from_le_bytes(*four)) <= offset)
            }
            _ => {
                let (eights, _) = offsets.as_chunks::<8>();
                eights.partition_point(|eight| u64::from_le_bytes(*eight) <= offset)
            }
        }
    }

    #[inline]
    fn values_at(&self) -> usize {
        self.entries() * usize::from(self.form.offset_bytes)
    }

    #[inline]
    fn runs_at(&self) -> usize {
        self.values_at() + self.entries() * self.form.value_bytes()
    }

    #[inline]
    fn offset(&self, index: usize) -> u64 {
        match self.form.offset_bytes {
            2 => u64::from(u16::from_le_bytes(field(&self.bytes, 0, index))),
            4 => u64::from(u32::from_le_bytes(field(&self.bytes, 0, index))),
            _ => u64::from_le_bytes(field(&self.bytes, 0, index)),
        }
    }

    #[inline]
    fn run(&self, index: usize) -> u8 {
        if self.form.has_runs { self.bytes[self.runs_at() + index] } else { 1 }
    }

    #[inline]
    fn code(&self, index: usize) -> u16 {
        u16::from_le_bytes(field(&self.bytes, self.values_at(), index))
    }

    #[inline]
    fn value(&self, index: usize, dictionary: &Dictionary) -> PlacementBits {
        if self.form.has_codes {
            dictionary.placement(self.code(index))
        } else {
            u64::from_le_bytes(field(&self.bytes, self.values_at(), index))
        }
    }
}

/// Number of `entries` before an offset if they are spread evenly over `length` ids.
#[inline]
fn guess(entries: usize, offset: u16, length: u64) -> usize {
    let length = u32::try_from(length).unwrap_or(u32::MAX).max(1);
    // At most 4,096 times 65,535.
    (u32::from(offset) * entries as u32 / length) as usize
}

/// Number of offsets, which ascend, that are at most `wanted`; the leaf has `length` ids.
///
/// Chunks migrate from all over a leaf, so its offsets are spread evenly. The offsets around the
/// expected position of `wanted` are compared first: always the same number, so that no branch
/// depends on memory that is still being fetched, and the processor can begin the next lookup
/// meanwhile. If that guess was bad, all offsets are compared; a bad guess costs only a few
/// instructions.
#[inline]
fn count_up_to(offsets: &[[u8; 2]], wanted: u16, length: u64) -> usize {
    // The sum cannot overflow, and an overflow check would prevent vectorisation.
    let is_before = |pair: &[u8; 2]| u16::from(u16::from_le_bytes(*pair) <= wanted);
    let count = |pairs: &[[u8; 2]]| pairs.iter().map(is_before).fold(0, u16::wrapping_add);
    let last_start = offsets.len().saturating_sub(WINDOW);
    let guess = guess(offsets.len(), wanted, length);
    let start = guess.saturating_sub(WINDOW / 2).min(last_start);
    if let Some(window) = offsets[start..].first_chunk::<WINDOW>() {
        let within = usize::from(count(window));
        if (within > 0 || start == 0) && (within < WINDOW || start == last_start) {
            return start + within;
        }
    }
    usize::from(count(offsets))
}

fn insert_bytes(bytes: &mut Vec<u8>, at: usize, inserted: &[u8]) {
    let length = bytes.len();
    bytes.resize(length + inserted.len(), 0);
    bytes.copy_within(at..length, at + inserted.len());
    bytes[at..at + inserted.len()].copy_from_slice(inserted);
}

fn offset_bytes(offset: u64) -> u8 {
    match offset {
        0..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => 8,
    }
}

/// The placement that most pieces have: the default that needs the fewest entries.
fn most_common(pieces: &[Piece]) -> PlacementBits {
    let mut placements: Vec<_> = pieces.iter().map(|piece| piece.placement).collect();
    placements.sort_unstable();
    let runs = placements.chunk_by(|one, other| one == other);
    runs.max_by_key(|run| run.len()).map_or(pieces[0].placement, |run| run[0])
}

/// Returns the default (`default` if given, else the one that needs the fewest entries) and the
/// entries for the other pieces, with runs up to `run_max`.
pub(super) fn to_entries(
    pieces: &[Piece],
    end: u64,
    run_max: u64,
    default: Option<PlacementBits>,
) -> (PlacementBits, Vec<LeafEntry>) {
    let first = pieces[0].start;
    let default = default.unwrap_or_else(|| most_common(pieces));
    let mut entries = Vec::with_capacity(pieces.len());
    // Whether the last entry continues until another one follows.
    let mut is_open = false;
    for (index, piece) in pieces.iter().enumerate() {
        let next = pieces.get(index + 1);
        let length = next.map_or(end, |next| next.start) - piece.start;
        let is_default = piece.placement == default;
        if is_default && !is_open {
            continue;
        }
        let run = if is_default || length > run_max { 0 } else { length as u8 };
        entries.push(LeafEntry { offset: piece.start - first, run, placement: piece.placement });
        // After a stored default the default simply applies again.
        is_open = run == 0 && !is_default;
    }
    (default, entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_guess_gives_the_right_count() {
        // Spread evenly, crowded at either end, and with a gap in the middle.
        let shapes: [fn(u32) -> u32; 4] =
            [|i| i * 500 + i % 7, |i| i, |i| 65_000 + i, |i| i + 60_000 * (i / 64)];
        for shape in shapes {
            for entries in [0, 1, 31, 32, 33, 64, 100, 128] {
                let plain: Vec<u16> = (0..entries).map(|index| shape(index) as u16).collect();
                let pairs: Vec<[u8; 2]> = plain.iter().map(|offset| offset.to_le_bytes()).collect();
                for length in [1, 1_000, 65_536, u64::MAX] {
                    for wanted in (0..=u16::MAX).step_by(13).chain(plain.iter().copied()) {
                        let expected = plain.partition_point(|offset| *offset <= wanted);
                        assert_eq!(count_up_to(&pairs, wanted, length), expected);
                    }
                }
            }
        }
    }
}
