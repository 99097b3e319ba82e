//! Reports the results: as JSON, as a table for terminals and as an HTML page.

use std::fmt::Write;

use serde_json::{Value, json};

use super::picture::{self, number};
use super::plan::{Better, Claim, Figure, command_line};
use super::point::Point;
use super::rounds::{Estimate, Rounds, middle};
use super::scale_profile::{Scale, ScaleProfile};
use amalgam_bench::measure::commit;

/// A figure whose runs are over.
pub struct Finished {
    /// The plan of the figure.
    pub figure: Figure,
    /// The measured points of each panel.
    pub panels: Vec<Vec<Point>>,
    /// For each run that failed, a line that says why.
    pub failures: Vec<String>,
    /// For each claim of the figure, our number and how far it may be off; None where it was not
    /// measured.
    ours: Vec<Option<(f64, Option<f64>)>>,
}

/// A printed number and ours, as the JSON has them.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Compared {
    /// What the number is of.
    pub what: String,
    /// The number in the paper.
    pub printed: f64,
    /// Our number; None where it was not measured.
    pub ours: Option<f64>,
    /// How far our number may be off, as a part of it; None as for a point.
    pub spread: Option<f64>,
    /// Our number over the printed one.
    pub ratio: Option<f64>,
    /// Whether our number is at least as good; None where neither more nor less is better, or where
    /// that cannot be said.
    pub reached: Option<bool>,
    /// Why our number cannot be measured here; None if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// Whether our number is a prediction whose band includes the printed number: then the
    /// measurements do not tell which of the two is more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_open: bool,
}

/// The text in place of a number that could have been measured but was not.
const NOT_MEASURED: &str = "not measured";

impl Compared {
    /// The cells of a row in a table for people. `escaped` escapes what the number is of.
    pub fn cells(&self, escaped: fn(&str) -> String) -> [String; 6] {
        [
            escaped(&self.what),
            escaped(&self.ours()),
            self.spread(),
            number(self.printed),
            self.ratio(),
            self.verdict().to_owned(),
        ]
    }

    /// Our number for people.
    fn ours(&self) -> String {
        self.ours.map_or_else(|| self.absent.as_deref().unwrap_or(NOT_MEASURED).to_owned(), number)
    }

    /// The spread for people, in percent.
    fn spread(&self) -> String {
        self.spread.map_or(String::new(), |part| format!("± {} %", number(100.0 * part)))
    }

    /// The ratio for people.
    fn ratio(&self) -> String {
        self.ratio.map_or("–".to_owned(), number)
    }

    /// Whether our number is as good, in words that are understood without a column heading.
    fn verdict(&self) -> &'static str {
        match self.reached {
            Some(true) => "reached",
            Some(false) => "short of it",
            None if self.is_open => "not determined",
            None => "",
        }
    }
}

impl Finished {
    /// A figure before its first pass.
    pub fn planned(figure: Figure) -> Self {
        Self { figure, panels: Vec::new(), failures: Vec::new(), ours: Vec::new() }
    }

    /// Sums up the points of all rounds, which are by panel.
    pub fn sum_up(&mut self, rounds: Rounds<Vec<Vec<Point>>>, failures: Vec<String>) {
        let panels = self.figure.panels.iter().enumerate().map(|(number, panel)| {
            let of_panel = rounds.map(|panels| panels[number].clone());
            panel.predict.unwrap_or(middle)(&of_panel)
        });
        self.panels = panels.collect();
        // A ratio is computed round by round, so that conditions which both numbers of a round
        // share cancel out. The error of a prediction is its band.
        let claims = &self.figure.claims;
        let is_by_round = |claim: &Claim| claim.is_of_two() && !self.is_predicted(claim);
        let of_two = claims.iter().filter(|claim| is_by_round(claim));
        let by_round =
            |claim: &Claim| rounds.map(|panels| claim.ours(panels).map(|(ours, _)| ours));
        let mut estimates = Estimate::together(of_two.map(by_round).collect()).into_iter();
        let ours = claims.iter().map(|claim| match is_by_round(claim) {
            true => estimates.next().flatten().map(|one| (one.value, one.error)),
            false => claim.ours(&self.panels),
        });
        self.ours = ours.collect();
        self.failures = failures;
    }

    /// Draws the panels as SVG.
    ///
    /// # Errors
    ///
    /// If the picture cannot be built.
    pub fn picture(&self) -> anyhow::Result<String> {
        let panels = self.figure.panels.iter().zip(self.panels.iter().map(Vec::as_slice));
        picture::draw(&panels.collect::<Vec<_>>())
    }

    fn compared(&self) -> impl Iterator<Item = Compared> {
        self.figure.claims.iter().zip(&self.ours).map(|(claim, found)| {
            let ours = found.map(|(ours, _)| ours);
            let is_in_band =
                |(ours, error): (f64, f64)| (claim.printed - ours).abs() <= error * ours.abs();
            let error = found.and_then(|(ours, error)| Some((ours, error?)));
            let is_open = self.is_predicted(claim) && error.is_some_and(is_in_band);
            let reached = |ours: f64| match claim.better {
                _ if is_open => None,
                Better::More => Some(ours >= claim.printed),
                Better::Less => Some(ours <= claim.printed),
                Better::Same => None,
            };
            Compared {
                what: claim.what.clone(),
                printed: claim.printed,
                ours,
                spread: found.and_then(|(_, spread)| spread),
                ratio: ours.filter(|_| claim.printed != 0.0).map(|ours| ours / claim.printed),
                reached: ours.and_then(reached),
                absent: claim.absence().map(str::to_owned),
                is_open,
            }
        })
    }

    /// Whether our number is shown as a prediction. A number that was measured as well counts as
    /// one, because few rounds distinguish it from the prediction.
    fn is_predicted(&self, claim: &Claim) -> bool {
        let is_predicted = |panel: usize| self.figure.panels[panel].predict.is_some();
        claim.panel().is_some_and(is_predicted) && claim.names_a_prediction()
    }

    fn commands(&self) -> Vec<String> {
        let runs = self.figure.panels.iter().flat_map(|panel| &panel.runs);
        let mut commands: Vec<String> = runs.map(command_line).collect();
        commands.dedup();
        commands
    }
}

/// The JSON of a figure.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Kept {
    pub paper: String,
    pub figure: String,
    pub title: String,
    pub commit: String,
    pub setting: Value,
    pub printed_setting: String,
    pub our_setting: String,
    pub panels: Vec<KeptPanel>,
    pub compared: Vec<Compared>,
    pub commands: Vec<String>,
    pub failures: Vec<String>,
}

/// A panel in the JSON of a figure.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct KeptPanel {
    pub title: String,
    pub x: String,
    pub y: String,
    pub points: Vec<Point>,
}

/// The JSON of a figure that was measured.
pub fn object(setting: &ScaleProfile, done: &Finished) -> Value {
    let figure = &done.figure;
    let panels = figure.panels.iter().zip(&done.panels).map(|(panel, points)| {
        json!({ "title": panel.title, "x": panel.x, "y": panel.y, "points": points })
    });
    json!({
        "paper": figure.paper,
        "figure": figure.name,
        "title": figure.title,
        "commit": commit(),
        "setting": setting,
        "printed_setting": figure.printed_setting,
        "our_setting": figure.our_setting,
        "panels": panels.collect::<Vec<_>>(),
        "compared": done.compared().collect::<Vec<_>>(),
        "commands": done.commands(),
        "failures": done.failures,
    })
}

/// A table of all printed numbers and ours, for a terminal.
pub fn table(finished: &[Finished]) -> String {
    let mut text =
        format!("{:<20} {:<58} {:>9} {:>8} {:>9} {:>6}\n", "", "", "ours", "±", "paper", "ratio");
    for done in finished {
        let id = format!("{}/{}", done.figure.paper.name(), done.figure.name);
        for one in done.compared() {
            let ours = one.ours.map_or("–".to_owned(), number);
            let (printed, ratio) = (number(one.printed), one.ratio());
            let verdict = one.absent.as_deref().unwrap_or(one.verdict());
            let spread = one.spread();
            let _ = writeln!(
                text,
                "{id:<20} {:<58} {ours:>9} {spread:>8} {printed:>9} {ratio:>6} {verdict}",
                one.what
            );
        }
    }
    text
}

/// An HTML page with all figures, which needs no other file.
pub fn page(setting: &ScaleProfile, finished: &[Finished]) -> String {
    let mut text = String::from(HEAD);
    let machine = &setting.machine;
    let scale = match setting.scale {
        Scale::Toy => "Toy scale: these numbers mean nothing.",
        Scale::Quick => "Quick: fewer keys and shorter rounds than the papers had.",
        Scale::Full => "Full: the papers' sizes, as far as this machine's memory goes.",
    };
    let _ = write!(
        text,
        "<h1>Five papers, measured again</h1><p>{scale} {} cores of {}, {:.0} GiB of memory, \
         commit {}.</p>",
        machine.cores,
        escaped(&machine.cpu),
        machine.memory_bytes as f64 / f64::from(1 << 30),
        escaped(commit())
    );
    summary(&mut text, finished);
    for done in finished {
        section(&mut text, done);
    }
    text.push_str("</main></body></html>\n");
    text
}

/// Appends a table of the numbers that fall short, then one of all numbers.
fn summary(text: &mut String, finished: &[Finished]) {
    text.push_str("<h2>What falls short</h2>");
    if !rows(text, finished, |one| one.reached == Some(false)) {
        text.push_str("<p>Nothing.</p>");
    }
    text.push_str("<h2>What the papers state, and what this machine does</h2>");
    rows(text, finished, |_| true);
}

/// Appends a table of the printed numbers that are wanted. Returns whether there are any.
fn rows(text: &mut String, finished: &[Finished], is_wanted: fn(&Compared) -> bool) -> bool {
    let mut rows = String::new();
    for done in finished {
        let id = id(done);
        for one in done.compared().filter(is_wanted) {
            let cells = one.cells(escaped).join("</td><td>");
            let _ = write!(rows, "<tr><td><a href=\"#{id}\">{id}</a></td><td>{cells}</td></tr>");
        }
    }
    if !rows.is_empty() {
        let _ = write!(
            text,
            "<div class=\"wide\"><table><thead><tr><th>figure</th><th>number</th><th>ours</th>\
             <th>±</th><th>paper</th><th>ratio</th><th></th></tr></thead><tbody>{rows}\
             </tbody></table></div>"
        );
    }
    !rows.is_empty()
}

fn id(done: &Finished) -> String {
    format!("{}-{}", done.figure.paper.name(), done.figure.name)
}

fn section(text: &mut String, done: &Finished) {
    let figure = &done.figure;
    let _ = write!(
        text,
        "<section id=\"{}\"><h2>{}, {}: {}</h2><p><b>The paper:</b> {}</p><p><b>Here:</b> {}</p>",
        id(done),
        figure.paper.name(),
        figure.name.replace('-', " "),
        escaped(figure.title),
        escaped(figure.printed_setting),
        escaped(&figure.our_setting)
    );
    for failure in &done.failures {
        let _ = write!(text, "<p class=\"failure\">Not measured: {}</p>", escaped(failure));
    }
    match done.picture() {
        Ok(picture) => {
            let label = format!("role=\"img\" aria-label=\"{}\"", escaped(figure.title));
            let picture = picture.replacen("<svg ", &format!("<svg {label} "), 1);
            let _ = write!(text, "<figure>{picture}</figure>");
        }
        Err(error) => {
            let _ = write!(text, "<p class=\"failure\">{}</p>", escaped(&error.to_string()));
        }
    }
    numbers(text, done);
    let commands = done.commands();
    if !commands.is_empty() {
        let commands = escaped(&commands.join("\n"));
        let _ = write!(text, "<details><summary>Commands</summary><pre>{commands}</pre></details>");
    }
    text.push_str("</section>");
}

/// The most rows of a table of points; further points are only in the JSON.
const MOST_ROWS: usize = 200;

fn numbers(text: &mut String, done: &Finished) {
    text.push_str("<details><summary>Numbers</summary><div class=\"wide\"><table><thead><tr>");
    text.push_str("<th></th><th>where</th><th>series</th><th>value</th></tr></thead><tbody>");
    for (panel, points) in done.figure.panels.iter().zip(&done.panels) {
        for point in points.iter().take(MOST_ROWS) {
            let _ = write!(
                text,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(if panel.title.is_empty() { panel.y } else { &panel.title }),
                escaped(&point.place.label),
                escaped(&point.series),
                number(point.value)
            );
        }
    }
    text.push_str("</tbody></table></div>");
    let rows = |points: &Vec<Point>| points.len().saturating_sub(MOST_ROWS);
    let left_out: usize = done.panels.iter().map(rows).sum();
    if left_out > 0 {
        let _ = write!(text, "<p>{left_out} more are in {}.json.</p>", id(done));
    }
    text.push_str("</details>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>Five papers, measured again</title>
<link rel=\"icon\" href=\"data:,\">
<style>
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1c2026; --rule: #d6dbe2 }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --ink: #e6e9ee; --rule: #3a414c } }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 sans-serif }
main { max-width: 62rem; margin: 0 auto; padding: 1rem }
h2 { margin-top: 2.5rem } a { color: inherit }
table { border-collapse: collapse } th, td { text-align: left; padding: .2rem .8rem .2rem 0;
border-bottom: 1px solid var(--rule); vertical-align: top }
.wide td:last-child { white-space: nowrap }
.wide, figure { overflow-x: auto; margin: 1rem 0 } svg { max-width: 100%; height: auto }
pre { overflow-x: auto } .failure { border-left: 4px solid #d55e00; padding-left: .8rem }
</style></head><body><main>
";

#[cfg(test)]
mod tests {
    use super::super::plan::{Claim, Panel, Paper};
    use super::super::point::AxisPosition;
    use super::*;

    fn finished(ours: f64, points: usize) -> Finished {
        let figure = Figure {
            paper: Paper::MemC3,
            name: "table-2",
            title: "how full",
            printed_setting: "2^27 slots",
            our_setting: "fewer".to_owned(),
            panels: vec![Panel { y: "%", ..Panel::default() }],
            claims: vec![Claim::value("% full", 90.0, "memc3", "0")],
        };
        let point = |index: usize| Point::new("memc3", AxisPosition::number(index as f64), ours);
        let mut done = Finished::planned(figure);
        let panels = vec![(0..points).map(point).collect()];
        done.sum_up(Rounds(vec![vec![panels]]), Vec::new());
        done
    }

    #[test]
    fn what_falls_short_stands_first_in_rows_like_the_others() {
        let page = |ours| page(&ScaleProfile::of_this_machine(Scale::Quick), &[finished(ours, 1)]);
        let short = page(45.0);
        let row = "<td>% full</td><td>45</td><td></td><td>90</td><td>0.5</td><td>short of it</td>";
        assert_eq!(short.matches(row).count(), 2, "{short}");
        let (first, _) = short.split_once("What the papers state").expect("two tables");
        assert!(first.contains("What falls short") && first.contains(row));
        let reached = page(91.0);
        assert!(reached.contains("<p>Nothing.</p>") && !reached.contains("short of it"));
    }

    #[test]
    fn a_number_that_cannot_be_had_says_why_and_one_less_than_another_is_told() {
        let mut done = finished(4.0, 1);
        done.figure.claims = vec![
            Claim::absent("times FASTER", 1.31, "FASTER is not here"),
            Claim::fewer("fewer than chains", 1.2, "memc3", "chains", "0"),
            Claim::fewer("fewer than nobody", 1.2, "memc3", "nobody", "0"),
            Claim::ratio("times chains", 0.5, "memc3", "chains", "0"),
        ];
        let point = |series: &str, value| Point::new(series, AxisPosition::number(0.0), value);
        let pass = |pace: f64| {
            let points = vec![point("memc3", 4.0 * pace), point("chains", 10.0 * pace)];
            vec![vec![points]]
        };
        done.sum_up(Rounds(vec![pass(1.0), pass(2.0), pass(1.0)]), Vec::new());
        let compared: Vec<Compared> = done.compared().collect();
        assert_eq!((compared[0].ours, compared[0].reached), (None, None));
        assert_eq!(compared[0].cells(escaped)[1], "FASTER is not here");
        assert_eq!((compared[1].ours, compared[1].reached), (Some(6.0), Some(true)));
        assert_eq!(compared[2].cells(escaped)[1], NOT_MEASURED);
        // A pass was twice as fast: the difference doubled with it, and the ratio stayed the same.
        assert!(compared[1].spread.expect("it differs") > 0.5);
        assert_eq!((compared[3].ours, compared[3].spread), (Some(0.4), None));
        assert!(done.panels[0].iter().all(|point| point.spread.is_some_and(|part| part > 0.5)));
        assert!(table(&[done]).contains("FASTER is not here"));
    }

    #[test]
    fn rows_that_are_left_out_are_told() {
        let text = |points| {
            let mut text = String::new();
            numbers(&mut text, &finished(1.0, points));
            text
        };
        assert!(text(MOST_ROWS + 7).contains("<p>7 more are in memc3-table-2.json.</p>"));
        assert!(!text(MOST_ROWS).contains("more are in"));
    }
}
