//! The results of reclamation schemes, as lines of JSON or rows of a table.

use amalgam_bench::measure::{Machine, Spread, commit};
use anyhow::Context;

/// The rates of one round, summed over threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Reads a second of all readers.
    pub reads_per_second: f64,
    /// Replacements a second of all writers.
    pub replaces_per_second: f64,
    /// The most items that waited to be freed, in a round that counts.
    pub waiting: u64,
}

/// The parameters of a measurement.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Parameters {
    /// The name of the load, which says what the threads did.
    pub load: &'static str,
    /// The size of an item in bytes.
    pub item_bytes: usize,
    /// The number of threads.
    pub threads: usize,
    /// The number of items in the set.
    pub items: usize,
    /// The number of reads under one guard.
    pub batch: usize,
    /// The length of a round in seconds.
    pub seconds: f64,
    /// The number of rounds.
    pub rounds: usize,
}

/// A line of the result.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ReclamationResult {
    scheme: &'static str,
    commit: &'static str,
    machine: Machine,
    #[serde(flatten)]
    parameters: Parameters,
    #[serde(flatten)]
    reads: Option<Reads>,
    #[serde(flatten)]
    replaces: Option<Replaces>,
    /// The most items that were retired and not yet freed, counted in a round of its own.
    most_waiting_items: u64,
    /// The bytes of these items, without the allocator's overhead.
    most_waiting_bytes: u64,
}

#[derive(Clone, Debug, serde::Serialize)]
struct Reads {
    reads_per_second: f64,
    reads_min: f64,
    reads_max: f64,
    /// To crossbeam-epoch's, the median of the rounds' ratios.
    reads_ratio: f64,
}

#[derive(Clone, Debug, serde::Serialize)]
struct Replaces {
    replaces_per_second: f64,
    replaces_min: f64,
    replaces_max: f64,
    /// To crossbeam-epoch's, the median of the rounds' ratios.
    replaces_ratio: f64,
}

impl ReclamationResult {
    /// The heading of the rows.
    pub const HEAD: &'static str = "bytes threads  load              scheme             \
         reads M/s  ratio  replaces M/s  ratio  most waiting";

    /// Sums up rounds, next to those of crossbeam-epoch.
    ///
    /// # Errors
    ///
    /// If there was no round.
    pub fn new(
        scheme: &'static str,
        parameters: &Parameters,
        rounds: &[Rates],
        others: &[Rates],
        waiting: u64,
    ) -> anyhow::Result<Self> {
        let spreads = |of: fn(&Rates) -> f64| -> anyhow::Result<Option<(Spread, f64)>> {
            let rates: Vec<f64> = rounds.iter().map(of).collect();
            let pairs = rates.iter().zip(others);
            let ratios: Vec<f64> = pairs.map(|(own, other)| own / of(other)).collect();
            let rates = Spread::of(&rates).context("no round was measured")?;
            let ratio = Spread::of(&ratios).context("no round was measured")?.median;
            Ok((rates.max > 0.0).then_some((rates, ratio)))
        };
        let reads = spreads(|rates| rates.reads_per_second)?.map(|(rates, ratio)| Reads {
            reads_per_second: rates.median.round(),
            reads_min: rates.min.round(),
            reads_max: rates.max.round(),
            reads_ratio: ratio,
        });
        let replaces = spreads(|rates| rates.replaces_per_second)?.map(|(rates, ratio)| Replaces {
            replaces_per_second: rates.median.round(),
            replaces_min: rates.min.round(),
            replaces_max: rates.max.round(),
            replaces_ratio: ratio,
        });
        Ok(Self {
            scheme,
            commit: commit(),
            machine: Machine::describe(),
            parameters: parameters.clone(),
            reads,
            replaces,
            most_waiting_items: waiting,
            most_waiting_bytes: waiting * parameters.item_bytes as u64,
        })
    }

    /// The result as a row of a table.
    pub fn row(&self) -> String {
        let rate = |rates: Option<(f64, f64)>| match rates {
            Some((rate, ratio)) => (format!("{:.2}", rate / 1e6), format!("{ratio:.2}")),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let reads = self.reads.as_ref().map(|reads| (reads.reads_per_second, reads.reads_ratio));
        let replaces = self.replaces.as_ref();
        let replaces = replaces.map(|these| (these.replaces_per_second, these.replaces_ratio));
        let (reads, replaces) = (rate(reads), rate(replaces));
        format!(
            "{:>5} {:>7}  {:<16}  {:<16}  {:>10}  {:>5}  {:>12}  {:>5}  {} items, {} KB",
            self.parameters.item_bytes,
            self.parameters.threads,
            self.parameters.load,
            self.scheme,
            reads.0,
            reads.1,
            replaces.0,
            replaces.1,
            self.most_waiting_items,
            self.most_waiting_bytes.div_ceil(1000),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_rounds_of_a_pair() {
        let rates = |reads| Rates { reads_per_second: reads, ..Rates::default() };
        let parameters = Parameters {
            load: "read",
            item_bytes: 16,
            threads: 1,
            items: 4,
            batch: 1,
            seconds: 1.0,
            rounds: 3,
        };
        let own = [rates(20e6), rates(30e6), rates(90e6)];
        let other = [rates(10e6), rates(10e6), rates(90e6)];
        let result = ReclamationResult::new("ours", &parameters, &own, &other, 7).unwrap();
        let line = serde_json::to_value(&result).unwrap();
        assert_eq!(line["reads_per_second"], 30e6);
        assert_eq!(line["reads_ratio"], 2.0);
        assert_eq!(line["most_waiting_bytes"], 112);
        assert!(line.get("replaces_per_second").is_none() && line["machine"].is_object());
        assert!(ReclamationResult::new("ours", &parameters, &[], &[], 0).is_err());
    }
}
