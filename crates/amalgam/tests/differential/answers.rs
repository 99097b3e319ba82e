//! Answers made comparable: CAS ids become the order in which they were first seen, seconds left
//! may differ by one tick of two clocks.

use std::collections::HashMap;
use std::fmt::Write;

use crate::packets;
use crate::servers::Answer;

/// The last line of what a closed connection answered.
const CLOSED: &str = "(closed)\n";

/// The CAS ids that one server has shown for each key, in order of first sight.
#[derive(Default)]
pub struct Ids(HashMap<String, Vec<u64>>);

impl Ids {
    /// The id of `key` that was first seen `ago` sightings ago; 0 if there is none yet.
    pub fn recent(&self, key: &str, ago: usize) -> u64 {
        let seen = self.0.get(key).map_or(&[][..], |seen| seen);
        seen.iter().rev().cycle().nth(ago).copied().unwrap_or(0)
    }

    /// A name for an id that does not depend on what the server counts by.
    pub fn symbol(&mut self, key: &str, id: &str) -> String {
        let Some(id) = id.parse::<u64>().ok().filter(|id| *id != 0) else { return id.to_owned() };
        let seen = self.0.entry(key.to_owned()).or_default();
        let place = seen.iter().position(|other| *other == id).unwrap_or_else(|| {
            seen.push(id);
            seen.len() - 1
        });
        format!("<id {place}>")
    }

    /// The answer as text: lines with ids made symbolic, values as they are (cut when long).
    pub fn normalize(&mut self, answer: &Answer) -> String {
        let is_binary = answer.bytes.first() == Some(&0x81);
        let mut rest = answer.bytes.as_slice();
        let mut text = String::new();
        if is_binary {
            text = packets::normalize(self, std::mem::take(&mut rest));
        }
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
            let (line, behind) = rest.split_at(end);
            rest = behind;
            let line = line.escape_ascii().to_string();
            let (line, value_bytes) = self.line(&line);
            let _ = writeln!(text, "{line}");
            if let Some(length) = value_bytes {
                let (value, behind) = rest.split_at(rest.len().min(length + 2));
                rest = behind;
                let head = &value[..value.len().min(200)];
                let _ = writeln!(text, "{} ({} bytes)", head.escape_ascii(), value.len());
            }
        }
        if answer.is_closed {
            text.push_str(CLOSED);
        }
        text
    }

    /// A line with symbols for ids, and the length of the value that follows it.
    fn line(&mut self, line: &str) -> (String, Option<usize>) {
        let may_tell = |head: &&str| line.starts_with(*head);
        if !["VALUE", "VA", "HD", "NS", "EX", "NF", "ME"].iter().any(may_tell) {
            return (line.to_owned(), None);
        }
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let head = words[0].clone();
        match head.as_str() {
            "VALUE" if words.len() >= 4 => {
                let strip = |word: &str| word.trim_end_matches("\\r\\n").to_owned();
                if let Some(id) = words.get(4).map(|word| strip(word)) {
                    words[4] = self.symbol(&words[1], &id);
                }
                let length = strip(&words[3]).parse().ok();
                (words.join(" "), length)
            }
            // The class and the time of access: see docs/compatibility.md.
            "ME" if words.len() > 2 => {
                let key = words[1].clone();
                for word in &mut words {
                    if let Some(id) = word.strip_prefix("cas=") {
                        *word = format!("cas={}", self.symbol(&key, id));
                    }
                }
                words.retain(|word| !word.starts_with("la=") && !word.starts_with("cls="));
                (words.join(" "), None)
            }
            "VA" | "HD" | "NS" | "EX" | "NF" => {
                let trimmed = line.trim_end_matches("\\r\\n").to_owned();
                let key = trimmed.split(' ').skip(1).find_map(|word| word.strip_prefix('k'));
                for word in &mut words {
                    let flag = word.trim_end_matches("\\r\\n");
                    if let (Some(id), Some(key)) = (flag.strip_prefix('c'), key) {
                        *word = format!("c{}", self.symbol(key, id));
                    }
                }
                let length = if head == "VA" { words.get(1) } else { None };
                let length =
                    length.and_then(|length| length.trim_end_matches("\\r\\n").parse().ok());
                (words.join(" "), length)
            }
            _ => (line.to_owned(), None),
        }
    }
}

/// The answer with all errors of clients alike: versions give different reasons.
pub fn without_reasons(text: &str) -> String {
    let plain = |line: &str| match line {
        line if line.starts_with("ERROR") || line.starts_with("CLIENT_ERROR") => "(error)".into(),
        line => line.to_owned(),
    };
    text.lines().map(|line| plain(line) + "\n").collect()
}

/// Whether both connections were closed at a packet, and memcached has forgotten the answers that
/// waited; see docs/compatibility.md.
pub fn only_one_forgot(theirs: &str, ours: &str) -> bool {
    theirs == CLOSED && ours.starts_with("\\x81") && ours.ends_with(CLOSED)
}

/// Whether two normalized answers say the same; seconds left (`t`, and `exp=` of me) may be one
/// apart.
pub fn agree(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let words = |text: &str| text.split_inclusive([' ', '\n']).map(str::to_owned).collect();
    let (one, other): (Vec<String>, Vec<String>) = (words(one), words(other));
    one.len() == other.len()
        && one.iter().zip(&other).all(|(one, other)| {
            let seconds = |word: &str| {
                let digits = word.strip_prefix("exp=").or_else(|| word.strip_prefix('t'))?;
                let digits = digits.trim_end().trim_end_matches("\\r\\n");
                digits.parse::<i64>().ok().filter(|seconds| *seconds >= 0)
            };
            one == other
                || matches!((seconds(one), seconds(other)),
                    (Some(one), Some(other)) if (one - other).abs() <= 1)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Answer {
        Answer { bytes: text.as_bytes().to_vec(), is_closed: false }
    }

    #[test]
    fn ids_are_compared_by_the_order_of_their_sight() {
        let (mut one, mut other) = (Ids::default(), Ids::default());
        let show = |ids: &mut Ids, first: u64, second: u64| {
            let text = format!(
                "VALUE k 0 9 {first}\r\nVALUE 1 2\r\nEND\r\nHD c{second} t30 kk\r\n\
                 VALUE k 0 1 {first}\r\n1\r\n"
            );
            ids.normalize(&answer(&text))
        };
        let expected = show(&mut one, 7, 900);
        assert!(agree(&expected, &show(&mut other, 51, 52)), "{expected}");
        assert!(!agree(&expected, &show(&mut Ids::default(), 5, 5)));
        assert_eq!([0, 1, 2].map(|ago| one.recent("k", ago)), [900, 7, 900]);
        assert_eq!(one.recent("other", 1), 0);
    }

    #[test]
    fn what_me_shows_is_compared_but_for_class_and_access() {
        let show = |line: &str| Ids::default().normalize(&answer(line));
        let one = show("ME k exp=30 la=0 cas=7 fetch=no cls=1 size=69\r\n");
        assert!(agree(&one, &show("ME k exp=29 la=1 cas=900 fetch=no cls=2 size=69\r\n")));
        assert!(!agree(&one, &show("ME k exp=30 la=0 cas=7 fetch=yes cls=1 size=69\r\n")));
        assert!(!agree(&one, &show("ME k exp=30 la=0 cas=0 fetch=no cls=1 size=69\r\n")));
        assert!(!agree("HD t0\\r\\n\n", "HD t4294967235\\r\\n\n"));
    }

    #[test]
    fn a_tick_is_forgiven_and_nothing_else() {
        assert!(agree("HD t30\\r\\n\n", "HD t29\\r\\n\n"));
        assert!(!agree("HD t30\\r\\n\n", "HD t28\\r\\n\n"));
        assert!(!agree("HD t-1\\r\\n\n", "HD t0\\r\\n\n"));
        assert!(!agree("HD s30\\r\\n\n", "HD s29\\r\\n\n"));
    }
}
