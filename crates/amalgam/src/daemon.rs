//! `-d`: runs the server as a daemon, in a process and a session of its own.
//!
//! The process starts the program again without a terminal, waits until the new process listens,
//! and ends. A process with threads is never forked.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The environment variable that marks the new process as the daemon.
const MARK: &str = "AMALGAM_DAEMON";

/// Whether this process is the daemon. If it is, it leaves the session of its parent.
pub fn is_daemon() -> bool {
    let is_daemon = std::env::var_os(MARK).is_some();
    if is_daemon {
        // This fails only if the process leads a session already.
        let _ = rustix::process::setsid();
    }
    is_daemon
}

/// Starts the daemon and waits until it listens.
///
/// # Errors
///
/// If the daemon cannot be started, or ends before it listens.
pub fn start() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the program to run")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg0_of_this_process()
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the daemon")?;
    let output = child.stdout.take().context("the daemon has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("cannot read the daemon's output")?;
    if !line.starts_with("listening on ") {
        let status = child.wait()?;
        bail!("the daemon did not start ({status}); run it without -d to see why");
    }
    Ok(())
}

/// Starts a program under the name that this one was called by, because options mean something else
/// under the name `memcached`.
trait SameName {
    fn arg0_of_this_process(&mut self) -> &mut Self;
}

impl SameName for Command {
    fn arg0_of_this_process(&mut self) -> &mut Self {
        use std::os::unix::process::CommandExt;
        match std::env::args_os().next() {
            Some(name) => self.arg0(name),
            None => self,
        }
    }
}
