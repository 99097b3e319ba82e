//! The world: runs nodes, a coordinator and a network against each other.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use amalgam_cluster::chunks::Action;
use amalgam_cluster::coordinator::{Coordinator, CoordinatorError, Proposal};
use amalgam_cluster::ids::{ChunkId, Creator, NodeId};
use amalgam_cluster::node::NodeCommand;
use amalgam_cluster::overlay::{
    Change, Edit, Message, OverlayEvent, OverlaySettings, Peer, RequestId, SuperPeer, View,
    position,
};
use amalgam_cluster::replication::ReplicationMessage;
use amalgam_cluster::wire::{Packet, Wire};

use crate::coverage::{self, RaceDetector};
use crate::disk::Disk;
use crate::event_queue::EventQueue;
use crate::faults::Faults;
use crate::item_workload::ItemWorkload;
use crate::metadata_workload::{IDS, MetadataNode};
use crate::mutants::{LastReads, Mutant, as_if_same, as_if_stored, mutate};
use crate::network::{Partition, arrivals};
use crate::node_process::{NodeProcess, TICK_MS, Workload, WorkloadNode};
use crate::observations::Observations;
use crate::random::Random;

mod durability_check;
mod hanging_disks;
mod mutated_coordinator;
mod scale;
mod total_loss;
mod voting;

/// Length of a lease in milliseconds.
const LEASE_MS: u64 = 2_000;
/// All nodes stop for the first time within this time after the start, and again within it.
const POWER_MS: u64 = 40_000;
/// A node whose disk hangs for longer does not renew its lease.
const STUCK_MS: u64 = LEASE_MS / 4;

#[derive(Debug)]
struct Node<P> {
    peer: Peer,
    process: P,
    keep_alive_ms: u64,
    /// The true time at which it stops to answer, as its lease was renewed last.
    deadline_ms: u64,
    /// Time until which the node is paused.
    paused_until_ms: u64,
    /// Its clock is ahead by `ahead_ms`, and runs faster by `faster` in a thousand.
    ahead_ms: u64,
    faster: u64,
}

impl<P> Node<P> {
    /// The time on its clock.
    fn clock(&self, now_ms: u64) -> u64 {
        now_ms + self.ahead_ms + now_ms * self.faster / 1_000
    }
}

#[derive(Debug)]
enum Event {
    /// Packets travel as bytes.
    PacketArrives {
        from: Peer,
        to: Peer,
        bytes: Box<[u8]>,
    },
    ViewArrives {
        to: Peer,
        view: Rc<View>,
    },
    ProposalArrives(Proposal),
    Tick(Peer),
    NodeStarts(String),
    InjectFault,
    CoordinatorReturns,
    DiskReturns(NodeId),
    /// All nodes stop.
    ClusterStops,
}

/// A cluster, its network and its workload.
#[derive(Debug)]
pub struct World<P> {
    now_ms: u64,
    random: Random,
    settings: OverlaySettings,
    faults: Faults,
    /// Whether faults are drawn at random.
    draws_faults: bool,
    mutant: Mutant,
    last_reads: LastReads,
    /// The view before the last one and the last one, for [`Mutant::RestoresOldView`].
    last_views: [View; 2],
    queue: EventQueue<Event>,
    coordinator: Coordinator,
    sent_revision: u64,
    /// Nodes learn of views no more often than this, and when they may again.
    view_interval_ms: u64,
    next_views_ms: u64,
    /// When leases were last looked at.
    expired_ms: u64,
    /// Running processes. Two may run under one name: one that has lost its lease without knowing
    /// it, and its successor.
    nodes: BTreeMap<Peer, Node<P>>,
    partition: Partition,
    voting: voting::Voting,
    names: BTreeMap<Peer, String>,
    /// The node that will stall while it handles its next packet, and for how long.
    stalling: Option<(Peer, u64)>,
    /// Whether the coordinator does not answer.
    is_coordinator_away: bool,
    /// The last incarnations when all nodes stopped, while some of their state exists only in logs.
    unrecovered: BTreeMap<NodeId, u32>,
    /// Whether a node crashed alone since.
    crashed_alone: bool,
    race_detector: RaceDetector,
    /// The node whose disk rots, and the random numbers for it.
    rotting_node: Option<NodeId>,
    rot_random: Random,
    /// Random numbers for disks that hang.
    hang_random: Random,
    /// Peers in replica sets that were asked for and may still be committed.
    pending_sets: BTreeMap<(Creator, RequestId), Vec<Peer>>,
    /// Buffer for the packet that is being sent.
    encoded: Vec<u8>,
    /// Whether faults spare the last holder of a range; set where there are backups.
    pub spares_last_holder: bool,
    /// Shared observations.
    pub observed: Observations,
    /// Crashes so far.
    pub crashes: u64,
}

impl<P: NodeProcess> World<P> {
    /// A cluster of `nodes` nodes that start within a second.
    pub fn new(seed: u64, nodes: usize, faults: Faults, mutant: Mutant) -> Self {
        let mut settings = OverlaySettings { lease_ms: LEASE_MS, ..OverlaySettings::default() };
        if faults.one_way {
            settings.silence_ms = voting::SILENCE_MS;
        }
        let mut world = Self {
            now_ms: 0,
            random: Random::new(seed),
            settings,
            faults,
            draws_faults: true,
            mutant,
            last_reads: LastReads::default(),
            last_views: Default::default(),
            queue: EventQueue::default(),
            coordinator: Coordinator::new(settings, LEASE_MS),
            sent_revision: 0,
            view_interval_ms: 0,
            next_views_ms: 0,
            expired_ms: 0,
            nodes: BTreeMap::new(),
            partition: Partition::default(),
            voting: voting::Voting::default(),
            names: BTreeMap::new(),
            stalling: None,
            is_coordinator_away: false,
            unrecovered: BTreeMap::new(),
            crashed_alone: false,
            race_detector: RaceDetector::default(),
            rotting_node: None,
            rot_random: Random::new(!seed),
            hang_random: Random::new(seed.rotate_left(32)),
            pending_sets: BTreeMap::new(),
            encoded: Vec::new(),
            spares_last_holder: faults.worst,
            observed: Observations { mutant, ..Observations::default() },
            crashes: 0,
        };
        for number in 0..nodes {
            let at_ms = world.random.below(1_000);
            world.queue.schedule(at_ms, Event::NodeStarts(format!("node-{number}")));
        }
        world.queue.schedule(1_000, Event::InjectFault);
        world.observed.oracle.has_hangs = faults.hangs;
        if faults.rot {
            world.rotting_node = NodeId::new((seed % nodes as u64) as u16).ok();
            world.observed.oracle.has_rot = true;
        }
        if faults.power {
            world.observed.is_synced = world.random.percent(50);
            let at_ms = 5_000 + world.random.below(POWER_MS);
            world.queue.schedule(at_ms, Event::ClusterStops);
        }
        world
    }

    /// Runs for `for_ms` milliseconds of simulated time.
    pub fn run(&mut self, for_ms: u64) {
        let until_ms = self.now_ms + for_ms;
        while let Some((at_ms, event)) = self.queue.pop_until(until_ms) {
            self.now_ms = at_ms;
            self.observed.true_ms = at_ms;
            self.handle(event);
            if !self.is_coordinator_away && self.expired_ms != at_ms {
                self.coordinator.expire(at_ms);
                self.expired_ms = at_ms;
            }
            self.send_views();
        }
        self.now_ms = until_ms;
        self.observed.true_ms = until_ms;
    }

    /// Stops faults and workload, and lets operations in flight complete.
    pub fn settle(&mut self) {
        let Faults { worst, power, .. } = self.faults;
        self.faults = Faults { worst, power, ..Faults::NONE };
        self.restore_coordinator();
        self.partition = Partition::default();
        self.voting.cut = None;
        self.observed.disks.values_mut().for_each(Disk::release);
        self.observed.is_settling = true;
        self.run(10_000);
        if self.is_recovering_all() {
            self.run(5_000);
        }
    }

    fn handle(&mut self, event: Event) {
        let now_ms = self.now_ms;
        match event {
            Event::NodeStarts(name) if self.is_coordinator_away => {
                self.queue.schedule(self.now_ms + 100, Event::NodeStarts(name));
            }
            Event::NodeStarts(name) => self.start(&name),
            Event::Tick(peer) => self.tick(peer),
            Event::InjectFault => self.fault(),
            Event::CoordinatorReturns => self.restore_coordinator(),
            Event::DiskReturns(node) => self.release_disk(node),
            Event::ClusterStops => self.stop_all(),
            Event::ProposalArrives(_) if self.is_coordinator_away => {}
            Event::ProposalArrives(proposal) => self.decide(&proposal),
            Event::ViewArrives { to, view } => {
                let mut out = Vec::new();
                if let Some(node) = self.running(to) {
                    if node.paused_until_ms > now_ms {
                        let at_ms = node.paused_until_ms;
                        return self.queue.schedule(at_ms, Event::ViewArrives { to, view });
                    }
                    let local_ms = node.clock(now_ms);
                    node.process.on_view(&view, &mut out);
                    node.process.flush(local_ms, &mut out);
                }
                self.execute(to, out);
            }
            Event::PacketArrives { from, to, bytes } => self.arrive(from, to, bytes),
        }
    }

    /// The node, if this incarnation is running.
    fn running(&mut self, peer: Peer) -> Option<&mut Node<P>> {
        self.nodes.get_mut(&peer)
    }

    fn start(&mut self, name: &str) {
        if self.mutant == Mutant::ReusedIncarnation {
            self.reuse_incarnation(name);
        }
        if self.mutant == Mutant::JoinsOverLiveIncarnation
            && let Some(last) = self.coordinator.names().get(name).copied()
        {
            self.coordinator.end(last);
        }
        let peer = match self.coordinator.join(name, self.now_ms) {
            Ok(peer) => peer,
            Err(error) => {
                assert_eq!(error, CoordinatorError::Alive, "there is room");
                return self.wait_for_lease(name);
            }
        };
        if self.processes_of(peer.node).next().is_some() {
            // Its predecessor uses the disk: it has an empty one.
            self.observed.disks.remove(&peer.node);
            self.crashed_alone = true;
            self.observed.coverage.record("a process that started while its predecessor ran");
        }
        let supers = self.coordinator.view().supers().collect();
        let process = P::start(peer, supers, self.settings, &mut self.observed);
        let before = self.unrecovered.get(&peer.node);
        self.crashed_alone |= before.is_some_and(|last| peer.incarnation > last + 1);
        let (mut ahead_ms, mut faster) = (0, 0);
        if self.faults.worst {
            (ahead_ms, faster) = (self.random.below(100_000), self.random.below(5));
        }
        let (keep_alive_ms, deadline_ms, paused_until_ms) = (0, 0, 0);
        let node =
            Node { peer, process, keep_alive_ms, deadline_ms, paused_until_ms, ahead_ms, faster };
        coverage::started(peer, self.observed.oracle.truth(), &mut self.observed.coverage);
        self.observed.peers.push(peer);
        self.names.insert(peer, name.to_owned());
        self.nodes.insert(peer, node);
        self.queue.schedule(self.now_ms + 1, Event::Tick(peer));
        self.sent_revision = 0;
    }

    /// The processes that run under the name of a node, older incarnations first.
    fn processes_of(&self, node: NodeId) -> impl Iterator<Item = &Node<P>> {
        self.nodes.values().filter(move |running| running.peer.node == node)
    }

    /// A process may not join yet under this name. It tries again unless another one runs.
    fn wait_for_lease(&mut self, name: &str) {
        let last = self.coordinator.names()[name];
        if self.nodes.contains_key(&last) {
            return self.observed.coverage.record("a second process under a live node's name");
        }
        self.queue.schedule(self.now_ms + 100, Event::NodeStarts(name.to_owned()));
    }

    /// Sends a new view to all nodes, with delays.
    fn send_views(&mut self) {
        let is_known = self.coordinator.view().revision == self.sent_revision;
        if is_known || self.now_ms < self.next_views_ms {
            return;
        }
        self.next_views_ms = self.now_ms + self.view_interval_ms;
        let view = Rc::new(self.coordinator.view().clone());
        self.sent_revision = view.revision;
        self.note_view(&view);
        self.check_removed();
        let paused = self.nodes.values().filter(|node| node.paused_until_ms > self.now_ms);
        let paused: BTreeSet<Peer> = paused.map(|node| node.peer).collect();
        self.race_detector.viewed(&view, &paused, &mut self.observed.coverage);
        for to in self.nodes.values().map(|node| node.peer).collect::<Vec<_>>() {
            let most = if self.random.percent(10) { 600 } else { 30 };
            let at_ms = self.now_ms + 1 + self.random.below(most);
            self.queue.schedule(at_ms, Event::ViewArrives { to, view: Rc::clone(&view) });
        }
    }

    fn arrive(&mut self, from: Peer, to: Peer, bytes: Box<[u8]>) {
        let now_ms = self.now_ms;
        let mutant = match self.mutant {
            Mutant::CommitsWithoutMajority if self.faults.network.lost_percent == 0 => Mutant::None,
            mutant => mutant,
        };
        let Some(node) = self.nodes.get(&to) else {
            return;
        };
        if node.paused_until_ms > now_ms {
            let at_ms = node.paused_until_ms;
            return self.queue.schedule(at_ms, Event::PacketArrives { from, to, bytes });
        }
        self.observed.scale.note_packet((from, to), &bytes, now_ms);
        self.observed.deliver_loads(to);
        let mut packet = Packet::decode_all(&bytes).expect("it was encoded");
        if mutant == Mutant::FormerOwnerAnswers {
            self.last_reads.answer(from, to, &mut packet);
        }
        self.note_answer(from, to, &packet);
        let node = self.nodes.get_mut(&to).expect("it runs");
        let mut out = Vec::new();
        let true_ms = now_ms;
        let now_ms = node.clock(true_ms);
        let stalls = self.stalling.take_if(|(peer, _)| *peer == to);
        let stall_ms = stalls.map_or(0, |(_, stall_ms)| stall_ms);
        self.observed.stall_ms = stall_ms;
        if stall_ms > 0 {
            self.observed.coverage.record("a stall between reading the clock and replying");
        }
        node.paused_until_ms = node.paused_until_ms.max(true_ms + stall_ms);
        let applies = mutant != Mutant::KeepsOldValuesWhenFull || node.process.has_forgotten();
        let mutant = if applies { mutant } else { Mutant::None };
        let packet = mutate(mutant, packet, &mut out, (from, to));
        let Some(packet) = packet else { return self.execute(to, out) };
        match &packet {
            Packet::Overlay(Message::Compare { segment, term, held })
                if mutant == Mutant::ComparesCountsOnly =>
            {
                let (segment, term) = (*segment, *term);
                let held = as_if_same(held, node.process.super_peer().catalog());
                let packet = Packet::Overlay(Message::Compare { segment, term, held });
                node.process.on_packet(from, packet, &mut self.observed, now_ms, &mut out);
            }
            _ => node.process.on_packet(from, packet, &mut self.observed, now_ms, &mut out),
        }
        node.process.flush(now_ms, &mut out);
        self.observed.stall_ms = 0;
        self.execute(to, out);
    }

    fn tick(&mut self, peer: Peer) {
        let now_ms = self.now_ms;
        let Some(node) = self.nodes.get_mut(&peer) else {
            return;
        };
        if node.paused_until_ms > now_ms {
            let at_ms = node.paused_until_ms;
            return self.queue.schedule(at_ms, Event::Tick(peer));
        }
        self.observed.deliver_loads(peer);
        let (mut out, local_ms) = (Vec::new(), node.clock(now_ms));
        node.process.run_threads(&mut self.observed, local_ms, &mut out);
        let is_away = self.is_coordinator_away;
        let hangs_ms = self.observed.disks.get(&peer.node).and_then(|disk| disk.hangs_ms);
        let is_stuck = hangs_ms.is_some_and(|(since_ms, _)| now_ms > since_ms + STUCK_MS);
        if now_ms >= node.keep_alive_ms && !is_away && !is_stuck {
            node.keep_alive_ms = now_ms + LEASE_MS / 6;
            if self.coordinator.keep_alive(peer, now_ms).is_err() {
                // Its lease ended, so it must restart. Once it has stopped it says so, if it may.
                self.restart(peer);
                let _ = self.coordinator.leave(peer);
                return;
            }
            // Subtract what clocks may differ in rate.
            node.deadline_ms = now_ms + LEASE_MS;
            let margin_ms = if self.faults.worst { LEASE_MS / 100 } else { 0 };
            node.process.set_deadline(match self.mutant {
                Mutant::NoFencing => u64::MAX,
                Mutant::DoubleLease => node.clock(now_ms) + 2 * LEASE_MS,
                _ => node.clock(now_ms) + LEASE_MS - margin_ms,
            });
        }
        node.process.on_tick(&mut self.observed, local_ms, &mut out);
        if !self.observed.is_settling {
            node.process.work(&mut self.observed, &mut self.random, local_ms, &mut out);
        }
        node.process.flush(local_ms, &mut out);
        self.queue.schedule(now_ms + TICK_MS, Event::Tick(peer));
        self.execute(peer, out);
    }

    /// Calls a node.
    fn with_node(&mut self, peer: Peer, act: impl FnOnce(&mut P, u64, &mut Vec<NodeCommand>)) {
        let (mut out, now_ms) = (Vec::new(), self.now_ms);
        if let Some(node) = self.running(peer) {
            let local_ms = node.clock(now_ms);
            act(&mut node.process, local_ms, &mut out);
        }
        self.execute(peer, out);
    }

    /// All running nodes.
    pub fn processes(&self) -> impl Iterator<Item = &P> {
        self.nodes.values().map(|node| &node.process)
    }

    /// The super-peer state of all running nodes.
    pub fn super_peers(&self) -> impl Iterator<Item = &SuperPeer> {
        self.nodes.values().map(|node| node.process.super_peer())
    }

    /// Requests that are not answered.
    pub fn waiting(&self) -> usize {
        self.nodes.values().map(|node| node.process.waiting()).sum()
    }

    /// Damages one member of each group: it lacks a range of each creator, at the same version as
    /// its leader. Damaged memory or messages can do that, and the comparison of digests exists to
    /// find it. Returns the number of damaged creators.
    pub fn damage_replicas(&mut self) -> usize {
        let mut damaged = Vec::new();
        for creator in self.observed.oracle.truth().summaries().map(|summary| summary.creator) {
            let group = self.view().groups.get(position(creator));
            let Some([leader, member, ..]) = group.map(|group| &group.members[..]) else {
                continue;
            };
            let held = self.nodes.get(leader).map(|node| node.process.super_peer().catalog());
            let Some(mut snapshot) = held.and_then(|held| held.snapshot(creator)) else { continue };
            if snapshot.ranges.pop().is_some() {
                damaged.push((*leader, *member, snapshot));
            }
        }
        let count = damaged.len();
        for (from, to, snapshot) in damaged {
            let (mut bytes, at_ms) = (Vec::new(), self.now_ms + 1);
            Packet::Overlay(Message::Install { snapshot }).encode(&mut bytes);
            self.queue.schedule(at_ms, Event::PacketArrives { from, to, bytes: bytes.into() });
        }
        count
    }

    /// The coordinator's view.
    pub fn view(&self) -> &View {
        self.coordinator.view()
    }

    fn execute(&mut self, from: Peer, effects: Vec<NodeCommand>) {
        for effect in effects {
            match effect {
                NodeCommand::Send(to, packet) => self.send(from, to, &packet),
                NodeCommand::Propose(proposal) => {
                    self.check_proposal(from, &proposal);
                    for delay_ms in arrivals(self.faults.network, &mut self.random) {
                        let at_ms = self.now_ms + delay_ms;
                        self.queue.schedule(at_ms, Event::ProposalArrives(proposal.clone()));
                    }
                }
                NodeCommand::Log(event) => {
                    self.observed.oracle.on_event(&event);
                    if let OverlayEvent::Committed(creator, version) = event {
                        let edits = self.observed.oracle.edits_of(creator, version);
                        let view = self.coordinator.view();
                        coverage::committed(edits, view, &mut self.observed.coverage);
                    }
                }
                // The node process has seen completions; there are no clients without a node.
                NodeCommand::Completed(..) | NodeCommand::Reply(..) => {}
                NodeCommand::Stop(error) => {
                    self.observed.wrong_answers.push(format!("{from:?} cannot log: {error}"));
                }
            }
        }
    }

    fn send(&mut self, from: Peer, to: Peer, packet: &Packet) {
        if let Packet::Overlay(Message::Change { edit, .. }) = packet {
            self.record_pending_set(edit);
        }
        if !self.partition.lets_through(from, to) || !self.passes_cut(from, to) {
            return;
        }
        self.encoded.clear();
        packet.encode(&mut self.encoded);
        let arrivals = arrivals(self.faults.network, &mut self.random);
        self.race_detector.sent((from, to), packet, arrivals.len(), &mut self.observed.coverage);
        if let (
            Mutant::IgnoredReplicationErrors,
            Packet::Replication(ReplicationMessage::Append { .. }),
            true,
        ) = (self.mutant, packet, arrivals.is_empty())
        {
            let Packet::Replication(message) = packet else { return };
            let mut answer = Vec::new();
            Packet::Replication(as_if_stored(message)).encode(&mut answer);
            let (from, to, bytes) = (to, from, answer.into());
            self.queue.schedule(self.now_ms + 5, Event::PacketArrives { from, to, bytes });
        }
        for delay_ms in arrivals {
            let (at_ms, bytes) = (self.now_ms + delay_ms, self.encoded.as_slice().into());
            self.queue.schedule(at_ms, Event::PacketArrives { from, to, bytes });
        }
    }

    /// From now on the edit may be committed at any time, even after its requester has died. The
    /// backups of new ids count too: a leader reports their loss.
    fn record_pending_set(&mut self, edit: &Edit) {
        let Some(set) = edit.change.replica_set() else { return };
        let has_backups = set.placement.backups().next().is_some();
        if has_backups || !matches!(edit.change, Change::Claim(_)) {
            let asked = (edit.ids.first().creator(), edit.request);
            self.pending_sets.entry(asked).or_insert_with(|| set.peers().collect());
        }
    }

    fn restart(&mut self, peer: Peer) {
        if self.nodes.remove(&peer).is_some_and(|node| node.process.is_recovering()) {
            self.observed.coverage.record("a new owner that died during failover");
        }
        if self.faults.worst && self.processes_of(peer.node).next().is_none() {
            // While others wait for its log, the machine keeps its power.
            let has_power =
                self.random.percent(50) || self.is_recovering_all() && !self.observed.is_synced;
            self.crash_disk(peer.node, has_power);
        }
        let name = self.names[&peer].clone();
        let at_ms = self.now_ms + self.random.below(4_000);
        self.queue.schedule(at_ms, Event::NodeStarts(name));
        self.crashes += 1;
        self.crashed_alone = true;
        self.rot();
    }

    /// Makes the rotting disk rot. It is replaced when its node restarts: damage at the end of a
    /// log would look like a torn write.
    fn rot(&mut self) {
        let Some(node) = self.rotting_node else { return };
        if !self.processes_of(node).any(|_| true) {
            self.observed.disks.remove(&node);
        } else if let Some(disk) = self.observed.disks.get_mut(&node) {
            disk.corrupt(&mut self.rot_random);
        }
    }

    fn crash_disk(&mut self, node: NodeId, has_power: bool) {
        if let Some(disk) = self.observed.disks.get_mut(&node) {
            disk.crash(has_power, &mut self.random);
        }
    }

    /// Stops all nodes, by kill, or by power loss where disks are synced.
    fn stop_all(&mut self) {
        if self.observed.is_settling {
            return;
        }
        self.note_recovered();
        self.crashed_alone |= self.nodes.values().any(|node| !self.view().has(node.peer));
        if !self.is_in_logs() && !self.is_backed_up() {
            return self.queue.schedule(self.now_ms + 20, Event::ClusterStops);
        }
        if self.hang_before_stop() {
            return;
        }
        if self.is_recovering_all() {
            self.observed.coverage.record("all nodes stopped again during recovery");
        }
        let has_power = !self.observed.is_synced || self.random.percent(30);
        self.observed.coverage.record(match has_power {
            true => "all processes killed at once",
            false => "all nodes lost power at once",
        });
        self.unrecovered = self.names.keys().map(|peer| (peer.node, peer.incarnation)).collect();
        self.crashed_alone = false;
        self.stalling = None;
        if self.observed.disks.values().any(|disk| disk.queued() > 0) {
            self.observed.coverage.record("all nodes stopped while writes waited for a disk");
        }
        for peer in self.nodes.values().map(|node| node.peer).collect::<Vec<_>>() {
            self.nodes.remove(&peer);
            self.crash_disk(peer.node, has_power);
            let most_ms = if self.random.percent(20) { 6_000 } else { 1_500 };
            let at_ms = self.now_ms + self.random.below(most_ms);
            self.queue.schedule(at_ms, Event::NodeStarts(self.names[&peer].clone()));
            self.crashes += 1;
        }
        self.lose_all_disks();
        self.rot();
        let most_ms = if self.random.percent(30) { 8_000 } else { POWER_MS };
        self.queue.schedule(self.now_ms + 1 + self.random.below(most_ms), Event::ClusterStops);
    }

    fn fault(&mut self) {
        let next_ms = self.now_ms + 200 + self.random.below(2_000);
        self.queue.schedule(next_ms, Event::InjectFault);
        self.note_recovered();
        if self.observed.is_settling || !self.draws_faults {
            return;
        }
        self.rot();
        let peers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        let Some(peer) = self.random.pick(&peers).copied() else { return };
        if self.faults.hangs {
            self.hang_disks();
        }
        if self.faults.one_way && self.random.percent(15) {
            return self.draw_cut(peer);
        }
        if self.faults.worst && self.random.percent(30) {
            return self.worst_fault(peer);
        }
        match self.random.below(4) {
            0 | 1 if self.faults.crashes && !self.is_needed(peer) => self.restart(peer),
            2 if self.faults.partitions => {
                self.partition = Partition::draw(&peers, &mut self.random);
            }
            3 if self.faults.partitions => {
                self.partition = Partition::default();
                // Shorter than a lease, or it would amount to a crash.
                let (now_ms, most_ms) = (self.now_ms, LEASE_MS / 2);
                let until_ms = now_ms + self.random.below(most_ms);
                let node = self.running(peer).expect("it is there");
                if node.paused_until_ms + most_ms < now_ms {
                    node.paused_until_ms = until_ms;
                }
            }
            _ => {}
        }
    }

    fn worst_fault(&mut self, peer: Peer) {
        match self.random.below(5) {
            0 if !self.is_coordinator_away => {
                self.observed.coverage.record("the coordinator away");
                self.is_coordinator_away = true;
                let back_ms = self.now_ms + 200 + self.random.below(4_000);
                self.queue.schedule(back_ms, Event::CoordinatorReturns);
            }
            1 | 2 if !self.is_needed(peer) => {
                let (now_ms, for_ms) = (self.now_ms, self.random.below(3 * LEASE_MS));
                self.observed.coverage.record("a pause, perhaps past the lease");
                let node = self.running(peer).expect("it is there");
                node.paused_until_ms = node.paused_until_ms.max(now_ms + for_ms);
            }
            3 if !self.is_needed(peer) => {
                self.stalling = Some((peer, self.random.below(3 * LEASE_MS)));
            }
            4 if !self.is_recovering_all() && !self.is_needed(peer) => {
                let name = self.names[&peer].clone();
                self.queue.schedule(self.now_ms, Event::NodeStarts(name));
            }
            _ => {}
        }
    }

    /// The coordinator answers again. Like a new leader of etcd it gives everybody a full lease.
    fn restore_coordinator(&mut self) {
        if std::mem::take(&mut self.is_coordinator_away) {
            self.restore_old_view();
        }
        let members = self.coordinator.view().members.iter();
        let members: Vec<Peer> = members
            .map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
            .collect();
        self.coordinator.prolong(&members, self.now_ms);
    }
}

impl World<MetadataNode> {
    /// Looks up all ids, for tests to compare.
    pub fn look_up_all(&mut self) {
        let creators: Vec<NodeId> = self.coordinator_names();
        let clients: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for creator in creators {
            for counter in 0..IDS {
                let id = ChunkId::new(Creator::from(creator), counter).expect("an id");
                let peer = *self.random.pick(&clients).expect("there is one");
                self.with_node(peer, |node, now_ms, out| node.look_up(id, now_ms, out));
            }
        }
        self.run(2_000);
    }

    fn coordinator_names(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.names.keys().map(|peer| peer.node).collect();
        nodes.dedup();
        nodes
    }
}

impl<const REPLICATED: bool> World<WorkloadNode<ItemWorkload<REPLICATED>>> {
    /// Reads all keys.
    pub fn read_items(&mut self) {
        let clients: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for number in 0..WorkloadNode::<ItemWorkload<REPLICATED>>::keys_of_each_kind() {
            let peer = *self.random.pick(&clients).expect("there is one");
            let keys = WorkloadNode::<ItemWorkload<REPLICATED>>::keys(number, &self.observed);
            self.with_node(peer, |node, now_ms, out| node.read_items(keys, now_ms, out));
        }
        self.run(2_000);
    }

    /// Makes a node leave. Once others own all it had it stops, and it starts again a second later.
    /// False if it did not stop within `within_ms`.
    pub fn leave(&mut self, place: usize, within_ms: u64) -> bool {
        let Some(peer) = self.nodes.values().map(|node| node.peer).nth(place) else { return false };
        self.with_node(peer, |node, _, _| node.leave());
        let until_ms = self.now_ms + within_ms;
        while self.now_ms < until_ms {
            self.run(100);
            let has_left = self.running(peer).is_some_and(|node| node.process.has_left());
            if has_left && self.coordinator.leave(peer).is_ok() {
                self.nodes.remove(&peer);
                let name = self.names[&peer].clone();
                self.queue.schedule(self.now_ms + 1_000, Event::NodeStarts(name));
                return true;
            }
        }
        false
    }
}

impl<W: Workload> World<WorkloadNode<W>> {
    /// Operations in flight, and what is known of their chunks.
    pub fn unanswered(&self) -> Vec<String> {
        let truth = self.observed.oracle.truth();
        let mut lines = Vec::new();
        for host in self.processes() {
            for (action, began_ms) in host.in_flight.values() {
                let range = action.id().and_then(|id| truth.find(id).1);
                let owner =
                    range.and_then(|range| self.processes_of(range.placement.owner()).last());
                let state = owner.map(|owner| {
                    let chunks = owner.process.node().chunks();
                    let serves = action.id().is_some_and(|id| chunks.serves(id));
                    (
                        owner.peer,
                        serves,
                        chunks.failovers(),
                        chunks.moves(),
                        chunks.replication().counts(),
                    )
                });
                let range = range.map(|range| (range.ids, range.placement));
                lines.push(format!("{action:?} of {began_ms}: {range:?}, {state:?}"));
            }
        }
        lines
    }

    /// Reads all created chunks.
    pub fn read_all(&mut self) {
        let clients: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for id in self.observed.chunks.clone() {
            let peer = *self.random.pick(&clients).expect("there is one");
            self.with_node(peer, |host, now_ms, out| host.submit(Action::Get(id), now_ms, out));
        }
        self.run(2_000);
    }
}
