//! Generates tables in pages that are written by hand, from the JSON that is kept with the pages.
//!
//! The text between two comments is generated, and replaced by `amalgam-lab reproduce --docs`:
//!
//! ```text
//! <!-- made from memc3-figure-4: 1, 3 -->
//! (tables of the figure's first and third panel; of all without numbers)
//! <!-- end -->
//!
//! <!-- made from lines/occupancy.jsonl: search=paths, % full=load_percent:2 -->
//! (a row for each line of a result; columns by heading, field and digits)
//! <!-- end -->
//! ```
//!
//! The first line of a file of lines has the command; the others are what `amalgam-lab bench …
//! --json` printed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::markdown::{continued, escaped, machine, wrapped};
use super::picture::number;
use super::point::Point;
use super::report::{Kept, KeptPanel};

const BEGIN: &str = "<!-- made from ";
const CLOSE: &str = "-->";
const END: &str = "<!-- end -->";

/// The text of a page with its tables generated again.
///
/// # Errors
///
/// If a table has no end, or its source does not exist.
pub fn remade(
    page: &str,
    figures: &BTreeMap<String, Kept>,
    folder: &Path,
) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (source, after) = after.split_once(CLOSE).context("a comment that does not end")?;
        let (old, after) = after
            .split_once(END)
            .with_context(|| format!("what is made from '{}' has no {END}", source.trim()))?;
        ensure!(!old.contains(BEGIN), "what is made from '{}' has no {END}", source.trim());
        let made = made(source, figures, folder).with_context(|| source.trim().to_owned())?;
        let _ = write!(text, "{before}{BEGIN}{source}{CLOSE}\n\n{made}\n{END}");
        rest = after;
    }
    Ok(text + rest)
}

fn made(source: &str, figures: &BTreeMap<String, Kept>, folder: &Path) -> anyhow::Result<String> {
    let (name, wanted) = source.split_once(':').unwrap_or((source, ""));
    let name = name.trim();
    let wanted: Vec<&str> =
        wanted.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
    if name.ends_with(".jsonl") {
        return lines(&fs::read_to_string(folder.join(name))?, &wanted);
    }
    let figure = figures.get(name).context("there is no such figure")?;
    let panels: anyhow::Result<Vec<&KeptPanel>> = match wanted.as_slice() {
        [] => Ok(figure.panels.iter().collect()),
        numbers => numbers
            .iter()
            .map(|one| {
                let place = one.parse::<usize>().ok().and_then(|one| one.checked_sub(1));
                let panel = place.and_then(|place| figure.panels.get(place));
                panel.with_context(|| format!("there is no panel {one}"))
            })
            .collect(),
    };
    let mut text = String::new();
    for panel in panels? {
        text += &table(panel);
        text.push('\n');
    }
    let scale = figure.setting["scale"].as_str().unwrap_or_default();
    let switch = if scale == "quick" { " --quick" } else { "" };
    let from = format!(
        "`amalgam-lab reproduce {}/{}{switch}`, commit {}, {}.",
        figure.paper,
        figure.figure,
        figure.commit,
        machine(&figure.setting["machine"])
    );
    Ok(text + &wrapped(&from) + "\n")
}

/// A table of a panel: a row for each place and a column for each series, or a row for each series
/// where there is one place.
fn table(panel: &KeptPanel) -> String {
    let (mut series, mut places): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for Point { series: name, place, .. } in &panel.points {
        if !series.contains(&name.as_str()) {
            series.push(name);
        }
        if !places.contains(&place.label.as_str()) {
            places.push(&place.label);
        }
    }
    let cell = |series: &str, place: &str| {
        let is_it = |point: &&Point| point.series == series && point.place.label == place;
        panel.points.iter().find(is_it).map_or(String::new(), |point| match point.spread {
            Some(part) => format!("{} ± {} %", number(point.value), number(100.0 * part)),
            None => number(point.value),
        })
    };
    let mut title = vec![panel.title.as_str(), panel.y.as_str()];
    title.retain(|part| !part.is_empty());
    title.dedup();
    let mut text = wrapped(&format!("{}:", escaped(&title.join(", ")))) + "\n\n";
    let mut row = |first: &str, cells: &[String]| {
        let _ = writeln!(text, "| {} | {} |", escaped(first), cells.join(" | "));
    };
    // A single group of bars is easier to read with a row for each series.
    if let [place] = places[..] {
        row(&panel.x, &[escaped(place)]);
        row("---", &["---".to_owned()]);
        for series in series {
            row(series, &[cell(series, place)]);
        }
        return text;
    }
    // So are bars that each have their own place.
    if places == series {
        row(&panel.x, &[escaped(&panel.y)]);
        row("---", &["---".to_owned()]);
        for name in series {
            row(name, &[cell(name, name)]);
        }
        return text;
    }
    row(&panel.x, &series.iter().map(|name| escaped(name)).collect::<Vec<_>>());
    row("---", &vec!["---".to_owned(); series.len()]);
    for place in places {
        row(place, &series.iter().map(|series| cell(series, place)).collect::<Vec<_>>());
    }
    text
}

/// A column of a table of lines: `heading=field`, or `heading=field:digits`.
struct Column<'t> {
    heading: &'t str,
    field: &'t str,
    digits: Option<usize>,
}

impl<'t> Column<'t> {
    fn parse(text: &'t str) -> anyhow::Result<Self> {
        let (heading, field) = text.split_once('=').context("a column is heading=field")?;
        let (field, digits) =
            field.split_once(':').map_or((field, None), |(field, digits)| (field, Some(digits)));
        let digits = digits.map(str::parse).transpose().with_context(|| text.to_owned())?;
        Ok(Self { heading, field, digits })
    }

    fn cell(&self, line: &Value) -> anyhow::Result<String> {
        // Not every line has every field; `lines` ensures that at least one has it.
        let Some(value) = line.get(self.field) else { return Ok("–".to_owned()) };
        Ok(match (value, self.digits) {
            (Value::Number(_), Some(digits)) => {
                format!("{:.digits$}", value.as_f64().unwrap_or(f64::NAN))
            }
            (Value::Number(_), None) => number(value.as_f64().unwrap_or(f64::NAN)),
            (Value::String(text), _) => escaped(text),
            _ => bail!("{} is neither a number nor a text", self.field),
        })
    }
}

fn lines(text: &str, columns: &[&str]) -> anyhow::Result<String> {
    let columns: anyhow::Result<Vec<Column<'_>>> =
        columns.iter().map(|column| Column::parse(column)).collect();
    let columns = columns?;
    ensure!(!columns.is_empty(), "a table of lines must name its columns");
    let heads: Vec<String> = columns.iter().map(|column| escaped(column.heading)).collect();
    let mut table = format!("| {} |\n|{}\n", heads.join(" | "), " --- |".repeat(columns.len()));
    let (mut commands, mut origins) = (Vec::new(), Vec::new());
    let parsed: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for Column { field, .. } in &columns {
        ensure!(parsed.iter().any(|line| line.get(field).is_some()), "no line has {field}");
    }
    for line in parsed {
        if let Some(command) = line.get("command").and_then(Value::as_str) {
            commands.push(command.to_owned());
            continue;
        }
        ensure!(!commands.is_empty(), "the first line must have the command");
        let commit = line.get("commit").and_then(Value::as_str).context("a line without commit")?;
        let origin = format!("commit {commit}, {}", machine(&line["machine"]));
        if !origins.contains(&origin) {
            origins.push(origin);
        }
        let cells: anyhow::Result<Vec<String>> =
            columns.iter().map(|column| column.cell(&line)).collect();
        let _ = writeln!(table, "| {} |", cells?.join(" | "));
    }
    ensure!(!origins.is_empty(), "there are no results");
    let origins = origins.join("; ");
    Ok(match commands.as_slice() {
        [command] => format!("{table}\n{}\n", wrapped(&format!("`{command}`; {origins}."))),
        _ => {
            let commands: Vec<String> = commands.iter().map(|one| continued(one)).collect();
            let commands = commands.join("\n");
            format!("{table}\n```sh\n{commands}\n```\n\n{}\n", wrapped(&(origins + ".")))
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures() -> BTreeMap<String, Kept> {
        let point = |series: &str, at: f64, value: f64, spread: Option<f64>| {
            json!({ "series": series, "place": { "label": at.to_string(), "number": at },
                    "value": value, "spread": spread })
        };
        let figure = json!({
            "paper": "memc3", "figure": "figure-5", "title": "by threads", "commit": "abc",
            "setting": { "scale": "quick", "machine":
                { "cpu": "a CPU", "cores": 2, "memory_bytes": 1u64 << 34 } },
            "printed_setting": "", "our_setting": "", "compared": [], "commands": [],
            "failures": [],
            "panels": [
                { "title": "look-ups", "x": "threads", "y": "M/s", "points": [
                    point("memc3", 1.0, 8.03, Some(0.033)), point("memc3", 2.0, 20.7, None),
                    point("a|b", 2.0, 1.5, None) ] },
                { "title": "", "x": "threads", "y": "inserts", "points": [
                    point("memc3", 1.0, 4.0, None), point("chains", 1.0, 2.0, None) ] },
                { "title": "bytes", "x": "", "y": "bytes", "points": [
                    point("7", 7.0, 1.0, None), point("8", 8.0, 2.0, None) ] },
            ],
        });
        [("memc3-figure-5".to_owned(), serde_json::from_value(figure).expect("a figure"))].into()
    }

    fn of(page: &str) -> anyhow::Result<String> {
        remade(page, &figures(), Path::new("nowhere"))
    }

    #[test]
    fn tables_of_figures_stand_between_their_comments_and_prose_stays() {
        let page = "before\n<!-- made from memc3-figure-5 -->\nold\n<!-- end -->\nafter\n";
        let text = of(page).expect("a page");
        assert!(text.starts_with("before\n<!--") && text.ends_with("<!-- end -->\nafter\n"));
        assert!(!text.contains("old"));
        assert!(text.contains("| threads | memc3 | a\\|b |"), "{text}");
        assert!(text.contains("| 1 | 8.03 ± 3.3 % |  |") && text.contains("| 2 | 20.7 | 1.5 |"));
        assert!(text.contains("look-ups, M/s:") && text.contains("\ninserts:"));
        let from =
            "`amalgam-lab reproduce memc3/figure-5 --quick`, commit abc, 2 cores of a CPU, 16";
        assert!(text.contains(from), "{text}");
        assert_eq!(of(&text).expect("again"), text, "what is made again is the same");
        let second = of(&page.replace("-5 -->", "-5: 2 -->")).expect("a page");
        assert!(second.contains("inserts:") && !second.contains("look-ups"));
        assert!(second.contains("| threads | 1 |\n| --- | --- |\n| memc3 | 4 |\n| chains | 2 |\n"));
        let third = of(&page.replace("-5 -->", "-5: 3 -->")).expect("a page");
        assert!(third.contains("\nbytes:\n\n|  | bytes |\n| --- | --- |\n| 7 | 1 |\n| 8 | 2 |\n"));
        assert_eq!(of("nothing is made\n").expect("a page"), "nothing is made\n");
    }

    #[test]
    fn what_cannot_be_made_is_told() {
        for (page, wanted) in [
            ("<!-- made from memc3-figure-5 -->\n", "has no <!-- end -->"),
            ("<!-- made from memc3-figure-5", "a comment that does not end"),
            ("<!-- made from memc3-figure-9 -->\n<!-- end -->", "there is no such figure"),
            ("<!-- made from memc3-figure-5: 4 -->\n<!-- end -->", "there is no panel 4"),
            ("<!-- made from memc3-figure-5: 0 -->\n<!-- end -->", "there is no panel 0"),
            ("<!-- made from a.jsonl: b=c -->\n<!-- end -->", "No such file"),
            (
                "<!-- made from memc3-figure-5 -->\n<!-- made from memc3-figure-5 --> <!-- end -->",
                "has no <!-- end -->",
            ),
        ] {
            let error = of(page).expect_err(page);
            assert!(format!("{error:#}").contains(wanted), "{page}: {error:#}");
        }
    }

    #[test]
    fn lines_become_rows_with_command_commit_and_machine() {
        let machine = json!({ "cpu": "a CPU", "cores": 2, "memory_bytes": 1u64 << 34 });
        let line = |paths: &str, load: f64| {
            json!({ "paths": paths, "load_percent": load, "commit": "abc", "machine": machine,
                    "points": [] })
        };
        let text = format!(
            "{}\n{}\n{}\n",
            json!({ "command": "amalgam-lab bench occupancy --paths 1" }),
            line("1 path", 92.629),
            line("2 paths", 94.5)
        );
        let table = |columns: &[&str]| lines(&text, columns);
        let made = table(&["search=paths", "% full=load_percent:2"]).expect("a table");
        assert!(
            made.contains("| search | % full |\n| --- | --- |\n| 1 path | 92.63 |\n"),
            "{made}"
        );
        assert!(made.contains("| 2 paths | 94.50 |"));
        let some = text.replacen("\"points\":[]", "\"bytes\":7", 1);
        let made = lines(&some, &["search=paths", "bytes=bytes"]).expect("a table");
        assert!(made.contains("| 1 path | 7 |") && made.contains("| 2 paths | – |"), "{made}");
        assert_eq!(made.matches("commit abc").count(), 1, "of all lines together");
        assert!(made.contains("`amalgam-lab bench occupancy --paths 1`; commit abc"));
        let twice = format!("{text}{text}");
        let made = lines(&twice, &["search=paths"]).expect("a table");
        assert_eq!(made.matches("\namalgam-lab bench occupancy --paths 1").count(), 2, "{made}");
        assert!(made.contains("```\n\ncommit abc, 2 cores of a CPU, 16 GiB.\n"), "{made}");
        for (columns, wanted) in [
            (&["search"][..], "heading=field"),
            (&["a=paths:x"], "a=paths:x"),
            (&["a=nothing"], "no line has nothing"),
            (&["a=points"], "neither a number nor a text"),
            (&[], "must name its columns"),
        ] {
            let error = table(columns).expect_err("it is refused");
            assert!(format!("{error:#}").contains(wanted), "{error:#}");
        }
        let headless = line("1 path", 1.0).to_string();
        assert!(lines(&headless, &["a=paths"]).is_err() && lines("", &["a=paths"]).is_err());
    }
}
