//! Sizes as people write them: `64`, `512k`, `1GiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes written with a unit, or a bare number whose unit depends on the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Size {
    number: u64,
    /// The unit in bytes; `None` for a bare number.
    unit: Option<u64>,
}

/// A size as a configuration file may write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

impl Size {
    /// A size of `number` mebibytes.
    pub const fn mebibytes(number: u64) -> Self {
        Self { number, unit: Some(1 << 20) }
    }

    /// A size of `bytes`, rounded down to whole mebibytes.
    pub const fn whole_mebibytes(bytes: usize) -> Self {
        Self::mebibytes(bytes as u64 >> 20)
    }

    /// The size in bytes, where a bare number counts units of `bare_unit` bytes.
    ///
    /// # Errors
    ///
    /// If the number of bytes does not fit a `usize`.
    pub fn in_bytes(self, bare_unit: u64) -> anyhow::Result<usize> {
        let bytes = self.number.checked_mul(self.unit.unwrap_or(bare_unit));
        bytes
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| anyhow::anyhow!("the size {self} is out of range"))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let number =
            number.parse().map_err(|_| format!("'{text}' is not a size; try 64 or 1GiB"))?;
        let unit = match unit.trim().to_ascii_lowercase().as_str() {
            "" => None,
            "b" => Some(1),
            "k" | "kb" | "kib" => Some(1 << 10),
            "m" | "mb" | "mib" => Some(1 << 20),
            "g" | "gb" | "gib" => Some(1 << 30),
            "t" | "tb" | "tib" => Some(1 << 40),
            _ => return Err(format!("'{text}' has an unknown unit; use k, m, g or t")),
        };
        Ok(Self { number, unit })
    }
}

impl TryFrom<Written> for Size {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(number) => Ok(Self { number, unit: None }),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        size.to_string()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            None => "",
            Some(1) => "B",
            Some(0x400) => "KiB",
            Some(0x10_0000) => "MiB",
            Some(0x4000_0000) => "GiB",
            Some(_) => "TiB",
        };
        write!(formatter, "{}{unit}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_two_and_bare_numbers_are_the_options_own() {
        let bytes = |text: &str, bare| text.parse::<Size>().unwrap().in_bytes(bare).unwrap();
        assert_eq!(bytes("64", 1 << 20), 64 << 20);
        assert_eq!(bytes("64", 1), 64);
        assert_eq!(bytes("1GiB", 1), 1 << 30);
        assert_eq!(bytes("2m", 1), 2 << 20);
        assert_eq!(bytes("512 kb", 1), 512 << 10);
        for text in ["", "m", "1x", "-1", "1.5g", "99999999999999999999"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        let text = "3MiB".parse::<Size>().unwrap().to_string();
        assert_eq!(text, "3MiB");
        assert!("99999999t".parse::<Size>().unwrap().in_bytes(1).is_err());
    }
}
