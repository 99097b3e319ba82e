//! Errors of the command line, which end every program with the same exit code.

use std::fmt;
use std::process::ExitCode;

/// The exit code for wrong usage, the same as clap's.
const USAGE: u8 = 2;

/// An error in what the user asked for, not in carrying it out.
#[derive(Debug)]
pub struct UsageError(String);

impl UsageError {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Marks an error as one of the command line.
pub trait Usage<T> {
    /// The same result, whose error is a [`UsageError`].
    ///
    /// # Errors
    ///
    /// The error itself.
    fn usage(self) -> anyhow::Result<T>;
}

impl<T> Usage<T> for anyhow::Result<T> {
    fn usage(self) -> anyhow::Result<T> {
        self.map_err(|error| UsageError(format!("{error:#}")).into())
    }
}

/// Returns a [`UsageError`] from the function unless the condition holds.
#[macro_export]
macro_rules! ensure_usage {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::UsageError::new(format!($($text)+)).into());
        }
    };
}

/// The exit code for an error: 2 for wrong usage, 1 for all else.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<UsageError>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn usage_is_known_behind_context() {
        let wrong: anyhow::Result<()> = Err(anyhow::anyhow!("-t must be 1 to 256"));
        let wrong = wrong.context("options").usage().unwrap_err();
        assert_eq!(wrong.to_string(), "options: -t must be 1 to 256");
        assert_eq!(exit_code(&wrong), ExitCode::from(2));
        assert_eq!(exit_code(&wrong.context("serve")), ExitCode::from(2));
        assert_eq!(exit_code(&anyhow::anyhow!("disk full")), ExitCode::FAILURE);
        let ensured = || -> anyhow::Result<()> {
            ensure_usage!(1 > 2, "{} is not above {}", 1, 2);
            Ok(())
        };
        assert_eq!(exit_code(&ensured().unwrap_err()), ExitCode::from(2));
    }
}
