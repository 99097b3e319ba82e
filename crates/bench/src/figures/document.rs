//! What a folder of figures holds, as a document with pictures.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::compare::{LEAST_SPREAD, kept};
use super::picture::number;
use super::plan::Paper;
use super::report::Kept;

/// The document, and the folder of its pictures beside it.
const NAME: &str = "reproduce";

/// In the order of the document.
const PAPERS: [(Paper, &str); 5] = [
    (Paper::Mercury, "Mercury (SYSTOR 2013)"),
    (Paper::HotRing, "HotRing (FAST 2020)"),
    (Paper::MemC3, "MemC3 (NSDI 2013)"),
    (Paper::Fpl13, "the pipelined hash table (FPL 2013)"),
    (Paper::Dxram, "DXRAM"),
];

/// Writes `folder/reproduce.md` and its pictures from the JSON and the pictures of `measured`.
///
/// # Errors
///
/// If a folder cannot be read or written, or its figures are not all of one commit and scale.
pub fn write(measured: &Path, folder: &Path, remark: Option<&str>) -> anyhow::Result<()> {
    let figures = kept(measured)?;
    let pictures = folder.join(NAME);
    fs::create_dir_all(&pictures).with_context(|| pictures.display().to_string())?;
    for name in figures.keys() {
        let (from, to) = (measured.join(name), pictures.join(name));
        fs::copy(from.with_extension("svg"), to.with_extension("svg"))
            .with_context(|| format!("{name}.svg"))?;
    }
    let document = folder.join(NAME).with_extension("md");
    let mut figures: Vec<Kept> = figures.into_values().collect();
    figures.sort_by_cached_key(|figure| order(&figure.paper, &figure.figure));
    fs::write(&document, text(&figures, remark)?).with_context(|| document.display().to_string())
}

/// Papers as above; of each its figures and tables by number.
fn order(paper: &str, figure: &str) -> (usize, usize, String) {
    let paper = PAPERS.iter().position(|(one, _)| one.name() == paper);
    let digits = figure.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    // What has no number stands last.
    let number = digits[..end].parse().unwrap_or(usize::MAX);
    (paper.unwrap_or(PAPERS.len()), number, figure.to_owned())
}

fn text(figures: &[Kept], remark: Option<&str>) -> anyhow::Result<String> {
    let first = figures.first().context("there are no figures")?;
    let is_like = |figure: &Kept| {
        figure.commit == first.commit
            && figure.setting["scale"] == first.setting["scale"]
            && figure.setting["machine"] == first.setting["machine"]
    };
    let is_one = figures.iter().all(is_like);
    ensure!(is_one, "the figures are of several commits, scales or machines");
    let mut text = head(first);
    if let Some(remark) = remark {
        let remark = wrapped(&format!("**Of this run:** {}", escaped(remark)));
        let _ = write!(text, "\n{remark}\n");
    }
    text += "\n## What falls short\n\n";
    let short = rows(figures, |one| one.reached == Some(false));
    text += if short.is_empty() { "Nothing.\n" } else { &short };
    for (paper, title) in PAPERS {
        let of_paper: Vec<Kept> =
            figures.iter().filter(|one| one.paper == paper.name()).cloned().collect();
        if of_paper.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## {title}\n\n{}", rows(&of_paper, |_| true));
        for figure in &of_paper {
            section(&mut text, figure);
        }
    }
    Ok(text)
}

/// The machine, and what the columns of the tables mean.
fn head(first: &Kept) -> String {
    let of = |pointer| first.setting.pointer(pointer);
    let scale = of("/scale").and_then(serde_json::Value::as_str).unwrap_or("unknown");
    let switch = if scale == "quick" { " --quick" } else { "" };
    let written = format!(
        "Written by `amalgam reproduce --docs docs/results` from the JSON that `amalgam reproduce\
         {switch}` left; not to be edited."
    );
    let columns = format!(
        "**Rounds** is half of what lies between the slowest and the fastest round of a number, \
         and for a ratio the sum of both; a number without is counted, computed or measured once. \
         Two runs agree where they differ by less than their rounds together, or by less than {} \
         %. Printed numbers for 12 or 64 threads stand beside ours for the threads of this \
         machine, unless the line says that ours is predicted; [threads.md](threads.md) explains \
         those.",
        number(100.0 * LEAST_SPREAD)
    );
    format!(
        "# Five papers, measured again\n\n{}\n\n\
         | | |\n| --- | --- |\n\
         | command | `amalgam reproduce{switch}`; one figure: `amalgam reproduce hotring/figure-10\
         {switch}` |\n\
         | commit | {} |\n\
         | machine | {} cores of {}, {:.0} GiB |\n\
         | scale | {} |\n\n{}\n",
        wrapped(&written),
        first.commit,
        of("/machine/cores").and_then(serde_json::Value::as_u64).unwrap_or(0),
        of("/machine/cpu").and_then(serde_json::Value::as_str).unwrap_or("unknown"),
        of("/machine/memory_bytes").and_then(serde_json::Value::as_f64).unwrap_or(0.0)
            / f64::from(1 << 30),
        match scale {
            "quick" => "quick: fewer keys and shorter rounds than the papers had",
            "full" => "full: the papers' sizes, as far as this machine's memory goes",
            _ => "toy: these numbers mean nothing",
        },
        wrapped(&columns)
    )
}

/// A table of the printed numbers that are wanted.
fn rows(figures: &[Kept], is_wanted: fn(&super::report::Compared) -> bool) -> String {
    let mut rows = String::new();
    for figure in figures {
        let id = format!("{}-{}", figure.paper, figure.figure);
        for one in figure.compared.iter().filter(|one| is_wanted(one)) {
            let (paper, name) = (&figure.paper, figure.figure.replace('-', " "));
            let cells = one.cells(escaped).join(" | ");
            let _ = writeln!(rows, "| [{paper}, {name}](#{id}) | {cells} |");
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "| figure | number | ours | rounds | paper | ratio | |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n{rows}"
    )
}

/// The heading's words are the link's: `memc3 table 2` is `#memc3-table-2`.
fn section(text: &mut String, figure: &Kept) {
    let id = format!("{}-{}", figure.paper, figure.figure);
    let title = escaped(&figure.title);
    let _ = write!(
        text,
        "\n### {}\n\n{}\n\n{}\n\n{}\n\n![{title}]({NAME}/{id}.svg)\n",
        id.replace('-', " "),
        wrapped(&format!("**{title}**")),
        wrapped(&format!("The paper: {}", escaped(&figure.printed_setting))),
        wrapped(&format!("Here: {}", escaped(&figure.our_setting))),
    );
    for failure in &figure.failures {
        let _ = writeln!(text, "\n{}", wrapped(&format!("**Not measured: {}**", escaped(failure))));
    }
    if !figure.commands.is_empty() {
        let _ = write!(text, "\n<details><summary>Commands</summary>\n\n```sh\n");
        for command in &figure.commands {
            let lines = wrapped_to(command, COLUMNS - 6);
            let _ = writeln!(text, "{}", lines.join(" \\\n    "));
        }
        text.push_str("```\n\n</details>\n");
    }
}

/// Columns of a line.
const COLUMNS: usize = 100;

/// Words in lines of so many columns; a word that is longer has a line of its own.
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

fn wrapped(text: &str) -> String {
    wrapped_to(text, COLUMNS).join("\n")
}

/// What Markdown would take for its own.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figure(commit: &str) -> Kept {
        let figure = json!({
            "paper": "memc3", "figure": "table-2", "title": "how full", "commit": commit,
            "setting": { "scale": "quick", "machine": { "cpu": "a CPU", "cores": 2 } },
            "printed_setting": "2^27 slots", "our_setting": "1 | 2", "panels": [],
            "compared": [
                { "what": "% full", "printed": 90.0, "ours": 45.0, "spread": 0.1, "ratio": 0.5,
                  "reached": false },
                { "what": "bytes", "printed": 9.0, "ours": 8.0, "spread": null, "ratio": 0.9,
                  "reached": true },
            ],
            "commands": ["amalgam bench occupancy"], "failures": ["memc3-table-2: no memory"],
        });
        serde_json::from_value(figure).expect("a figure")
    }

    #[test]
    fn what_falls_short_stands_first_and_everything_stands_there() {
        let text = text(&[figure("abc")], Some("a remark")).expect("a document");
        let (short, rest) = text.split_once("## MemC3").expect("a paper");
        assert!(short.contains("**Of this run:** a remark"));
        assert!(short.contains("| % full | 45 | ± 10 % | 90 | 0.5 | short of it |"), "{text}");
        assert!(
            !short.contains("bytes |") && rest.contains("| bytes | 8 |  | 9 | 0.9 | reached |")
        );
        assert!(rest.contains("1 \\| 2") && rest.contains("**Not measured: memc3-table-2"));
        assert!(rest.contains("(reproduce/memc3-table-2.svg)") && rest.contains("bench occupancy"));
    }

    #[test]
    fn figures_of_two_commits_make_no_document() {
        assert!(text(&[figure("abc"), figure("def")], None).is_err());
    }

    #[test]
    fn figures_are_in_the_order_of_their_numbers() {
        let mut names = ["figure-10", "conflicts", "figure-3", "figure-11b", "figure-11a"];
        names.sort_by_cached_key(|name| order("hotring", name));
        assert_eq!(names, ["figure-3", "figure-10", "figure-11a", "figure-11b", "conflicts"]);
    }
}
