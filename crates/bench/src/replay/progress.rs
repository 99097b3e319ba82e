//! Progress of long replays, on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is written anew on a terminal.
const EVERY: Duration = Duration::from_millis(500);

/// How often a line is added where standard error is not a terminal.
const EVERY_IN_LOG: Duration = Duration::from_secs(30);

/// A line that tells how far a replay is.
pub struct Progress {
    what: String,
    all: u64,
    started: Instant,
    next: Instant,
    is_terminal: bool,
}

impl Progress {
    /// For `all` requests.
    pub fn new(what: String, all: u64) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let started = Instant::now();
        let every = if is_terminal { EVERY } else { EVERY_IN_LOG };
        Self { what, all, started, next: started + every, is_terminal }
    }

    /// After `done` requests, of which `misses` missed.
    pub fn tell(&mut self, done: u64, misses: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let rate = done as f64 / (now - self.started).as_secs_f64();
        let line = format!(
            "{}: {:.0} % of {} requests, {:.2} M/s, {:.2} % missed",
            self.what,
            100.0 * done as f64 / self.all.max(1) as f64,
            self.all,
            rate / 1e6,
            100.0 * misses as f64 / done.max(1) as f64
        );
        // Nobody reads it where standard error is closed.
        if self.is_terminal {
            self.next = now + EVERY;
            let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
        } else {
            self.next = now + EVERY_IN_LOG;
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
