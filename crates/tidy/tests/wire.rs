//! docs/wire.md agrees with `crates/cluster/src/wire/layout.rs`: both have the same structures,
//! choices, codes and fields in the same order. Their meanings are in the document only.

use std::fs;

use amalgam_tidy::{assert_none, root};

/// A structure or choice, and how each of its lines on the page begins.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    name: String,
    lines: Vec<String>,
}

/// Splits a list at the commas that are not inside brackets.
fn parts(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, sign) in list.char_indices() {
        match sign {
            '<' | '(' | '{' => depth += 1,
            '>' | ')' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[begin..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// `1 Name(a, b)`, `1 Name { a, b }` or `1 Name` as the page has it.
fn choice(text: &str) -> String {
    let (code, rest) = text.split_once(' ').expect("a code");
    let end = rest.find(|sign: char| !sign.is_alphanumeric()).unwrap_or(rest.len());
    let (name, fields) = rest.split_at(end);
    let fields = fields.trim().trim_matches(['(', ')', '{', '}']);
    let fields: String = parts(fields).iter().map(|field| format!(" {field}")).collect();
    format!("{code} {name}{fields}")
}

fn layout(text: &str) -> Vec<Section> {
    let mut sections = Vec::new();
    for (begin, is_choice) in [("wire_struct!(", false), ("wire_enum!(", true)] {
        for macro_call in text.split(begin).skip(1) {
            let (head, rest) = macro_call.split_once('{').expect("a body");
            let (body, _) = rest.split_once("});").expect("its end");
            let head = head.trim().trim_start_matches("for V, ");
            let name = head.split('<').next().unwrap_or(head).to_owned();
            let line = |part: &str| match is_choice {
                true => choice(part),
                false => part.split(':').next().unwrap_or(part).to_owned(),
            };
            sections.push(Section { name, lines: parts(body).into_iter().map(line).collect() });
        }
    }
    sections.sort_by(|one, other| one.name.cmp(&other.name));
    sections
}

/// The texts between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn page(text: &str) -> Vec<Section> {
    let messages = text.split("\n## Messages").nth(1).unwrap_or_default();
    let section = |text: &str| {
        let (name, rest) = text.split_once('\n').expect("a title");
        let rows = rest.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
        let line = |row: &str| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            match cells[0].parse::<u8>() {
                Ok(code) => {
                    let named = quoted(cells[1]).chain(quoted(cells[2]));
                    named.fold(code.to_string(), |line, name| format!("{line} {name}"))
                }
                Err(_) => quoted(cells[0]).collect(),
            }
        };
        Section { name: name.to_owned(), lines: rows.map(line).collect() }
    };
    let mut sections: Vec<Section> = messages.split("\n### ").skip(1).map(section).collect();
    sections.sort_by(|one, other| one.name.cmp(&other.name));
    sections
}

fn differences(layout: &[Section], page: &[Section]) -> Vec<String> {
    let missing = layout.iter().filter(|one| !page.contains(one));
    let missing = missing.map(|one| format!("docs/wire.md lacks {one:?}"));
    let other = page.iter().filter(|one| !layout.contains(one));
    let other = other.map(|one| format!("no layout has {one:?}, as docs/wire.md says"));
    missing.chain(other).collect()
}

#[test]
fn the_page_has_what_the_layout_has() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("it is there");
    let code =
        read("crates/cluster/src/wire/layout.rs") + &read("crates/cluster/src/wire/frame.rs");
    let (layout, page) = (layout(&code), page(&read("docs/wire.md")));
    assert!(layout.len() > 40, "the layout is not read");
    assert_none("the wire's page and layout agree", &differences(&layout, &page));
    let frame = read("crates/cluster/src/wire/frame.rs");
    let version = code.split("WIRE_VERSION: u16 = ").nth(1).and_then(|rest| rest.split(';').next());
    let said = format!("Its version is {};", version.expect("a version"));
    assert!(read("docs/wire.md").contains(&said), "docs/wire.md: {said}");
    // A client also needs these constants.
    let tls = read("crates/tls/src/mutual.rs");
    let label =
        tls.split("BINDING_LABEL: &[u8] = b\"").nth(1).and_then(|rest| rest.split('"').next());
    assert!(read("docs/wire.md").contains(&format!("`{}`", label.expect("a label"))));
    assert!(frame.contains(r#"from_le_bytes(*b"\xa3agm")"#), "the magic is another");
    assert!(read("docs/wire.md").contains("A3 61 67 6D"), "the magic");
}

#[test]
fn what_differs_is_noticed() {
    let code = "wire_struct!(A { one: u8, two: Vec<(u8, B)> });\n\
                wire_enum!(for V, C<V> {\n    1 D(x, y),\n    2 E { z },\n    3 F,\n});";
    let text = "\n## Messages\n\n### A\n\n| `one` | u8 | `it` |\n| `two` | list | |\n\n### C\n\n\
                | 1 | `D` | `x` u8, `y` u8 | |\n| 2 | `E` | `z` u8 | a `thing` |\n\
                | 3 | `F` |  | |\n";
    assert_eq!(differences(&layout(code), &page(text)), Vec::<String>::new());
    for (from, to) in [("`one`", "`three`"), ("| 2 |", "| 4 |"), ("`x` u8, `y`", "`y` u8, `x`")] {
        let planted = text.replacen(from, to, 1);
        assert_eq!(differences(&layout(code), &page(&planted)).len(), 2, "{from}");
    }
    assert_eq!(differences(&layout(code), &page(&text.replace("### C", "### G"))).len(), 2);
    let less = text.replace("| 3 | `F` |  | |\n", "");
    assert_eq!(differences(&layout(code), &page(&less)).len(), 2);
}
