//! Tokens of a line, and keys as they lie on the wire.

use amalgam_op::MAX_KEY_BYTES;

use crate::base64;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// memcached looks at this many tokens of a line and takes no notice of the others.
pub(crate) const MAX_TOKENS: usize = 23;

/// Where the token that starts at `from` ends: at the next space, or at `end`. `input` may go on
/// behind `end`, which saves byte-wise work at the end of a line.
#[inline]
pub(crate) fn token_end(input: &[u8], from: usize, end: usize) -> usize {
    let mut at = from;
    while at < end {
        let Some(word) = input[at..].first_chunk::<8>() else {
            let rest = &input[at..end];
            return rest.iter().position(|byte| *byte == b' ').map_or(end, |space| at + space);
        };
        let differs = u64::from_le_bytes(*word) ^ (ONES * b' ' as u64);
        let spaces = differs.wrapping_sub(ONES) & !differs & HIGHS;
        if spaces != 0 {
            return (at + spaces.trailing_zeros() as usize / 8).min(end);
        }
        at += 8;
    }
    end
}

/// The rest of a line, cut at spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    /// The bytes received: the line and whatever follows it.
    pub input: &'a [u8],
    /// Where the next token is looked for.
    pub at: usize,
    /// Where the line ends, its line end left out.
    pub end: usize,
}

impl<'a> Tokens<'a> {
    /// The next token.
    #[inline]
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.skip_spaces();
        if start >= self.end {
            return None;
        }
        self.at = token_end(self.input, start, self.end);
        Some(&self.input[start..self.at])
    }

    /// The token behind the next `count`.
    pub fn nth(&mut self, count: usize) -> Option<&'a [u8]> {
        (0..count).try_for_each(|_| self.next().map(|_| ()))?;
        self.next()
    }

    /// Passes over spaces, to the start of the next token or the end of the line.
    #[inline]
    pub fn skip_spaces(&mut self) -> usize {
        while self.at < self.end && self.input[self.at] == b' ' {
            self.at += 1;
        }
        self.at
    }

    /// The last token, if there are more; `before` tokens of the line came before.
    #[inline]
    pub fn last(mut self, before: usize) -> Option<&'a [u8]> {
        let mut last = None;
        for _ in before..MAX_TOKENS {
            match self.next() {
                Some(token) => last = Some(token),
                None => break,
            }
        }
        last
    }

    /// Whether a token is longer than a key may be. Looks at one space in 250 bytes, so that a get
    /// of many keys can be refused as a whole before any of its keys is looked up.
    pub fn has_long_token(&self) -> bool {
        let mut rest = &self.input[self.at..self.end];
        while rest.len() > MAX_KEY_BYTES {
            match memchr::memrchr(b' ', &rest[..=MAX_KEY_BYTES]) {
                Some(space) => rest = &rest[space + 1..],
                None => return true,
            }
        }
        false
    }
}

/// The keys of a read, in the order in which they were asked for. Each has 1 to 250 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a>(Tokens<'a>);

impl<'a> Keys<'a> {
    /// The tokens left, which must have been checked for length.
    #[inline]
    pub(crate) fn new(tokens: Tokens<'a>) -> Self {
        Self(tokens)
    }

    /// One key that may hold any byte, as the binary protocol allows.
    #[inline]
    pub(crate) fn single(key: &'a [u8]) -> Self {
        // With the position past the end marked by an empty line, `next` would see spaces in the
        // key; so a single key is kept whole, as a line that starts behind its own end.
        Self(Tokens { input: key, at: usize::MAX, end: key.len() })
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.at == usize::MAX {
            self.0.at = self.0.end;
            return Some(self.0.input);
        }
        self.0.next()
    }
}

/// The arguments of a command: the tokens behind its name.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    tokens: Tokens<'a>,
    left: usize,
}

impl<'a> Arguments<'a> {
    #[inline]
    pub(crate) fn new(tokens: Tokens<'a>) -> Self {
        Self { tokens, left: MAX_TOKENS - 1 }
    }

    /// The words of `text`.
    pub(crate) fn whole(text: &'a [u8]) -> Self {
        Self::new(Tokens { input: text, at: 0, end: text.len() })
    }
}

impl<'a> Iterator for Arguments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.tokens.next()
    }
}

/// Room for a key that has to be decoded.
pub type KeyScratch = [u8; MAX_KEY_BYTES];

/// A key as the client sent it: 1 to 250 bytes once resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireKey<'a> {
    sent: &'a [u8],
    is_base64: bool,
}

impl<'a> WireKey<'a> {
    /// A key that stands for itself.
    #[inline]
    pub(crate) fn plain(sent: &'a [u8]) -> Self {
        Self { sent, is_base64: false }
    }

    /// A key in base64, which must have been decoded once with success.
    pub(crate) fn base64(sent: &'a [u8]) -> Self {
        Self { sent, is_base64: true }
    }

    pub(crate) fn is_base64(&self) -> bool {
        self.is_base64
    }

    /// Length of the key that is stored, in bytes.
    #[inline]
    pub(crate) fn stored_bytes(&self) -> usize {
        match self.is_base64 {
            true => self.resolve(&mut [0; MAX_KEY_BYTES]).len(),
            false => self.sent.len(),
        }
    }

    /// The key that the server stores: the bytes sent, or what they decode to, in `scratch`.
    #[inline]
    pub fn resolve<'k>(&self, scratch: &'k mut KeyScratch) -> &'k [u8]
    where
        'a: 'k,
    {
        if !self.is_base64 {
            return self.sent;
        }
        // Checked when the request was parsed, so there are bytes.
        let length = base64::decode(self.sent, scratch).unwrap_or(1);
        &scratch[..length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(input: &[u8], end: usize) -> Tokens<'_> {
        Tokens { input, at: 0, end }
    }

    #[test]
    fn tokens_end_at_spaces_whatever_follows_the_line() {
        let text = b"  a bb   16-bytes-of-key!  last and more";
        let mut cut = tokens(text, 31);
        assert_eq!(cut.next(), Some(&b"a"[..]));
        assert_eq!(cut.next(), Some(&b"bb"[..]));
        assert_eq!(cut.next(), Some(&b"16-bytes-of-key!"[..]));
        assert_eq!(cut.next(), Some(&b"last"[..]));
        assert_eq!(cut.next(), None);
        for end in 0..text.len() {
            let expected: Vec<_> =
                text[..end].split(|byte| *byte == b' ').filter(|token| !token.is_empty()).collect();
            assert_eq!(Keys::new(tokens(text, end)).collect::<Vec<_>>(), expected, "{end}");
            assert_eq!(Keys::new(tokens(&text[..end], end)).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_long_token_is_found_wherever_it_lies() {
        for before in [0, 1, 2, 17, 249, 250, 251, 600] {
            for length in [1, 249, 250, 251, 252, 700] {
                let mut line = b"0123456789abcdef ".repeat(before / 17 + 1)[..before].to_vec();
                if before > 0 {
                    line[before - 1] = b' ';
                }
                line.extend(std::iter::repeat_n(b'k', length));
                for tail in [&b""[..], b" ", b" x", b"        y z"] {
                    let mut line = line.clone();
                    line.extend_from_slice(tail);
                    let found = tokens(&line, line.len()).has_long_token();
                    assert_eq!(found, length > MAX_KEY_BYTES, "{before} {length} {tail:?}");
                }
            }
        }
    }

    #[test]
    fn a_single_key_may_hold_spaces() {
        let mut keys = Keys::single(b" a b ");
        assert_eq!(keys.next(), Some(&b" a b "[..]));
        assert_eq!(keys.next(), None);
        assert_eq!(keys.next(), None);
    }
}
