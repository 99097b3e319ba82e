//! The `amalgam` binary: command line, configuration file, start-up.
//!
//! `amalgam serve` takes memcached's options. So does the binary when it is called `memcached` (or
//! `memcached-debug`), or when its first argument is an option.

mod cluster;
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
use std::path::Path;
use std::process::ExitCode;

use amalgam_bench::client::ServerArguments;
use amalgam_bench::{UsageError, exit_code};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// An in-memory key-value store that speaks memcached's protocol, with a choice of index engines.
#[derive(Parser)]
#[command(name = "amalgam", version, arg_required_else_help = true)]
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
    Completions {
        /// Shell to complete commands in.
        shell: clap_complete::Shell,
    },
    /// Print a manual page in roff, for `man -l -`.
    Man {
        /// Command whose page is printed instead of the program's.
        command: Option<String>,
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
    let result = if is_memcached(&arguments) {
        let matches = memcached_command().get_matches_from(arguments);
        match options::Options::from_arg_matches(&matches) {
            Ok(options) => serve::serve(&options),
            Err(error) => error.exit(),
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
            exit_code(&error)
        }
    }
}

/// Runs the command that the arguments name.
fn run(arguments: Vec<OsString>) -> anyhow::Result<()> {
    let matches = command().get_matches_from(arguments);
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
        Action::Completions { shell } => manual::completions(self::command(), shell),
        Action::Man { command } => manual::page(self::command(), command.as_deref()),
    }
}

/// The definition of the command line, completed by defaults and the list of engines.
fn command() -> clap::Command {
    let engines = format!("Engines, and what to choose them for:\n{}", options::engine_list());
    help::complete(Amalgam::command(), engines)
}

/// The command line under memcached's name: that of `amalgam serve` alone. Clients' tests read the
/// version from the first line of its help.
fn memcached_command() -> clap::Command {
    let mut command = command();
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
    let is_option = first.is_some_and(|first| {
        first.starts_with('-') && !["--help", "--version"].contains(&first.as_str())
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
        assert_eq!(arguments(&["amalgam", "bench"]), ["amalgam", "bench"]);
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
        memcached_command().debug_assert();
    }
}
