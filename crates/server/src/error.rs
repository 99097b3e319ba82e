//! The error of starting or running a server.

use std::io;

use amalgam_index::OpenError;

/// Why a server did not start, or stopped.
#[derive(Debug)]
pub enum ServerError {
    /// The index could not be opened.
    Index(OpenError),
    /// The system refused something; the message says what.
    System(io::Error),
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(error) => error.fmt(formatter),
            Self::System(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for ServerError {}

impl From<io::Error> for ServerError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<OpenError> for ServerError {
    fn from(error: OpenError) -> Self {
        Self::Index(error)
    }
}
