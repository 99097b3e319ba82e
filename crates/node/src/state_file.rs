//! A copy of the coordinator's state in the folder of each node's backups, from which a cluster is
//! restored when the coordinator has lost its data.
//!
//! Invariants of this module:
//! 1. A node writes a state before it acts on it, so no node acted on a state with a higher
//!    revision than the highest among the copies of all nodes.
//! 2. A copy is replaced in one step, and one that is damaged is recognized.
//! 3. Nobody but [`StateWriter`]'s thread waits for the disk: a node whose disk stands still for a
//!    moment renews its lease meanwhile.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{Wire, WireReader};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use crate::membership::ClusterState;

/// Name of the copy in the folder of backups.
pub const STATE_FILE: &str = "cluster-state";
/// The first bytes of a copy, which name its format.
const MAGIC: &[u8; 8] = b"AMSTATE1";

/// How long the end of a [`StateWriter`] waits for a disk that hangs, and how often it looks.
const END_PATIENCE: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_millis(1);

/// The copy of one node.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Whether a copy must survive a loss of power.
    is_synced: bool,
    me: Peer,
    /// The state that was written last.
    last: Vec<u8>,
    /// Whether another incarnation may write the copy: this one does not replace it any more.
    is_ended: Arc<AtomicBool>,
}

impl StateFile {
    /// The copy in a folder of backups, which is written by this node.
    pub fn new(folder: &Path, is_synced: bool, me: Peer) -> Self {
        let path = folder.join(STATE_FILE);
        Self { path, is_synced, me, last: Vec::new(), is_ended: Arc::default() }
    }

    /// Replaces the copy unless it holds this state already.
    ///
    /// # Errors
    ///
    /// If the system refuses; the copy is as it was then.
    pub fn write(&mut self, state: &[u8]) -> io::Result<()> {
        if self.last == state {
            return Ok(());
        }
        let mut bytes = MAGIC.to_vec();
        self.me.encode(&mut bytes);
        bytes.extend_from_slice(state);
        let sum = digest(&SHA256, &bytes);
        bytes.extend_from_slice(sum.as_ref());
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        if self.is_synced {
            file.sync_all()?;
        }
        if self.is_ended.load(Ordering::Acquire) {
            return Err(io::Error::other("the node's incarnation has ended"));
        }
        std::fs::rename(&new, &self.path)?;
        if let Some(folder) = self.path.parent().filter(|_| self.is_synced) {
            File::open(folder)?.sync_all()?;
        }
        self.last = state.to_vec();
        Ok(())
    }

    /// As `write`; a failure is logged.
    pub fn keep(&mut self, state: &[u8]) {
        if let Err(error) = self.write(state) {
            log::error!(
                error:%;
                "no copy of the cluster's state was kept: without one from each node, a cluster \
                 whose etcd lost its data may not be restored"
            );
        }
    }
}

/// A thread that writes a node's copies. `T` is what waits for a copy to be written.
#[derive(Debug)]
pub struct StateWriter<T> {
    /// None while it ends.
    states: Option<SyncSender<Vec<u8>>>,
    written: Receiver<()>,
    waiting: Option<T>,
    is_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<T> StateWriter<T> {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the system refuses the thread.
    pub fn start(mut file: StateFile) -> io::Result<Self> {
        let (states, to_write) = sync_channel::<Vec<u8>>(1);
        let (done, written) = sync_channel(1);
        let is_ended = Arc::clone(&file.is_ended);
        let body = move || {
            for state in to_write {
                file.keep(&state);
                // It is not awaited any more if the node has ended.
                let _ = done.try_send(());
            }
        };
        let thread = std::thread::Builder::new().name("state copy".into()).spawn(body)?;
        Ok(Self { states: Some(states), written, waiting: None, is_ended, thread: Some(thread) })
    }

    /// Whether a state is being written.
    pub fn is_busy(&self) -> bool {
        self.waiting.is_some()
    }

    /// Begins to write a state, on which `waiting` rests. Requires: it is not busy.
    pub fn begin(&mut self, state: Vec<u8>, waiting: T) {
        assert!(!self.is_busy(), "the state before is still being written");
        self.waiting = Some(waiting);
        // Where the thread has ended, `take` finds out.
        let _ = self.states.as_ref().map(|states| states.try_send(state));
    }

    /// What waited for the state that is written now, or that could not be; None if there is
    /// nothing, or if it takes longer than `patience`.
    pub fn take(&mut self, patience: Duration) -> Option<T> {
        if !self.is_busy() {
            return None;
        }
        match self.written.recv_timeout(patience) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => self.waiting.take(),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}

impl<T> Drop for StateWriter<T> {
    /// Waits until the copy can be written by another incarnation, unless the disk hangs.
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Release);
        self.states = None;
        let end = Instant::now() + END_PATIENCE;
        let is_running = |thread: &JoinHandle<()>| !thread.is_finished();
        while self.thread.as_ref().is_some_and(is_running) && Instant::now() < end {
            std::thread::sleep(END_PAUSE);
        }
    }
}

/// A copy that was read: the node that wrote it, and the state.
#[derive(Debug)]
pub struct SavedState {
    /// The node and its incarnation.
    pub me: Peer,
    /// The state of the cluster.
    pub state: ClusterState,
}

/// Reads a copy.
///
/// # Errors
///
/// If it cannot be read, or is damaged; the text says which and names the file.
pub fn read_state_file(path: &Path) -> Result<SavedState, String> {
    let explain = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| explain(&error))?;
    let damaged = || explain(&"not a copy of a cluster's state, or a damaged one");
    let (bytes, sum) = bytes
        .len()
        .checked_sub(SHA256_OUTPUT_LEN)
        .and_then(|at| bytes.split_at_checked(at))
        .ok_or_else(damaged)?;
    if digest(&SHA256, bytes).as_ref() != sum {
        return Err(damaged());
    }
    let mut from = WireReader::new(bytes.strip_prefix(MAGIC).ok_or_else(damaged)?);
    let me = Peer::decode(&mut from).map_err(|_| damaged())?;
    let state = from.take(from.left()).map_err(|_| damaged())?;
    let state = ClusterState::from_bytes(state).map_err(|error| explain(&error))?;
    Ok(SavedState { me, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_as_it_was_written_and_damage_is_recognized() {
        let folder = std::env::temp_dir().join(format!("amalgam-state-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut state = ClusterState::new(7, 8, 1_000);
        let me = state.join("a", ("a:1", "r"), 0).expect("there is room").peer;
        let mut file = StateFile::new(&folder, true, me);
        for _ in 0..2 {
            state.flushes += 1;
            file.write(&state.to_bytes()).expect("it is written");
            file.write(&state.to_bytes()).expect("it is there");
            let saved = read_state_file(&folder.join(STATE_FILE)).expect("a copy");
            assert_eq!((saved.me, saved.state.snapshot()), (me, state.snapshot()));
        }
        let path = folder.join(STATE_FILE);
        let bytes = std::fs::read(&path).expect("it is there");
        for damage in 0..=bytes.len() {
            let mut bytes = bytes.clone();
            match bytes.get_mut(damage) {
                Some(byte) => *byte ^= 1,
                None => bytes.truncate(damage / 2),
            }
            std::fs::write(&path, bytes).expect("it is ours");
            let error = read_state_file(&path).expect_err("it is damaged");
            assert!(error.contains("damaged") && error.contains(STATE_FILE), "{error}");
        }
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn nobody_waits_for_a_disk_that_hangs() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let folder = std::env::temp_dir().join(format!("amalgam-copy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        // Whoever opens a pipe to write hangs until somebody reads it.
        let pipe = folder.join(STATE_FILE).with_extension("new");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("a program of every system").success());
        let mut state = ClusterState::new(7, 8, 1_000);
        let me = state.join("a", ("a:1", "r"), 0).expect("there is room").peer;
        let mut writer = StateWriter::start(StateFile::new(&folder, false, me)).expect("a thread");
        assert_eq!((writer.take(PATIENCE), writer.is_busy()), (None, false));
        writer.begin(state.to_bytes(), 1);
        assert_eq!((writer.take(Duration::from_millis(5)), writer.is_busy()), (None, true));
        std::fs::read(&pipe).expect("it is written to");
        assert_eq!((writer.take(PATIENCE), writer.is_busy()), (Some(1), false));
        state.flushes += 1;
        writer.begin(state.to_bytes(), 2);
        assert_eq!(writer.take(PATIENCE), Some(2));
        let saved = read_state_file(&folder.join(STATE_FILE)).expect("a copy");
        assert_eq!(saved.state.flushes, 1);
        drop(writer);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
