//! The `amalgam` binary: command line, configuration file, start-up.
//!
//! `amalgam serve` takes memcached's options. So does the binary when it is called `memcached` (or
//! `memcached-debug`), or when its first argument is an option.

mod cluster;
mod daemon;
mod extended;
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

/// The exit code for an invalid command line, the same as clap's.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(advice) = moved::advice(&arguments) {
        eprintln!("amalgam: {advice}");
        return ExitCode::from(USAGE);
    }
    let arguments = with_subcommand(arguments);
    let matches = command().get_matches_from(arguments);
    let result = match Amalgam::from_arg_matches(&matches) {
        Ok(Amalgam { command: Action::Serve(options) }) => serve::serve(&options),
        Ok(Amalgam { command: Action::Bench(bench) }) => {
            let Bench::Server(arguments) = *bench;
            amalgam_bench::client::run_and_print(&arguments)
        }
        Ok(Amalgam { command: Action::Advise(arguments) }) => amalgam_advise::run(&arguments),
        Ok(Amalgam { command: Action::Cluster(command) }) => cluster::run(&command),
        Ok(Amalgam { command: Action::Top(arguments) }) => top::run(&arguments),
        Ok(Amalgam { command: Action::Load(arguments) }) => load::run(&arguments),
        Ok(Amalgam { command: Action::Completions { shell } }) => {
            manual::completions(command(), shell)
        }
        Ok(Amalgam { command: Action::Man { command: name } }) => {
            manual::page(command(), name.as_deref())
        }
        Err(error) => error.exit(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if log::log_enabled!(log::Level::Error) {
                log::error!("{error:#}");
            } else {
                eprintln!("amalgam: {error:#}");
            }
            let is_usage = error.is::<serve::UsageError>();
            if is_usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// The definition of the command line, completed by the list of engines.
fn command() -> clap::Command {
    let engines = format!("Engines, and what to choose them for:\n{}", serve::engine_list());
    Amalgam::command().mut_subcommand("serve", |serve| serve.after_help(engines))
}

/// Inserts the command `serve` where the program is called as memcached is.
fn with_subcommand(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    let is_memcached = name.is_some_and(|name| name == "memcached" || name == "memcached-debug");
    let first = arguments.get(1).map(|first| first.to_string_lossy().into_owned());
    let is_option = first.is_some_and(|first| {
        first.starts_with('-') && !["--help", "--version"].contains(&first.as_str())
    });
    if is_memcached || is_option {
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
        assert_eq!(arguments(&["memcached"]), ["memcached", "serve"]);
        assert_eq!(
            arguments(&["/usr/bin/memcached-debug", "-m", "64"]),
            ["/usr/bin/memcached-debug", "serve", "-m", "64"]
        );
        assert_eq!(arguments(&["amalgam", "-p", "0"]), ["amalgam", "serve", "-p", "0"]);
        assert_eq!(arguments(&["amalgam", "--help"]), ["amalgam", "--help"]);
        assert_eq!(arguments(&["amalgam", "bench"]), ["amalgam", "bench"]);
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
