//! Finds spaces and line ends sixteen bytes at a time, as bits of a word.

use wide::u8x16;

/// Bytes that are compared at once.
const CHUNK_BYTES: usize = 16;

/// Bytes whose bits fit a word.
pub(crate) const WINDOW_BYTES: usize = 64;

/// Returns a word whose bit n says that byte n of `chunk` is `wanted`.
#[inline]
fn matches(chunk: &[u8; CHUNK_BYTES], wanted: u8) -> u64 {
    u64::from(u8x16::new(*chunk).simd_eq(u8x16::splat(wanted)).to_bitmask())
}

/// As `matches`, for fewer bytes than a chunk.
#[inline]
fn matches_short(bytes: &[u8], wanted: u8) -> u64 {
    bytes.iter().rev().fold(0, |found, byte| found << 1 | u64::from(*byte == wanted))
}

/// The spaces, and the first line ends, of the bytes where a line starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Bit n: byte n is a space.
    pub spaces: u64,
    /// Bit n: byte n is a line end. Bits behind the first one may be missing.
    pub line_ends: u64,
    /// How many bytes were looked at.
    pub bytes: usize,
}

impl Window {
    /// Looks at the first bytes of `input`, up to 64 of them, and no further than the chunk in
    /// which a line ends.
    #[inline]
    pub fn of_line(input: &[u8]) -> Self {
        let mut window = Self { spaces: 0, line_ends: 0, bytes: 0 };
        while window.bytes < WINDOW_BYTES {
            let rest = &input[window.bytes..];
            let Some(chunk) = rest.first_chunk() else {
                window.add_tail(input, rest);
                break;
            };
            window.spaces |= matches(chunk, b' ') << window.bytes;
            window.line_ends |= matches(chunk, b'\n') << window.bytes;
            window.bytes += CHUNK_BYTES;
            if window.line_ends != 0 {
                break;
            }
        }
        window
    }

    /// Looks at `rest`, the last bytes of `input`, which are fewer than a chunk.
    #[inline]
    fn add_tail(&mut self, input: &[u8], rest: &[u8]) {
        match input.last_chunk() {
            // The chunk before overlaps: the same bits are found again.
            Some(chunk) => {
                let at = input.len() - CHUNK_BYTES;
                self.spaces |= matches(chunk, b' ') << at;
                self.line_ends |= matches(chunk, b'\n') << at;
            }
            None => {
                self.spaces = matches_short(rest, b' ');
                self.line_ends = matches_short(rest, b'\n');
            }
        }
        self.bytes = input.len();
    }
}

/// The spaces among the first 64 bytes of `text`. The function is not inlined, so that
/// its callers stay small enough to be inlined.
#[inline(never)]
pub(crate) fn spaces(text: &[u8]) -> u64 {
    let Some(block) = text.first_chunk::<WINDOW_BYTES>() else { return spaces_short(text) };
    let (chunks, _) = block.as_chunks();
    (0..)
        .zip(chunks)
        .fold(0, |found, (number, chunk)| found | matches(chunk, b' ') << (number * CHUNK_BYTES))
}

/// The spaces of a text of fewer than 64 bytes.
#[inline]
fn spaces_short(text: &[u8]) -> u64 {
    let Some(last) = text.last_chunk() else { return matches_short(text, b' ') };
    let (chunks, _) = text.as_chunks();
    // The last chunk overlaps the one before: the same bits are found again.
    let found = matches(last, b' ') << (text.len() - CHUNK_BYTES);
    (0..).zip(chunks).fold(found, |found, (number, chunk)| {
        found | matches(chunk, b' ') << (number * CHUNK_BYTES)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(input: &[u8], wanted: u8) -> u64 {
        let bit = |(at, byte): (usize, &u8)| u64::from(*byte == wanted) << at;
        input.iter().take(WINDOW_BYTES).enumerate().map(bit).sum()
    }

    proptest! {
        #[test]
        fn bits_are_where_the_bytes_are(chunk in any::<[u8; 16]>(), wanted in any::<u8>()) {
            let near = chunk.map(|byte| wanted.wrapping_add(byte % 3));
            for chunk in [chunk, near] {
                prop_assert_eq!(matches(&chunk, wanted), bits(&chunk, wanted));
                prop_assert_eq!(matches_short(&chunk[1..], wanted), bits(&chunk[1..], wanted));
            }
        }

        #[test]
        fn a_window_shows_what_is_there(
            input in prop::collection::vec(prop::sample::select(&b" \n!\rk"[..]), 0..100),
        ) {
            prop_assert_eq!(spaces(&input), bits(&input, b' '));
            let window = Window::of_line(&input);
            let seen = &input[..window.bytes];
            prop_assert_eq!(window.spaces, bits(seen, b' '));
            prop_assert_eq!(window.line_ends, bits(seen, b'\n'));
            let all = input.len().min(WINDOW_BYTES);
            prop_assert!(window.bytes == all || window.line_ends != 0);
        }
    }
}
