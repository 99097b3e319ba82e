//! Which engine, and why.

use std::fmt::{Display, Formatter, Result as FormatResult};

use anyhow::Context;

use super::Row;

/// The share of stores that an engine may refuse beyond the share that the best engine refuses.
const REFUSED_TOLERANCE: f64 = 0.001;

/// Throughputs that differ by no more than this part count as equal.
const TIE: f64 = 0.02;

/// A recommendation. The rule: an engine that refuses stores which another accepts is out; so is
/// one whose hit ratio is lower than the best by more than the tolerance, because a miss costs a
/// client more than any engine saves. Of the others, the engine with the highest throughput is
/// recommended, and among equals the one with the fewest bytes per item.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Advice {
    /// The engine to choose.
    pub engine: &'static str,
    /// The reasons for the choice, one sentence each.
    pub reasons: Vec<String>,
    /// What the user should consider before relying on the choice, one sentence each.
    pub warnings: Vec<String>,
}

impl Advice {
    /// The recommendation that follows from `rows`, at least one of which must have run.
    ///
    /// # Errors
    ///
    /// If no engine ran.
    pub fn of(rows: &[Row], hit_ratio_tolerance: f64) -> anyhow::Result<Self> {
        let problems = rows.iter().filter_map(|row| row.problem.as_deref());
        let ran: Vec<&Row> = rows.iter().filter(|row| row.requests_per_second.is_some()).collect();
        let mut reasons = Vec::new();
        let refused = ran.iter().map(|row| row.refused_share).fold(f64::INFINITY, f64::min);
        let takes = |row: &&&Row| row.refused_share <= refused + REFUSED_TOLERANCE;
        let taking: Vec<&Row> = ran.iter().filter(takes).copied().collect();
        let hits = taking.iter().filter_map(|row| row.hit_ratio).fold(0.0, f64::max);
        let misses = |row: &&Row| hits - row.hit_ratio.unwrap_or(hits);
        let hitting = |row: &&&Row| misses(row) <= hit_ratio_tolerance;
        let mut left: Vec<&Row> = taking.iter().filter(hitting).copied().collect();
        left.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
        let fastest = *left.first().with_context(|| {
            let problem = problems.clone().next().unwrap_or("nothing was measured");
            format!("no engine ran: {problem}")
        })?;
        let ties = left.iter().filter(|row| rate(row) >= rate(fastest) * (1.0 - TIE));
        let memory = |row: &&&Row| row.bytes_per_item.unwrap_or(f64::INFINITY);
        let chosen = ties.min_by(|one, other| memory(one).total_cmp(&memory(other)));
        let chosen = *chosen.unwrap_or(&fastest);
        reasons.push(compare(chosen, &left));
        for row in ran.iter().filter(|row| rate(row) > rate(chosen) && row.engine != chosen.engine)
        {
            reasons.push(why_not(row, chosen, refused, hits, hit_ratio_tolerance));
        }
        Ok(Self { engine: chosen.engine, reasons, warnings: warnings(chosen, rows) })
    }
}

fn rate(row: &Row) -> f64 {
    row.requests_per_second.unwrap_or(0.0)
}

/// Compares the chosen engine with the fastest of the others that are `left`.
fn compare(chosen: &Row, left: &[&Row]) -> String {
    let own =
        format!("{} answers {:.2} million requests a second", chosen.engine, rate(chosen) / 1e6);
    let hits = chosen
        .hit_ratio
        .map_or_else(String::new, |hits| format!(", with a hit ratio of {:.2} %", 100.0 * hits));
    match left.iter().find(|row| row.engine != chosen.engine) {
        Some(next) => format!(
            "{own}{hits}: {:.2} times {}, the next",
            rate(chosen) / rate(next).max(1e-9),
            next.engine
        ),
        None => format!("{own}{hits}; no other engine is left to compare"),
    }
}

/// Why an engine that is faster than the chosen one was not chosen.
fn why_not(row: &Row, chosen: &Row, refused: f64, hits: f64, tolerance: f64) -> String {
    let name = row.engine;
    if row.refused_share > refused + REFUSED_TOLERANCE {
        let share = 100.0 * row.refused_share;
        return format!("{name} is faster, but had no memory for {share:.1} % of the stores");
    }
    let ratio = row.hit_ratio.unwrap_or(hits);
    if hits - ratio > tolerance {
        let (own, best) = (100.0 * ratio, 100.0 * hits);
        return format!(
            "{name} is faster, but hits {own:.2} % of the reads instead of {best:.2} %"
        );
    }
    let bytes = |row: &Row| row.bytes_per_item.unwrap_or(0.0);
    format!(
        "{name} is as fast within {:.0} %, but takes {:.0} bytes an item instead of {:.0}",
        100.0 * TIE,
        bytes(row),
        bytes(chosen)
    )
}

fn warnings(chosen: &Row, rows: &[Row]) -> Vec<String> {
    let mut warnings = Vec::new();
    if chosen.engine == "pipeline" {
        let others = rows.iter().filter(|row| row.engine != chosen.engine);
        let next = others.max_by(|one, other| rate(one).total_cmp(&rate(other)));
        warnings.push(format!(
            "pipeline is for clients that are trusted, as its hash function has no secret{}",
            next.map_or_else(String::new, |next| format!(": choose {} for others", next.engine))
        ));
    }
    if chosen.items > 0 && chosen.evictions == 0 && chosen.trace.keys < chosen.trace.requests / 100
    {
        warnings.push("the trace names few keys: a longer one would tell more".to_owned());
    }
    if let Some([min, max]) = chosen.min_max
        && max > 1.3 * min
    {
        warnings.push(
            "the rounds lie far apart, as where a machine is busy with something else".into(),
        );
    }
    warnings
}

impl Display for Advice {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        writeln!(formatter, "\nChoose {}: amalgam serve --engine {}", self.engine, self.engine)?;
        for reason in &self.reasons {
            writeln!(formatter, "  because {reason}.")?;
        }
        for warning in &self.warnings {
            writeln!(formatter, "  Mind: {warning}.")?;
        }
        Ok(())
    }
}
