//! Text in Markdown, as the document and the pages have it.

use serde_json::Value;

/// A command, broken into lines that a shell joins again.
pub fn continued(command: &str) -> String {
    wrapped_to(command, COLUMNS - 6).join(" \\\n    ")
}

/// The longest line, in columns.
const COLUMNS: usize = 100;

/// The words of `text` in lines of at most `columns` columns; a longer word has its own line.
fn wrapped_to(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}

/// `text` in lines that are not too long.
pub fn wrapped(text: &str) -> String {
    wrapped_to(text, COLUMNS).join("\n")
}

/// `text` with the characters escaped that mean something to Markdown.
pub fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}

/// A machine as JSON has it, for people.
pub fn machine(machine: &Value) -> String {
    format!(
        "{} cores of {}, {:.0} GiB",
        machine["cores"].as_u64().unwrap_or(0),
        machine["cpu"].as_str().unwrap_or("unknown"),
        machine["memory_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 30)
    )
}
