//! The graph of a crate's modules: which module names an item that another module defines.
//!
//! [`cycles`] finds the groups of sibling modules that depend on each other in a circle. Its rule:
//!
//! 1. A module is a file below `src`, or an inline `mod name { … }`. `lib.rs` and `main.rs` are the
//!    crate's root.
//! 2. Code that only tests compile does not count: items under `#[cfg(test)]` or `#[test]`, and
//!    modules that are declared so.
//! 3. A module depends on another if a `use` line or a path in its code names an item that the
//!    other *defines*. Re-exports are followed to the definition, so that a parent that declares
//!    its children and re-exports their items takes no part in a dependency between them.
//! 4. Dependencies between a module and its own ancestors or descendants do not count.
//! 5. At every level of folders, the children of one module must not depend on each other in a
//!    circle. A child depends on another if a module in the former's subtree depends on one in the
//!    latter's.
//!
//! Methods are not resolved, and macros are not expanded, but the paths that they are written with
//! are seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::Source;
use crate::lexer::{Piece, PieceKind, pieces};

/// Children of one module that depend on each other in a circle.
#[derive(Debug, PartialEq, Eq)]
pub struct Cycle {
    /// The modules, each as a path from the crate's root, sorted.
    pub modules: Vec<String>,
    /// One line for each dependency between two of them: the two, and where it is seen first.
    pub edges: Vec<String>,
}

/// Finds the cycles of the crate whose sources lie in `folder` (`crates/op/src/`), by rules (1) to
/// (5).
pub fn cycles(folder: &str, sources: &[Source]) -> Vec<Cycle> {
    let graph = Graph::read(folder, sources);
    // Maps the two siblings to the place where the first such dependency is seen.
    let mut edges: BTreeMap<(Path, Path), String> = BTreeMap::new();
    for (from, module) in &graph.modules {
        for (path, line) in &module.paths {
            let Some(to) = graph.resolve(from, path, DEPTH) else { continue };
            let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if common == from.len() || common == to.len() {
                continue;
            }
            let siblings = (from[..=common].to_vec(), to[..=common].to_vec());
            let seen = || format!("{}:{line}: {}", module.file, path.join("::"));
            edges.entry(siblings).or_insert_with(seen);
        }
    }
    let mut following: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        following.entry(from).or_default().insert(to);
    }
    let reachable = |start: &Path| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start.clone()];
        while let Some(next) = open.pop() {
            for path in following.get(&next).into_iter().flatten() {
                if reached.insert(*path) {
                    open.push((*path).clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        following.keys().map(|path| (*path, reachable(path))).collect();
    let is_mutual = |one: &Path, other: &Path| {
        let reaches = |from, to| reached.get(from).is_some_and(|all| all.contains(to));
        reaches(one, other) && reaches(other, one)
    };
    let mut found: Vec<Cycle> = Vec::new();
    let mut known = BTreeSet::new();
    for path in following.keys() {
        if !is_mutual(path, path) || known.contains(path) {
            continue;
        }
        let members: Vec<&Path> =
            following.keys().filter(|other| is_mutual(path, other)).copied().collect();
        let inside =
            edges.iter().filter(|((from, to), _)| members.contains(&from) && members.contains(&to));
        let edges = inside
            .map(|((from, to), seen)| format!("{} -> {}: {seen}", name(from), name(to)))
            .collect();
        found.push(Cycle { modules: members.iter().map(|path| name(path)).collect(), edges });
        known.extend(members);
    }
    found
}

/// Upper bound of the re-exports that one path leads through; guards against re-exports that name
/// themselves.
const DEPTH: usize = 16;

type Path = Vec<String>;

fn name(path: &[String]) -> String {
    path.join("::")
}

/// What one module names and defines.
#[derive(Default)]
struct Module {
    file: String,
    /// Every path in its code, `crate` and `super` included, with its line.
    paths: Vec<(Path, usize)>,
    /// The names that `use` brings in, each with its path.
    bindings: BTreeMap<String, Path>,
    /// The paths before `::*` of glob imports.
    globs: Vec<Path>,
    /// The items that the module defines.
    items: BTreeSet<String>,
}

#[derive(Default)]
struct Graph {
    modules: BTreeMap<Path, Module>,
    /// Modules that only tests compile; so are their descendants.
    tests: BTreeSet<Path>,
}

impl Graph {
    fn read(folder: &str, sources: &[Source]) -> Self {
        let mut graph = Self::default();
        for source in sources {
            let Some(inner) = source.path.strip_prefix(folder) else { continue };
            let Some(inner) = inner.strip_suffix(".rs") else { continue };
            if inner.starts_with("bin/") {
                continue;
            }
            let mut path: Path = inner.split('/').map(str::to_owned).collect();
            if path.last().is_some_and(|last| last == "mod")
                || matches!(path.as_slice(), [only] if only == "lib" || only == "main")
            {
                path.pop();
            }
            let mut code = pieces(&source.text, true);
            code.retain(|piece| piece.kind != PieceKind::Comment);
            // The content of a string is not code.
            for piece in code.iter_mut().filter(|piece| piece.kind == PieceKind::Text) {
                piece.text = "\"";
            }
            graph.read_module(path, &source.path, &code);
        }
        let tests = std::mem::take(&mut graph.tests);
        graph.modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        graph
    }

    fn read_module(&mut self, path: Path, file: &str, code: &[Piece<'_>]) {
        let mut module = self.modules.remove(&path).unwrap_or_default();
        module.file = file.to_owned();
        let mut at = 0;
        while let Some(piece) = code.get(at) {
            let rest = &code[at..];
            let is_path_start = at == 0 || code[at - 1].text != "::";
            if let Some(length) = test_attribute(rest) {
                let item = &rest[length..];
                if let Some(name) = declared_module(item) {
                    self.tests.insert([path.as_slice(), &[name.to_owned()]].concat());
                }
                at += length + item_length(item);
            } else if let Some(name) = declared_module(rest)
                && let Some(open) = rest[..4.min(rest.len())].iter().position(|p| p.text == "{")
            {
                let length = block_length(&rest[open..]);
                let inner = [path.as_slice(), &[name.to_owned()]].concat();
                self.read_module(inner, file, &rest[open + 1..open + length - 1]);
                at += open + length;
            } else if piece.text == "use" && rest.get(1).is_some_and(|next| next.text != "<") {
                at += 1 + module.read_use(&rest[1..]);
            } else if piece.kind == PieceKind::Word && is_path_start {
                at += module.read_path(rest);
            } else {
                at += 1;
            }
        }
        self.modules.insert(path, module);
    }

    /// The module that defines what `path` names when `from` writes it; None if that is not in
    /// this crate.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Path> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let child = |parent: &[String], name: &String| {
            let child = [parent, std::slice::from_ref(name)].concat();
            self.modules.contains_key(&child).then_some(child)
        };
        let parent = |path: &[String]| path.split_last().map(|(_, parent)| parent.to_vec());
        let start = match first.as_str() {
            "crate" => Some(Path::new()),
            "self" => Some(from.to_vec()),
            "super" => Some(parent(from)?),
            _ => child(from, first),
        };
        let Some(mut here) = start else { return self.follow(from, path, depth) };
        for (index, name) in rest.iter().enumerate() {
            here = match (name.as_str(), child(&here, name)) {
                ("self", _) => here,
                ("super", _) => parent(&here)?,
                (_, Some(child)) => child,
                _ => {
                    let defines = self.modules.get(&here)?.items.contains(name);
                    let followed = || self.follow(&here, &rest[index..], depth);
                    // The name is neither defined nor imported: a variant, or made by a macro.
                    return if defines { Some(here) } else { followed().or(Some(here)) };
                }
            };
        }
        Some(here)
    }

    /// Where the first name of `path` leads that `module` brings in by `use`.
    fn follow(&self, module: &[String], path: &[String], depth: usize) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let inside = self.modules.get(module)?;
        if let Some(target) = inside.bindings.get(first) {
            if target == path {
                return None;
            }
            return self.resolve(module, &[target.as_slice(), rest].concat(), depth);
        }
        inside.globs.iter().find_map(|glob| {
            let target = self.resolve(module, glob, depth)?;
            let other = self.modules.get(&target)?;
            let has = other.items.contains(first)
                || other.bindings.contains_key(first)
                || self.modules.contains_key(&[target.as_slice(), &path[..1]].concat());
            if has {
                let path = [&["self".to_owned()], path].concat();
                return self.resolve(&target, &path, depth);
            }
            if other.globs.is_empty() { None } else { self.follow(&target, path, depth - 1) }
        })
    }
}

impl Module {
    /// Reads a tree of `use` behind the keyword and returns how many pieces it has.
    fn read_use(&mut self, code: &[Piece<'_>]) -> usize {
        let length = 1 + code.iter().take_while(|piece| piece.text != ";").count();
        self.read_tree(&[], &code[..length.min(code.len())]);
        length
    }

    fn read_tree(&mut self, prefix: &[String], code: &[Piece<'_>]) -> usize {
        let mut path = prefix.to_vec();
        let mut at = 0;
        let mut bound = None;
        let mut is_group = false;
        while let Some(piece) = code.get(at) {
            match piece.text {
                "," | "}" | ";" => break,
                "{" => {
                    is_group = true;
                    at += 1;
                    while code.get(at).is_some_and(|piece| !["}", ";"].contains(&piece.text)) {
                        at += self.read_tree(&path, &code[at..]);
                        at += usize::from(code.get(at).is_some_and(|piece| piece.text == ","));
                    }
                }
                "as" => {
                    at += 1;
                    bound = code.get(at).map(|piece| piece.text.to_owned());
                }
                "*" => {
                    self.globs.push(path.clone());
                    is_group = true;
                }
                "::" | "$" => {}
                "self" if path.len() > prefix.len() || !prefix.is_empty() => {}
                name => path.push(name.to_owned()),
            }
            at += 1;
        }
        if !is_group && !path.is_empty() {
            let name = bound.or_else(|| path.last().cloned()).unwrap_or_default();
            let line = code.first().map_or(0, |piece| piece.line);
            self.paths.push((path.clone(), line));
            self.bindings.insert(name, path);
        }
        at
    }

    /// Reads a path, or the name of an item that is defined, and returns how many pieces it has.
    fn read_path(&mut self, code: &[Piece<'_>]) -> usize {
        const DEFINES: [&str; 9] =
            ["struct", "enum", "union", "trait", "type", "fn", "const", "static", "macro_rules"];
        let first = &code[0];
        if DEFINES.contains(&first.text) {
            let is_name = |piece: &&Piece<'_>| {
                piece.kind == PieceKind::Word && !["mut", "fn", "unsafe"].contains(&piece.text)
            };
            let defined = code[1..].iter().take(2).find(is_name);
            self.items.extend(defined.map(|piece| piece.text.to_owned()));
            return 1;
        }
        let mut path = vec![first.text.to_owned()];
        let mut at = 1;
        while let [colons, name, ..] = &code[at..]
            && colons.text == "::"
            && name.kind == PieceKind::Word
        {
            path.push(name.text.to_owned());
            at += 2;
        }
        let is_call = code.get(at).is_some_and(|next| ["(", "{", "!", "<"].contains(&next.text));
        let is_type = first.text.starts_with(|letter: char| letter.is_ascii_uppercase());
        if path.len() > 1 || is_call || is_type {
            self.paths.push((path, first.line));
        }
        at
    }
}

/// The name of the module that `code` begins to declare.
fn declared_module<'a>(code: &[Piece<'a>]) -> Option<&'a str> {
    let mut code = code;
    if let [first, rest @ ..] = code
        && first.text == "pub"
    {
        code = rest;
        if code.first().is_some_and(|piece| piece.text == "(") {
            code = &code[1 + code.iter().take_while(|piece| piece.text != ")").count()..];
        }
    }
    match code {
        [keyword, name, end, ..] if keyword.text == "mod" && [";", "{"].contains(&end.text) => {
            Some(name.text)
        }
        _ => None,
    }
}

/// Pieces of the attributes that `code` begins with, if the first says that it is for tests.
fn test_attribute(code: &[Piece<'_>]) -> Option<usize> {
    let begins = |code: &[Piece<'_>], at: usize, text: &str| {
        code.get(at).is_some_and(|piece| piece.text == text)
    };
    let is_attribute = |code: &[Piece<'_>]| begins(code, 0, "#") && begins(code, 1, "[");
    if !is_attribute(code) {
        return None;
    }
    let end = |at: usize| at + 1 + block_length(&code[at + 1..]);
    let mut at = end(0);
    let words: Vec<&str> = code[2..at].iter().map(|piece| piece.text).collect();
    let is_test = words == ["test", "]"]
        || (words.first() == Some(&"cfg") && words.contains(&"test") && !words.contains(&"not"));
    if !is_test {
        return None;
    }
    while is_attribute(&code[at..]) {
        at = end(at);
    }
    Some(at)
}

/// Pieces from an opening bracket up to the one that closes it.
fn block_length(code: &[Piece<'_>]) -> usize {
    let mut depth = 0_usize;
    for (index, piece) in code.iter().enumerate() {
        match piece.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    code.len()
}

/// Pieces of the item, field or statement that `code` begins with.
fn item_length(code: &[Piece<'_>]) -> usize {
    const ITEMS: [&str; 12] = [
        "pub", "fn", "mod", "struct", "enum", "impl", "trait", "const", "static", "type", "unsafe",
        "use",
    ];
    let Some(first) = code.first() else { return 0 };
    let is_item = ITEMS.contains(&first.text);
    let mut at = 0;
    while let Some(piece) = code.get(at) {
        match piece.text {
            "}" | ")" | "]" => return at,
            "(" | "[" => at += block_length(&code[at..]),
            "{" => {
                at += block_length(&code[at..]);
                if first.text != "use" {
                    return at;
                }
            }
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Cycle> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/made-up/src/{path}"),
            text: (*text).to_owned(),
        };
        cycles("crates/made-up/src/", &files.iter().map(source).collect::<Vec<_>>())
    }

    fn modules(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        found(files).into_iter().map(|cycle| cycle.modules).collect()
    }

    #[test]
    fn a_circle_of_three_is_told_with_each_edge() {
        let cycles = found(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "//! A.\nuse crate::b::B;\npub struct A;"),
            ("b.rs", "pub struct B;\nfn b() { crate::c::c() }"),
            ("c.rs", "use super::{a::A, d};\npub fn c() {}"),
            ("d.rs", "pub struct D;"),
        ]);
        assert_eq!(cycles.len(), 1);
        assert_eq!(cycles[0].modules, ["a", "b", "c"]);
        let edges = [
            "a -> b: crates/made-up/src/a.rs:2: crate::b::B",
            "b -> c: crates/made-up/src/b.rs:2: crate::c::c",
            "c -> a: crates/made-up/src/c.rs:1: super::a::A",
        ];
        assert_eq!(cycles[0].edges, edges);
    }

    #[test]
    fn parents_and_tests_are_no_part_of_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A; use b::b;"),
            ("a.rs", "pub struct A; fn a() { crate::b() }\n#[cfg(test)] mod tests { fn x() {} }"),
            ("b.rs", "pub fn b() {}\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
        ];
        assert_eq!(modules(&files), Vec::<Vec<String>>::new());
        let mut files = files.to_vec();
        files[2].1 = "#[cfg(test)] use crate::A; pub fn b() {}\n#[cfg(test)] mod tests;";
        files.push(("b/tests.rs", "use crate::a::A;"));
        assert_eq!(modules(&files), Vec::<Vec<String>>::new());
    }

    #[test]
    fn re_exports_are_followed_to_the_definition() {
        let lib = ("lib.rs", "mod a; mod b; pub use a::A; pub use b::*;");
        let a = ("a.rs", "use crate::B; pub struct A(B);");
        for b in [
            "pub struct B; fn b(a: crate::A) {}",
            "use crate::A as Other; pub struct B;",
            "use super::*; pub struct B(A);",
            "pub struct B; macro_rules! make { () => { $crate::a::A } }",
            "pub struct B; mod inner { use super::super::a::A; }",
        ] {
            assert_eq!(modules(&[lib, a, ("b.rs", b)]), [["a", "b"]], "{b}");
        }
    }

    #[test]
    fn circles_are_found_at_every_level() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod x; mod y; pub struct A;"),
            ("a/x.rs", "use super::y::Y; pub struct X;"),
            ("a/y.rs", "use crate::a::x::X; use crate::b::B; pub struct Y;"),
            ("b.rs", "pub struct B;"),
        ];
        assert_eq!(modules(&files), [["a::x", "a::y"]]);
        let mut files = files.to_vec();
        files[3].1 = "use crate::b::B; pub struct Y;";
        files[4].1 = "use crate::a::A; pub struct B;";
        assert_eq!(modules(&files), [["a", "b"]]);
    }
}
