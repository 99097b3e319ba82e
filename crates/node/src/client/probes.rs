//! How a client finds silent nodes, and notices that they are back.

use std::time::{Duration, Instant};

use amalgam_cluster::client::{Completion, OutgoingRequest};
use amalgam_cluster::overlay::{OverlayCommand, Peer};
use amalgam_cluster::wire::{Control, Packet};

use super::ClusterClient;
use crate::clock::boot_ms;
use crate::silence::Deadlines;

/// See [`ClusterClient::probe_silent`]: enough for the round trips that open a connection.
const PROBE_WAIT: Duration = Duration::from_millis(5);
const PROBE_WAIT_EVERY_MS: u64 = 300;

impl ClusterClient {
    /// Whether operations on keys of this node fail at once.
    pub(super) fn is_silent(&self, peer: Peer) -> bool {
        let deadlines = self.deadlines.as_ref();
        deadlines.is_some_and(|deadlines| deadlines.silent.has(peer))
    }

    /// Looks whether silent nodes are back. Waits for them, but only [`PROBE_WAIT`] in
    /// [`PROBE_WAIT_EVERY_MS`]: without a wait, a client with few requests would never complete a
    /// handshake.
    pub(super) fn probe_silent(
        &mut self,
        commands: &mut Vec<OverlayCommand>,
        asked: &mut Vec<OutgoingRequest>,
        completions: &mut Vec<Completion>,
    ) {
        let Some(deadlines) = self.deadlines.as_ref().filter(|all| !all.silent.is_empty()) else {
            return;
        };
        let (now_ms, silent) = (boot_ms(), deadlines.silent.all());
        self.backoff_until_ms.retain(|_, until_ms| *until_ms > now_ms);
        let mut connected = Vec::new();
        for peer in silent {
            let Some(connection) = self.connections.get_mut(&peer) else {
                self.dial(peer);
                continue;
            };
            if connection.in_flight == 0 {
                connection.push(0, &Packet::Control(Control::GetStatus));
                connection.restart_silence();
            }
            match connection.send() {
                Ok(()) => connected.push(peer),
                Err(_) => self.lose(peer),
            }
        }
        let mut end = Instant::now();
        if now_ms >= self.next_probe_wait_ms {
            self.next_probe_wait_ms = now_ms + PROBE_WAIT_EVERY_MS;
            end += PROBE_WAIT;
        }
        loop {
            connected.retain(|peer| self.connections.contains_key(peer) && self.is_silent(*peer));
            let patience = end.saturating_duration_since(Instant::now());
            for peer in self.wait(connected.clone(), patience) {
                self.read(peer, commands, asked, completions);
            }
            let is_done = self.deadlines.as_ref().is_none_or(|all| all.silent.is_empty());
            if is_done || Instant::now() >= end {
                break;
            }
        }
        // Silence is checked after reading: answers may have waited in the sockets.
        for peer in connected {
            let connection = self.connections.get_mut(&peer);
            if connection.is_some_and(|connection| !connection.is_alive(now_ms)) {
                self.lose(peer);
            }
        }
        self.give_up_late_dials(now_ms);
    }

    /// Gives up the operations of nodes that are silent for too long.
    pub(super) fn note_silence(&mut self, now_ms: u64, completions: &mut Vec<Completion>) {
        let Some(Deadlines { silent_ms, silent, .. }) = &self.deadlines else { return };
        for (peer, connection) in &mut self.connections {
            if connection.silent_ms(now_ms) >= *silent_ms {
                if silent.change(|silent| silent.insert(*peer)) {
                    log::warn!(
                        node = peer.node.get(), silent_ms;
                        "a node makes no progress: requests for its keys fail until it does"
                    );
                }
                self.client.on_silent(*peer, completions);
            }
        }
    }

    /// Something of a node has arrived.
    pub(super) fn note_progress(&self, peer: Peer) {
        if self.is_silent(peer)
            && let Some(deadlines) = &self.deadlines
        {
            log::info!(node = peer.node.get(); "a node makes progress again");
            deadlines.silent.change(|silent| silent.remove(&peer));
        }
    }
}
