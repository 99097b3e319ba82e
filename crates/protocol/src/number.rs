//! Numbers in text: they are read as memcached reads them, and written without `format!`.
//!
//! Writing them is our own code because an answer of a few digits is the common case: with the
//! crate itoa a key of a get of 100 keys costs 437 instructions instead of 306.

/// Longest decimal form of a `u64`.
const MAX_DIGITS: usize = 20;

/// "00" to "99", concatenated.
const PAIRS: &[u8; 200] = &pairs();

const fn pairs() -> [u8; 200] {
    let mut pairs = [0; 200];
    let mut number = 0;
    while number < 100 {
        pairs[2 * number] = b'0' + (number / 10) as u8;
        pairs[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
}

/// Appends `number` in decimal.
#[inline]
pub fn append_decimal(out: &mut Vec<u8>, number: u64) {
    let mut scrap = Scrap::default();
    scrap.decimal(number);
    out.extend_from_slice(scrap.as_bytes());
}

/// Capacity of a [`Scrap`] in bytes: enough for three numbers and the text between them.
const SCRAP_BYTES: usize = 64;

/// A small buffer whose bytes are appended to the output at once. A vector would check its capacity
/// at each byte.
pub(crate) struct Scrap {
    bytes: [u8; SCRAP_BYTES],
    length: usize,
}

impl Default for Scrap {
    #[inline]
    fn default() -> Self {
        Self { bytes: [0; _], length: 0 }
    }
}

impl Scrap {
    /// Appends a byte.
    #[inline]
    pub fn byte(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    /// Appends a number in decimal.
    #[inline]
    pub fn decimal(&mut self, number: u64) {
        match number {
            0..10 => self.byte(b'0' + number as u8),
            10..100 => {
                let at = 2 * number as usize;
                self.byte(PAIRS[at]);
                self.byte(PAIRS[at + 1]);
            }
            _ => self.long(number),
        }
    }

    fn long(&mut self, mut number: u64) {
        let mut digits = [0; MAX_DIGITS];
        let mut start = MAX_DIGITS;
        while number >= 10 {
            let at = 2 * (number % 100) as usize;
            number /= 100;
            start -= 2;
            digits[start..start + 2].copy_from_slice(&PAIRS[at..at + 2]);
        }
        if number > 0 {
            start -= 1;
            digits[start] = b'0' + number as u8;
        }
        digits[start..].iter().for_each(|digit| self.byte(*digit));
    }

    /// The bytes that were appended.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The largest number of digits that always fit a `u64`.
const SAFE_DIGITS: usize = 19;

/// Reads a token of digits alone, at most `longest` of them.
#[inline]
fn parse_digits(token: &[u8], longest: usize) -> Option<u64> {
    if token.len() > SAFE_DIGITS {
        return parse_many_digits(token, longest);
    }
    let mut number = 0_u64;
    for byte in token {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // There are too few digits for an overflow.
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    (token.len() <= longest).then_some(number)
}

#[cold]
fn parse_many_digits(token: &[u8], longest: usize) -> Option<u64> {
    if token.len() > longest {
        return None;
    }
    token.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        let number = (digit <= 9).then(|| number.checked_mul(10))??;
        number.checked_add(u64::from(digit))
    })
}

/// A token that is a 64-bit number.
#[inline]
pub(crate) fn parse_u64(token: &[u8]) -> Option<u64> {
    parse_digits(token, 22)
}

/// A token that is a 32-bit number.
#[inline]
pub(crate) fn parse_u32(token: &[u8]) -> Option<u32> {
    parse_digits(token, 11).and_then(|number| u32::try_from(number).ok())
}

/// A token that is a signed 32-bit number. As in memcached, `-` alone is 0.
#[inline]
pub(crate) fn parse_i32(token: &[u8]) -> Option<i32> {
    let number = match token {
        [b'-', digits @ ..] => -i64::try_from(parse_digits(digits, 10)?).ok()?,
        digits => i64::try_from(parse_digits(digits, 11)?).ok()?,
    };
    i32::try_from(number).ok()
}

/// Whether C's `isspace` holds.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13)
}

/// Reads the number at the start of `text` as `strtol` does: a sign and a magnitude that may have
/// overflowed.
/// None if there is no number, or if something other than a space follows it.
fn scan_c_number(text: &[u8]) -> Option<(bool, Option<u64>)> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let (is_negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let is_ended = digits.get(length).is_none_or(|byte| is_space(*byte) || *byte == 0);
    if length == 0 || !is_ended {
        return None;
    }
    let magnitude = digits[..length].iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    Some((is_negative, magnitude))
}

/// The 32-bit flags of a storage command at the start of `text`, read like `strtoul`: cut down to
/// 32 bits, a negative number refused.
pub(crate) fn parse_c_flags(text: &[u8]) -> Option<u32> {
    let (is_negative, magnitude) = scan_c_number(text)?;
    let number = if is_negative { magnitude?.wrapping_neg() } else { magnitude? };
    (!is_negative || number >> 63 == 0).then_some(number as u32)
}

/// The expiry of a storage command at the start of `text`, read like `strtol`: cut down to 32 bits.
pub(crate) fn parse_c_expiry(text: &[u8]) -> Option<i32> {
    let (is_negative, magnitude) = scan_c_number(text)?;
    let number = match is_negative {
        true => 0_i64.checked_sub_unsigned(magnitude?)?,
        false => i64::try_from(magnitude?).ok()?,
    };
    Some(number as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(number: u64) -> String {
        let mut out = Vec::new();
        append_decimal(&mut out, number);
        String::from_utf8(out).expect("digits")
    }

    #[test]
    fn decimals_match_the_standard_library() {
        let mut number = 1_u64;
        for _ in 0..64 {
            for near in [number.wrapping_sub(1), number, number.wrapping_add(1)] {
                assert_eq!(decimal(near), near.to_string());
            }
            number = number.wrapping_mul(3);
        }
        for power in 0..20 {
            let power = 10_u64.pow(power);
            assert_eq!(decimal(power), power.to_string());
            assert_eq!(decimal(power - 1), (power - 1).to_string());
        }
        assert_eq!(decimal(u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn tokens_are_digits_alone() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"00018446744073709551615"), None);
        assert_eq!(parse_u64(b"+1"), None);
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(parse_i32(b"-2147483649"), None);
        assert_eq!(parse_i32(b"2147483648"), None);
        assert_eq!(parse_i32(b"-"), Some(0));
        assert_eq!(parse_i32(b"1x"), None);
    }

    #[test]
    fn storage_lines_read_numbers_as_c_does() {
        assert_eq!(parse_c_flags(b"4294967295 "), Some(u32::MAX));
        assert_eq!(parse_c_flags(b"4294967296 "), Some(0));
        assert_eq!(parse_c_flags(b"-1 "), None);
        assert_eq!(parse_c_flags(b"+7\t"), Some(7));
        assert_eq!(parse_c_flags(b"7x "), None);
        assert_eq!(parse_c_flags(b"18446744073709551616 "), None);
        assert_eq!(parse_c_expiry(b"-1\r\n"), Some(-1));
        assert_eq!(parse_c_expiry(b"4294967297 "), Some(1));
        assert_eq!(parse_c_expiry(b"-9223372036854775808 "), Some(0));
        assert_eq!(parse_c_expiry(b"9223372036854775808 "), None);
        assert_eq!(parse_c_expiry(b" "), None);
    }
}
