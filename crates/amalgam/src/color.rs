//! `--color`: which commands colour their output, and when.

use std::io::IsTerminal;

use clap::ValueEnum;

/// When output is coloured. `Auto` is on a terminal, unless the environment variable NO_COLOR is
/// set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    // The names need no help of their own.
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// Whether to colour what is written to `output`.
    pub fn colors(self, output: &impl IsTerminal) -> bool {
        // As <https://no-color.org> says, an empty value counts as none.
        let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        self.decide(output.is_terminal(), is_unwanted)
    }

    fn decide(self, is_terminal: bool, is_unwanted: bool) -> bool {
        match self {
            Self::Auto => is_terminal && !is_unwanted,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// A colour or weight of text, as the number of the terminal's sequence SGR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Bold = 1,
    Red = 31,
    Green = 32,
    Yellow = 33,
    Blue = 34,
    Magenta = 35,
    Cyan = 36,
}

/// Writes texts with or without colours.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    /// Whether texts are coloured.
    pub is_on: bool,
}

impl Palette {
    /// `text` in a colour, or as it is.
    pub fn paint(self, text: &str, ink: Ink) -> String {
        match self.is_on && !text.is_empty() {
            true => format!("\u{1b}[{}m{text}\u{1b}[0m", ink as u8),
            false => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_the_user_decides() {
        for (color, is_terminal, is_unwanted, expected) in [
            (Color::Auto, true, false, true),
            (Color::Auto, true, true, false),
            (Color::Auto, false, false, false),
            (Color::Always, false, true, true),
            (Color::Never, true, false, false),
        ] {
            assert_eq!(color.decide(is_terminal, is_unwanted), expected, "{color:?}");
        }
        assert_eq!(Palette { is_on: true }.paint("x", Ink::Red), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Palette { is_on: false }.paint("x", Ink::Red), "x");
    }
}
