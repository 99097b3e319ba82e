//! Measures clusters under load: the cost of a chunk's read compared with memcached's, the cost
//! that backups add to a write, and what clients notice of chunks that move.
//!
//! Invariants of this module:
//! 1. Nodes run in their own process, so that its CPU time is only theirs.
//! 2. Every value that is read is checked.

mod bg;
mod migrate;
mod recovery;
mod requests;

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::programs::AMALGAM;

pub use bg::{BgArguments, run as run_bg};
pub use migrate::{MigrateArguments, run as run_migrate};
pub use recovery::{RecoveryArguments, run as run_recovery};
pub use requests::{RequestArguments, run as run_requests};

/// A cluster on this machine in its own processes, which are stopped on drop.
struct Nodes {
    processes: Vec<Child>,
    /// The addresses of each node: for clients of chunks, and for those of memcached's protocol.
    addresses: Vec<(String, String)>,
    /// The etcd of nodes that are not in one process.
    _etcd: Option<Etcd>,
}

impl Nodes {
    /// Starts all nodes in one process.
    fn start(count: usize, engine: &str, core: usize, megabytes: u64) -> anyhow::Result<Self> {
        Self::start_with(count, engine, core, megabytes, &[])
    }

    /// Starts all nodes in one process, with options for each.
    fn start_with(
        count: usize,
        engine: &str,
        core: usize,
        megabytes: u64,
        options: &[&str],
    ) -> anyhow::Result<Self> {
        let mut nodes = Self { processes: Vec::new(), addresses: Vec::new(), _etcd: None };
        let count_text = count.to_string();
        let mut command = amalgam(&core.to_string(), engine, megabytes, "dev")?;
        nodes.add(command.args(["--nodes", &count_text, "--port", "0"]).args(options), count)?;
        Ok(nodes)
    }

    /// Starts each node in its own process, on the same cores, with options for each, and with its
    /// own folder in `logs` if nodes keep backups. etcd runs on the first core of this process.
    fn start_apart(
        etcd: &Path,
        count: usize,
        engine: &str,
        cores: &str,
        megabytes: u64,
        options: &[&str],
        logs: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let etcd = Etcd::start(etcd)?;
        let url = etcd.url.clone();
        let mut nodes = Self { processes: Vec::new(), addresses: Vec::new(), _etcd: Some(etcd) };
        let start = |place: usize| {
            let mut command = amalgam(cores, engine, megabytes, "node")?;
            command.args(options);
            if let Some(logs) = logs {
                command.arg("--backup-dir").arg(logs.join(place.to_string()));
            }
            command.args(["--etcd", &url, "--name", &format!("node-{place}")]);
            command.args(["--listen", "127.0.0.1:0", "--clients", "127.0.0.1:0"]);
            Ok(command)
        };
        let commands = (0..count).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        // All are started at once: nodes that start together share the keys.
        for mut command in commands {
            nodes.processes.push(spawn(&mut command)?);
        }
        for place in 0..count {
            nodes.read_addresses(place)?;
        }
        ensure!(nodes.addresses.len() == count, "the cluster did not start");
        Ok(nodes)
    }

    fn add(&mut self, command: &mut Command, count: usize) -> anyhow::Result<()> {
        self.processes.push(spawn(command)?);
        self.read_addresses(self.processes.len() - 1)?;
        ensure!(self.addresses.len() == count, "the cluster did not start");
        Ok(())
    }

    /// Waits until a process serves.
    fn read_addresses(&mut self, place: usize) -> anyhow::Result<()> {
        let output = self.processes[place].stdout.take().context("no output")?;
        for line in BufReader::new(output).lines() {
            let line = line?;
            if let Some((_, rest)) = line.split_once(" at ")
                && let Some((node, clients)) = rest.split_once(", clients at ")
            {
                self.addresses.push((node.to_owned(), clients.to_owned()));
            }
            if line == "the cluster serves" {
                break;
            }
        }
        Ok(())
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }

    /// The id of the process that has all nodes.
    fn pid(&self) -> u32 {
        self.processes[0].id()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(end);
    }
}

fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    command.stdout(Stdio::piped()).spawn().context("a cluster cannot be started")
}

/// The command `amalgam cluster …` on some cores.
fn amalgam(cores: &str, engine: &str, megabytes: u64, what: &str) -> anyhow::Result<Command> {
    let program = AMALGAM.path()?;
    let memory = format!("{megabytes}MiB");
    let mut command = pinned(cores);
    command.arg(program).args(["cluster", what, "--engine", engine]);
    command.args(["--memory", &memory, "--chunk-memory", &memory, "--threads", "1"]);
    command.args(["--log-level", "error"]);
    Ok(command)
}

/// An etcd with an empty directory, which is stopped on drop.
struct Etcd {
    process: Child,
    url: String,
    directory: PathBuf,
}

impl Etcd {
    fn start(program: &Path) -> anyhow::Result<Self> {
        let url = format!("http://127.0.0.1:{}", free_port()?);
        let peers = format!("http://127.0.0.1:{}", free_port()?);
        let name = format!("amalgam-etcd-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let process = Command::new(program)
            .arg("--data-dir")
            .arg(&directory)
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("nodes of their own need etcd: {}", program.display()))?;
        let started = Self { process, url, directory };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(started.url.trim_start_matches("http://")).is_err() {
            ensure!(Instant::now() < deadline, "etcd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(started)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        end(&mut self.process);
        // It is a temporary directory.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A port on which no process listens at the moment.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A command that runs a program on one core, or on several that are separated by commas.
fn pinned(cores: impl ToString) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cores.to_string()]);
    command
}

/// Ends a process that was started here.
fn end(process: &mut Child) {
    // The process may have ended by itself.
    let _ = process.kill();
    let _ = process.wait();
}
