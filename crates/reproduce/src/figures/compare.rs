//! Compares two runs of the same figures: whether their numbers agree.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::picture::number;
use super::plan::{AT_LEAST, AT_MOST};
use super::point::Point;
use super::report::{Compared, Kept};

/// The least difference that is allowed between two runs, as a part of the larger number. Within a
/// run, a number's error can look smaller than the difference between runs, in which processes get
/// other pages and a shared machine has other neighbours.
pub const LEAST_SPREAD: f64 = 0.15;

/// The horizontal axis of panels that show a run over time.
const SECONDS: &str = "seconds";

/// The most disagreeing numbers that are printed.
const MOST_SHOWN: usize = 40;

/// One number, as both runs have it.
struct Pair {
    name: String,
    one: f64,
    other: f64,
    /// The difference that is allowed, as a part of the larger number.
    allowed: f64,
}

impl Pair {
    fn new(name: String, one: (f64, Option<f64>), other: (f64, Option<f64>)) -> Self {
        // The error of each is stored as a part of its own value.
        let off = |(value, spread): (f64, Option<f64>)| value.abs() * spread.unwrap_or(0.0);
        let most = one.0.abs().max(other.0.abs());
        let allowed = if most == 0.0 { 0.0 } else { (off(one) + off(other)) / most };
        Self { name, one: one.0, other: other.0, allowed: allowed.max(LEAST_SPREAD) }
    }

    fn differ_by(&self) -> f64 {
        let most = self.one.abs().max(self.other.abs());
        if most == 0.0 { 0.0 } else { (self.one - self.other).abs() / most }
    }

    fn agrees(&self) -> bool {
        self.differ_by() <= self.allowed
    }
}

/// All figures of a folder, by the names of their files without extension.
pub fn kept(folder: &Path) -> anyhow::Result<BTreeMap<String, Kept>> {
    let mut figures = BTreeMap::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let figure = serde_json::from_slice(&fs::read(&path)?)
            .with_context(|| path.display().to_string())?;
        figures.insert(name, figure);
    }
    ensure!(!figures.is_empty(), "{} has no figures", folder.display());
    Ok(figures)
}

/// Returns a text that says how far the numbers of two folders differ.
///
/// # Errors
///
/// If a folder cannot be read, the folders do not have the same figures, or a number that has a
/// printed counterpart does not agree.
pub fn compare(one: &Path, other: &Path) -> anyhow::Result<String> {
    let (first, second) = (kept(one)?, kept(other)?);
    let names = |figures: &BTreeMap<String, Kept>| figures.keys().cloned().collect::<Vec<_>>();
    ensure!(names(&first) == names(&second), "the folders do not have the same figures");
    let (mut claims, mut points) = (Vec::new(), Vec::new());
    for (name, figure) in &first {
        let again = &second[name];
        claims.extend(claims_of(name, &figure.compared, &again.compared));
        // A moment of one run has no counterpart in another run.
        let panels = figure.panels.iter().zip(&again.panels);
        for (panel, again) in panels.filter(|(panel, _)| panel.x != SECONDS) {
            points.extend(points_of(name, &panel.points, &again.points));
        }
    }
    let text = told("numbers with a printed counterpart", &mut claims)
        + &told("points of all pictures except those over time", &mut points);
    let apart = claims.iter().filter(|pair| !pair.agrees()).count();
    ensure!(
        apart == 0,
        "{text}{apart} of {} numbers with a printed counterpart differ",
        claims.len()
    );
    Ok(text)
}

fn claims_of(name: &str, one: &[Compared], other: &[Compared]) -> Vec<Pair> {
    let pair = |claim: &Compared| {
        let again = other.iter().find(|again| again.what == claim.what)?;
        let name = format!("{name}: {}", claim.what);
        Some(Pair::new(name, (claim.ours?, claim.spread), (again.ours?, again.spread)))
    };
    one.iter().filter_map(pair).collect()
}

fn points_of(name: &str, one: &[Point], other: &[Point]) -> Vec<Pair> {
    // The ends of a band state the error of its prediction; they are not numbers to be compared.
    let is_end = |point: &&Point| [AT_LEAST, AT_MOST].iter().any(|end| point.series.ends_with(end));
    let pair = |point: &Point| {
        let is_it = |again: &&Point| again.series == point.series && again.place == point.place;
        let again = other.iter().find(is_it)?;
        let name = format!("{name}: {}, {}", point.series, point.place.label);
        Some(Pair::new(name, (point.value, point.spread), (again.value, again.spread)))
    };
    one.iter().filter(|point| !is_end(point)).filter_map(pair).collect()
}

/// A text with the number of pairs that agree, how much pairs differ, and the pairs that do not
/// agree.
fn told(what: &str, pairs: &mut [Pair]) -> String {
    pairs.sort_by(|one, other| one.differ_by().total_cmp(&other.differ_by()));
    let percent = |part: f64| format!("{} %", number(100.0 * part));
    let at = |share: f64| {
        let place = (pairs.len() as f64 * share) as usize;
        pairs.get(place.min(pairs.len().saturating_sub(1))).map_or(0.0, Pair::differ_by)
    };
    let apart: Vec<&Pair> = pairs.iter().rev().filter(|pair| !pair.agrees()).collect();
    let mut text = format!(
        "{what}: {} of {} agree within what they may be off by, or {}; they differ by {} in the \
         median, {} at nine of ten\n",
        pairs.len() - apart.len(),
        pairs.len(),
        percent(LEAST_SPREAD),
        percent(at(0.5)),
        percent(at(0.9))
    );
    for pair in apart.iter().take(MOST_SHOWN) {
        text += &format!(
            "  {}: {} and {}, {} apart, {} allowed\n",
            pair.name,
            number(pair.one),
            number(pair.other),
            percent(pair.differ_by()),
            percent(pair.allowed)
        );
    }
    if apart.len() > MOST_SHOWN {
        text += &format!("  and {} more\n", apart.len() - MOST_SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::point::AxisPosition;
    use super::*;

    #[test]
    fn what_rounds_explain_agrees_and_nothing_else() {
        let pair = |one, other| Pair::new(String::new(), one, other);
        assert!(pair((100.0, None), (86.0, None)).agrees());
        assert!(!pair((100.0, None), (84.0, None)).agrees());
        assert!(pair((100.0, Some(0.2)), (75.0, Some(0.1))).agrees());
        // A tenth of the smaller, not of the larger.
        assert!(!pair((100.0, Some(0.2)), (71.0, Some(0.1))).agrees());
        assert!(!pair((100.0, Some(0.02)), (70.0, Some(0.1))).agrees());
        assert!(pair((0.0, None), (0.0, None)).agrees());
    }

    #[test]
    fn points_are_found_by_series_and_place_and_those_apart_are_named() {
        let point = |series: &str, at, value| Point::new(series, AxisPosition::number(at), value);
        let one = [point("memc3", 1.0, 10.0), point("memc3", 2.0, 20.0), point("gone", 1.0, 1.0)];
        let other = [point("memc3", 2.0, 5.0), point("memc3", 1.0, 10.5)];
        let mut pairs = points_of("memc3-figure-5", &one, &other);
        let end = [point("memc3, at least", 8.0, 1.0)];
        assert!(points_of("", &end, &end).is_empty());
        let text = told("points", &mut pairs);
        assert!(text.starts_with("points: 1 of 2 agree"), "{text}");
        assert!(text.contains("memc3-figure-5: memc3, 2: 20 and 5, 75 % apart"), "{text}");
    }
}
