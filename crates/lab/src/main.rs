//! The `amalgam-lab` binary: everything that measures Amalgam and is not a part of the product.

#![forbid(unsafe_code)]

mod chaos;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use amalgam_bench::exit_code;
use amalgam_reproduce::BenchCommand;
use amalgam_reproduce::engines::ENGINES;
use amalgam_reproduce::figures::ReproduceArguments;
use amalgam_reproduce::programs::Companion;
use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::chaos::ChaosArguments;

/// Amalgam's laboratory: measures engines and servers, and reproduces the papers' figures.
#[derive(Parser)]
#[command(name = "amalgam-lab", version, arg_required_else_help = true)]
struct Lab {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Measures engines, servers, clusters and their parts.
    #[command(subcommand)]
    Bench(Box<BenchCommand>),
    /// Measures every table and figure of the five papers, and compares with the printed numbers.
    Reproduce(ReproduceArguments),
    /// Runs clusters, ours and others, under the same faults, and counts what clients lose.
    Chaos(ChaosArguments),
    /// Compares engines with other concurrent maps, if `amalgam-peers` was built.
    #[command(disable_help_flag = true)]
    Peers(Passed),
    /// Runs the simulated hardware (`serve [HOST:PORT]`), if `amalgam-rtl` was built.
    #[command(disable_help_flag = true)]
    Rtl(Passed),
}

/// Arguments that are passed on to another program.
#[derive(clap::Args)]
struct Passed {
    /// The other program's arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    arguments: Vec<OsString>,
}

/// The other concurrent maps are in a separate program because they need a C++ compiler.
const PEERS: Companion =
    Companion { name: "amalgam-peers", build: "cargo build --release -p amalgam-peers" };

/// The simulated hardware is a separate program because it needs Verilator.
const RTL: Companion = Companion {
    name: "amalgam-rtl",
    build: "cargo build --release -p amalgam-rtl --features verilated",
};

fn main() -> ExitCode {
    let result = match &Lab::parse().command {
        Action::Bench(command) => amalgam_reproduce::run(command, ENGINES),
        Action::Reproduce(arguments) => amalgam_reproduce::figures::run(arguments),
        Action::Chaos(arguments) => chaos::run(arguments),
        Action::Peers(passed) => become_program(&PEERS, passed),
        Action::Rtl(passed) => become_program(&RTL, passed),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("amalgam-lab: {error:#}");
            exit_code(&error)
        }
    }
}

/// Replaces this process with the other program; returns only if that fails.
fn become_program(companion: &Companion, passed: &Passed) -> anyhow::Result<()> {
    let program = companion.path()?;
    let error = Command::new(&program).args(&passed.arguments).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Lab::command().debug_assert();
    }
}
