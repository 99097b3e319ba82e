//! Clusters under load: what a chunk's read costs beside memcached's, and what clients notice of
//! chunks that move.
//!
//! Invariants of this room:
//! 1. Nodes run in a process of their own, so that its CPU time is theirs alone.
//! 2. Every value that comes back is checked.

mod migrate;
mod requests;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

pub use migrate::{MigrateArguments, run as run_migrate};
pub use requests::{RequestArguments, run as run_requests};

/// A cluster on this machine, in a process of its own, which ends with it.
struct Nodes {
    process: Child,
    /// Where each node listens for chunks' clients, and for memcached's.
    addresses: Vec<(String, String)>,
}

impl Nodes {
    fn start(count: usize, engine: &str, core: usize, megabytes: u64) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's path")?;
        let (nodes, memory) = (count.to_string(), format!("{megabytes}MiB"));
        let mut process = pinned(core)
            .arg(program)
            .args(["cluster", "dev", "--nodes", &nodes, "--port", "0", "--engine", engine])
            .args(["--memory", &memory, "--chunk-memory", &memory, "--threads", "1"])
            .args(["--log-level", "error"])
            .stdout(Stdio::piped())
            .spawn()
            .context("a cluster cannot be started")?;
        let output = process.stdout.take().context("no output")?;
        let mut nodes = Self { process, addresses: Vec::new() };
        for line in BufReader::new(output).lines() {
            let line = line?;
            if let Some((_, rest)) = line.split_once(" at ")
                && let Some((node, clients)) = rest.split_once(", clients at ")
            {
                nodes.addresses.push((node.to_owned(), clients.to_owned()));
            }
            if line == "the cluster serves" {
                break;
            }
        }
        ensure!(nodes.addresses.len() == count, "the cluster did not start");
        Ok(nodes)
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Runs what follows on one core.
fn pinned(core: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]);
    command
}

/// Ends a process that was started here.
fn end(process: &mut Child) {
    // It may have ended by itself.
    let _ = process.kill();
    let _ = process.wait();
}
