//! Starts the servers for a figure's run: Amalgam with several engines, and memcached where it is
//! installed.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// The name of memcached among a run's servers.
pub const MEMCACHED: &str = "memcached";

/// The most time that a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// Running servers, which are stopped on drop.
#[derive(Default)]
pub struct Servers(Vec<Server>);

struct Server {
    name: &'static str,
    address: String,
    child: Child,
}

impl Servers {
    /// Starts a server with `threads` threads for each name, which is an engine or [`MEMCACHED`].
    /// Where memcached is not installed, it is left out with a message.
    ///
    /// # Errors
    ///
    /// If a server does not start, or does not listen in time.
    pub fn start(own: &Path, names: &[&'static str], threads: usize) -> anyhow::Result<Self> {
        let mut servers = Self::default();
        for name in names {
            let server = if *name == MEMCACHED {
                memcached(threads)?
            } else {
                Some(engine(own, name, threads)?)
            };
            servers.0.extend(server);
        }
        Ok(servers)
    }

    /// The addresses in the form of `bench server --target`.
    pub fn targets(&self) -> String {
        let addresses: Vec<&str> = self.0.iter().map(|server| server.address.as_str()).collect();
        addresses.join(",")
    }

    /// The process ids in the form of `--server-pid`.
    pub fn processes(&self) -> String {
        let processes: Vec<String> =
            self.0.iter().map(|server| server.child.id().to_string()).collect();
        processes.join(",")
    }

    /// The name of the server at `address`; None if no server here has it.
    pub fn name(&self, address: &str) -> Option<&'static str> {
        self.0.iter().find(|server| server.address == address).map(|server| server.name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MEBIBYTES: &str = "1024";

fn engine(own: &Path, name: &'static str, threads: usize) -> anyhow::Result<Server> {
    let mut child = Command::new(own)
        .args([
            "serve",
            "-u",
            "root",
            "--engine",
            name,
            "-l",
            "127.0.0.1",
            "-p",
            "0",
            "-m",
            MEBIBYTES,
        ])
        .args(["-t", &threads.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| own.display().to_string())?;
    let output = child.stdout.take().context("the server's output")?;
    let mut server = Server { name, address: String::new(), child };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening on ");
    server.address = address.with_context(|| format!("{name} said '{line}'"))?.to_owned();
    Ok(server)
}

fn memcached(threads: usize) -> anyhow::Result<Option<Server>> {
    let program = std::env::var_os("AMALGAM_MEMCACHED").unwrap_or(MEMCACHED.into());
    // Another process is unlikely to take the port before memcached does.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let started = Command::new(program)
        .args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-m", MEBIBYTES])
        .args(["-p", &port.to_string(), "-t", &threads.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            eprintln!("memcached is left out ({error}); install it, or set AMALGAM_MEMCACHED");
            return Ok(None);
        }
    };
    let server = Server { name: MEMCACHED, address: format!("127.0.0.1:{port}"), child };
    let start = Instant::now();
    while TcpStream::connect(&server.address).is_err() {
        if start.elapsed() > PATIENCE {
            bail!("memcached does not listen on {}", server.address);
        }
        sleep(Duration::from_millis(20));
    }
    Ok(Some(server))
}
