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
    /// Runs the server; takes memcached's options.
    // The last of repeated options counts, as for getopt: scripts put theirs behind defaults.
    #[command(disable_help_flag = true, disable_version_flag = true, args_override_self = true)]
    Serve(Box<options::Options>),
    /// Generates load for servers and measures them.
    #[command(subcommand, after_help = "All other benches are commands of amalgam-lab.")]
    Bench(Box<Bench>),
    /// Says which engine to choose for what is asked of a server.
    Advise(Box<amalgam_advise::AdviseArguments>),
    /// Runs nodes of a cluster; memcached's clients may talk to any of them.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Shows a server's admin address in a terminal.
    Top(top::Top),
    /// Copies the items of one running server to another, memcached's too.
    Load(load::Load),
    /// Prints what completes this command line in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints a manual page in roff, for `man -l -`.
    Man {
        /// A command to print the page of instead of the program's.
        command: Option<String>,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// Measures servers over sockets.
    Server(ServerArguments),
}

/// The exit code of a command line that cannot be understood; clap's, too.
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
            ExitCode::FAILURE
        }
    }
}

/// The command line, with what is known only here: the engines.
fn command() -> clap::Command {
    let engines = format!("Engines, and what to choose them for:\n{}", serve::engine_list());
    Amalgam::command().mut_subcommand("serve", |serve| serve.after_help(engines))
}

/// Puts `serve` before the options of somebody who means memcached.
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
