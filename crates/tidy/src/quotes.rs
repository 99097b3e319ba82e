//! Extracts the quotes of a document: command lines, paths and names between backquotes and in
//! blocks of code.

use crate::Source;

/// A command line, a path or a name, and the line of the document where it (or its paragraph)
/// begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Quote {
    /// The line, from 1.
    pub line: usize,
    /// The quoted text in one line, without a prompt.
    pub text: String,
    /// Whether it is a line of a block that is marked as shell code.
    pub is_shell: bool,
}

/// Extracts all quotes of `document`. A line of a block that ends with `\` continues on the next
/// one, and a quote may continue on the paragraph's next line.
pub fn quotes(document: &Source) -> Vec<Quote> {
    let mut found = Vec::new();
    // The language of the block that is being read.
    let mut block: Option<String> = None;
    let mut paragraph = (0, String::new());
    let mut going_on = String::new();
    for (number, line) in document.lines().chain([(0, "")]) {
        let text = line.trim();
        if let Some(language) = text.strip_prefix("```") {
            end(&mut paragraph, &mut found);
            block = if block.is_some() { None } else { Some(language.to_owned()) };
        } else if let Some(language) = &block {
            let is_shell = ["sh", "console"].contains(&language.as_str());
            let text = text.trim_start_matches("$ ").trim_start_matches("# ");
            going_on += text.trim_end_matches('\\');
            if !text.ends_with('\\') {
                let text = std::mem::take(&mut going_on);
                found.push(Quote { line: number, text, is_shell });
            }
        } else if line.starts_with("    ") && paragraph.1.is_empty() {
            found.push(Quote { line: number, text: text.to_owned(), is_shell: false });
        } else if text.is_empty() || text.starts_with(['|', '#', '-', '*']) {
            end(&mut paragraph, &mut found);
            paragraph = (number, text.to_owned());
        } else {
            if paragraph.1.is_empty() {
                paragraph.0 = number;
            }
            paragraph.1 += " ";
            paragraph.1 += text;
        }
    }
    found
}

/// Extracts the quotes of a paragraph that has ended.
fn end(paragraph: &mut (usize, String), found: &mut Vec<Quote>) {
    let (line, text) = std::mem::take(paragraph);
    let quoted = text.split('`').skip(1).step_by(2).filter(|text| !text.is_empty());
    found.extend(quoted.map(|text| Quote { line, text: text.trim().to_owned(), is_shell: false }));
}
