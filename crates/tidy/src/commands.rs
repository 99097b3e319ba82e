//! The command lines of our programs, read from the types that clap derives them from.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Source, has_word};

/// A struct of arguments, or an enum of subcommands.
#[derive(Default)]
struct Type {
    /// The long options, and the letters of the short ones.
    options: BTreeSet<String>,
    /// Types whose options it includes (`flatten`).
    flattened: Vec<String>,
    /// The subcommands by name, each with the type of its arguments.
    subcommands: BTreeMap<String, String>,
}

/// Every type of arguments that some sources have, by folder of its crate and name.
#[derive(Default)]
pub struct Commands {
    types: BTreeMap<(String, String), Type>,
}

impl Commands {
    /// Collects the types of `sources`. Expects code as rustfmt writes it; macros are not expanded.
    pub fn read<'a>(sources: impl IntoIterator<Item = &'a Source>) -> Self {
        let mut commands = Self::default();
        for source in sources {
            let folder = source.path.split('/').nth(1).unwrap_or_default().to_owned();
            let mut reader = Reader { folder, ..Reader::default() };
            for (_, line) in source.code() {
                reader.take(line.trim_end(), &mut commands);
            }
        }
        commands
    }

    /// Finds options and subcommands in `words`, which follow the name of a program, that the
    /// program does not have. `program` is the folder of its crate and the type of its command
    /// line.
    pub fn unknown(&self, program: (&str, &str), words: &[&str]) -> Vec<String> {
        let mut unknown = Vec::new();
        let mut here = (program.0.to_owned(), program.1.to_owned());
        for word in words {
            let word = word.trim_matches(['[', ']', '\'', '"', ',', '…']);
            if ["--", "|", "&", ">", "<", "&&"].contains(&word) {
                break;
            }
            let subcommands = self.subcommands(&here);
            if let Some(option) = word.strip_prefix("--") {
                let option = option.split('=').next().unwrap_or_default();
                if !self.has(&here, option) && !["help", "version", ""].contains(&option) {
                    unknown.push(format!("{} has no --{option}", here.1));
                }
            } else if let Some(letter) = word.strip_prefix('-').and_then(|rest| rest.get(..1)) {
                // A number may be negative.
                let is_letter = letter.starts_with(|sign: char| sign.is_ascii_alphabetic());
                if is_letter && !self.has(&here, letter) && !["h", "V"].contains(&letter) {
                    unknown.push(format!("{} has no -{letter}", here.1));
                }
            } else if !subcommands.is_empty() {
                let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '-';
                match subcommands.get(word) {
                    Some(next) => here = next.clone(),
                    // A word in capitals is a placeholder.
                    None if !word.is_empty() && word.chars().all(is_name) && word != "help" => {
                        unknown.push(format!("{} has no command {word}", here.1));
                        break;
                    }
                    None => break,
                }
            }
        }
        unknown
    }

    /// Whether some command has this option.
    pub fn has_anywhere(&self, option: &str) -> bool {
        self.types.values().any(|one| one.options.contains(option))
    }

    /// Finds the crate's own type of that name, or else another crate's.
    fn find(&self, (folder, name): &(String, String)) -> Option<(&(String, String), &Type)> {
        let own = self.types.get_key_value(&(folder.clone(), name.clone()));
        own.or_else(|| self.types.iter().find(|((_, other), _)| other == name))
    }

    fn has(&self, here: &(String, String), option: &str) -> bool {
        self.find(here).is_some_and(|((folder, _), one)| {
            let is_in = |name: &String| self.has(&(folder.clone(), name.clone()), option);
            one.options.contains(option) || one.flattened.iter().any(is_in)
        })
    }

    fn subcommands(&self, here: &(String, String)) -> BTreeMap<String, (String, String)> {
        let Some(((folder, _), one)) = self.find(here) else { return BTreeMap::new() };
        let own = one.subcommands.iter();
        let own = own.map(|(name, next)| (name.clone(), (folder.clone(), next.clone())));
        let nested = one.flattened.iter();
        nested
            .flat_map(|name| self.subcommands(&(folder.clone(), name.clone())))
            .chain(own)
            .collect()
    }
}

/// The state of reading a file's types line by line.
#[derive(Default)]
struct Reader {
    folder: String,
    /// Whether the next type is one of ours.
    is_derived: bool,
    /// The type whose body is being read; a variant with fields is a type of its own.
    inside: Option<String>,
    is_enum: bool,
    variant: Option<String>,
    /// The attributes of the field or variant that comes next.
    attributes: String,
}

impl Reader {
    fn take(&mut self, line: &str, commands: &mut Commands) {
        let text = line.trim_start();
        let is_open = |text: &str| text.matches('(').count() > text.matches(')').count();
        if !self.attributes.is_empty() && is_open(&self.attributes) || text.starts_with("#[") {
            let derives = ["Args", "Parser", "Subcommand"];
            if text.starts_with("#[derive(") && self.inside.is_none() {
                self.is_derived = derives.iter().any(|name| has_word(text, name));
            }
            self.attributes += text;
            return;
        }
        let attributes = std::mem::take(&mut self.attributes);
        if line.starts_with('}') {
            self.inside = None;
        } else if self.inside.is_some() {
            self.take_part(line, &attributes, commands);
        } else if let Some((kind, name)) = head(text)
            && std::mem::take(&mut self.is_derived)
            && text.ends_with('{')
        {
            self.is_enum = kind == "enum";
            self.variant = None;
            self.inside = Some(name.to_owned());
            commands.types.insert((self.folder.clone(), name.to_owned()), Type::default());
        }
    }

    fn take_part(&mut self, line: &str, attributes: &str, commands: &mut Commands) {
        let owner = self.inside.clone().unwrap_or_default();
        let text = line.trim();
        let is_variant = self.is_enum && line.starts_with("    ") && !line.starts_with("     ");
        if is_variant && text.starts_with('}') {
            self.variant = None;
        } else if is_variant {
            let end = text.find(|sign: char| !sign.is_alphanumeric()).unwrap_or(text.len());
            let (name, rest) = text.split_at(end);
            if name.is_empty() {
                return;
            }
            let own = format!("{owner}::{name}");
            let next = if rest.starts_with('(') { last_name(rest) } else { own.clone() };
            let called = quoted(attributes, "name").unwrap_or_else(|| kebab(name));
            if rest.trim().starts_with('{') {
                self.variant = Some(own.clone());
            }
            commands.types.entry((self.folder.clone(), own)).or_default();
            let one = commands.types.entry((self.folder.clone(), owner)).or_default();
            one.subcommands.insert(called, next);
        } else if let Some((name, kind)) = text.split_once(": ") {
            let name = name.rsplit(' ').next().unwrap_or(name);
            let owner = self.variant.clone().unwrap_or(owner);
            let one = commands.types.entry((self.folder.clone(), owner)).or_default();
            if attributes.contains("flatten") || attributes.contains("command(subcommand") {
                one.flattened.push(last_name(kind));
            }
            if has_word(attributes, "long") {
                one.options.insert(quoted(attributes, "long").unwrap_or_else(|| kebab(name)));
            }
            if has_word(attributes, "short") {
                let letter = attributes.split("short = '").nth(1).unwrap_or(name);
                one.options.extend(letter.get(..1).map(str::to_owned));
            }
            for alias in ["alias", "visible_alias"] {
                one.options.extend(quoted(attributes, alias));
            }
        }
    }
}

/// Parses `pub struct Name<…> {`.
fn head(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
    let (kind, rest) = text.split_once(' ')?;
    let name = rest.split(|sign: char| !sign.is_alphanumeric()).next()?;
    ["struct", "enum"].contains(&kind).then_some((kind, name))
}

/// `Options` of `(Box<options::Options>),`.
fn last_name(text: &str) -> String {
    let mut names = text.split(|sign: char| !sign.is_alphanumeric() && sign != '_');
    names.rfind(|name| !name.is_empty()).unwrap_or_default().to_owned()
}

/// The string behind `key = `.
fn quoted(attributes: &str, key: &str) -> Option<String> {
    let key = format!("{key} = \"");
    let mut found = attributes.match_indices(&key);
    let start = found.find(|(start, _)| !attributes[..*start].ends_with(['_', '-']))?.0;
    attributes[start..].split('"').nth(1).map(str::to_owned)
}

/// `null-server` of `NullServer`, `key-bytes` of `key_bytes`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(if letter == '_' { '-' } else { letter.to_ascii_lowercase() });
    }
    text
}
