//! What a node tells clients and operators about itself.

use std::time::Instant;

use amalgam_cluster::chunks::ChunkStore;
use amalgam_cluster::overlay::{Message, Peer};
use amalgam_cluster::replication::ReplicaStore;
use amalgam_cluster::wire::{Control, NodeStatus, OwnedRange, Packet};

use super::EventLoop;
use crate::clock::boot_ms;
use crate::connection::{Connection, Role};
use crate::report::NodeReport;

impl<S: ChunkStore> EventLoop<S> {
    /// What the node shows of itself now.
    pub(super) fn report(&mut self) -> NodeReport {
        let status = self.status();
        let chunks = self.node.chunks();
        let backlogs = chunks.replication().backlogs();
        let round_trips = self.round_trips.all(Instant::now());
        let forgotten = self.node.replica_store().map_or(0, ReplicaStore::forgotten);
        NodeReport { status, failovers: chunks.failover_stages(), backlogs, forgotten, round_trips }
    }

    /// Starts the clock if this packet is a probe. What waits for a handshake is not measured.
    pub(super) fn begin_round_trip(&mut self, to: Peer, number: u64, packet: &Packet) {
        let is_probe = matches!(packet, Packet::Overlay(Message::Probe { .. }));
        let connection = self.connections.get(&number).filter(|_| is_probe);
        if connection.is_some_and(|one| matches!(one.role, Role::Peer(_))) {
            self.round_trips.ask(to, Instant::now());
        }
    }

    /// Stops the clock if this connection may have had a probe or its answer.
    pub(super) fn interrupt_round_trip(&mut self, closed: &Connection) {
        if let Role::Peer(peer) = closed.role {
            self.round_trips.interrupt(peer);
        }
    }

    /// The answer to a question about this node; None if it knows none.
    pub(super) fn about_node(&mut self, question: &Control) -> Option<Control> {
        let chunks = self.node.chunks();
        Some(match question {
            Control::GetStatus => Control::Status(Box::new(self.status())),
            Control::GetClock => Control::Clock(boot_ms()),
            Control::GetMemory => Control::Memory(self.state.memory()),
            Control::LocateItem(key) => Control::ItemLocation(chunks.item_id(key)?),
            Control::GetOwnership(id) => {
                Control::Ownership(chunks.around(*id).map(|(ids, epoch)| {
                    let replicas = chunks.replication().lag(*id);
                    OwnedRange { ids, epoch, replicas }
                }))
            }
            _ => return None,
        })
    }

    fn status(&mut self) -> NodeStatus {
        let chunks = self.node.chunks();
        let catalog = self.node.super_peer().catalog();
        let ((partitions, ids, spans), ranges) = self.counts.get(Instant::now, || {
            let ranges = (catalog.all_ranges().count(), catalog.summaries().count());
            (chunks.holdings(), (ranges.0 as u64, ranges.1 as u64))
        });
        let (outgoing, incoming) = chunks.moves();
        NodeStatus {
            peer: self.me,
            members: self.snapshot.members().map(|(peer, at)| (peer, at.to_owned())).collect(),
            supers: self.snapshot.view.supers().collect(),
            revision: self.snapshot.view.revision,
            flushes: self.state.clock.flushes(),
            partitions,
            ids,
            spans,
            ranges,
            moves: (outgoing as u64, incoming as u64),
            backups: chunks.replication().configured_backups() as u64,
            reduced: (chunks.replication().counts().0 as u64, chunks.failovers() as u64),
            kept: self
                .node
                .replica_store()
                .map_or(0, |replica_store| replica_store.counts().0 as u64),
            lease_left_ms: self.state.deadline_ms().saturating_sub(boot_ms()),
            rate: chunks.load_balancer().rate(),
            hot_moves: chunks.load_balancer().moved(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Whether a client is an operator: it has proved the operator token or, if there is none, is
    /// on this machine.
    pub(super) fn may_operate(&self, number: u64) -> bool {
        let Some(connection) = self.connections.get(&number) else { return false };
        let ends = connection.socket.peer_addr().ok().zip(connection.socket.local_addr().ok());
        let is_here = ends.is_some_and(|(from, to)| from.ip() == to.ip());
        let has_proved = matches!(connection.role, Role::Client { is_operator: true });
        has_proved || !self.identity.has_operator() && is_here
    }
}
