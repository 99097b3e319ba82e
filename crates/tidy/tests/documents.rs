//! The documents quote only what exists: options of programs, targets, packages, examples, tests,
//! figures and paths, so that a reader can repeat what is claimed.
//!
//! Neither the values of options nor the options of other programs are checked.

use std::collections::BTreeSet;
use std::fs;

use amalgam_tidy::{Commands, Quote, Source, assert_none, quotes, root, sources};

/// A program, the folder of its crate, and the type of its command line.
const PROGRAMS: [(&str, (&str, &str)); 5] = [
    ("amalgam", ("amalgam", "Amalgam")),
    ("amalgam-lab", ("lab", "Lab")),
    ("amalgam-peers", ("peers", "CommandLine")),
    ("bench", ("reproduce", "BenchCommand")),
    ("index", ("bench", "IndexArguments")),
];

/// The first components of the repository's paths.
const FOLDERS: [&str; 6] = ["crates/", "docs/", "fuzz/", "packaging/", "rtl/", "scripts/"];

/// A file for each figure, in a folder for each paper.
const FIGURES: &str = "crates/reproduce/src/figures";

/// All names that a document may quote.
struct Repository {
    commands: Commands,
    /// The targets of the Makefile.
    targets: BTreeSet<String>,
    /// The manifest of each crate.
    manifests: Vec<Source>,
    /// The code of all crates apart from this one.
    code: Vec<Source>,
    scripts: String,
}

impl Repository {
    fn read() -> Self {
        let read_text = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
        let makefile = read_text("Makefile");
        let (_, phony) = makefile.split_once(".PHONY:").expect("targets");
        let (phony, _) = phony.split_once("\n.").expect("their end");
        let named = phony.split(|sign: char| sign.is_whitespace() || sign == '\\');
        let mut code = sources(&["rs", "py", "sv", "cpp"]);
        // The tests of this crate name things that do not exist.
        code.retain(|source| !source.path.starts_with("crates/tidy/"));
        let is_source = |source: &&Source| source.path.contains("/src/");
        let mut scripts = String::new();
        for folder in ["scripts", "rtl/scripts"] {
            for entry in fs::read_dir(root().join(folder)).expect("scripts").flatten() {
                scripts += &fs::read_to_string(entry.path()).unwrap_or_default();
            }
        }
        Self {
            commands: Commands::read(code.iter().filter(is_source)),
            targets: named.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            manifests: sources(&["toml"]),
            code,
            scripts,
        }
    }

    /// Returns one line for each name in `quote` that does not exist.
    fn unknown(&self, quote: &Quote) -> Vec<String> {
        // Text behind `#` is a comment.
        let line = quote.text.split(" #").next().unwrap_or_default();
        let ends = |word: &&str| ["|", "&&", ";", "&"].contains(word);
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut unknown = Vec::new();
        for part in words.split(ends) {
            unknown.extend(self.unknown_in(part));
        }
        unknown.extend(words.iter().filter_map(|word| self.unknown_word(word)));
        unknown
    }

    fn unknown_in(&self, words: &[&str]) -> Vec<String> {
        // `NAME=value taskset -c 0 amalgam …`
        let is_setting = |word: &&&str| word.contains('=') && !word.starts_with('-');
        let skipped = words.iter().take_while(is_setting).count();
        let words = match &words[skipped..] {
            ["taskset", "-c", _, rest @ ..] | ["sudo" | "exec", rest @ ..] => rest,
            words => words,
        };
        let Some((program, rest)) = words.split_first() else { return Vec::new() };
        let name = program.rsplit('/').next().unwrap_or(program);
        let is_named = |rest: &[&str]| rest.first().is_some_and(|first| first.starts_with("--"));
        match *program {
            "make" => self.unknown_targets(rest),
            "cargo" => self.unknown_to_cargo(rest),
            // Without an option behind it, the program's name is a word like any other.
            "index" if !is_named(rest) => Vec::new(),
            _ => match PROGRAMS.iter().find(|(program, _)| *program == name) {
                // These are memcached's options, which the server takes.
                Some(("amalgam", (folder, _)))
                    if rest.first().is_some_and(|first| first.starts_with('-')) =>
                {
                    self.commands.unknown((folder, "Options"), rest)
                }
                Some((_, program)) => self.commands.unknown(*program, rest),
                None if program.starts_with("--") => self.unknown_option(program),
                None => Vec::new(),
            },
        }
    }

    fn unknown_option(&self, option: &str) -> Vec<String> {
        let name = option.trim_start_matches('-').split(['=', ',']).next().unwrap_or_default();
        let is_known = self.commands.has_anywhere(name)
            || self.scripts.contains(&format!("--{name}"))
            || self.code.iter().any(|source| source.text.contains(&format!("--{name}")));
        if is_known { Vec::new() } else { vec![format!("nothing has --{name}")] }
    }

    fn unknown_targets(&self, words: &[&str]) -> Vec<String> {
        let is_target = |word: &&&str| !word.contains('=') && !word.starts_with('-');
        let named = words.iter().take_while(is_target);
        let unknown = named.filter(|word| !self.targets.contains(**word));
        unknown.map(|word| format!("there is no target {word}")).collect()
    }

    fn unknown_to_cargo(&self, words: &[&str]) -> Vec<String> {
        let (own, passed) = match words.iter().position(|word| *word == "--") {
            Some(end) => (&words[..end], &words[end + 1..]),
            None => (words, &[][..]),
        };
        let behind = |option: &str| {
            let place = own.iter().position(|word| *word == option)?;
            own.get(place + 1).copied()
        };
        let mut unknown = Vec::new();
        let manifest = behind("-p").map(|package| {
            let line = format!("name = \"{package}\"\n");
            self.manifests.iter().find(|one| one.text.contains(&line)).ok_or(package)
        });
        let folder = match manifest {
            Some(Err(package)) => return vec![format!("there is no package {package}")],
            Some(Ok(manifest)) => manifest.path.trim_end_matches("Cargo.toml").to_owned(),
            None => "crates/".to_owned(),
        };
        if let Some(Ok(manifest)) = manifest {
            let features = behind("--features").unwrap_or_default().split(',');
            let is_there = |name: &&str| manifest.text.contains(&format!("\n{name} = "));
            let missing = features.filter(|name| !name.is_empty() && !is_there(name));
            unknown.extend(missing.map(|name| format!("{folder} has no feature {name}")));
        }
        for (option, inner) in [("--example", "examples/"), ("--test", "tests/")] {
            let Some(name) = behind(option) else { continue };
            let is_it = |source: &Source| {
                let ends = [format!("{inner}{name}.rs"), format!("{inner}{name}/main.rs")];
                source.path.starts_with(&folder)
                    && ends.iter().any(|end| source.path.ends_with(end))
            };
            if !self.code.iter().any(is_it) {
                unknown.push(format!("there is no {inner}{name}"));
            }
        }
        if behind("-p") == Some("amalgam-peers") && own.first() == Some(&"run") {
            unknown.extend(self.commands.unknown(("peers", "CommandLine"), passed));
        }
        unknown
    }

    /// Reports a path, a figure or the name of a test that does not exist.
    fn unknown_word(&self, word: &str) -> Option<String> {
        let word = word.trim_matches(['\'', '"', ',', ';', '(', ')']);
        let is_name = |word: &str| {
            word.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte))
        };
        if FOLDERS.iter().any(|folder| word.starts_with(folder)) {
            let path = word.split([':', '#']).next().unwrap_or(word);
            let is_pattern = path.contains(['*', '…', '<', '{']);
            return (!is_pattern && !root().join(path).exists())
                .then(|| format!("there is no {path}"));
        }
        if let Some((paper, figure)) = word.split_once('/')
            && !paper.is_empty()
            && is_name(paper)
            && root().join(FIGURES).join(paper).is_dir()
        {
            // Files next to the folders have figures of several papers.
            let is_near = |path: &str| {
                path.strip_prefix(FIGURES).is_some_and(|rest| {
                    rest.matches('/').count() == 1 || rest.starts_with(&format!("/{paper}/"))
                })
            };
            let name = format!("name: \"{figure}\"");
            let is_it = |source: &Source| is_near(&source.path) && source.text.contains(&name);
            return (!self.code.iter().any(is_it)).then(|| format!("there is no figure {word}"));
        }
        // A name with more than two underscores is usually a test's.
        let is_long = word.matches('_').count() > 2 && is_name(word);
        let is_there = |source: &Source| source.text.contains(word);
        (is_long && !self.code.iter().any(is_there)).then(|| format!("nothing is called {word}"))
    }
}

#[test]
fn documents_quote_only_what_exists() {
    let repository = Repository::read();
    let mut offences = Vec::new();
    for source in sources(&["md"]) {
        for quote in quotes(&source) {
            let unknown = repository.unknown(&quote);
            offences
                .extend(unknown.iter().map(|one| format!("{}:{}: {one}", source.path, quote.line)));
        }
    }
    assert_none("documents quote only what exists", &offences);
}

/// The reports for a document that consists of `lines`.
fn complaints(lines: &[&str]) -> Vec<String> {
    let document = Source { path: "page.md".to_owned(), text: lines.join("\n") };
    let repository = Repository::read();
    quotes(&document).iter().flat_map(|quote| repository.unknown(quote)).collect()
}

#[test]
fn quotes_of_missing_things_are_reported() {
    for (line, wanted) in [
        ("`amalgam-lab bench index --workloads c`", "IndexArguments has no --workloads"),
        ("`amalgam-lab bench indices --keys 1`", "BenchCommand has no command indices"),
        ("`amalgam serve --engines mercury`", "Options has no --engines"),
        ("`amalgam -p 11211 --mem 1`", "Options has no --mem"),
        ("`amalgam cluster dev --node 3`", "DevOptions has no --node"),
        ("`bench server --bar`", "ServerArguments has no --bar"),
        ("`--option-of-nobody 3`", "nothing has --option-of-nobody"),
        ("`make tests`", "there is no target tests"),
        ("`cargo test -p amalgam-servers`", "there is no package amalgam-servers"),
        ("`cargo run -p amalgam-rtl --features fast`", "crates/rtl/ has no feature fast"),
        ("`cargo run -p amalgam-rtl --example figure`", "there is no examples/figure"),
        ("`amalgam-lab reproduce hotring/figure-99`", "there is no figure hotring/figure-99"),
        ("`scripts/small-machine`", "there is no scripts/small-machine"),
        ("`no_test_has_this_name`", "nothing is called no_test_has_this_name"),
        ("`cargo run -p amalgam-peers -- bench index --speed 1`", "IndexArguments has no --speed"),
    ] {
        let said = complaints(&[line]);
        assert!(said.iter().any(|one| one.ends_with(wanted)), "{line}: {said:?}");
    }
}

#[test]
fn continued_lines_are_one_command() {
    let lines = [
        "A paragraph with `amalgam-lab bench",
        "index --wrong 1` in it.",
        "",
        "```sh",
        "taskset -c 1 target/release/amalgam bench server --target a:1 \\",
        "    --bad  # and --this is a remark",
        "make run && make no-such",
        "```",
        "",
        "    amalgam advise --worse",
    ];
    let said = complaints(&lines);
    let wanted = [
        "IndexArguments has no --wrong",
        "ServerArguments has no --bad",
        "there is no target no-such",
        "AdviseArguments has no --worse",
    ];
    assert_eq!(said, wanted);
}

/// For a command that moved, `amalgam` names one of the laboratory, which must exist.
#[test]
fn commands_that_moved_are_in_the_laboratory() {
    let repository = Repository::read();
    let mut moved = repository.code.iter();
    let moved = moved.find(|source| source.path == "crates/amalgam/src/moved.rs").expect("a list");
    let (_, list) = moved.text.split_once("const BENCHES").expect("the benches");
    let (list, _) = list.split_once("];").expect("their end");
    let names: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(names.contains(&"index"), "{names:?}");
    let lab = ("lab", "Lab");
    let unknown = |name: &&str| repository.commands.unknown(lab, &["bench", name]);
    assert_none("commands that moved", &names.iter().flat_map(unknown).collect::<Vec<_>>());
}
