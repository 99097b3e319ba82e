//! Phrases and sentences that comments, texts and documents must not have.
//!
//! The rules of English are those of CONTRIBUTING.md: a sentence has a noun as its subject and is
//! understood without the file next door. What can be read from the text is checked here:
//!
//! 1. No phrase of [`PHRASES`], wherever prose stands: comments, string literals, documents.
//! 2. No sentence that consists of one word or is one of [`FRAGMENTS`], in comments.
//! 3. No statement that begins with "Who"; a question may.
//!
//! Code, and what stands between backquotes, is not prose.

use std::fs;

use crate::lexer::{PieceKind, pieces};
use crate::{Source, root, sources};

/// A phrase, what to write instead, and the words that may follow it nevertheless.
const PHRASES: [(&str, &str, &[&str]); 24] = [
    ("so many", "N, or the thing that is counted", &[]),
    ("so much", "the quantity's name", &["faster", "slower", "more", "less", "as", "that"]),
    ("what is no", "what is not a …, or the thing's name", &[]),
    ("what is none", "what is not one", &[]),
    ("what there is not", "what does not exist", &[]),
    ("of those that", "of the …s that", &[]),
    ("of which nothing", "none of which", &[]),
    ("is to be nobody", "must not exist", &[]),
    ("beside", "next to, apart from, with, or compared with", &[]),
    ("but for", "except for", &[]),
    ("dear", "expensive", &[]),
    ("dearer", "more expensive", &[]),
    ("dearest", "most expensive", &[]),
    ("dearly", "at a high cost", &[]),
    ("no more than at most", "at most", &[]),
    ("this room", "this module or this crate", &[]),
    ("rooms", "modules or crates", &[]),
    ("room's", "the module's", &[]),
    ("of the house", "of this project", &[]),
    ("lodger", "the module's name", &[]),
    ("lodgers", "the modules' names", &[]),
    ("told so", "what it is told", &[]),
    ("as was told", "as configured", &[]),
    ("has it not", "does not have it", &[]),
];

/// Whole sentences that say nothing by themselves.
const FRAGMENTS: [&str; 8] = [
    "The same",
    "So, if it does",
    "So it is",
    "Not so",
    "As above",
    "Or none",
    "It is so",
    "See the head of this module",
];

/// An offence against rules (1) to (3).
#[derive(Debug, PartialEq, Eq)]
pub struct Offence {
    /// The line, from 1, on which the sentence or phrase begins.
    pub line: usize,
    /// The text of the offence, and what to do about it.
    pub text: String,
}

/// Every offence in `source`: Rust, SystemVerilog, Markdown, or anything with `#` comments.
pub fn offences(source: &Source) -> Vec<Offence> {
    let mut found = Vec::new();
    for prose in prose(source) {
        prose.check(&mut found);
    }
    found.sort_by_key(|offence| offence.line);
    found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProseKind {
    Comment,
    Document,
    Text,
}

/// Consecutive lines of prose.
struct Prose {
    kind: ProseKind,
    /// Lines without markers and surrounding blanks, each with its number.
    lines: Vec<(usize, String)>,
}

impl Prose {
    fn check(&self, found: &mut Vec<Offence>) {
        let mut text = String::new();
        let mut begins = Vec::new();
        for (number, line) in &self.lines {
            begins.push((text.len(), *number));
            text += line;
            text.push(' ');
        }
        let text = without_quotes(&text);
        let line = |at: usize| {
            let before = begins.iter().take_while(|(begin, _)| *begin <= at);
            before.last().map_or(0, |(_, line)| *line)
        };
        let lower = text.to_ascii_lowercase();
        for (phrase, instead, allowed) in PHRASES {
            for at in word_matches(&lower, phrase) {
                let next = next_word(&lower[at + phrase.len()..]);
                if !allowed.contains(&next) {
                    let text = format!("\"{phrase}\": write {instead}");
                    found.push(Offence { line: line(at), text });
                }
            }
        }
        if self.kind == ProseKind::Text {
            return;
        }
        for (at, sentence) in sentences(&text) {
            let bare = sentence.trim_end_matches('.');
            let is_word = |letter: char| letter.is_ascii_alphabetic();
            let is_capital = bare.starts_with(|letter: char| letter.is_ascii_uppercase());
            if self.kind == ProseKind::Comment
                && sentence.ends_with('.')
                && (FRAGMENTS.contains(&bare)
                    || (is_capital && bare.len() > 2 && bare.chars().all(is_word)))
            {
                let text = format!("\"{sentence}\" is not a whole thought");
                found.push(Offence { line: line(at), text });
            }
            if sentence.starts_with("Who ") && !sentence.ends_with('?') {
                let begin: String = sentence.chars().take(30).collect();
                let text = format!("\"{begin}…\": begin with a noun");
                found.push(Offence { line: line(at), text });
            }
        }
    }
}

/// Every file of the repository that has prose: sources, documents, configuration, scripts.
pub fn prose_sources() -> Vec<Source> {
    let mut found =
        sources(&["rs", "sv", "py", "md", "sh", "toml", "yml", "yaml", "service", "cpp", "h"]);
    let mut paths = vec!["Makefile".to_owned(), "packaging/Dockerfile".to_owned()];
    for folder in ["scripts", "rtl/scripts", "packaging/debian"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder of scripts").flatten() {
            paths.push(format!("{folder}/{}", entry.file_name().to_string_lossy()));
        }
    }
    paths.retain(|path| root().join(path).is_file());
    paths.sort();
    found.extend(paths.into_iter().map(|path| {
        let text = fs::read_to_string(root().join(&path)).expect("a text file");
        Source { path, text }
    }));
    // This file has to name the phrases.
    found.retain(|source| source.path != "crates/tidy/src/phrases.rs");
    found
}

/// The prose of `source`, in paragraphs.
fn prose(source: &Source) -> Vec<Prose> {
    let is_rust = source.has_extension("rs");
    if is_rust || ["sv", "cpp", "h"].iter().any(|extension| source.has_extension(extension)) {
        prose_of_code(&source.text, is_rust)
    } else if source.has_extension("md") {
        let mut is_block = false;
        let lines = source.lines().map(|(number, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_block ^= is_fence;
            let is_code = is_fence || is_block || line.starts_with("    ");
            (number, if is_code { "" } else { line.trim() })
        });
        paragraphs(ProseKind::Document, lines)
    } else {
        let lines = source.lines().map(|(number, line)| {
            let line = line.trim();
            (number, line.strip_prefix('#').unwrap_or(line).trim())
        });
        paragraphs(ProseKind::Document, lines)
    }
}

fn paragraphs<'a>(kind: ProseKind, lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Prose> {
    let mut found = vec![Prose { kind, lines: Vec::new() }];
    for (number, line) in lines {
        let begins_anew = line.is_empty() || line.starts_with(['|', '#', '-', '*']);
        if begins_anew && found.last().is_some_and(|last| !last.lines.is_empty()) {
            found.push(Prose { kind, lines: Vec::new() });
        }
        if let Some(last) = found.last_mut()
            && !line.is_empty()
        {
            last.lines.push((number, line.to_owned()));
        }
    }
    found
}

fn prose_of_code(text: &str, has_quotes: bool) -> Vec<Prose> {
    let mut found = Vec::new();
    let mut comment: Vec<(usize, String)> = Vec::new();
    let mut code_line = 0;
    for piece in pieces(text, has_quotes) {
        let lines = piece.text.lines().enumerate();
        let lines = lines.map(|(index, line)| (piece.line + index, line));
        match piece.kind {
            PieceKind::Comment => {
                // A comment behind code does not go on in the next line's.
                let goes_on = comment.last().is_some_and(|(last, _)| last + 1 == piece.line);
                if !goes_on || code_line + 1 == piece.line || code_line == piece.line {
                    end(ProseKind::Comment, &mut comment, &mut found);
                }
                for (number, line) in lines {
                    let line = line.trim().trim_start_matches(['/', '!', '*']).trim();
                    if line.is_empty() || line.starts_with(['-', '*', '#']) {
                        end(ProseKind::Comment, &mut comment, &mut found);
                    }
                    comment.push((number, line.to_owned()));
                }
            }
            PieceKind::Text => {
                let lines = lines.map(|(number, line)| {
                    (number, line.trim().trim_end_matches('\\').trim().to_owned())
                });
                found.push(Prose { kind: ProseKind::Text, lines: lines.collect() });
                code_line = piece.line;
            }
            PieceKind::Word | PieceKind::Punctuation => code_line = piece.line,
        }
    }
    end(ProseKind::Comment, &mut comment, &mut found);
    found
}

fn end(kind: ProseKind, lines: &mut Vec<(usize, String)>, found: &mut Vec<Prose>) {
    let lines = std::mem::take(lines);
    if !lines.is_empty() {
        found.push(Prose { kind, lines });
    }
}

/// `text` with everything between backquotes replaced by as many dashes.
fn without_quotes(text: &str) -> String {
    let is_even = text.matches('`').count().is_multiple_of(2);
    let mut is_quoted = false;
    let mut kept = String::with_capacity(text.len());
    for letter in text.chars() {
        is_quoted ^= letter == '`' && is_even;
        if is_quoted || letter == '`' {
            kept.extend(std::iter::repeat_n('-', letter.len_utf8()));
        } else {
            kept.push(letter);
        }
    }
    kept
}

fn word_matches<'a>(text: &'a str, phrase: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.match_indices(phrase).map(|(at, _)| at).filter(move |at| {
        let end = at + phrase.len();
        !text[..*at].bytes().next_back().is_some_and(is_part)
            && !text[end..].bytes().next().is_some_and(is_part)
    })
}

fn next_word(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(text.len())]
}

/// The sentences of `text`, each with where it begins.
fn sentences(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices(['.', '?', '!', ':']) {
        let rest = &text[at + 1..];
        // An abbreviation or a number goes on in small letters.
        let next = rest.trim_start().chars().next();
        let is_end = rest.starts_with(' ') && !next.is_some_and(char::is_lowercase);
        if is_end && !text[at..].starts_with(':') {
            found.push((begin, &text[begin..=at]));
            begin = at + 1;
        }
    }
    found.push((begin, &text[begin..]));
    let trimmed = found.into_iter().map(|(begin, sentence)| {
        let inner = sentence.trim_start();
        (begin + sentence.len() - inner.len(), inner.trim_end())
    });
    trimmed.filter(|(_, sentence)| !sentence.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let source = Source { path: path.to_owned(), text: text.to_owned() };
        offences(&source).into_iter().map(|offence| offence.line).collect()
    }

    #[test]
    fn phrases_are_found_in_comments_and_strings_across_lines() {
        let text = "//! Reads so\n//! many bytes.\nlet so_many = beside(\"all but \\\n for one\");";
        assert_eq!(lines("a.rs", text), [1, 3]);
        assert_eq!(lines("a.rs", "// It costs `so many` and is so much faster.\nfn dear() {}"), []);
        assert_eq!(lines("a.sv", "logic beside; // Beside the others, 4'd0"), [1]);
        assert_eq!(lines("a.md", "One\nis beside\n\n```\nbeside\n```\nanother"), [2]);
        assert_eq!(lines("a.toml", "# So\n# many\nroom = 1"), [1]);
    }

    #[test]
    fn sentences_are_whole_thoughts() {
        assert_eq!(lines("a.rs", "/// The same.\n/// It is there. Always. It ends."), [1, 2]);
        assert_eq!(
            lines("a.rs", "/// The same.\nfn a() {} // There.\n// It is 1. Or 2, e.g. 3."),
            [1, 2]
        );
        assert_eq!(lines("a.rs", "// Who asks waits.\n// Who asks?\n//\n// Whoever asks."), [1]);
        assert_eq!(lines("a.md", "It ends. Who asks\nwaits.\n\n# There."), [1]);
    }
}
