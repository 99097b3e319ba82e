//! Splits Rust source text into tokens, comments and string literals.
//!
//! The lexer knows just enough of Rust's grammar to keep these three apart: nested block comments,
//! raw strings, and character literals as opposed to lifetimes. SystemVerilog's comments and
//! strings look the same, but its quotes (`4'd0`) do not begin literals.

/// A piece of source text and the line, from 1, on which it begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Line of the first character, from 1.
    pub line: usize,
    /// What kind of text it is.
    pub kind: PieceKind,
    /// The text itself: a comment with its marker, a string literal without its quotes.
    pub text: &'a str,
}

/// The kinds of text that the other modules treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// An identifier, a keyword or a number.
    Word,
    /// `::`, or any other single character that is not white space.
    Punctuation,
    /// A string literal.
    Text,
    /// A line or block comment.
    Comment,
}

/// Splits `source` into its pieces, in order. `has_quotes` says whether `'a'` is a literal.
pub fn pieces(source: &str, has_quotes: bool) -> Vec<Piece<'_>> {
    let mut lexer = Lexer { source, at: 0, line: 1, found: Vec::new() };
    while let Some(first) = lexer.rest().chars().next() {
        lexer.step(first, has_quotes);
    }
    lexer.found
}

struct Lexer<'a> {
    source: &'a str,
    /// Offset of the first byte that is not yet part of a piece.
    at: usize,
    /// The line of that byte, from 1.
    line: usize,
    found: Vec<Piece<'a>>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn step(&mut self, first: char, has_quotes: bool) {
        let rest = self.rest();
        if first.is_whitespace() {
            self.advance(first.len_utf8());
        } else if rest.starts_with("//") {
            self.push(PieceKind::Comment, 0, rest.find('\n').unwrap_or(rest.len()), 0);
        } else if rest.starts_with("/*") {
            self.push(PieceKind::Comment, 0, block_comment_length(rest), 0);
        } else if let Some((open, length, close)) = string_literal(rest) {
            self.push(PieceKind::Text, open, length, close);
        } else if first == '\'' && has_quotes {
            self.advance(quote_length(rest));
        } else if is_word(first) {
            let length = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
            self.push(PieceKind::Word, 0, length, 0);
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            self.push(PieceKind::Punctuation, 0, length, 0);
        }
    }

    /// Adds a piece of `length` bytes between delimiters of `open` and `close` bytes.
    fn push(&mut self, kind: PieceKind, open: usize, length: usize, close: usize) {
        let line = self.line;
        let text = &self.rest()[open..open + length];
        self.found.push(Piece { line, kind, text });
        self.advance(open + length + close);
    }

    fn advance(&mut self, length: usize) {
        self.line += self.rest()[..length].matches('\n').count();
        self.at += length;
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn block_comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// `(open, content, close)` in bytes of the string literal that `text` begins with, if it does.
fn string_literal(text: &str) -> Option<(usize, usize, usize)> {
    let prefix = ["br", "cr", "b", "c", "r", ""].iter().find(|prefix| {
        let rest = text.strip_prefix(**prefix);
        rest.is_some_and(|rest| {
            rest.starts_with('"')
                || (prefix.ends_with('r') && rest.trim_start_matches('#').starts_with('"'))
        })
    })?;
    let rest = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = rest.find('"')?;
        let open = prefix.len() + hashes + 1;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = text[open..].find(&end).unwrap_or(text.len() - open);
        return Some((open, length, end.len().min(text.len() - open - length)));
    }
    let open = prefix.len() + 1;
    let bytes = &text.as_bytes()[open..];
    let mut at = 0;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    let at = at.min(bytes.len());
    Some((open, at, 1.min(bytes.len() - at)))
}

/// Length in bytes of a character literal, or 1 for the quote of a lifetime.
fn quote_length(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => {
            // The escaped character may be a quote itself.
            let end = text.get(3..).and_then(|rest| rest.find('\'')).map(|end| end + 4);
            end.unwrap_or(text.len())
        }
        Some(_) => match letters.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_code_are_kept_apart() {
        let source =
            "let a: &'a str = \"x // \\\" y\"; // why\n/* a /* b */ */ r#\"q\"#; b'\\'' '\"'::c";
        let found = pieces(source, true);
        let of = |kind| {
            let of_kind = found.iter().filter(move |piece| piece.kind == kind);
            of_kind.map(|piece| (piece.line, piece.text)).collect::<Vec<_>>()
        };
        assert_eq!(of(PieceKind::Text), [(1, "x // \\\" y"), (2, "q")]);
        assert_eq!(of(PieceKind::Comment), [(1, "// why"), (2, "/* a /* b */ */")]);
        let words = of(PieceKind::Word).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(words, ["let", "a", "a", "str", "b", "c"]);
    }

    #[test]
    fn unfinished_literals_end_with_the_text() {
        for source in ["\"abc", "r#\"abc\"", "'\\", "'", "/* a", "\"\\", "é\"é"] {
            assert!(pieces(source, true).len() <= 2, "{source}");
        }
    }
}
