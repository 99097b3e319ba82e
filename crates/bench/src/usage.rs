//! Errors of the command line, which end every program with the same exit code.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
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

/// The addresses of a host and port.
///
/// # Errors
///
/// A [`UsageError`] if the text has no host and port. That a name cannot be resolved is no wrong
/// usage: the same command may succeed later.
pub fn resolve(address: impl ToSocketAddrs) -> anyhow::Result<impl Iterator<Item = SocketAddr>> {
    address.to_socket_addrs().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => {
            UsageError::new("must be HOST:PORT, such as 127.0.0.1:9150").into()
        }
        _ => LookupError(error).into(),
    })
}

/// A name that could not be resolved.
#[derive(Debug)]
struct LookupError(io::Error);

impl fmt::Display for LookupError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the name cannot be resolved: {}", self.0)
    }
}

impl std::error::Error for LookupError {}

/// Marks an error as one of the command line.
pub trait Usage<T> {
    /// The same result, whose error is a [`UsageError`], except for a name that could not be
    /// resolved ([`resolve`]).
    ///
    /// # Errors
    ///
    /// The error itself.
    fn usage(self) -> anyhow::Result<T>;
}

impl<T> Usage<T> for anyhow::Result<T> {
    fn usage(self) -> anyhow::Result<T> {
        self.map_err(|error| match error.is::<LookupError>() {
            true => error,
            false => UsageError(format!("{error:#}")).into(),
        })
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
        // No label of a name is as long.
        let unknown = resolve(("x".repeat(64).as_str(), 1)).map(|_| ()).context("-l").usage();
        assert_eq!(exit_code(&unknown.unwrap_err()), ExitCode::FAILURE);
        let nameless = resolve("nowhere").map(|_| ()).context("--admin nowhere").usage();
        assert_eq!(exit_code(&nameless.unwrap_err()), ExitCode::from(2));
        let ensured = || -> anyhow::Result<()> {
            ensure_usage!(1 > 2, "{} is not above {}", 1, 2);
            Ok(())
        };
        assert_eq!(exit_code(&ensured().unwrap_err()), ExitCode::from(2));
    }
}
