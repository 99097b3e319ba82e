//! Writes a folder of figures as a document with pictures, and as tables of other pages.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::compare::{LEAST_SPREAD, kept};
use super::markdown::{continued, escaped, machine, wrapped};
use super::pages;
use super::picture::number;
use super::plan::Paper;
use super::report::Kept;

/// The name of the document without extension, and of the folder with its pictures and the JSON
/// that it is made from.
const NAME: &str = "reproduce";
/// The file in that folder with the remark on the run.
const REMARK: &str = "remark.txt";

/// The papers and their headings, in the order of the document.
const PAPERS: [(Paper, &str); 5] = [
    (Paper::Mercury, "Mercury (SYSTOR 2013)"),
    (Paper::HotRing, "HotRing (FAST 2020)"),
    (Paper::MemC3, "MemC3 (NSDI 2013)"),
    (Paper::Fpl13, "the pipelined hash table (FPL 2013)"),
    (Paper::Dxram, "DXRAM"),
];

/// Copies the JSON and the pictures of `measured` to `folder`, where they replace those of the same
/// figures, and writes all pages that are made from the figures there.
///
/// # Errors
///
/// If a folder cannot be read or written, some but not all of its figures are of toy scale, or a
/// page names a figure or file that does not exist.
pub fn write(measured: &Path, folder: &Path, remark: Option<&str>) -> anyhow::Result<()> {
    let keep = folder.join(NAME);
    fs::create_dir_all(&keep).with_context(|| keep.display().to_string())?;
    // `measured` may be the kept folder itself: then only the pages are written again.
    if measured.canonicalize().ok() != keep.canonicalize().ok() {
        for name in kept(measured)?.keys() {
            for kind in ["svg", "json"] {
                let file = format!("{name}.{kind}");
                fs::copy(measured.join(&file), keep.join(&file)).context(file)?;
            }
        }
    }
    if let Some(remark) = remark {
        fs::write(keep.join(REMARK), format!("{remark}\n"))?;
    }
    for (path, text) in made(folder)? {
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The text of all pages that are made from the JSON in `folder`, by path: the document, and each
/// page that has tables of figures.
fn made(folder: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let keep = folder.join(NAME);
    let figures = kept(&keep)?;
    let document = folder.join(NAME).with_extension("md");
    let mut pages = BTreeMap::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path != document && path.extension().is_some_and(|extension| extension == "md") {
            let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let text = pages::remade(&page, &figures, folder)
                .with_context(|| path.display().to_string())?;
            pages.insert(path, text);
        }
    }
    let remark = fs::read_to_string(keep.join(REMARK)).ok();
    let mut figures: Vec<Kept> = figures.into_values().collect();
    figures.sort_by_cached_key(|figure| order(&figure.paper, &figure.figure));
    pages.insert(document, text(&figures, remark.as_deref().map(str::trim_end))?);
    Ok(pages)
}

/// The key that orders figures: by [`PAPERS`], then by the number of the figure or table.
fn order(paper: &str, figure: &str) -> (usize, usize, String) {
    let paper = PAPERS.iter().position(|(one, _)| one.name() == paper);
    let digits = figure.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    // A figure without a number comes last.
    let number = digits[..end].parse().unwrap_or(usize::MAX);
    (paper.unwrap_or(PAPERS.len()), number, figure.to_owned())
}

fn text(figures: &[Kept], remark: Option<&str>) -> anyhow::Result<String> {
    // Most figures are of one run; the others say which run they are from.
    let like = |one: &Kept| figures.iter().filter(|other| origin(other) == origin(one)).count();
    let most = figures.iter().map(like).max().context("there are no figures")?;
    let first = figures.iter().find(|one| like(one) == most).context("there are no figures")?;
    let is_toy = |figure: &&Kept| figure.setting["scale"] == "toy";
    let toys = figures.iter().filter(is_toy).count();
    ensure!(toys == 0 || toys == figures.len(), "{toys} of the figures are of toy scale");
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
            section(&mut text, figure, first);
        }
    }
    Ok(text)
}

/// The commit, machine and scale of a figure, which are the same for all figures of a run.
fn origin(figure: &Kept) -> (&str, &Value, &str) {
    let scale = figure.setting["scale"].as_str().unwrap_or("unknown");
    (&figure.commit, &figure.setting["machine"], scale)
}

/// The beginning of the document: the machine, and what the columns of the tables mean.
fn head(first: &Kept) -> String {
    let scale = first.setting["scale"].as_str().unwrap_or("unknown");
    let switch = if scale == "quick" { " --quick" } else { "" };
    let written = format!(
        "Written by `amalgam-lab reproduce --docs docs/results` from the JSON that \
         `amalgam-lab reproduce{switch}` left, which is kept in [{NAME}]({NAME}); \
         not to be edited. `make docs` writes it anew."
    );
    let columns = format!(
        "All figures are gone through twice, so that a number's rounds lie minutes apart; of a \
         ratio each round is a ratio by itself. Behind **±** stands how far a number may be off: \
         half of what lies between its least and its greatest round, times 1.43 where there were \
         four, 2.61 of three and 12.7 of two (what holds the mean 19 times in 20), and no less \
         than two standard errors of what the passes differ by, in the median of all numbers \
         shown with it; of a \
         predicted number, what lies to the farther end of its band. One without is counted, \
         computed or measured once. A prediction whose band holds the printed number is *not \
         determined* by what was measured. Two runs agree where they differ by less than both \
         may be off, or by less than {} %. Printed numbers for 12 or 64 threads are compared with \
         ours \
         for the threads of this machine, unless the line says that ours is predicted; \
         [threads.md](threads.md) explains those.",
        number(100.0 * LEAST_SPREAD)
    );
    format!(
        "# Five papers, measured again\n\n{}\n\n\
         | | |\n| --- | --- |\n\
         | command | `amalgam-lab reproduce{switch}`; one figure: \
         `amalgam-lab reproduce hotring/figure-10{switch}` |\n\
         | commit | {} |\n\
         | machine | {} |\n\
         | scale | {} |\n\n{}\n",
        wrapped(&written),
        first.commit,
        machine(&first.setting["machine"]),
        match scale {
            "quick" => "quick: fewer keys and shorter rounds than the papers had",
            "full" => "full: the papers' sizes, as far as this machine's memory goes",
            _ => "toy: these numbers mean nothing",
        },
        wrapped(&columns)
    )
}

/// The rows of a table of the printed numbers that are wanted; empty if there are none.
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
        "| figure | number | ours | ± | paper | ratio | |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n{rows}"
    )
}

/// Appends the section of a figure. Links rely on the words of its heading: `memc3 table 2` is
/// `#memc3-table-2`.
fn section(text: &mut String, figure: &Kept, first: &Kept) {
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
    if origin(figure) != origin(first) {
        let (commit, on, scale) = origin(figure);
        let at = match scale == origin(first).2 {
            true => String::new(),
            false => format!("at {scale} scale, "),
        };
        let from = format!("Measured apart: {at}commit {commit}, {}.", machine(on));
        let _ = writeln!(text, "\n{}", wrapped(&from));
    }
    for failure in &figure.failures {
        let _ = writeln!(text, "\n{}", wrapped(&format!("**Not measured: {}**", escaped(failure))));
    }
    if !figure.commands.is_empty() {
        let _ = write!(text, "\n<details><summary>Commands</summary>\n\n```sh\n");
        for command in &figure.commands {
            let _ = writeln!(text, "{}", continued(command));
        }
        text.push_str("```\n\n</details>\n");
    }
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
            "commands": ["amalgam-lab bench occupancy"], "failures": ["memc3-table-2: no memory"],
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
    fn a_figure_of_another_run_says_so_and_a_toy_is_refused() {
        let figures = [figure("def"), figure("abc"), figure("abc")];
        let text = text(&figures, None).expect("a document");
        assert!(text.contains("| commit | abc |"), "{text}");
        assert_eq!(text.matches("Measured apart").count(), 1);
        assert!(text.contains("Measured apart: commit def, 2 cores of a CPU, 0 GiB."));
        let mut full = figure("abc");
        full.setting["scale"] = "full".into();
        let text = super::text(&[figure("abc"), full.clone(), figure("abc")], None);
        let apart = "Measured apart: at full scale, commit abc, 2 cores of a CPU";
        assert_eq!(text.expect("a document").matches(apart).count(), 1);
        full.setting["scale"] = "toy".into();
        assert!(super::text(&[figure("abc"), full], None).is_err());
    }

    /// After a change of the JSON, of a table or of this module, `make docs` must be run.
    #[test]
    fn the_pages_of_results_agree_with_the_json_that_they_are_made_from() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
        for (path, text) in made(&folder).expect("they are made") {
            let kept = fs::read_to_string(&path).expect("the page is there");
            let apart = kept.lines().zip(text.lines()).find(|(kept, made)| kept != made);
            assert_eq!(apart, None, "{}: `make docs` was not run", path.display());
            assert_eq!(kept, text, "{}: `make docs` was not run", path.display());
        }
    }

    #[test]
    fn figures_are_in_the_order_of_their_numbers() {
        let mut names = ["figure-10", "conflicts", "figure-3", "figure-11b", "figure-11a"];
        names.sort_by_cached_key(|name| order("hotring", name));
        assert_eq!(names, ["figure-3", "figure-10", "figure-11a", "figure-11b", "conflicts"]);
    }
}
