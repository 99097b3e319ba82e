//! CRC32C of any range of a segment, in time that does not depend on the range's length: for a
//! search for a record at every offset. A random length would otherwise cost a pass over that many
//! bytes, and a client can choose a value that consists of such lengths.
//!
//! CRC32C is linear: the checksum of A followed by B is that of A times x^(8·|B|), plus that of B.
//! So two checksums from the beginning give that of the range between.

/// A checksum from the beginning is stored every N bytes.
const STEP: usize = 64;
/// Powers of x^8 are stored up to this one, and its multiples.
const POWERS: usize = 1 << 12;
/// The polynomial, with x^31 in the lowest bit, like all factors here.
const POLYNOMIAL: u32 = 0x82F6_3B78;
const ONE: u32 = 1 << 31;

/// Checksums of ranges of `bytes`; see the module's head.
#[derive(Debug)]
pub(super) struct RangeChecksums<'s> {
    bytes: &'s [u8],
    /// Checksum of the bytes before each step.
    steps: Vec<u32>,
    low: Vec<u32>,
    high: Vec<u32>,
}

impl<'s> RangeChecksums<'s> {
    pub(super) fn new(bytes: &'s [u8]) -> Self {
        let mut steps = vec![0];
        let mut sum = 0;
        for step in bytes.chunks_exact(STEP) {
            sum = crc32c::crc32c_append(sum, step);
            steps.push(sum);
        }
        let low = powers(ONE >> 8, POWERS.min(bytes.len() + 1));
        let high = powers(multiply(low[low.len() - 1], ONE >> 8), bytes.len() / POWERS + 1);
        Self { bytes, steps, low, high }
    }

    /// Extends the checksum `before` by the range `from..to`.
    pub(super) fn append(&self, before: u32, from: usize, to: usize) -> u32 {
        let length = to - from;
        let mut shifted = multiply(before ^ self.until(from), self.low[length % POWERS]);
        if length >= POWERS {
            shifted = multiply(shifted, self.high[length / POWERS]);
        }
        shifted ^ self.until(to)
    }

    fn until(&self, end: usize) -> u32 {
        let step = end / STEP;
        crc32c::crc32c_append(self.steps[step], &self.bytes[step * STEP..end])
    }
}

fn powers(of: u32, count: usize) -> Vec<u32> {
    let next = |power: &u32| Some(multiply(*power, of));
    std::iter::successors(Some(ONE), next).take(count).collect()
}

fn multiply(mut one: u32, other: u32) -> u32 {
    let mut product = 0;
    for bit in (0..u32::BITS).rev() {
        product ^= one & (other >> bit & 1).wrapping_neg();
        one = one >> 1 ^ POLYNOMIAL & (one & 1).wrapping_neg();
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_bytes() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|number| ((number * number) >> 3) as u8).collect();
        for length in [0, 1, 63, 64, 65, 4_095, 4_096, 4_097, 8_192, 19_999, 20_000] {
            let sums = RangeChecksums::new(&bytes[..length]);
            for from in [0, 1, 64, 100, 4_096, 5_000, 19_998].into_iter().filter(|at| *at <= length)
            {
                for to in [from, from + 1, from + 63, from + 4_096, from + 8_192, length] {
                    if to <= length {
                        let expected = crc32c::crc32c_append(0x1234_5678, &bytes[from..to]);
                        assert_eq!(sums.append(0x1234_5678, from, to), expected, "{from}..{to}");
                    }
                }
            }
        }
    }
}
