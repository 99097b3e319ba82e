//! The `amalgam` binary: command line, configuration file, start-up.
//!
//! `amalgam serve` takes memcached's options. So does the binary when it is called `memcached` (or
//! `memcached-debug`), or when its first argument is an option.

#![forbid(unsafe_code)]

mod clients;
mod cluster;
mod color;
mod daemon;
mod extended;
mod help;
mod load;
mod logs;
mod manual;
mod moved;
mod options;
mod serve;
mod size;
mod tls;
mod top;
mod user;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use amalgam_bench::client::ServerArguments;
use amalgam_bench::{UsageError, exit_code};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// The exit code for wrong usage under memcached's name: EX_USAGE of sysexits.h.
const MEMCACHED_USAGE: u8 = 64;

/// An in-memory key-value store that speaks memcached's protocol, with a choice of index engines.
#[derive(Parser)]
#[command(
    name = "amalgam",
    version,
    arg_required_else_help = true,
    after_help = "Options without a command are those of serve: 'amalgam -m 1024' runs a server."
)]
struct Amalgam {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run the server; takes memcached's options.
    // The last of repeated options counts, as with getopt: scripts append options to defaults.
    #[command(disable_help_flag = true, disable_version_flag = true, args_override_self = true)]
    Serve(Box<options::Options>),
    /// Generate load for servers and measure them.
    #[command(subcommand, after_help = "All other benches are commands of amalgam-lab.")]
    Bench(Box<Bench>),
    /// Recommend an engine for the requests that a server receives.
    Advise(Box<amalgam_advise::AdviseArguments>),
    /// Run nodes of a cluster; memcached clients may connect to any of them.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Show the live status of a server in a terminal, read from its admin address.
    Top(top::Top),
    /// Copy the items of one running server to another; both may be Amalgam or memcached.
    Load(load::Load),
    /// Print a completion script for a shell.
    #[command(after_help = "In bash, for the current shell: source <(amalgam completions bash)")]
    Completions {
        /// Shell to complete commands in.
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print a manual page, which `man -l -` shows, or write all of them to a folder.
    Man {
        /// Command whose page is printed, such as `cluster node` [default: the program's page].
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
        /// Write the pages of the program and of every command into this folder instead.
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        out: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// Measure servers over sockets.
    Server(ServerArguments),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(advice) = moved::advice(&arguments) {
        if arguments.iter().any(|word| word == "--help" || word == "-h") {
            println!("{advice}");
            return ExitCode::SUCCESS;
        }
        eprintln!("amalgam: {advice}");
        return exit_code(&UsageError::new(advice).into());
    }
    let is_memcached = is_memcached(&arguments);
    let result = if is_memcached {
        let matches = memcached_command().try_get_matches_from(arguments);
        match matches.and_then(|matches| options::Options::from_arg_matches(&matches)) {
            Ok(options) => serve::serve(&options),
            Err(error) => {
                // Standard error may be closed.
                let _ = error.print();
                let code = if error.use_stderr() { MEMCACHED_USAGE } else { 0 };
                return ExitCode::from(code);
            }
        }
    } else {
        run(with_subcommand(arguments))
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A user who typed a wrong command reads lines in a terminal, an operator the log.
            if log::log_enabled!(log::Level::Error) && !error.is::<UsageError>() {
                log::error!("{error:#}");
            } else {
                eprintln!("amalgam: {error:#}");
            }
            match is_memcached && error.is::<UsageError>() {
                true => ExitCode::from(MEMCACHED_USAGE),
                false => exit_code(&error),
            }
        }
    }
}

/// Runs the command that the arguments name.
fn run(arguments: Vec<OsString>) -> anyhow::Result<()> {
    let definition = || command(help::EXIT_CODES);
    let matches = definition().get_matches_from(arguments);
    let command_line = Amalgam::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match command_line.command {
        Action::Serve(options) => serve::serve(&options),
        Action::Bench(bench) => {
            let Bench::Server(arguments) = *bench;
            amalgam_bench::client::run_and_print(&arguments)
        }
        Action::Advise(arguments) => amalgam_advise::run(&arguments),
        Action::Cluster(command) => cluster::run(&command),
        Action::Top(arguments) => top::run(&arguments),
        Action::Load(arguments) => load::run(&arguments),
        Action::Completions { shell } => manual::completions(definition(), shell),
        Action::Man { command, out: None } => manual::page(definition(), &command),
        Action::Man { out: Some(folder), .. } => manual::pages(definition(), &folder),
    }
}

/// The definition of the command line, completed by topics, defaults, the list of engines and
/// `exit_codes`.
fn command(exit_codes: &str) -> clap::Command {
    help::complete(Amalgam::command(), exit_codes)
}

/// The command line under memcached's name: that of `amalgam serve` alone. Clients' tests read the
/// version from the first line of its help.
fn memcached_command() -> clap::Command {
    let mut command = command(help::MEMCACHED_EXIT_CODES);
    let serve = command.find_subcommand_mut("serve").cloned().unwrap_or_default();
    serve.name("memcached").bin_name("memcached").before_help(serve::version())
}

/// Whether the program was started under a name of memcached.
fn is_memcached(arguments: &[OsString]) -> bool {
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    name.is_some_and(|name| serve::MEMCACHED_NAMES.iter().any(|known| name == *known))
}

/// Inserts the command `serve` where options come first, as with memcached.
fn with_subcommand(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let first = arguments.get(1).map(|first| first.to_string_lossy().into_owned());
    let is_alone = arguments.len() == 2;
    let is_option = first.is_some_and(|first| {
        let is_of_program = first == "--help" || first == "--version" || is_alone && first == "-h";
        first.starts_with('-') && !is_of_program
    });
    if is_option {
        arguments.insert(1, "serve".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from).collect();
        with_subcommand(words).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn options_without_a_subcommand_are_for_the_server() {
        for (path, expected) in [("/usr/bin/memcached-debug", true), ("amalgam", false)] {
            assert_eq!(is_memcached(&[path.into()]), expected);
        }
        assert_eq!(arguments(&["amalgam", "-p", "0"]), ["amalgam", "serve", "-p", "0"]);
        assert_eq!(arguments(&["amalgam", "--help"]), ["amalgam", "--help"]);
        assert_eq!(arguments(&["amalgam", "-h"]), ["amalgam", "-h"]);
        assert_eq!(arguments(&["amalgam", "bench"]), ["amalgam", "bench"]);
    }

    #[test]
    fn the_command_line_is_consistent() {
        command(help::EXIT_CODES).debug_assert();
        memcached_command().debug_assert();
    }
}
