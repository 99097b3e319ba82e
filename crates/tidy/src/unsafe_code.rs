//! Counts `unsafe` in code, and reads the inventory that states where it may stand.

use crate::Source;
use crate::lexer::{PieceKind, pieces};

/// How often code says `unsafe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsafeCount {
    /// Blocks: places that rely on something that the compiler does not check.
    pub blocks: usize,
    /// Everything else: functions, their types, implementations, foreign declarations, attributes.
    pub declarations: usize,
}

/// A row of the inventory.
#[derive(Debug, PartialEq, Eq)]
pub struct UnsafeRow {
    /// The folder, with `/` at its end, or the file.
    pub path: String,
    /// What it says of the path.
    pub count: UnsafeCount,
    /// Why the path needs `unsafe`.
    pub reason: String,
}

impl UnsafeCount {
    /// Counts in one file, outside of comments and literals.
    pub fn of(source: &Source) -> Self {
        let mut code = pieces(&source.text, true);
        code.retain(|piece| matches!(piece.kind, PieceKind::Word | PieceKind::Punctuation));
        let mut count = Self::default();
        for (at, _) in code.iter().enumerate().filter(|(_, piece)| piece.text == "unsafe") {
            match code.get(at + 1) {
                Some(next) if next.text == "{" => count.blocks += 1,
                _ => count.declarations += 1,
            }
        }
        count
    }
}

impl std::ops::AddAssign for UnsafeCount {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.declarations += other.declarations;
    }
}

/// The rows of the table in a document: `| path | blocks | declarations | reason |`.
pub fn unsafe_rows(document: &str) -> Vec<UnsafeRow> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [path, blocks, declarations, reason] = cells[..] else { return None };
        let count =
            UnsafeCount { blocks: blocks.parse().ok()?, declarations: declarations.parse().ok()? };
        let (path, reason) = (path.trim_matches('`').to_owned(), reason.to_owned());
        Some(UnsafeRow { path, count, reason })
    };
    document.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_counts_and_blocks_are_told_apart() {
        let text = "//! unsafe {\nunsafe impl Send for A {}\n#[unsafe(no_mangle)]\n\
            pub unsafe extern \"C\" fn a() { unsafe { b(\"unsafe {\") } }\n/* unsafe { */\n\
            fn c() { unsafe\n{ d() } } // unsafe {";
        let source = Source { path: "a.rs".to_owned(), text: text.to_owned() };
        assert_eq!(UnsafeCount::of(&source), UnsafeCount { blocks: 2, declarations: 3 });
    }

    #[test]
    fn rows_are_read_and_heads_are_not() {
        let rows = unsafe_rows(
            "| where | blocks | others | why |\n| --- | --- | --- | --- |\n\
            | `a/b/` | 3 | 0 | pointers |\ntext",
        );
        let count = UnsafeCount { blocks: 3, declarations: 0 };
        let (path, reason) = ("a/b/".to_owned(), "pointers".to_owned());
        assert_eq!(rows, [UnsafeRow { path, count, reason }]);
    }
}
