//! `amalgam bench` as a program of its own.

use amalgam_bench::BenchCommand;
use amalgam_bench::engines::ENGINES;
use clap::Parser;

/// Measures engines and servers.
#[derive(Parser)]
#[command(name = "amalgam-bench", version)]
struct CommandLine {
    #[command(subcommand)]
    command: BenchCommand,
}

fn main() -> anyhow::Result<()> {
    amalgam_bench::run(&CommandLine::parse().command, ENGINES)
}
