//! A copy of the coordinator's state in the folder of each node's backups, from which a cluster is
//! restored when the coordinator has lost its data.
//!
//! Invariants of this module:
//! 1. A node writes a state before it acts on it, so no node acted on a state with a higher
//!    revision than the highest among the copies of all nodes.
//! 2. A copy is replaced in one step, and one that is damaged is recognized.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{Wire, WireReader};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use crate::membership::ClusterState;

/// Name of the copy in the folder of backups.
pub const STATE_FILE: &str = "cluster-state";
/// The first bytes of a copy, which name its format.
const MAGIC: &[u8; 8] = b"AMSTATE1";

/// The copy of one node.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Whether a copy must survive a loss of power.
    is_synced: bool,
    me: Peer,
    /// The state that was written last.
    last: Vec<u8>,
}

impl StateFile {
    /// The copy in a folder of backups, which is written by this node.
    pub fn new(folder: &Path, is_synced: bool, me: Peer) -> Self {
        Self { path: folder.join(STATE_FILE), is_synced, me, last: Vec::new() }
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
        std::fs::rename(&new, &self.path)?;
        if let Some(folder) = self.path.parent().filter(|_| self.is_synced) {
            File::open(folder)?.sync_all()?;
        }
        self.last = state.to_vec();
        Ok(())
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
}
