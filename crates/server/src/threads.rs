//! The threads of a server: a failure or panic of one of them ends all.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use amalgam_index::Store;

use crate::state::server_state::ServerState;

/// How long the server may take to end after a panic. The panicked thread may have held a lock of
/// the index; threads that wait for it never end, so the process is aborted then.
const PANIC_TIMEOUT: Duration = Duration::from_secs(5);

/// Tells all threads of a server to end when it is dropped.
pub struct ShutdownGuard<'s, S: Store> {
    /// The server.
    pub state: &'s ServerState<S>,
    /// Ends the maintenance thread.
    pub maintenance_stops: &'s AtomicBool,
}

impl<S: Store> Drop for ShutdownGuard<'_, S> {
    fn drop(&mut self) {
        self.state.stop();
        if let Some(controls) = &self.state.engine_controls {
            controls.stop(&self.state.index, self.maintenance_stops);
        }
    }
}

/// If dropped by a panic: stops the server, and aborts the process if that takes too long.
struct AbortOnPanic<'s, S: Store>(&'s ServerState<S>);

impl<S: Store> Drop for AbortOnPanic<'_, S> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.0.stop();
        let has_ended = Arc::clone(&self.0.has_ended);
        std::thread::spawn(move || {
            std::thread::sleep(PANIC_TIMEOUT);
            if !has_ended.load(Ordering::Relaxed) {
                log::error!("a thread panicked and the others did not end: aborting the process");
                std::process::abort();
            }
        });
    }
}

/// Starts a thread whose failure or panic stops the server.
///
/// # Errors
///
/// If the system refuses the thread.
pub fn spawn<'s, S: Store>(
    scope: &'s Scope<'s, '_>,
    state: &'s ServerState<S>,
    name: String,
    body: impl FnOnce() -> io::Result<()> + Send + 's,
) -> io::Result<ScopedJoinHandle<'s, io::Result<()>>> {
    std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
        let _abort_on_panic = AbortOnPanic(state);
        body().inspect_err(|_| state.stop())
    })
}

/// Waits for a thread to end.
///
/// # Errors
///
/// The thread's own error, or that it panicked.
pub fn join(thread: ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    let name = thread.thread().name().unwrap_or("?").to_owned();
    thread.join().unwrap_or_else(|_| Err(io::Error::other(format!("thread '{name}' panicked"))))
}
