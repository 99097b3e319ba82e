//! Shell completions and manual pages, made from the command line's own definition.

use std::io::Write;

use amalgam_bench::Usage;
use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// Prints a completion script.
///
/// # Errors
///
/// If it cannot be written.
pub fn completions(mut command: Command, shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "amalgam", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

/// Prints the manual page of the program, or of one of its commands.
///
/// # Errors
///
/// If there is no such command or the page cannot be written.
pub fn page(mut command: Command, name: Option<&str>) -> Result<()> {
    command.build();
    if let Some(name) = name {
        let found = command.find_subcommand(name).cloned();
        command = found.with_context(|| format!("there is no command '{name}'")).usage()?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(std::io::stdout().write_all(&page)?)
}
