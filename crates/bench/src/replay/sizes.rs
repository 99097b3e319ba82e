//! Lengths of values: the trace's own, or a model that is a function of the key.

use std::fmt::{Display, Formatter, Result as FormatResult};
use std::str::FromStr;

use anyhow::{Context, ensure};

use super::source::Trace;
use crate::workload::mix64;

/// The shortest value of a log-normal model in bytes.
const SHORTEST_VALUE_BYTES: f64 = 16.0;

/// The longest value of a log-normal model in bytes.
const LONGEST_MODEL_VALUE_BYTES: f64 = 65536.0;

/// The longest value that is replayed, in bytes: longer ones of a trace are cut, as servers refuse
/// items of 1 MiB by default.
pub const LONGEST_VALUE_BYTES: u32 = 512 << 10;

/// Sigma of a log-normal model where none is given.
const DEFAULT_SIGMA: f64 = 1.2;

/// How long values are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeModel {
    /// As the trace says.
    Trace,
    /// All alike: bytes.
    Fixed(u32),
    /// Log-normal with this median in bytes and sigma, from 16 B to 64 KiB.
    LogNormal(f64, f64),
}

impl FromStr for SizeModel {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let mut number = |default: Option<f64>| -> anyhow::Result<f64> {
            match (parts.next(), default) {
                (Some(part), _) => part.parse().with_context(|| format!("'{part}' in '{text}'")),
                (None, Some(default)) => Ok(default),
                (None, None) => anyhow::bail!("'{text}' needs a number, as in {name}:100"),
            }
        };
        let model = match name {
            "trace" => Self::Trace,
            "fixed" => {
                let bytes = number(None)?;
                ensure!(
                    (0.0..=f64::from(LONGEST_VALUE_BYTES)).contains(&bytes),
                    "'{text}': values have 0 to {LONGEST_VALUE_BYTES} bytes"
                );
                Self::Fixed(bytes as u32)
            }
            "lognormal" => {
                let (median, sigma) = (number(None)?, number(Some(DEFAULT_SIGMA))?);
                let range = SHORTEST_VALUE_BYTES..=LONGEST_MODEL_VALUE_BYTES;
                ensure!(
                    range.contains(&median) && (0.0..=10.0).contains(&sigma),
                    "'{text}': the median must be 16 to 65536 and sigma 0 to 10"
                );
                Self::LogNormal(median, sigma)
            }
            _ => anyhow::bail!("'{text}' is none of trace, fixed:BYTES, lognormal:MEDIAN[:SIGMA]"),
        };
        ensure!(parts.next().is_none(), "'{text}' has more parts than the model '{name}'");
        Ok(model)
    }
}

impl Display for SizeModel {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        match self {
            Self::Trace => formatter.write_str("trace"),
            Self::Fixed(bytes) => write!(formatter, "fixed:{bytes}"),
            Self::LogNormal(median, sigma) => write!(formatter, "lognormal:{median}:{sigma}"),
        }
    }
}

impl SizeModel {
    /// The length of every value of `copies` copies of a trace in bytes. Key k of copy c is item
    /// c * keys + k.
    ///
    /// # Errors
    ///
    /// If the trace has no sizes and the model is the trace's.
    pub fn value_bytes(self, trace: &Trace, copies: u32) -> anyhow::Result<Vec<u32>> {
        let own = trace.value_bytes.as_deref();
        let items = 0..trace.keys * copies;
        Ok(match self {
            Self::Trace => {
                let own = own.with_context(|| {
                    format!("{} has no sizes: name a model with --sizes", trace.name)
                })?;
                items
                    .map(|item| own[(item % trace.keys) as usize].min(LONGEST_VALUE_BYTES))
                    .collect()
            }
            Self::Fixed(bytes) => items.map(|_| bytes).collect(),
            Self::LogNormal(median, sigma) => {
                items.map(|item| log_normal(item, median, sigma)).collect()
            }
        })
    }
}

/// A draw from the distribution that depends on `item` only (the method of Box and Muller).
fn log_normal(item: u32, median: f64, sigma: f64) -> u32 {
    let uniform = |salt: u64| {
        let bits = mix64(u64::from(item) ^ salt << 32) >> 11;
        (bits as f64 + 0.5) / (1u64 << 53) as f64
    };
    let normal = (-2.0 * uniform(1).ln()).sqrt() * (std::f64::consts::TAU * uniform(2)).cos();
    let bytes = median * (sigma * normal).exp();
    bytes.clamp(SHORTEST_VALUE_BYTES, LONGEST_MODEL_VALUE_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read_and_printed() {
        for text in ["trace", "fixed:100", "lognormal:200:1.2", "lognormal:1024:0.5"] {
            let model: SizeModel = text.parse().expect("valid");
            assert_eq!(model.to_string(), text);
        }
        assert_eq!(
            "lognormal:200".parse::<SizeModel>().expect("valid").to_string(),
            "lognormal:200:1.2"
        );
        for wrong in ["", "fixed", "fixed:x", "fixed:-1", "fixed:1:2", "lognormal:1", "normal:3"] {
            assert!(wrong.parse::<SizeModel>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_log_normal_model_has_its_median_and_spread() {
        let mut sizes: Vec<u32> = (0..100_000).map(|item| log_normal(item, 1024.0, 1.2)).collect();
        sizes.sort_unstable();
        let at = |share: f64| f64::from(sizes[(share * sizes.len() as f64) as usize]);
        assert!((1000.0..1048.0).contains(&at(0.5)), "median {}", at(0.5));
        // One sigma up is a factor of e^1.2 = 3.32.
        assert!((3.2..3.45).contains(&(at(0.841_34) / at(0.5))), "{}", at(0.841_34));
        assert!(at(0.0) >= 16.0 && sizes.last() <= Some(&65536));
    }
}
