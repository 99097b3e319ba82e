//! A node as the world runs it, and the node whose client runs a workload.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{Action, ChunkError, ChunkStore, ClientId, Response};
use amalgam_cluster::ids::NodeId;
use amalgam_cluster::node::{Node, NodeCommand, NodeSettings};
use amalgam_cluster::overlay::{OverlaySettings, Peer, SuperPeer, View};
use amalgam_cluster::ranges::LIMIT_BYTES_MIN;
use amalgam_cluster::replication::{RecoveredState, ReplicaStore};
use amalgam_cluster::shard::ChunkSettings;
use amalgam_cluster::wire::Packet;

use crate::mutants::Mutant;
use crate::observations::Observations;
use crate::random::Random;

/// Interval of a node's ticks.
pub(crate) const TICK_MS: u64 = 25;
/// With [`Mutant::RepeatsUnanswered`] clients repeat what is not answered for this long.
const REPEATED_MS: u64 = 200;

/// A node with its workload.
pub trait NodeProcess: Sized {
    /// Starts a node in a new incarnation.
    fn start(
        peer: Peer,
        supers: Vec<Peer>,
        settings: OverlaySettings,
        observed: &mut Observations,
    ) -> Self;

    /// Its state as a super peer.
    fn super_peer(&self) -> &SuperPeer;

    /// Requests of its client that are not answered.
    fn waiting(&self) -> usize;

    /// Whether a failover to this node is under way.
    fn is_recovering(&self) -> bool {
        false
    }

    /// Whether it forgot items of which it is a backup.
    fn has_forgotten(&self) -> bool {
        false
    }

    /// Its lease was renewed.
    fn set_deadline(&mut self, deadline_ms: u64);

    /// Handles a new view of the coordinator.
    fn on_view(&mut self, view: &View, out: &mut Vec<NodeCommand>);

    /// Handles a packet.
    fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        observed: &mut Observations,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    );

    /// Runs threads of the node that do not wait for its own, which runs afterwards: after a pause
    /// they may run before it learns that its lease has ended.
    fn run_threads(
        &mut self,
        observed: &mut Observations,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let _ = (observed, now_ms, out);
    }

    /// Advances the node's clock to `now_ms`.
    fn on_tick(&mut self, observed: &mut Observations, now_ms: u64, out: &mut Vec<NodeCommand>);

    /// Sends what was batched, after a batch of packets.
    fn flush(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let _ = (now_ms, out);
    }

    /// Lets the client start random operations, which may not be possible.
    fn work(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    );
}

/// The workload of a [`WorkloadNode`]'s client.
pub trait Workload: Sized {
    /// The chunk store of the node.
    type Store: ChunkStore;

    /// Creates the workload and the store of its node; may adapt the node's settings.
    fn open(settings: &mut NodeSettings, observed: &Observations) -> (Self, Self::Store);

    /// Opens the node's replica store, with what earlier incarnations left there; None without
    /// backups.
    fn replica_store(
        peer: Peer,
        observed: &mut Observations,
    ) -> Option<(ReplicaStore, RecoveredState)> {
        let _ = (peer, observed);
        None
    }

    /// Takes the result of an operation of `client`: `begun` is the action and when it began.
    fn observe(
        &mut self,
        observed: &mut Observations,
        client: Peer,
        begun: (Action, u64),
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    );

    /// Runs threads of the node that do not wait for its own; see [`NodeProcess::run_threads`].
    fn run_threads(
        host: &mut WorkloadNode<Self>,
        observed: &mut Observations,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let _ = (host, observed, now_ms, out);
    }

    /// Starts random operations.
    fn work(
        host: &mut WorkloadNode<Self>,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    );
}

/// A node whose client runs a workload.
#[derive(Debug)]
pub struct WorkloadNode<W: Workload> {
    pub(crate) peer: Peer,
    pub(crate) node: Node<W::Store>,
    /// Operations in flight: the action and when it began.
    pub(crate) in_flight: BTreeMap<u64, (Action, u64)>,
    pub(crate) workload: W,
    true_ms: u64,
    /// Items that it had forgotten at its last tick.
    forgotten: u64,
}

impl<W: Workload> WorkloadNode<W> {
    /// The node.
    pub fn node(&self) -> &Node<W::Store> {
        &self.node
    }

    /// Tells the node the rack of each node.
    pub fn set_racks(&mut self, racks: BTreeMap<NodeId, String>) {
        self.node.set_racks(racks);
    }

    /// Starts an operation of the client.
    pub fn submit(&mut self, action: Action, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let number = self.node.submit(action.clone(), now_ms, out);
        self.in_flight.insert(number, (action, self.true_ms));
    }

    /// Takes the result of an operation of the client; `begun` is the action and when it began.
    pub(crate) fn ends(
        &mut self,
        observed: &mut Observations,
        begun: (Action, u64),
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    ) {
        observed.recorder.ends(self.peer, &begun.0, begun.1, result, now_ms);
        self.workload.observe(observed, self.peer, begun, result, now_ms);
    }

    fn observe(&mut self, observed: &mut Observations, effects: &[NodeCommand]) {
        let now_ms = observed.true_ms;
        for effect in effects {
            let NodeCommand::Completed(number, result) = effect else { continue };
            let Some(begun) = self.in_flight.remove(number) else { continue };
            if observed.mutant == Mutant::RepeatsUnanswered {
                self.in_flight.retain(|_, other| *other != begun);
            }
            self.ends(observed, begun, result, now_ms);
        }
    }

    /// Applies [`Mutant::RepeatsUnanswered`]; `now_ms` is the time on the node's clock.
    fn repeat_unanswered(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let (late_ms, true_ms) = (REPEATED_MS..REPEATED_MS + TICK_MS, self.true_ms);
        let is_late = |(action, began_ms): &&(Action, u64)| {
            action.changes() && late_ms.contains(&true_ms.saturating_sub(*began_ms))
        };
        for begun in self.in_flight.values().filter(is_late).cloned().collect::<Vec<_>>() {
            let number = self.node.submit(begun.0.clone(), now_ms, out);
            self.in_flight.insert(number, begun);
        }
    }
}

impl<W: Workload> NodeProcess for WorkloadNode<W> {
    fn start(
        peer: Peer,
        supers: Vec<Peer>,
        overlay: OverlaySettings,
        observed: &mut Observations,
    ) -> Self {
        let chunks = ChunkSettings {
            claim_ids: 300,
            low_ids: 100,
            load_ids: 130,
            ..ChunkSettings::default()
        };
        let cache_bytes = LIMIT_BYTES_MIN;
        let mut settings = NodeSettings { overlay, chunks, partition_step: 0, cache_bytes };
        let (workload, store) = W::open(&mut settings, observed);
        let client = ClientId(u64::from(peer.node.get()) << 32 | u64::from(peer.incarnation));
        let mut node = Node::new(peer, settings, supers, client, store);
        if let Some((replica_store, recovered)) = W::replica_store(peer, observed) {
            node.resume(replica_store, &recovered, &mut || ());
        }
        if !observed.scale.racks.is_empty() {
            node.set_racks(observed.scale.racks.clone());
        }
        let (in_flight, true_ms, forgotten) = (BTreeMap::new(), observed.true_ms, 0);
        Self { peer, node, in_flight, workload, true_ms, forgotten }
    }

    fn super_peer(&self) -> &SuperPeer {
        self.node.super_peer()
    }

    fn waiting(&self) -> usize {
        self.in_flight.len()
    }

    fn is_recovering(&self) -> bool {
        self.node.chunks().failovers() > 0
    }

    fn has_forgotten(&self) -> bool {
        self.node.replica_store().is_some_and(|replica_store| replica_store.forgotten() > 0)
    }

    fn set_deadline(&mut self, deadline_ms: u64) {
        self.node.set_deadline(deadline_ms);
    }

    fn on_view(&mut self, view: &View, out: &mut Vec<NodeCommand>) {
        self.node.on_view(view, out);
    }

    fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        observed: &mut Observations,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        self.true_ms = observed.true_ms;
        let (mut looks, stall_ms) = (0, observed.stall_ms);
        // The node reads the clock when the packet arrives, before the work and after it; a stall
        // lies before the last.
        let mut clock = || {
            looks += 1;
            if looks > 2 { now_ms + stall_ms } else { now_ms }
        };
        self.node.on_packet(from, packet, &mut clock, out);
        self.observe(observed, out);
    }

    fn on_tick(&mut self, observed: &mut Observations, now_ms: u64, out: &mut Vec<NodeCommand>) {
        self.true_ms = observed.true_ms;
        self.node.on_tick(now_ms, out);
        self.observe(observed, out);
        let forgotten = self.node.replica_store().map_or(0, ReplicaStore::forgotten);
        if forgotten > self.forgotten {
            let more = forgotten - std::mem::replace(&mut self.forgotten, forgotten);
            observed.coverage.record_times("an item forgotten by a backup", more);
        }
        if observed.mutant == Mutant::RepeatsUnanswered {
            self.repeat_unanswered(now_ms, out);
        }
    }

    fn run_threads(
        &mut self,
        observed: &mut Observations,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        self.true_ms = observed.true_ms;
        W::run_threads(self, observed, now_ms, out);
    }

    fn flush(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        self.node.flush(now_ms, out);
    }

    fn work(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        W::work(self, observed, random, now_ms, out);
    }
}
