//! How much is done for clients in a turn of the event loop.
//!
//! A client may send ten thousand short requests at once, and a thousand clients may, for which
//! other clients would wait, and other nodes, who ask whether this one is alive. So a turn handles
//! some of one client's, and some of all clients', counted in operations and in bytes of values
//! that they copy; the next one goes on, at once, with those who have waited longest. Nothing more
//! is read from a client before all that it sent is handled.
//! Nodes are not bounded: what they send is what keeps the cluster alive, and their protocols bound
//! it. Nor are this process's own workers, who bound what they have under way themselves.

use std::collections::{BTreeSet, VecDeque};

use amalgam_cluster::chunks::ChunkStore;
use amalgam_cluster::wire::{FrameSource, Packet};

use super::EventLoop;
use crate::connection::Role;

/// Requests and operations of one client that are handled in a turn. A request with more operations
/// is handled whole.
const OPERATIONS_A_CLIENT: usize = 1_024;
/// Requests and operations of all clients that are handled in a turn.
const OPERATIONS_A_TURN: usize = 8 * OPERATIONS_A_CLIENT;
/// Bytes of values that requests of one client copy in a turn, apart from one request: a few bytes
/// may ask for a megabyte, or add to one.
const COPIED_BYTES_A_CLIENT: usize = 1 << 20;
/// Bytes of values that requests of all clients copy in a turn, apart from one request.
const COPIED_BYTES_A_TURN: usize = 8 * COPIED_BYTES_A_CLIENT;

/// What is left of a turn for clients, and who waits for the next one.
#[derive(Debug, Default)]
pub(super) struct ClientShare {
    operations_left: usize,
    copied_bytes_left: usize,
    /// Clients that wait, in the order in which they go on. Some may have been closed since.
    order: VecDeque<u64>,
    waiting: BTreeSet<u64>,
    /// Clients that have waited and went on in this turn.
    went_on: BTreeSet<u64>,
}

impl ClientShare {
    /// Begins a turn.
    pub(super) fn begin_turn(&mut self) {
        self.operations_left = OPERATIONS_A_TURN;
        self.copied_bytes_left = COPIED_BYTES_A_TURN;
        self.went_on.clear();
    }

    /// Whether nothing more is handled for clients in this turn.
    fn is_spent(&self) -> bool {
        self.operations_left == 0 || self.copied_bytes_left == 0
    }

    /// Deducts what a client's request has copied.
    pub(super) fn charge_copy(&mut self, bytes: usize) {
        self.copied_bytes_left = self.copied_bytes_left.saturating_sub(bytes);
    }

    /// Has a client wait behind all that wait already.
    fn wait(&mut self, number: u64) {
        if self.waiting.insert(number) {
            self.order.push_back(number);
        }
    }

    /// Takes a client that goes on.
    fn take(&mut self) -> Option<u64> {
        loop {
            let number = self.order.pop_front()?;
            if self.waiting.remove(&number) {
                self.went_on.insert(number);
                return Some(number);
            }
        }
    }

    /// Forgets a client that was closed.
    pub(super) fn remove(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Whether to read from a client with bytes that wait. If not, it goes on in a later turn.
    pub(super) fn may_read(&mut self, number: u64) -> bool {
        if self.is_spent() {
            self.wait(number);
        }
        !self.waiting.contains(&number) && !self.went_on.contains(&number)
    }
}

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
        let bytes_before = self.client_share.copied_bytes_left;
        loop {
            let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
            let sender = match connection.role {
                Role::Peer(_) => FrameSource::Node,
                Role::Client { .. } | Role::Unauthenticated(_) => FrameSource::Client,
            };
            let is_client = matches!(connection.role, Role::Client { .. });
            let copied_bytes = bytes_before - self.client_share.copied_bytes_left;
            let is_used_up = operations >= OPERATIONS_A_CLIENT
                || copied_bytes >= COPIED_BYTES_A_CLIENT
                || self.client_share.is_spent();
            if is_client && (is_used_up || connection.is_backlogged()) {
                self.client_share.wait(number);
                return Ok(());
            }
            let frame = connection.frames.next_frame_of(sender);
            let frame = frame.map_err(|error| error.to_string())?;
            let Some((request, packet)) = frame else { return Ok(()) };
            match connection.role {
                Role::Peer(peer) => self.on_node_packet(peer, packet),
                Role::Client { .. } => {
                    let weight = weight(&packet);
                    operations += weight;
                    let left = &mut self.client_share.operations_left;
                    *left = left.saturating_sub(weight);
                    self.on_client_packet(number, request, packet);
                }
                Role::Unauthenticated(_) => {
                    return Err("a packet came before the handshake".to_owned());
                }
            }
        }
    }

    /// Goes on with clients that wait since an earlier turn: with what they sent, or, if that is
    /// handled, by reading from them.
    pub(super) fn go_on_with_clients(&mut self) {
        for _ in 0..self.client_share.waiting.len() {
            if self.client_share.is_spent() {
                return;
            }
            let Some(number) = self.client_share.take() else { return };
            let left = self.client_share.operations_left;
            match self.on_frames(number) {
                Ok(()) => self.charge(number),
                Err(error) => self.reject(number, &error),
            }
            let has_begun = self.client_share.operations_left < left;
            if !has_begun && !self.client_share.waiting.contains(&number) {
                self.read(number);
            }
        }
    }

    /// Whether a client waits that takes its answers. One that does not is gone on with once its
    /// socket takes more.
    pub(super) fn may_go_on_with_clients(&self) -> bool {
        let mut waiting = self.client_share.waiting.iter();
        waiting.any(|number| {
            self.connections.get(number).is_some_and(|connection| !connection.is_backlogged())
        })
    }
}

#[cfg(test)]
mod tests;
