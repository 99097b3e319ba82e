//! How much is done for one client in a turn of the event loop.
//!
//! A client may send ten thousand short requests at once, for which other clients would wait, and
//! other nodes, who ask whether this one is alive. So a turn handles some of them, and the next one
//! goes on, at once; nothing more is read from the client before all are handled. Nodes are not
//! bounded: what they send is what keeps the cluster alive, and their protocols bound it.

use std::collections::BTreeSet;

use amalgam_cluster::chunks::ChunkStore;
use amalgam_cluster::wire::{FrameSource, Packet};

use super::EventLoop;
use crate::connection::Role;

/// Requests and operations of one client that are handled in a turn. A request with more operations
/// is handled whole.
const OPERATIONS_A_TURN: usize = 1_024;

/// What a packet counts for: its operations, at least one.
fn weight(packet: &Packet) -> usize {
    match packet {
        Packet::Request(request) | Packet::Timed(_, request) => request.operations.len().max(1),
        _ => 1,
    }
}

impl<S: ChunkStore> EventLoop<S> {
    /// Handles the frames of a connection that have arrived whole; of a client no more than a turn
    /// handles, and none while it does not take its answers.
    pub(super) fn on_frames(&mut self, number: u64) -> Result<(), String> {
        let mut operations = 0;
        loop {
            let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
            let sender = match connection.role {
                Role::Peer(_) => FrameSource::Node,
                Role::Client { .. } | Role::Unauthenticated(_) => FrameSource::Client,
            };
            let is_client = matches!(connection.role, Role::Client { .. });
            if is_client && (operations >= OPERATIONS_A_TURN || connection.is_backlogged()) {
                self.unfinished.insert(number);
                return Ok(());
            }
            let frame = connection.frames.next_frame_of(sender);
            let frame = frame.map_err(|error| error.to_string())?;
            let Some((request, packet)) = frame else { return Ok(()) };
            operations += weight(&packet);
            match connection.role {
                Role::Peer(peer) => self.on_node_packet(peer, packet),
                Role::Client { .. } => self.on_client_packet(number, request, packet),
                Role::Unauthenticated(_) => {
                    return Err("a packet came before the handshake".to_owned());
                }
            }
        }
    }

    /// Goes on with clients whose requests were left to this turn, and which it has not read from.
    pub(super) fn go_on_with_clients(&mut self, unfinished: &BTreeSet<u64>) {
        for number in unfinished {
            self.unfinished.remove(number);
            match self.on_frames(*number) {
                Ok(()) => self.charge(*number),
                Err(error) => self.reject(*number, &error),
            }
        }
    }

    /// Whether a client has requests left, and takes its answers. One that does not is gone on with
    /// once its socket takes more.
    pub(super) fn may_go_on_with_clients(&self) -> bool {
        let mut unfinished = self.unfinished.iter();
        unfinished.any(|number| {
            self.connections.get(number).is_some_and(|connection| !connection.is_backlogged())
        })
    }
}

#[cfg(test)]
mod tests;
