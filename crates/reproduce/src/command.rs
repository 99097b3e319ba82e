//! `amalgam-lab bench …`: one command for each kind of measurement.

use std::fs;

use amalgam_bench::client::{self, ServerArguments, StubServer, StubServerArguments};
use amalgam_bench::driver::engines::Entry;
use amalgam_bench::driver::{self, CacheArguments, IndexArguments, IndexLine};
use amalgam_bench::print_result;
use amalgam_bench::replay::{self, ReplayArguments};
use amalgam_bench::trace::{self, TraceArguments};
use anyhow::Context;

use crate::cluster::{self, BgArguments, MigrateArguments, RecoveryArguments, RequestArguments};
use crate::curves;
use crate::ids::{self, IdsArguments, LookupCacheArguments};
use crate::occupancy::{OccupancyArguments, run_occupancy};
use crate::scale::{self, ScaleArguments};

/// The benches, one command each.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Measures engines in this process.
    Index(IndexArguments),
    /// Measures how many items caches hold and how often they hit, by size.
    Caches(CacheArguments),
    /// Fills MemC3's table until an insert fails.
    Occupancy(OccupancyArguments),
    /// Measures servers over sockets.
    Server(ServerArguments),
    /// Answers text requests with constants: the floor of ordinary sockets.
    NullServer(StubServerArguments),
    /// Measures maps from chunk ids to the nodes that own the chunks.
    Ids(IdsArguments),
    /// Measures how much time a client's cache of such a map saves.
    LookupCache(LookupCacheArguments),
    /// Compares reads of a cluster with memcached's, on two cores.
    ClusterRequests(RequestArguments),
    /// Moves chunks between two nodes while clients read and write them, and checks every value
    /// read.
    Migrate(MigrateArguments),
    /// Kills a node, and measures how fast others recover its chunks from their backups.
    Recovery(RecoveryArguments),
    /// Computes by a model what larger clusters would need, and writes a page with pictures.
    Scale(ScaleArguments),
    /// Acts as the members of a social network, on chunks and on Redis.
    Bg(BgArguments),
    /// Replays traces through servers at equal memory, and counts their misses.
    Trace(Box<ReplayArguments>),
    /// Writes a trace of a workload, as `amalgam advise` reads it.
    WriteTrace(TraceArguments),
}

impl BenchCommand {
    /// The engines that the command names, if it measures engines of this process.
    pub fn engines(&self) -> &[String] {
        match self {
            Self::Index(arguments) => &arguments.engine,
            Self::Caches(arguments) => &arguments.engine,
            _ => &[],
        }
    }
}

/// Runs a command; results go to standard output, everything else to standard error.
///
/// # Errors
///
/// If an argument is invalid or the measurement failed; the text is for the user.
pub fn run(command: &BenchCommand, engines: &[Entry]) -> anyhow::Result<()> {
    match command {
        BenchCommand::Index(arguments) => run_index(arguments, engines),
        BenchCommand::Caches(arguments) => driver::run_caches(arguments, engines, |result| {
            print_result(arguments.json, result, || result.summary())
        }),
        BenchCommand::Occupancy(arguments) => {
            let result = run_occupancy(arguments)?;
            print_result(arguments.json, &result, || result.summary())
        }
        BenchCommand::Server(arguments) => client::run_and_print(arguments),
        BenchCommand::NullServer(arguments) => {
            let server = StubServer::open(arguments)?;
            eprintln!("listening on 127.0.0.1:{}", server.port()?);
            server.run()
        }
        BenchCommand::Ids(arguments) => {
            for result in ids::run_ids(arguments)? {
                print_result(arguments.json, &result, || result.summary())?;
            }
            Ok(())
        }
        BenchCommand::LookupCache(arguments) => {
            let result = ids::run_lookup_cache(arguments)?;
            print_result(arguments.json, &result, || result.summary())
        }
        BenchCommand::ClusterRequests(arguments) => {
            for result in cluster::run_requests(arguments)? {
                print_result(arguments.json, &result, || result.summary())?;
            }
            Ok(())
        }
        BenchCommand::Migrate(arguments) => {
            let result = cluster::run_migrate(arguments)?;
            print_result(arguments.json, &result, || result.summary())
        }
        BenchCommand::Recovery(arguments) => {
            let result = cluster::run_recovery(arguments)?;
            print_result(arguments.json, &result, || result.summary())
        }
        BenchCommand::Scale(arguments) => scale::run(arguments),
        BenchCommand::Bg(arguments) => {
            for result in cluster::run_bg(arguments)? {
                print_result(arguments.json, &result, || result.summary())?;
            }
            Ok(())
        }
        BenchCommand::Trace(arguments) => replay::run(arguments),
        BenchCommand::WriteTrace(arguments) => {
            trace::write(arguments, &mut std::io::BufWriter::new(std::io::stdout().lock()))
        }
    }
}

/// Prints each line as it comes. The picture is drawn again with each, so that an interrupted run
/// leaves one.
fn run_index(arguments: &IndexArguments, engines: &[Entry]) -> anyhow::Result<()> {
    let mut results = Vec::new();
    driver::run(arguments, engines, |line| {
        print_result(arguments.json, line, || line.summary())?;
        if let (Some(path), IndexLine::Measured(result)) = (&arguments.picture, line) {
            results.push(result.as_ref().clone());
            let drawn = curves::draw(&results)?;
            fs::write(path, drawn).with_context(|| path.display().to_string())?;
        }
        Ok(())
    })
}
