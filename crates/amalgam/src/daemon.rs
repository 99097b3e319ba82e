//! `-d`: the server goes on in a process of its own, in a session of its own.
//!
//! The process starts itself again, without a terminal, and ends when the new one says that it
//! listens. Nothing is forked in the middle of its life.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Tells the new process that it is the daemon.
const MARK: &str = "AMALGAM_DAEMON";

/// Whether this process is the daemon already. If so it leaves the session of its parent.
pub fn is_daemon() -> bool {
    let is_daemon = std::env::var_os(MARK).is_some();
    if is_daemon {
        // Fails only where the process leads a session already.
        let _ = rustix::process::setsid();
    }
    is_daemon
}

/// Starts the daemon and waits until it listens.
///
/// # Errors
///
/// If it does not come to that.
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
    BufReader::new(output).read_line(&mut line).context("cannot hear from the daemon")?;
    if !line.starts_with("listening on ") {
        let status = child.wait()?;
        bail!("the daemon did not start ({status}); run it without -d to see why");
    }
    Ok(())
}

/// Passes on the name that the program was called by: `memcached` means other arguments.
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
