//! A region: the placements of 2^20 consecutive ids, many of which have migrated.
//!
//! Its ids are cut into *blocks* of equal length, found by division: a lookup waits for the block's
//! word and for its entries, where a tree of leaves waits for the firsts of nodes and leaves, a
//! leaf's head, its offsets and its value.
//!
//! A block has a *default*, by code, and *entries* like a leaf's: an entry is a word of its offset,
//! its run (0 means until the next entry or the end of the block), and the code of its placement. A
//! *wide* block holds placements without a code: the owner takes the place of the code, and the
//! backups of each entry follow all entries.
//!
//! Invariants:
//! 1. Offsets ascend strictly; an entry's ids end at or before the next offset and the block's end.
//! 2. Read from the left, a block covers its ids with pieces; neighbours differ in placement.
//! 3. A block's words form a row, with capacity for entries up to the next multiple of
//!    [`WORDS_AT_ONCE`]; rows lie in [`Rows`].

use super::dictionary::Dictionary;
use super::leaf::{FoundPiece, Piece, overwrite, push_piece, to_entries};
use super::placement::{NOBODY, PlacementBits};
use super::rows::{Rows, TakenRow, WORDS_AT_ONCE};

/// Ids of a block, as a power of two; small in tests, so that they cross every border.
const BLOCK_BITS: u32 = if cfg!(test) { 4 } else { 10 };
const BLOCK_IDS: u64 = 1 << BLOCK_BITS;
/// Ids of a region.
pub const REGION_IDS: u64 = if cfg!(test) { 1 << 6 } else { 1 << 20 };
/// Blocks of a region.
pub const BLOCKS: usize = (REGION_IDS / BLOCK_IDS) as usize;

/// The longest run that is stored: six bits.
const RUN_MAX: u64 = 63;
/// Entries that a search compares first: two cache lines.
const WINDOW: usize = 32;
/// Flag in a block's count: its placements are stored without codes.
const WIDE: u16 = 1 << 15;
/// Backups of a placement, 16 bits each.
const BACKUPS: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Position of its first word.
    at: u32,
    /// Number of entries, and the flag [`WIDE`].
    count: u16,
    /// The code of the placement of ids outside of all entries.
    default: u16,
}

impl Block {
    #[inline]
    fn entries(self) -> usize {
        usize::from(self.count & !WIDE)
    }

    #[inline]
    fn is_wide(self) -> bool {
        self.count & WIDE != 0
    }

    /// Words of its row that are in use.
    fn words(self) -> usize {
        let entries = self.entries();
        if self.is_wide() { entries + (entries * BACKUPS).div_ceil(2) } else { entries }
    }

    /// Words of its row.
    fn room(self) -> usize {
        self.words().next_multiple_of(WORDS_AT_ONCE)
    }
}

/// A region; see the head of this module. Its first id is kept by the map.
#[derive(Debug)]
pub struct Region {
    blocks: Box<[Block]>,
    rows: Rows,
    entries: usize,
}

#[inline]
fn head(offset: u32, run: u32, low: u16) -> u32 {
    offset << 22 | run << 16 | u32::from(low)
}

#[inline]
fn offset_of(head: u32) -> u32 {
    head >> 22
}

#[inline]
fn run_of(head: u32) -> u32 {
    head >> 16 & 63
}

impl Region {
    /// A region in which no id has an owner.
    pub fn empty() -> Self {
        let empty = Block { at: 0, count: 0, default: 0 };
        let blocks = vec![empty; BLOCKS].into_boxed_slice();
        Self { blocks, rows: Rows::default(), entries: 0 }
    }

    /// Number of entries of all blocks.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Memory without the struct itself, in bytes.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<Block>() + self.rows.bytes()
    }

    /// The block of an offset from the region's first id.
    #[inline]
    pub fn block_of(offset: u64) -> usize {
        (offset / BLOCK_IDS) as usize
    }

    /// The offset of a block's first id.
    #[inline]
    pub fn start_of(block: usize) -> u64 {
        block as u64 * BLOCK_IDS
    }

    /// The placement of ids of a block outside of all entries.
    pub fn default(&self, block: usize, dictionary: &Dictionary) -> PlacementBits {
        dictionary.placement(self.blocks[block].default)
    }

    /// The placement at an offset.
    #[inline]
    pub fn get(&self, offset: u64, dictionary: &Dictionary) -> PlacementBits {
        let block = self.blocks[Self::block_of(offset)];
        let within = (offset % BLOCK_IDS) as u32;
        let heads = self.heads(block);
        let before = count_up_to(heads, within);
        let Some(last) = before.checked_sub(1) else { return dictionary.placement(block.default) };
        let head = heads[last];
        let run = run_of(head);
        let holds = run == 0 || within - offset_of(head) < run;
        if block.is_wide() && holds {
            return self.wide_value(block, last);
        }
        // A selection of one of two codes without a branch, which would wait for memory.
        dictionary.placement(if holds { head as u16 } else { block.default })
    }

    /// Number of entries of the block of an offset; prefetches the block's word.
    #[inline]
    pub fn entries_near(&self, offset: u64) -> usize {
        self.blocks[Self::block_of(offset)].entries()
    }

    /// Reads a byte of each cache line that a search for an offset will most likely read.
    #[inline]
    pub fn touch(&self, offset: u64) -> u8 {
        let heads = self.heads(self.blocks[Self::block_of(offset)]);
        let Some(last) = heads.len().checked_sub(1) else { return 0 };
        let start = guess(heads.len(), (offset % BLOCK_IDS) as u32).saturating_sub(WINDOW / 2);
        let lines = [start, start + WINDOW / 2, start + WINDOW - 1];
        lines.map(|place| heads[place.min(last)] as u8).into_iter().fold(0, u8::wrapping_add)
    }

    /// The piece at an offset, in offsets, within its block.
    pub fn find(&self, offset: u64, dictionary: &Dictionary) -> FoundPiece {
        let block = self.blocks[Self::block_of(offset)];
        let first = offset - offset % BLOCK_IDS;
        let heads = self.heads(block);
        let before = count_up_to(heads, (offset - first) as u32);
        let next = heads.get(before).map_or(BLOCK_IDS, |head| u64::from(offset_of(*head)));
        let default = dictionary.placement(block.default);
        let Some(last) = before.checked_sub(1) else {
            return FoundPiece { start: first, end: first + next, placement: default };
        };
        let start = u64::from(offset_of(heads[last]));
        let end = match run_of(heads[last]) {
            0 => next,
            run => start + u64::from(run),
        };
        if offset - first < end {
            let placement = self.value(block, last, dictionary);
            FoundPiece { start: first + start, end: first + end, placement }
        } else {
            FoundPiece { start: first + end, end: first + next, placement: default }
        }
    }

    /// Appends the pieces of a block whose first id is `first`.
    pub fn read(&self, block: usize, first: u64, dictionary: &Dictionary, pieces: &mut Vec<Piece>) {
        let block = self.blocks[block];
        let default = dictionary.placement(block.default);
        let heads = self.heads(block);
        let mut covered = 0;
        for (index, head) in heads.iter().enumerate() {
            let start = u64::from(offset_of(*head));
            if covered < start {
                push_piece(pieces, first + covered, default);
            }
            push_piece(pieces, first + start, self.value(block, index, dictionary));
            covered = match run_of(*head) {
                0 => heads.get(index + 1).map_or(BLOCK_IDS, |next| u64::from(offset_of(*next))),
                run => start + u64::from(run),
            };
        }
        if covered < BLOCK_IDS {
            push_piece(pieces, first + covered, default);
        }
    }

    /// Gives the ids from offset `start` to before offset `end` one placement.
    pub fn assign(
        &mut self,
        start: u64,
        end: u64,
        placement: PlacementBits,
        dictionary: &mut Dictionary,
    ) {
        let mut at = start;
        let mut pieces = Vec::new();
        while at < end {
            let block = Self::block_of(at);
            let first = Self::start_of(block);
            let until = end.min(first + BLOCK_IDS);
            pieces.clear();
            if until - at == BLOCK_IDS {
                pieces.push(Piece { start: first, placement });
                self.write(block, &pieces, first, dictionary);
            } else {
                self.read(block, first, dictionary, &mut pieces);
                let pieces = overwrite(&pieces, first + BLOCK_IDS, &[(at..until, placement)]);
                self.write(block, &pieces, first, dictionary);
            }
            at = until;
        }
    }

    /// Gives one id, which has its block's default, another placement, if a new entry in the
    /// block's form suffices: the fast path. False otherwise; nothing has changed then.
    pub fn try_insert_single(
        &mut self,
        offset: u64,
        placement: PlacementBits,
        dictionary: &mut Dictionary,
    ) -> bool {
        let index = Self::block_of(offset);
        let block = self.blocks[index];
        let default = dictionary.placement(block.default);
        if placement == default {
            return false;
        }
        let low = match block.is_wide() {
            true => placement as u16,
            false => match dictionary.intern(placement) {
                Some(code) => code,
                None => return false,
            },
        };
        let within = (offset % BLOCK_IDS) as u32;
        let heads = self.heads(block);
        let place = count_up_to(heads, within);
        if let Some(last) = place.checked_sub(1) {
            let (run, past) = (run_of(heads[last]), within - offset_of(heads[last]));
            let value = self.value(block, last, dictionary);
            // The id lies within an entry that is not a stored default, or begins or continues one.
            let is_taken = if run == 0 { past == 0 || value != default } else { past < run };
            if is_taken || (past == run && value == placement) {
                return false;
            }
        }
        let next = heads.get(place).copied();
        if next.is_some_and(|next| offset_of(next) == within + 1)
            && self.value(block, place, dictionary) == placement
        {
            return false;
        }
        let grown = Block { count: block.count + 1, ..block };
        let at = match grown.room() == block.room() {
            true => block.at,
            false => self.move_row(index, grown),
        };
        let row = self.rows.row_mut(at, grown.words());
        make_room(row, block.entries(), place, block.is_wide());
        row[place] = head(within, 1, low);
        if block.is_wide() {
            write_backups(&mut row[grown.entries()..], place, placement);
        }
        self.blocks[index] = Block { at, ..grown };
        self.entries += 1;
        true
    }

    /// Copies the words of a block to a row with capacity for `grown`.
    fn move_row(&mut self, index: usize, grown: Block) -> u32 {
        let block = self.blocks[index];
        let words = self.rows.row(block.at, block.words()).to_vec();
        let to = self.new_row(index, block, grown.room());
        self.rows.row_mut(to, words.len()).copy_from_slice(&words);
        to
    }

    /// Marks the codes in use.
    pub fn mark_codes(&self, is_used: &mut [bool]) {
        for block in &self.blocks {
            is_used[usize::from(block.default)] = true;
            if !block.is_wide() {
                self.heads(*block)
                    .iter()
                    .for_each(|head| is_used[usize::from(*head as u16)] = true);
            }
        }
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub fn check(&self, dictionary: &Dictionary) {
        let rows: Vec<_> = self.blocks.iter().filter(|block| block.count != 0).collect();
        let taken = rows.iter().map(|block| (block.at, block.room()));
        self.rows.check(taken.collect());
        assert_eq!(self.entries, rows.iter().map(|block| block.entries()).sum::<usize>());
        for index in 0..BLOCKS {
            let mut covered = 0;
            for head in self.heads(self.blocks[index]) {
                assert!(offset_of(*head) >= covered, "invariant 1");
                covered = offset_of(*head) + run_of(*head).max(1);
            }
            assert!(u64::from(covered) <= BLOCK_IDS, "invariant 1");
            let (mut at, mut last) = (0, None);
            while at < BLOCK_IDS {
                let start = Self::start_of(index);
                let piece = self.find(start + at, dictionary);
                assert!(piece.start == start + at && piece.end > piece.start, "{piece:?} at {at}");
                assert_ne!(last.replace(piece.placement), Some(piece.placement), "invariant 2");
                at = piece.end - start;
            }
        }
    }

    #[inline]
    fn heads(&self, block: Block) -> &[u32] {
        self.rows.row(block.at, block.entries())
    }

    #[inline]
    fn value(&self, block: Block, index: usize, dictionary: &Dictionary) -> PlacementBits {
        match block.is_wide() {
            true => self.wide_value(block, index),
            false => dictionary.placement(self.heads(block)[index] as u16),
        }
    }

    #[cold]
    fn wide_value(&self, block: Block, index: usize) -> PlacementBits {
        let (heads, backups) = self.rows.row(block.at, block.words()).split_at(block.entries());
        (0..BACKUPS)
            .rev()
            .fold(0, |bits, backup| bits << 16 | u64::from(half(backups, BACKUPS * index + backup)))
            << 16
            | u64::from(heads[index] as u16)
    }

    /// Rewrites a block from pieces that cover it; `first` is its first id.
    pub fn write(
        &mut self,
        index: usize,
        pieces: &[Piece],
        first: u64,
        dictionary: &mut Dictionary,
    ) {
        let before = self.blocks[index];
        self.entries -= before.entries();
        let end = first + BLOCK_IDS;
        let (mut wanted, mut entries) = to_entries(pieces, end, RUN_MAX, None);
        let default = dictionary.intern(wanted).unwrap_or_else(|| {
            // `NOBODY` always has a code.
            (wanted, entries) = to_entries(pieces, end, RUN_MAX, Some(NOBODY));
            dictionary.intern(wanted).unwrap_or_default()
        });
        let codes: Vec<u16> =
            entries.iter().map_while(|entry| dictionary.intern(entry.placement)).collect();
        let is_wide = codes.len() < entries.len();
        let count = entries.len() as u16 | if is_wide { WIDE } else { 0 };
        let block = Block { at: before.at, count, default };
        // Keep the row if the new one has the same length.
        let at = match block.room() == before.room() {
            true => before.at,
            false => self.new_row(index, before, block.room()),
        };
        self.blocks[index] = Block { at, ..block };
        self.entries += entries.len();
        let row = self.rows.row_mut(at, block.words());
        for (index, entry) in entries.iter().enumerate() {
            let low = if is_wide { entry.placement as u16 } else { codes[index] };
            row[index] = head(entry.offset as u32, u32::from(entry.run), low);
            if is_wide {
                write_backups(&mut row[entries.len()..], index, entry.placement);
            }
        }
    }

    /// Takes a new row for a block and gives its old one back. The words of the old row are lost,
    /// and other rows may have moved.
    fn new_row(&mut self, index: usize, before: Block, room: usize) -> u32 {
        self.blocks[index].count = 0;
        self.rows.give_back(before.at, before.room());
        if self.rows.is_scattered() {
            let taken = self.blocks.iter().enumerate().filter(|(_, block)| block.count != 0);
            let row = |(of, block): (_, &Block)| TakenRow { at: block.at, words: block.room(), of };
            let mut taken: Vec<TakenRow> = taken.map(row).collect();
            self.rows.pack(&mut taken);
            taken.into_iter().for_each(|row| self.blocks[row.of].at = row.at);
        }
        self.rows.take(room)
    }
}

/// Writes the backups of an entry of a wide block.
fn write_backups(backups: &mut [u32], index: usize, placement: PlacementBits) {
    for backup in 0..BACKUPS {
        set_half(backups, BACKUPS * index + backup, (placement >> (16 * backup + 16)) as u16);
    }
}

#[inline]
fn half(words: &[u32], index: usize) -> u16 {
    (words[index / 2] >> (index % 2 * 16)) as u16
}

#[inline]
fn set_half(words: &mut [u32], index: usize, half: u16) {
    let shift = index % 2 * 16;
    let word = &mut words[index / 2];
    *word = *word & !(0xFFFF << shift) | u32::from(half) << shift;
}

/// Makes a gap for one entry at `place` among a block's entries.
fn make_room(row: &mut [u32], entries: usize, place: usize, is_wide: bool) {
    if is_wide {
        // From the back: what is written was read before.
        for index in (BACKUPS * place..BACKUPS * entries).rev() {
            let moved = half(&row[entries..], index);
            set_half(&mut row[entries + 1..], index + BACKUPS, moved);
        }
        let before = (BACKUPS * place).div_ceil(2);
        row.copy_within(entries..entries + before, entries + 1);
    }
    row.copy_within(place..entries, place + 1);
}

/// The expected position of an offset if `entries` are spread evenly.
#[inline]
fn guess(entries: usize, offset: u32) -> usize {
    (entries * offset as usize) >> BLOCK_BITS
}

/// Number of entries at or before an offset. Like a leaf's search it compares those around a guess,
/// always the same number, so that the processor can begin the next lookup meanwhile.
#[inline]
fn count_up_to(heads: &[u32], offset: u32) -> usize {
    let wanted = head(offset, 63, u16::MAX);
    let count = |heads: &[u32]| heads.iter().map(|head| u32::from(*head <= wanted)).sum::<u32>();
    let last_start = heads.len().saturating_sub(WINDOW);
    let start = guess(heads.len(), offset).saturating_sub(WINDOW / 2).min(last_start);
    if let Some(window) = heads[start..].first_chunk::<WINDOW>() {
        let within = count(window) as usize;
        if (within > 0 || start == 0) && (within < WINDOW || start == last_start) {
            return start + within;
        }
    }
    count(heads) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_guess_gives_the_right_count() {
        let shapes: [fn(u32) -> u32; 4] =
            [|i| i * 7 + i % 3, |i| i, |i| 900 + i, |i| i + 400 * (i / 64)];
        for shape in shapes {
            for entries in [0, 1, 31, 32, 33, 64, 100, 120] {
                let heads: Vec<u32> = (0..entries).map(|index| head(shape(index), 1, 7)).collect();
                for offset in 0..1024 {
                    let expected = heads.partition_point(|head| offset_of(*head) <= offset);
                    assert_eq!(count_up_to(&heads, offset), expected);
                }
            }
        }
    }
}
