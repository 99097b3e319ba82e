//! The report of many runs, and its file, from which an interrupted series continues.

use std::collections::BTreeMap;
use std::fmt;

use crate::mutants::Mutant;
use crate::run::Run;
use crate::scenario::Scenario;

/// Marks the end of a complete line.
const END: &str = "end";

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report(BTreeMap<String, u64>);

impl Report {
    /// Runs a seed and counts its results. Returns the violations.
    pub fn run(&mut self, seed: u64, scenario: &Scenario) -> Vec<String> {
        let run = Run::execute(seed, Mutant::None, scenario);
        self.add_to("seeds", 1);
        self.add_to("seeds with fewer than 1,000 writes", u64::from(run.acknowledged < 1_000));
        self.add_to("writes acknowledged", run.acknowledged as u64);
        self.add_to("reads", run.reads as u64);
        self.add_to("crashes", run.crashes);
        for (what, times) in run.coverage.iter() {
            self.add_to(&format!("race: {what}"), times);
        }
        if !run.violations.is_empty() {
            self.add_to("failed", 1);
            self.add_to(&format!("failed: seed {seed}"), 1);
        }
        let violations = run.violations.clone();
        run.write_history(seed, Mutant::None, scenario);
        violations
    }

    fn add_to(&mut self, name: &str, count: u64) {
        match self.0.get_mut(name) {
            Some(sum) => *sum += count,
            None => {
                self.0.insert(name.to_owned(), count);
            }
        }
    }

    /// The value of a counter.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Adds another report.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, count)| self.add_to(name, *count));
    }

    /// The report of the seeds from `first` on, as a line of a file.
    pub fn to_line(&self, first: u64) -> String {
        let counts = self.0.iter().map(|(name, count)| format!("{name}={count}\t"));
        format!("{first}\t{}{END}", counts.collect::<String>())
    }

    /// Parses a line; None if it is incomplete.
    pub fn from_line(line: &str) -> Option<(u64, Self)> {
        let mut fields = line.strip_suffix(END)?.trim_end().split('\t');
        let first = fields.next()?.parse().ok()?;
        let mut report = Self::default();
        for field in fields {
            let (name, count) = field.rsplit_once('=')?;
            report.add_to(name, count.parse().ok()?);
        }
        Some((first, report))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:>12} {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back_and_one_that_was_cut_off_is_not() {
        let mut report = Report::default();
        report.add_to("writes acknowledged", 1_733);
        report.add_to("race: a late append, after the seal", 3);
        let line = report.to_line(4_200);
        assert_eq!(Report::from_line(&line), Some((4_200, report)));
        for length in 0..line.len() {
            assert_eq!(Report::from_line(&line[..length]), None, "{length}");
        }
    }
}
