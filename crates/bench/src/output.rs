//! How results are printed.

use std::io::Write;

/// Writes a result as one line of standard output: JSON for programs, a summary for people.
///
/// # Errors
///
/// If standard output cannot be written.
pub fn print_result(
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
