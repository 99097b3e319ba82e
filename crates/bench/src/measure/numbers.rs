//! Numbers as people write them, and the spread of a few measurements.

use anyhow::Context;

/// Reads a count: `1000`, `16M` (a million is 10^6), `16Mi` (2^20), `0.5G`.
///
/// # Errors
///
/// If the text is not a number, or the number is not whole, negative or above 9 * 10^15.
pub fn parse_count(text: &str) -> anyhow::Result<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: f64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "ki" => f64::from(1 << 10),
        "mi" => f64::from(1 << 20),
        "gi" => f64::from(1 << 30),
        unit => anyhow::bail!("'{unit}' is none of k, M, G, Ki, Mi, Gi"),
    };
    let number: f64 = digits.replace('_', "").parse().with_context(|| format!("'{text}'"))?;
    let count = number * unit;
    anyhow::ensure!(
        (0.0..=9e15).contains(&count) && count.fract() == 0.0,
        "'{text}' is not a whole number that can be counted to"
    );
    Ok(count as u64)
}

/// Reads a size in bytes: `1GiB`, `512MiB`, `64M`, `4096`.
///
/// # Errors
///
/// If [`parse_count`] refuses the number without its `B`.
pub fn parse_size(text: &str) -> anyhow::Result<u64> {
    parse_count(text.strip_suffix(['b', 'B']).unwrap_or(text))
}

/// The median, the minimum and the maximum of a few measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle measurement; of an even count, the mean of the two in the middle.
    pub median: f64,
    /// The smallest measurement.
    pub min: f64,
    /// The largest measurement.
    pub max: f64,
}

impl Spread {
    /// The spread of `numbers`; `None` if there are none.
    pub fn of(numbers: &[f64]) -> Option<Self> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sizes() {
        assert_eq!(parse_count("32_000_000").expect("valid"), 32_000_000);
        assert_eq!(parse_count("32M").expect("valid"), 32_000_000);
        assert_eq!(parse_count("16Mi").expect("valid"), 1 << 24);
        assert_eq!(parse_count("0.5k").expect("valid"), 500);
        assert_eq!(parse_size("1GiB").expect("valid"), 1 << 30);
        assert_eq!(parse_size("2kB").expect("valid"), 2000);
        for wrong in ["", "M", "1.5", "-1", "1Q", "1e99", "NaN", "é", "1é", "0.0001k"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(&[]), None);
        let odd = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!(odd, Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        let even = Spread::of(&[4.0, 1.0, 2.0, 3.0]);
        assert_eq!(even, Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
    }
}
