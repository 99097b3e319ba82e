//! Byte scripts: sent bytes and the answers that are expected.
//!
//! A line `> BYTES` is sent, a line `< BYTES` is expected; several lines of one kind follow each
//! other on the wire. `\r`, `\n`, `\s` (space), `\\`, `\xHH` and `\*N(BYTES)` (N times) escape. In
//! expected bytes `{name}` takes a number under a name, or compares it with the number taken
//! before; in sent bytes it stands for that number. `{name:8}` does so with eight bytes. `~` means
//! that the server closes here, and that what follows has a connection of its own, `+ N`
//! that N seconds pass, `#` starts a comment.

use std::collections::HashMap;

#[derive(Debug)]
pub enum Action {
    /// Sent bytes and expected bytes, and the line they start on.
    Exchange { sent: Vec<u8>, expected: Vec<u8>, line: usize },
    /// The server closes.
    Closed,
    /// Time passes.
    Wait { seconds: u32 },
}

pub type Names = HashMap<Vec<u8>, Vec<u8>>;

/// Reads a script.
///
/// # Panics
///
/// If it is malformed.
pub fn parse(text: &str) -> Vec<Action> {
    let mut actions = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        let (kind, rest) = line.split_at(line.len().min(2));
        match (kind, actions.last_mut()) {
            ("> ", Some(Action::Exchange { sent, expected, .. })) if expected.is_empty() => {
                sent.extend(unescape(rest));
            }
            ("> ", _) => actions.push(Action::Exchange {
                sent: unescape(rest),
                expected: Vec::new(),
                line: number + 1,
            }),
            ("< ", Some(Action::Exchange { expected, .. })) => expected.extend(unescape(rest)),
            ("~", _) => actions.push(Action::Closed),
            ("+ ", _) => actions.push(Action::Wait { seconds: rest.parse().expect("seconds") }),
            ("", _) => {}
            _ if line.starts_with('#') => {}
            _ => panic!("line {}: {line}", number + 1),
        }
    }
    actions
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        match escape {
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b's' => bytes.push(b' '),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                bytes.push(u8::from_str_radix(&rest[..2], 16).expect("two hex digits"));
                rest = &rest[2..];
            }
            b'*' => {
                let (count, after) = rest.split_once('(').expect("count");
                let (repeated, after) = after.split_once(')').expect("end of repetition");
                let count = count.parse().expect("a number");
                bytes.extend(unescape(repeated).repeat(count));
                rest = after;
            }
            other => panic!("unknown escape {}", char::from(other)),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// Finds the next `{name}` in `bytes`: what comes before, the name, what comes behind.
fn split_name(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let open = bytes.iter().position(|byte| *byte == b'{')?;
    let close = open + bytes[open..].iter().position(|byte| *byte == b'}')?;
    Some((&bytes[..open], &bytes[open + 1..close], &bytes[close + 1..]))
}

/// Puts numbers in the place of their names.
pub fn substitute(template: &[u8], names: &Names) -> Vec<u8> {
    match split_name(template) {
        None => template.to_vec(),
        Some((before, name, behind)) => {
            let number = names.get(name).expect("a name that was taken before");
            [before, number, &substitute(behind, names)].concat()
        }
    }
}

/// Whether `actual` is what `template` expects.
pub fn matches(actual: &[u8], template: &[u8], names: &mut Names) -> bool {
    let Some((before, name, behind)) = split_name(template) else { return actual == template };
    let Some(rest) = actual.strip_prefix(before) else { return false };
    let length = match name.strip_suffix(b":8") {
        Some(_) => rest.len().min(8),
        None => rest.iter().take_while(|byte| byte.is_ascii_digit()).count(),
    };
    let number = rest[..length].to_vec();
    let known = names.entry(name.to_vec()).or_insert_with(|| number.clone());
    length > 0 && *known == number && matches(&rest[length..], behind, names)
}
