//! The rows of a region's blocks, in segments of equal size.
//!
//! Regions grow in steps, at the same time and to the same sizes. If each region's words were one
//! allocation, the memory that one region frees would be too short for the next, and the heap would
//! be half holes. So the words lie in segments whose size all regions share, and freed rows are
//! reused.
//!
//! Invariants:
//! 1. A row lies in one segment. A row longer than a segment has its own, of its length.
//! 2. A word is in a row that is taken, in a free row, or wasted: `unused` counts the latter two.

/// Step by which a row grows, in words.
pub const WORDS_AT_ONCE: usize = 4;
/// Words of a segment; small in tests, so that rows cross every border.
const SEGMENT_WORDS: usize = if cfg!(test) { 16 } else { 2048 };
/// All rows are packed once this fraction (one in `UNUSED_PART`) of the words is unused.
const UNUSED_PART: usize = 8;
/// Marks the end of a free list.
const NONE: u32 = u32::MAX;

/// A row that is taken.
#[derive(Clone, Copy, Debug)]
pub struct TakenRow {
    /// Its position.
    pub at: u32,
    /// Its length in words.
    pub words: usize,
    /// Index of the block that has it.
    pub of: usize,
}

/// Rows of words. The caller knows which rows are taken.
#[derive(Debug, Default)]
pub struct Rows {
    /// A row's position is its offset in its segment, plus the number of that segment times
    /// [`SEGMENT_WORDS`].
    segments: Vec<Box<[u32]>>,
    /// Words of the last segment that were handed out.
    filled: usize,
    /// Heads of the free lists by length, in units of [`WORDS_AT_ONCE`]; the first word of a free
    /// row is the position of the next.
    free: Vec<u32>,
    unused: usize,
    /// Unused words right after the last packing: what rows did not fill of their segments.
    unused_at_first: usize,
    words: usize,
}

impl Rows {
    /// The first words of a row.
    #[inline]
    pub fn row(&self, at: u32, words: usize) -> &[u32] {
        if words == 0 {
            return &[];
        }
        let at = at as usize;
        &self.segments[at / SEGMENT_WORDS][at % SEGMENT_WORDS..][..words]
    }

    /// The first words of a row, mutably.
    #[inline]
    pub fn row_mut(&mut self, at: u32, words: usize) -> &mut [u32] {
        if words == 0 {
            return &mut [];
        }
        let at = at as usize;
        &mut self.segments[at / SEGMENT_WORDS][at % SEGMENT_WORDS..][..words]
    }

    /// Takes a row of `words` words, a multiple of [`WORDS_AT_ONCE`].
    pub fn take(&mut self, words: usize) -> u32 {
        if words == 0 {
            return 0;
        }
        let class = words / WORDS_AT_ONCE;
        if let Some(at) = self.free.get(class).copied().filter(|at| *at != NONE) {
            self.free[class] = self.row(at, 1)[0];
            self.unused -= words;
            return at;
        }
        let left = self.segments.last().map_or(0, |last| last.len() - self.filled);
        if left < words {
            self.unused += left;
            let segment = vec![0; words.max(SEGMENT_WORDS)].into_boxed_slice();
            self.words += segment.len();
            self.segments.push(segment);
            self.filled = 0;
        }
        let at = (self.segments.len() - 1) * SEGMENT_WORDS + self.filled;
        self.filled += words;
        at as u32
    }

    /// Gives a row back.
    pub fn give_back(&mut self, at: u32, words: usize) {
        if words == 0 {
            return;
        }
        let class = words / WORDS_AT_ONCE;
        if self.free.len() <= class {
            self.free.reserve_exact(class + 1 - self.free.len());
            self.free.resize(class + 1, NONE);
        }
        self.row_mut(at, 1)[0] = self.free[class];
        self.free[class] = at;
        self.unused += words;
    }

    /// Whether enough words are unused for the rows to be packed.
    pub fn is_scattered(&self) -> bool {
        self.unused.saturating_sub(self.unused_at_first) * UNUSED_PART > self.words
    }

    /// Packs rows together within their segments, without new memory, and frees the segments that
    /// are left. `rows` are all rows that are taken; each gets its new position.
    ///
    /// Rows fill segments in the order of their positions, as they did before, without the unused
    /// words. So no row is written over one that was not moved yet: it goes to an earlier segment,
    /// or to its own, where only rows before it have been put.
    pub fn pack(&mut self, rows: &mut [TakenRow]) {
        rows.sort_unstable_by_key(|row| row.at);
        let (mut packed, mut filled) = (0, 0);
        (self.unused, self.free) = (0, Vec::new());
        for row in rows {
            let mut from = (row.at as usize / SEGMENT_WORDS, row.at as usize % SEGMENT_WORDS);
            let left = self.segments[..packed].last().map_or(0, |last| last.len() - filled);
            if left < row.words {
                self.unused += left;
                if row.words > SEGMENT_WORDS {
                    // The row keeps its segment.
                    self.segments.swap(packed, from.0);
                    from.0 = packed;
                } else if self.segments[packed].len() > SEGMENT_WORDS {
                    self.segments[packed] = vec![0; SEGMENT_WORDS].into_boxed_slice();
                }
                (packed, filled) = (packed + 1, 0);
            }
            let to = packed - 1;
            row.at = (to * SEGMENT_WORDS + filled) as u32;
            let (before, after) = self.segments.split_at_mut(from.0);
            let source = from.1..from.1 + row.words;
            match before.get_mut(to) {
                Some(target) => target[filled..][..row.words].copy_from_slice(&after[0][source]),
                None => after[0].copy_within(source, filled),
            }
            filled += row.words;
        }
        self.segments.truncate(packed);
        self.segments.shrink_to_fit();
        self.filled = filled;
        self.words = self.segments.iter().map(|segment| segment.len()).sum();
        self.unused_at_first = self.unused;
    }

    /// Memory without the struct itself, in bytes.
    pub fn bytes(&self) -> usize {
        self.segments.capacity() * size_of::<Box<[u32]>>()
            + (self.words + self.free.capacity()) * size_of::<u32>()
    }

    /// Checks that these rows (positions and lengths) overlap neither each other nor free rows, and
    /// that the sums are right.
    #[cfg(test)]
    pub fn check(&self, mut rows: Vec<(u32, usize)>) {
        let taken: usize = rows.iter().map(|(_, words)| words).sum();
        for (class, first) in self.free.iter().enumerate() {
            let mut at = *first;
            while at != NONE {
                rows.push((at, class * WORDS_AT_ONCE));
                at = self.row(at, 1)[0];
            }
        }
        rows.sort_unstable();
        for (at, words) in &rows {
            let segment = &self.segments[*at as usize / SEGMENT_WORDS];
            assert!(*at as usize % SEGMENT_WORDS + words <= segment.len(), "invariant 1");
        }
        let is_apart = |two: &[(u32, usize)]| {
            let (segment, next) = (two[0].0 as usize / SEGMENT_WORDS, two[1].0 as usize);
            segment != next / SEGMENT_WORDS || two[0].0 as usize + two[0].1 <= next
        };
        assert!(rows.windows(2).all(is_apart), "invariant 2");
        assert_eq!(self.words, self.segments.iter().map(|segment| segment.len()).sum::<usize>());
        let left = self.segments.last().map_or(0, |last| last.len() - self.filled);
        assert_eq!(self.words, taken + self.unused + left, "invariant 2");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_words_and_are_reused() {
        let mut rows = Rows::default();
        let mut taken: Vec<(u32, usize, u32)> = Vec::new();
        let mut random = 1_u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        for step in 0..20_000 {
            if taken.len() > draw(60) {
                let (at, words, tag) = taken.swap_remove(draw(taken.len()));
                assert!(rows.row(at, words).iter().all(|word| *word == tag), "of step {tag}");
                rows.give_back(at, words);
            } else {
                // Some are longer than a segment.
                let words = (1 + draw(6)) * WORDS_AT_ONCE;
                let at = rows.take(words);
                rows.row_mut(at, words).fill(step);
                taken.push((at, words, step));
            }
            rows.check(taken.iter().map(|(at, words, _)| (*at, *words)).collect());
        }
        assert!(rows.words < 6 * 60 * 24, "{} words: free rows are used again", rows.words);
    }

    #[test]
    fn packed_rows_keep_their_words() {
        let mut random = 7_u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let (mut packed, mut given_back) = (0, 0);
        for round in 0..300 {
            let mut rows = Rows::default();
            let mut taken: Vec<TakenRow> = Vec::new();
            for of in 0..draw(80) {
                // Some are longer than a segment.
                let words = (1 + draw(6)) * WORDS_AT_ONCE;
                let at = rows.take(words);
                rows.row_mut(at, words).fill(of as u32);
                taken.push(TakenRow { at, words, of });
                if draw(3) == 0 {
                    let row = taken.swap_remove(draw(taken.len()));
                    rows.give_back(row.at, row.words);
                }
            }
            let (before, was_scattered) = (rows.words, rows.is_scattered());
            packed += usize::from(was_scattered);
            rows.pack(&mut taken);
            assert!(!rows.is_scattered() && rows.words <= before, "round {round}");
            given_back += before - rows.words;
            rows.check(taken.iter().map(|row| (row.at, row.words)).collect());
            for row in &taken {
                let words = rows.row(row.at, row.words);
                assert!(words.iter().all(|word| *word == row.of as u32), "round {round}");
            }
            // A row taken next does not overlap them.
            let at = rows.take(WORDS_AT_ONCE);
            taken.push(TakenRow { at, words: WORDS_AT_ONCE, of: 0 });
            rows.check(taken.iter().map(|row| (row.at, row.words)).collect());
        }
        assert!(packed > 100 && given_back > 5_000, "{packed} {given_back}");
    }
}
