//! The servers that a trace is replayed through: started here, or running already.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::client::Client;
use crate::client::address_of;

/// How long a server may take to accept connections after its start.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How long an idle server is left alone before its memory is looked at: its threads start.
const SETTLE: Duration = Duration::from_millis(300);

/// A server as the command line names it: `NAME=PROGRAM[,ARGUMENT…]` or `NAME=HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// What results call it.
    pub name: String,
    /// Where it is.
    pub target: Target,
    /// All behind the name, as it was written.
    pub text: String,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A program to start, and its arguments: port and memory are added.
    Program(PathBuf, Vec<String>),
    /// The address of one that runs.
    Address(String),
}

impl FromStr for ServerName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, rest) = text.split_once('=').with_context(|| {
            format!("'{text}' is not NAME=PROGRAM[,ARGUMENT…] or NAME=HOST:PORT")
        })?;
        ensure!(!name.is_empty() && !rest.is_empty(), "'{text}' has no name or no program");
        let is_port = |text: &str| text.parse::<u16>().is_ok();
        let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| is_port(port));
        let target = if has_port && !rest.contains(['/', ',']) {
            Target::Address(rest.to_owned())
        } else {
            let mut parts = rest.split(',').map(str::to_owned);
            let program = parts.next().unwrap_or_default();
            Target::Program(program.into(), parts.collect())
        };
        Ok(Self { name: name.to_owned(), target, text: rest.to_owned() })
    }
}

impl ServerName {
    /// The memory limit in bytes that the server is started with; None for one that runs already.
    pub(super) fn target_memory(&self, mebibytes: u64) -> Option<u64> {
        matches!(self.target, Target::Program(..)).then_some(mebibytes << 20)
    }
}

/// A server that answers; one that was started here ends with this value.
pub struct RunningServer {
    /// Its address.
    pub address: SocketAddr,
    /// Its process, if that is of this machine.
    pub pid: Option<u32>,
    _child: Option<ChildGuard>,
}

struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Fails only where the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RunningServer {
    /// Starts the server with a memory limit of `memory_mebibytes`, or finds the one that runs.
    ///
    /// # Errors
    ///
    /// If the program cannot be started or does not accept connections in time, or nothing answers
    /// at the address.
    pub fn open(server: &ServerName, memory_mebibytes: u64) -> anyhow::Result<Self> {
        let running = match &server.target {
            Target::Address(address) => {
                let address = address_of(address)?;
                let statistics = Client::connect(address, 1, 16)?.statistics()?;
                let pid = statistics.get("pid").and_then(|pid| pid.parse().ok());
                let pid = pid.filter(|pid: &u32| {
                    address.ip().is_loopback() && Path::new(&format!("/proc/{pid}")).exists()
                });
                Self { address, pid, _child: None }
            }
            Target::Program(program, arguments) => start(program, arguments, memory_mebibytes)
                .with_context(|| format!("starting {} ({})", server.name, program.display()))?,
        };
        std::thread::sleep(SETTLE);
        Ok(running)
    }

    /// A field of `/proc/PID/status` in bytes, such as VmRSS; None where the process is unknown.
    pub fn memory(&self, field: &str) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid?)).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    }
}

fn start(
    program: &Path,
    arguments: &[String],
    memory_mebibytes: u64,
) -> anyhow::Result<RunningServer> {
    let port = free_port()?;
    let mut command = Command::new(program);
    command.args(arguments).args(["-l", "127.0.0.1", "-p", &port.to_string()]);
    command.args(["-m", &memory_mebibytes.to_string()]);
    if rustix::process::geteuid().is_root() && !arguments.iter().any(|text| text == "-u") {
        command.args(["-u", "root"]);
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut guard = ChildGuard(child);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let deadline = Instant::now() + START_DEADLINE;
    while Client::connect(address, 1, 16).and_then(|mut client| client.statistics()).is_err() {
        if let Some(status) = guard.0.try_wait()? {
            bail!("it ended at once ({status}): start it by hand to see why");
        }
        ensure!(Instant::now() < deadline, "it does not answer on port {port} in time");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(RunningServer { address, pid: Some(guard.0.id()), _child: Some(guard) })
}

/// A port that nothing listens on at the moment.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_programs_or_addresses() {
        let server: ServerName = "ours=./amalgam,serve,--engine,mercury".parse().expect("valid");
        assert_eq!(server.name, "ours");
        let arguments = ["serve", "--engine", "mercury"].map(str::to_owned).to_vec();
        assert_eq!(server.target, Target::Program("./amalgam".into(), arguments));
        let server: ServerName = "running=localhost:11211".parse().expect("valid");
        assert_eq!(server.target, Target::Address("localhost:11211".to_owned()));
        for wrong in ["", "memcached", "=x", "x="] {
            assert!(wrong.parse::<ServerName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_program_that_ends_at_once_is_an_error() {
        let server: ServerName = "false=false".parse().expect("valid");
        let error = RunningServer::open(&server, 64).err().expect("it does not serve");
        assert!(format!("{error:#}").contains("ended at once"), "{error:#}");
    }
}
