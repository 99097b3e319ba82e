//! lookup3, Bob Jenkins' hash for table look-up (2006). The hardware table computes it, so the
//! engine that models that table must compute it, too.
//!
//! It reads a key in blocks of three 32-bit words and returns two words, of which the first is
//! better mixed. **It has no secret**: whoever knows the algorithm can make keys that share a
//! bucket. The other engines hash with a secret instead.

/// Bytes of a block.
const BLOCK_BYTES: usize = 12;

/// The published `hashlittle2`: hashes `bytes`, starting from the numbers `primary` and
/// `secondary`. The low half of the answer is the primary hash (`*pc`), the high half the secondary
/// (`*pb`).
#[inline]
pub const fn lookup3(bytes: &[u8], primary: u32, secondary: u32) -> u64 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32).wrapping_add(primary);
    let mut state = [start, start, start.wrapping_add(secondary)];
    let mut rest = bytes;
    while rest.len() > BLOCK_BYTES {
        let (block, behind) = rest.split_at(BLOCK_BYTES);
        state = mix(add(state, [word(block, 0), word(block, 4), word(block, 8)]));
        rest = behind;
    }
    if !rest.is_empty() {
        state = finish(add(state, last_block(rest)));
    }
    state[2] as u64 | (state[1] as u64) << 32
}

#[inline]
const fn add(state: [u32; 3], block: [u32; 3]) -> [u32; 3] {
    [
        state[0].wrapping_add(block[0]),
        state[1].wrapping_add(block[1]),
        state[2].wrapping_add(block[2]),
    ]
}

/// Mixes three words reversibly, between blocks.
#[inline]
const fn mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    a = a.wrapping_sub(c) ^ c.rotate_left(4);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(6);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(8);
    b = b.wrapping_add(a);
    a = a.wrapping_sub(c) ^ c.rotate_left(16);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(19);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(4);
    b = b.wrapping_add(a);
    [a, b, c]
}

/// Mixes the last block in.
#[inline]
const fn finish([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    c = (c ^ b).wrapping_sub(b.rotate_left(24));
    [a, b, c]
}

/// Reads the four bytes from `at` on as a little-endian number.
#[inline]
const fn word(bytes: &[u8], at: usize) -> u32 {
    match bytes.split_at(at).1.first_chunk() {
        Some(chunk) => u32::from_le_bytes(*chunk),
        None => unreachable!(),
    }
}

/// A last block of 1 to 12 bytes, padded with zeros. Loads overlap instead of going byte by byte.
#[inline]
const fn last_block(bytes: &[u8]) -> [u32; 3] {
    let length = bytes.len();
    match length {
        8.. => [word(bytes, 0), word(bytes, 4), end_word(bytes, BLOCK_BYTES - length)],
        4.. => [word(bytes, 0), end_word(bytes, 8 - length), 0],
        _ => {
            let (first, middle, last) = (bytes[0], bytes[length / 2], bytes[length - 1]);
            let middle = (middle as u32) << (8 * (length / 2));
            [first as u32 | middle | (last as u32) << (8 * (length - 1)), 0, 0]
        }
    }
}

/// The last four bytes, without the first `overlap` (0 to 4) of them.
#[inline]
const fn end_word(bytes: &[u8], overlap: usize) -> u32 {
    (word(bytes, bytes.len() - 4) as u64 >> (8 * overlap)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that the author publishes with the algorithm (`driver5`).
    #[test]
    fn published_vectors() {
        let speech = b"Four score and seven years ago";
        let pair = |primary: u64, secondary: u64| primary | secondary << 32;
        assert_eq!(lookup3(b"", 0, 0), pair(0xdead_beef, 0xdead_beef));
        assert_eq!(lookup3(b"", 0, 0xdead_beef), pair(0xbd5b_7dde, 0xdead_beef));
        assert_eq!(lookup3(b"", 0xdead_beef, 0xdead_beef), pair(0x9c09_3ccd, 0xbd5b_7dde));
        assert_eq!(lookup3(speech, 0, 0), pair(0x1777_0551, 0xce72_26e6));
        assert_eq!(lookup3(speech, 0, 1), pair(0xe360_7cae, 0xbd37_1de4));
        assert_eq!(lookup3(speech, 1, 0), pair(0xcd62_8161, 0x6cbe_a4b3));
    }

    /// A last block of all twelve bytes is mixed as a last one: answers of the published algorithm,
    /// computed byte by byte.
    #[test]
    fn whole_blocks() {
        assert_eq!(lookup3(b"Four score a", 0, 0), 0x1989_c1e7_ccda_323b);
        assert_eq!(lookup3(b"Four score and seven yea", 0, 0), 0x3609_1d4d_4eaa_9b13);
    }

    /// Compares the overlapping loads with the padding that they replace.
    #[test]
    fn a_last_block_is_padded_with_zeros() {
        let bytes: Vec<u8> = (1..=12).collect();
        for length in 1..=12 {
            let mut padded = [0; 12];
            padded[..length].copy_from_slice(&bytes[..length]);
            let expected = [0, 4, 8].map(|at| word(&padded, at));
            assert_eq!(last_block(&bytes[..length]), expected, "length {length}");
        }
    }
}
