//! `amalgam-peers bench index …`: the engines and other people's concurrent maps, on the same
//! requests, by the same driver; `amalgam-peers reclamation`: our memory reclamation
//! compared with crossbeam's; `amalgam-peers cache`: the library's map compared with moka.
//!
//! Invariants of this crate:
//! 1. Peers are measured through the driver of `amalgam-bench` and in no other way, except for
//!    moka, which is a cache and no map of numbers.
//! 2. Peers get what the engines get: room for all items at the start, and huge pages.
//! 3. The product does not depend on them: this crate is not a default member of the workspace.

mod cache;
#[cfg(any(has_libcuckoo, has_tbb))]
mod cpp;
mod external;
mod fixed;
mod reclamation;
mod rust;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use amalgam_bench::driver::engines::{Entry, entry};
use amalgam_bench::exit_code;
use amalgam_reproduce::BenchCommand;
use amalgam_reproduce::engines::ENGINES;
use cache::CacheArguments;
use clap::Parser;
use reclamation::ReclamationArguments;
use rust::Peer;

/// Compares engines with other concurrent maps.
#[derive(Parser)]
#[command(name = "amalgam-peers", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one in a process")]
enum Command {
    /// Measures throughput, latency or memory of engines and peers.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Compares our memory reclamation with crossbeam-epoch's.
    Reclamation(ReclamationArguments),
    /// Compares the library's map with moka, as a bounded cache.
    Cache(CacheArguments),
}

const PEERS: &[Entry] = &[
    entry::<Peer<rust::Papaya>>("papaya", "open addressing with pointers, lock-free"),
    entry::<Peer<rust::DashMap>>("dashmap", "hashbrown in 256 locked shards"),
    entry::<Peer<rust::Scc>>("scc", "locked buckets of cache lines"),
    entry::<Peer<rust::Sharded>>("rwlock-hashbrown", "hashbrown behind 256 RwLocks"),
    #[cfg(has_libcuckoo)]
    entry::<Peer<cpp::Libcuckoo>>("libcuckoo", "cuckoo hashing with locks"),
    #[cfg(has_tbb)]
    entry::<Peer<cpp::Tbb>>("tbb", "TBB's concurrent_hash_map"),
];

/// Makes the C library's allocator, which serves C++ and Rust alike, ask for huge pages.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("amalgam-peers: {error:#}");
            exit_code(&error)
        }
    }
}

fn run() -> anyhow::Result<()> {
    let command_line = CommandLine::parse();
    if std::env::var_os(TUNABLES.0).is_none() {
        // The allocator reads its settings when the process starts: start again with them.
        let mut again = std::process::Command::new(std::env::current_exe()?);
        again.args(std::env::args_os().skip(1)).env(TUNABLES.0, TUNABLES.1);
        // Comes back only when it fails.
        return Err(again.exec().into());
    }
    match &command_line.command {
        Command::Bench(command) => {
            let libraries = external::entries(command.engines());
            amalgam_reproduce::run(command, &[ENGINES, PEERS, &libraries].concat())
        }
        Command::Reclamation(arguments) => reclamation::run(arguments),
        Command::Cache(arguments) => cache::run(arguments),
    }
}
