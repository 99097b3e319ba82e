//! Lists the public items of a file, one line each: what it promises to the users of its crate.

use crate::Source;

/// Lists the public items of `source`: signatures, fields and variants, with derived traits.
/// Expects code as rustfmt writes it; macros are not expanded.
pub fn promises(source: &Source) -> Vec<String> {
    let mut reader = Reader::default();
    for (_, line) in source.code() {
        reader.take(line.trim_end());
    }
    reader.promised
}

/// The state of reading a file's public items line by line.
#[derive(Default)]
struct Reader {
    promised: Vec<String>,
    /// The attributes of the item that comes next.
    attributes: String,
    /// A signature that continues on the next line.
    signature: String,
    /// The type or trait whose body is being read.
    owner: String,
    /// Whether its items are public without `pub`: variants, and functions of a trait.
    is_open: bool,
}

impl Reader {
    fn take(&mut self, line: &str) {
        let text = line.trim_start();
        if !self.signature.is_empty() {
            return self.go_on(text);
        }
        let is_inside = line.len() > text.len();
        if line.starts_with('}') {
            self.owner.clear();
            self.is_open = false;
        } else if text.starts_with("#[derive") || text.starts_with("#[non_exhaustive") {
            self.attributes += &format!("{text} ");
        } else if !text.is_empty() && !text.starts_with("#[") {
            let is_public = text.starts_with("pub ") || (self.is_open && is_inside);
            if is_public || (!is_inside && text.starts_with("impl")) {
                self.go_on(text);
            } else {
                self.attributes.clear();
            }
        }
    }

    /// Adds a line to the signature, which the line may complete.
    fn go_on(&mut self, text: &str) {
        if !self.signature.is_empty() && !self.signature.ends_with('(') {
            self.signature.push(' ');
        }
        self.signature += text;
        let count = |sign: char| self.signature.matches(sign).count();
        let is_whole = count('(') == count(')') && count('[') == count(']');
        if is_whole && self.signature.ends_with(['{', ';', ',', '}']) {
            self.end();
        }
    }

    fn end(&mut self) {
        let signature = std::mem::take(&mut self.signature).replace(", )", ")");
        let attributes = std::mem::take(&mut self.attributes);
        let opens = signature.ends_with('{');
        let head = signature.trim_end_matches([';', ',', '{']).trim_end();
        let head = head.strip_suffix("{}").unwrap_or(head).trim_end();
        if head.starts_with("impl") {
            if opens {
                self.owner = head.to_owned();
            }
            if head.contains(" for ") {
                self.promised.push(head.to_owned());
            }
            return;
        }
        let owner = if self.owner.is_empty() { String::new() } else { format!("{}: ", self.owner) };
        self.promised.push(format!("{owner}{attributes}{head}"));
        if opens && self.owner.is_empty() && !head.contains("fn ") {
            self.owner = head.trim_start_matches("pub ").to_owned();
            self.is_open = head.starts_with("pub enum") || head.starts_with("pub trait");
        }
    }
}
