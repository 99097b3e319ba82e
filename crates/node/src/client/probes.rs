//! How a client finds silent nodes, and notices that they are back.

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{Control, Packet};

use super::ClusterClient;
use crate::clock::boot_ms;
use crate::silence::Deadlines;

impl ClusterClient {
    /// Whether operations on keys of this node fail at once.
    pub(super) fn is_silent(&self, peer: Peer) -> bool {
        let deadlines = self.deadlines.as_ref();
        deadlines.is_some_and(|deadlines| deadlines.silent.has(peer))
    }

    /// Asks silent nodes whether they are back.
    pub(super) fn probe_silent(&mut self) {
        let Some(deadlines) = self.deadlines.as_ref().filter(|all| !all.silent.is_empty()) else {
            return;
        };
        let silent_ms = deadlines.silent_ms;
        for peer in deadlines.silent.all() {
            if let Some(own) = self.own.as_ref().filter(|own| own.peer == peer) {
                if own.stalled_ms(boot_ms()) < silent_ms {
                    self.note_progress(peer);
                }
                continue;
            }
            let Some(connection) = self.connections.get_mut(&peer) else {
                self.dial(peer);
                continue;
            };
            if connection.in_flight == 0 {
                connection.push(0, &Packet::Control(Control::GetStatus));
                connection.restart_silence();
                self.send(peer);
            }
        }
    }

    /// Gives up the operations of nodes that are silent for too long.
    pub(super) fn note_silence(&mut self, now_ms: u64) {
        let Some(Deadlines { silent_ms, silent, .. }) = &self.deadlines else { return };
        let own = self.own.iter().map(|own| (own.peer, own.silent_ms(now_ms)));
        let others = self.connections.iter();
        let others = others.map(|(peer, connection)| (*peer, connection.silent_ms(now_ms)));
        for (peer, _) in own.chain(others).filter(|(_, for_ms)| for_ms >= silent_ms) {
            if silent.fell_silent(peer, now_ms) {
                log::warn!(
                    node = peer.node.get(), silent_ms;
                    "a node makes no progress: requests for its keys fail until it does"
                );
            }
            self.client.on_silent(peer, &mut self.completions);
        }
    }

    /// Something of a node has arrived.
    pub(super) fn note_progress(&self, peer: Peer) {
        if self.is_silent(peer)
            && let Some(deadlines) = &self.deadlines
            && deadlines.silent.progressed(peer)
        {
            log::info!(node = peer.node.get(); "a node makes progress again");
        }
    }
}
