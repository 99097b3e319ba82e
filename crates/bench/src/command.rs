//! `amalgam bench …`.

use std::io::Write;

use crate::driver::{self, IndexArguments};
use crate::engines::Entry;

/// What can be measured.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Measures engines in this process.
    Index(IndexArguments),
}

/// Runs a command; results go to standard output, everything else to standard error.
///
/// # Errors
///
/// If an argument makes no sense or the measurement failed; the text is for the user.
pub fn run(command: &BenchCommand, engines: &[Entry]) -> anyhow::Result<()> {
    match command {
        BenchCommand::Index(arguments) => {
            for result in driver::run(arguments, engines)? {
                print_result(arguments.json, &result, || result.summary())?;
            }
            Ok(())
        }
    }
}

/// Writes a result as a line: JSON for programs, a summary for people.
fn print_result(
    json: bool,
    result: &impl serde::Serialize,
    summary: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let line = if json { serde_json::to_string(result)? } else { summary() };
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()?;
    Ok(())
}
