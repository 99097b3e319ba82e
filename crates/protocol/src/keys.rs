//! Tokens of a line, and keys in their wire form.

use amalgam_op::MAX_KEY_BYTES;

use crate::base64;
use crate::scan::{self, WINDOW_BYTES, Window};

/// The number of tokens of a line that memcached reads; it ignores the others.
pub(crate) const MAX_TOKENS: usize = 23;

/// A line, or another text, cut at spaces. The spaces of 64 bytes at a time are kept as bits of a
/// word, so that a token costs a few instructions, whatever its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    text: &'a [u8],
    /// Where the next token starts, or spaces before it.
    start: usize,
    /// Bit n: byte `base + n` is a space, not before `start`.
    spaces: u64,
    base: usize,
    /// The offset up to which spaces were searched; at or beyond the text's end if all were found.
    covered: usize,
}

impl<'a> Tokens<'a> {
    /// Splits `text` into tokens.
    #[inline]
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, start: 0, spaces: 0, base: 0, covered: 0 }
    }

    /// Cuts `line` from `start` on, which is below 64; `window` has seen its first bytes.
    #[inline]
    pub fn of_line(line: &'a [u8], start: usize, window: &Window) -> Self {
        let mut spaces = window.spaces & (u64::MAX << start);
        if line.len() < WINDOW_BYTES {
            spaces &= (1 << line.len()) - 1;
        }
        Self { text: line, start, spaces, base: 0, covered: window.bytes }
    }

    /// Makes the whole text one token, spaces included.
    #[inline]
    fn single(text: &'a [u8]) -> Self {
        Self { covered: text.len(), ..Self::new(text) }
    }

    /// Takes the next token; None at the end.
    #[inline]
    pub fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            if self.spaces == 0 {
                if self.covered >= self.text.len() {
                    return self.take_last();
                }
                self.cover_more();
                continue;
            }
            let end = self.base + self.spaces.trailing_zeros() as usize;
            self.spaces &= self.spaces - 1;
            let token = &self.text[self.start..end];
            self.start = end + 1;
            if !token.is_empty() {
                return Some(token);
            }
        }
    }

    #[inline]
    fn cover_more(&mut self) {
        self.base = self.covered;
        self.spaces = scan::spaces(&self.text[self.base..]);
        self.covered += WINDOW_BYTES;
    }

    /// The token that no space ends.
    #[inline]
    fn take_last(&mut self) -> Option<&'a [u8]> {
        let token = self.rest();
        self.start = self.text.len() + 1;
        (!token.is_empty()).then_some(token)
    }

    /// Whether there is no further token.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self.text.get(self.start) {
            None => true,
            Some(b' ') => { *self }.next().is_none(),
            Some(_) => false,
        }
    }

    /// The offset in the text of the token that `next` returned last.
    pub fn start_of(&self, token: &[u8]) -> usize {
        self.start - 1 - token.len()
    }

    /// The text that was not yet split.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.text.get(self.start..).unwrap_or_default()
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

    /// The token behind the next `count`.
    pub fn nth(&mut self, count: usize) -> Option<&'a [u8]> {
        (0..count).try_for_each(|_| self.next().map(|_| ()))?;
        self.next()
    }

    /// Whether a token is longer than a key may be. Looks at one space in 250 bytes, so that a get
    /// of many keys can be refused as a whole before any of its keys is looked up.
    #[inline]
    pub fn has_long_token(&self) -> bool {
        let rest = self.rest();
        rest.len() > MAX_KEY_BYTES && has_long_token(rest)
    }
}

fn has_long_token(mut rest: &[u8]) -> bool {
    while rest.len() > MAX_KEY_BYTES {
        match memchr::memrchr(b' ', &rest[..=MAX_KEY_BYTES]) {
            Some(space) => rest = &rest[space + 1..],
            None => return true,
        }
    }
    false
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
        Self(Tokens::single(key))
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
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

    /// All words of `text` as keys.
    pub(crate) fn whole(text: &'a [u8]) -> Self {
        Self::new(Tokens::new(text))
    }
}

impl<'a> Iterator for Arguments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.tokens.next()
    }
}

/// A buffer for a key that has to be decoded.
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

    /// The key that the server stores, if the bytes sent are that key.
    #[inline]
    pub fn as_sent(&self) -> Option<&'a [u8]> {
        (!self.is_base64).then_some(self.sent)
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
        // The key was checked when the request was parsed, so there are bytes.
        let length = base64::decode(self.sent, scratch).unwrap_or(1);
        &scratch[..length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_end_at_spaces_whatever_follows_the_line() {
        let text =
            b"  a bb   16-bytes-of-key!  last and more, and still more behind the window   x ";
        for end in 0..=text.len() {
            let line = &text[..end];
            let expected: Vec<_> =
                line.split(|byte| *byte == b' ').filter(|token| !token.is_empty()).collect();
            assert_eq!(Keys::new(Tokens::new(line)).collect::<Vec<_>>(), expected, "{end}");
            let mut tokens = Tokens::new(line);
            for (number, token) in expected.iter().enumerate() {
                assert!(!tokens.is_empty());
                assert_eq!(
                    Keys::new(Tokens::new(tokens.rest())).collect::<Vec<_>>(),
                    expected[number..]
                );
                assert_eq!(tokens.next(), Some(*token));
                assert_eq!(&line[tokens.start_of(token)..][..token.len()], *token);
            }
            assert!(tokens.is_empty());
            assert_eq!((tokens.next(), tokens.next()), (None, None));
        }
    }

    #[test]
    fn a_token_knows_where_it_started() {
        let mut tokens = Tokens::new(b" ab  c");
        let token = tokens.next().expect("ab");
        assert_eq!(tokens.start_of(token), 1);
        let token = tokens.next().expect("c");
        assert_eq!((tokens.start_of(token), tokens.is_empty()), (5, true));
    }

    #[test]
    fn a_window_saves_looking_twice() {
        let text =
            b"  a bb   16-bytes-of-key!  last and more, and still more behind the window   x ";
        for end in 0..=text.len() {
            let mut input = text[..end].to_vec();
            input.extend_from_slice(b"\r\n and a line that follows");
            for from in 0..end.min(WINDOW_BYTES) {
                let tokens = Tokens::of_line(&input[..end], from, &Window::of_line(&input));
                let expected = Keys::new(Tokens::new(&input[from..end])).collect::<Vec<_>>();
                assert_eq!(Keys::new(tokens).collect::<Vec<_>>(), expected, "{from} {end}");
                assert_eq!(tokens.is_empty(), expected.is_empty());
            }
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
                    let found = Tokens::new(&line).has_long_token();
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
