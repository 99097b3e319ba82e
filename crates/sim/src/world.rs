//! The world: runs nodes against each other.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_cluster::backup::BackupMessage;
use amalgam_cluster::chunks::{Action, ClientState, MoveMessage};
use amalgam_cluster::coordinator::{Coordinator, Proposal};
use amalgam_cluster::ids::{ChunkId, Creator, NodeId};
use amalgam_cluster::node::NodeCommand;
use amalgam_cluster::overlay::{
    Change, Edit, Message, OverlayEvent, OverlaySettings, Peer, RequestId, SuperPeer, View,
    position,
};
use amalgam_cluster::wire::{Packet, Wire};

use crate::actor::{Actor, Common, Editor, Host, IDS, Pursuit};
use crate::names::Naming;
use crate::network::{Agenda, Partition, Weather, arrivals};
use crate::planted::{Planted, as_if_kept, as_if_same, plant};
use crate::races::{self, Watch};
use crate::random::Random;

mod promise;

/// How long a lease lasts.
const LEASE_MS: u64 = 2_000;
/// All nodes end for the first time within so long, and then again within so long.
const POWER_MS: u64 = 40_000;
/// How often a node looks at its clock.
const TICK_MS: u64 = 25;

/// What happens to the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// What happens to messages.
    pub weather: Weather,
    /// Nodes crash and come back without their memory; never so many at once that all who hold a
    /// committed edit are gone.
    pub crashes: bool,
    /// Nodes are cut off from each other, and nodes stand still.
    pub partitions: bool,
    /// What is worst for who has backups: nodes stand still for longer than their lease, also in
    /// the middle of a request; their clocks differ in time and pace; the coordinator is away;
    /// disks lose what was not synced.
    pub worst: bool,
    /// All nodes end at once, as processes or because the power is gone, and start again in any
    /// order, in half of the runs more than once in a row. Where what was acknowledged would be
    /// lost by that, as whoever kept it has just died, they do not.
    pub power: bool,
    /// Bytes on the disk of one node change by themselves, also when somebody has just died whose
    /// place it may take. No range is left to that node alone, and it starts without that disk.
    pub rot: bool,
}

impl Faults {
    /// Nothing happens.
    pub const NONE: Self = Self {
        weather: Weather::FAIR,
        crashes: false,
        partitions: false,
        worst: false,
        power: false,
        rot: false,
    };
    /// Everything happens.
    pub const ALL: Self =
        Self { weather: Weather::FOUL, crashes: true, partitions: true, ..Self::NONE };
    /// And the worst.
    pub const WORST: Self = Self { worst: true, power: true, ..Self::ALL };
}

#[derive(Debug)]
struct Resident<A> {
    peer: Peer,
    actor: A,
    keep_alive_ms: u64,
    /// Until when it stands still.
    paused_until_ms: u64,
    /// Its clock: ahead by so much, and faster by so many of a thousand.
    ahead_ms: u64,
    faster: u64,
}

impl<A> Resident<A> {
    /// What its clock shows.
    fn clock(&self, now_ms: u64) -> u64 {
        now_ms + self.ahead_ms + now_ms * self.faster / 1_000
    }
}

#[derive(Debug)]
enum Happening {
    /// Packets travel as bytes.
    Arrives {
        from: Peer,
        to: Peer,
        bytes: Box<[u8]>,
    },
    Told {
        to: Peer,
        view: View,
    },
    Proposed(Proposal),
    Tick(Peer),
    Starts(String),
    Fault,
    ComesBack,
    /// Everything stops.
    AllEnd,
}

/// A cluster, its network and its workload.
#[derive(Debug)]
pub struct World<A> {
    now_ms: u64,
    random: Random,
    settings: OverlaySettings,
    faults: Faults,
    planted: Planted,
    agenda: Agenda<Happening>,
    coordinator: Coordinator,
    told_revision: u64,
    nodes: BTreeMap<NodeId, Resident<A>>,
    partition: Partition,
    names: BTreeMap<Peer, String>,
    /// Who stands still while it works on the next packet, and for how long.
    stalls: Option<(Peer, u64)>,
    /// Whether the coordinator does not answer.
    is_away: bool,
    /// The last lives that there were when all nodes ended, while some of what they had is in logs
    /// alone.
    cold: BTreeMap<NodeId, u32>,
    /// Whether one died alone since.
    died_alone: bool,
    watch: Watch,
    /// Whose disk rots, and what decides where.
    rotten: Option<NodeId>,
    chance_of_rot: Random,
    /// Whom edits name that were asked for and may yet be committed.
    asked: BTreeMap<(Creator, RequestId), Vec<Peer>>,
    /// The packet that is being sent: memory that is used again.
    encoded: Vec<u8>,
    /// Whether a range keeps one of those who have it: where there are backups.
    pub spares_holders: bool,
    /// What is known beside.
    pub common: Common,
    /// Crashes so far.
    pub crashes: u64,
}

impl<A: Actor> World<A> {
    /// `nodes` nodes that start within a second.
    pub fn new(seed: u64, nodes: usize, faults: Faults, planted: Planted) -> Self {
        let settings = OverlaySettings { lease_ms: LEASE_MS, ..OverlaySettings::default() };
        let mut world = Self {
            now_ms: 0,
            random: Random::new(seed),
            settings,
            faults,
            planted,
            agenda: Agenda::default(),
            coordinator: Coordinator::new(settings, LEASE_MS),
            told_revision: 0,
            nodes: BTreeMap::new(),
            partition: Partition::default(),
            names: BTreeMap::new(),
            stalls: None,
            is_away: false,
            cold: BTreeMap::new(),
            died_alone: false,
            watch: Watch::default(),
            rotten: None,
            chance_of_rot: Random::new(!seed),
            asked: BTreeMap::new(),
            encoded: Vec::new(),
            spares_holders: faults.worst,
            common: Common::default(),
            crashes: 0,
        };
        for number in 0..nodes {
            let at_ms = world.random.below(1_000);
            world.agenda.plan(at_ms, Happening::Starts(format!("node-{number}")));
        }
        world.agenda.plan(1_000, Happening::Fault);
        if faults.rot {
            world.rotten = NodeId::new((seed % nodes as u64) as u16).ok();
            world.common.ledger.has_rot = true;
        }
        if faults.power {
            world.common.is_synced = world.random.percent(50);
            let at_ms = 5_000 + world.random.below(POWER_MS);
            world.agenda.plan(at_ms, Happening::AllEnd);
        }
        world
    }

    /// Lets time go on.
    pub fn run(&mut self, for_ms: u64) {
        let until_ms = self.now_ms + for_ms;
        while let Some((at_ms, happening)) = self.agenda.pop_until(until_ms) {
            self.now_ms = at_ms;
            self.common.true_ms = at_ms;
            self.happen(happening);
            if !self.is_away {
                self.coordinator.expire(self.now_ms);
            }
            self.tell();
        }
        self.now_ms = until_ms;
        self.common.true_ms = until_ms;
    }

    /// No more faults and no more work: what is under way comes to its end.
    pub fn calm(&mut self) {
        let Faults { worst, power, .. } = self.faults;
        self.faults = Faults { worst, power, ..Faults::NONE };
        self.come_back();
        self.partition = Partition::default();
        self.common.is_calm = true;
        self.run(10_000);
        if self.is_cold() {
            self.run(5_000);
        }
    }

    fn happen(&mut self, happening: Happening) {
        let now_ms = self.now_ms;
        match happening {
            Happening::Starts(name) if self.is_away => {
                self.agenda.plan(self.now_ms + 100, Happening::Starts(name));
            }
            Happening::Starts(name) => self.start(&name),
            Happening::Tick(peer) => self.tick(peer),
            Happening::Fault => self.fault(),
            Happening::ComesBack => self.come_back(),
            Happening::AllEnd => self.all_end(),
            Happening::Proposed(_) if self.is_away => {}
            Happening::Proposed(proposal) => {
                // Who is refused learns it from the next view.
                let _ = self.coordinator.propose(&proposal);
            }
            Happening::Told { to, view } => {
                let mut out = Vec::new();
                if let Some(node) = self.awake(to) {
                    if node.paused_until_ms > now_ms {
                        let at_ms = node.paused_until_ms;
                        return self.agenda.plan(at_ms, Happening::Told { to, view });
                    }
                    let local_ms = node.clock(now_ms);
                    node.actor.on_view(&view, &mut out);
                    node.actor.flush(local_ms, &mut out);
                }
                self.carry_out(to, out);
            }
            Happening::Arrives { from, to, bytes } => self.arrive(from, to, bytes),
        }
    }

    /// The node, if it lives that life.
    fn awake(&mut self, peer: Peer) -> Option<&mut Resident<A>> {
        self.nodes.get_mut(&peer.node).filter(|node| node.peer == peer)
    }

    fn start(&mut self, name: &str) {
        if self.planted == Planted::SameLife {
            self.remove_peer(name);
        }
        let peer = self.coordinator.join(name, self.now_ms).expect("there is room");
        let supers = self.coordinator.view().supers().collect();
        let actor = A::start(peer, supers, self.settings, &mut self.common);
        let before = self.cold.get(&peer.node);
        self.died_alone |= before.is_some_and(|last| peer.incarnation > last + 1);
        let (mut ahead_ms, mut faster) = (0, 0);
        if self.faults.worst {
            (ahead_ms, faster) = (self.random.below(100_000), self.random.below(5));
        }
        let (keep_alive_ms, paused_until_ms) = (0, 0);
        let node = Resident { peer, actor, keep_alive_ms, paused_until_ms, ahead_ms, faster };
        races::started(peer, self.common.ledger.truth(), &mut self.common.reached);
        self.common.peers.push(peer);
        self.names.insert(peer, name.to_owned());
        self.nodes.insert(peer.node, node);
        self.agenda.plan(self.now_ms + 1, Happening::Tick(peer));
        self.told_revision = 0;
    }

    /// Plants [`Planted::SameLife`].
    fn remove_peer(&mut self, name: &str) {
        let mut names = self.coordinator.names().clone();
        if let Some(last) = names.get_mut(name) {
            last.incarnation -= 1;
            let view = self.coordinator.view().clone();
            self.coordinator = Coordinator::resume(self.settings, LEASE_MS, view, names);
            for peer in self.nodes.values().map(|node| node.peer).collect::<Vec<_>>() {
                let _ = self.coordinator.keep_alive(peer, self.now_ms);
            }
        }
    }

    /// Sends a new view to everybody, sooner or later.
    fn tell(&mut self) {
        if self.coordinator.view().revision == self.told_revision {
            return;
        }
        let view = self.coordinator.view().clone();
        self.told_revision = view.revision;
        let paused = self.nodes.values().filter(|node| node.paused_until_ms > self.now_ms);
        let paused: BTreeSet<Peer> = paused.map(|node| node.peer).collect();
        self.watch.viewed(&view, &paused, &mut self.common.reached);
        for to in self.nodes.values().map(|node| node.peer).collect::<Vec<_>>() {
            let most = if self.random.percent(10) { 600 } else { 30 };
            let at_ms = self.now_ms + 1 + self.random.below(most);
            self.agenda.plan(at_ms, Happening::Told { to, view: view.clone() });
        }
    }

    fn arrive(&mut self, from: Peer, to: Peer, bytes: Box<[u8]>) {
        let now_ms = self.now_ms;
        let (planted, weather) = (self.planted, self.faults.weather);
        let Some(node) = self.nodes.get_mut(&to.node).filter(|node| node.peer == to) else {
            return;
        };
        if node.paused_until_ms > now_ms {
            let at_ms = node.paused_until_ms;
            return self.agenda.plan(at_ms, Happening::Arrives { from, to, bytes });
        }
        let packet = Packet::decode_all(&bytes).expect("it was encoded");
        let mut out = Vec::new();
        let true_ms = now_ms;
        let now_ms = node.clock(true_ms);
        let stalls = self.stalls.take_if(|(peer, _)| *peer == to);
        let stall_ms = stalls.map_or(0, |(_, stall_ms)| stall_ms);
        self.common.stall_ms = stall_ms;
        if stall_ms > 0 {
            self.common.reached.note("a pause between the look at the clock and the answer");
        }
        node.paused_until_ms = node.paused_until_ms.max(true_ms + stall_ms);
        let packet = plant(planted, packet, &mut out, from);
        let Some(packet) = packet else { return self.carry_out(to, out) };
        match &packet {
            Packet::Overlay(Message::Append { creator, version, .. })
                if planted == Planted::UnheldBatches && weather.lost_percent > 0 =>
            {
                let (creator, version) = (*creator, *version);
                let message = Message::Appended { creator, version };
                out.push(NodeCommand::Send(from, Packet::Overlay(message)));
            }
            Packet::Overlay(Message::Seal { segment, term }) if planted == Planted::NoSeal => {
                let (segment, term, held) = (*segment, *term, Vec::new());
                let message = Message::Sealed { segment, term, held, since: to.incarnation };
                out.push(NodeCommand::Send(from, Packet::Overlay(message)));
            }
            Packet::Overlay(Message::Compare { segment, term, held })
                if planted == Planted::CountsAlone =>
            {
                let (segment, term) = (*segment, *term);
                let held = as_if_same(held, node.actor.super_peer().catalog());
                let packet = Packet::Overlay(Message::Compare { segment, term, held });
                node.actor.on_packet(from, packet, &mut self.common, now_ms, &mut out);
            }
            Packet::Move(MoveMessage::Page { number, page, tail: Some(_), .. })
                if planted == Planted::LostTail =>
            {
                let (number, page) = (*number, *page);
                let (chunks, tail) = (Vec::new(), Some(ClientState::default()));
                let message = MoveMessage::Page { number, page, chunks, tail };
                let packet = Packet::Move(message);
                node.actor.on_packet(from, packet, &mut self.common, now_ms, &mut out);
            }
            _ => node.actor.on_packet(from, packet, &mut self.common, now_ms, &mut out),
        }
        node.actor.flush(now_ms, &mut out);
        self.common.stall_ms = 0;
        self.carry_out(to, out);
    }

    fn tick(&mut self, peer: Peer) {
        let now_ms = self.now_ms;
        let Some(node) = self.nodes.get_mut(&peer.node).filter(|node| node.peer == peer) else {
            return;
        };
        if node.paused_until_ms > now_ms {
            let at_ms = node.paused_until_ms;
            return self.agenda.plan(at_ms, Happening::Tick(peer));
        }
        let mut out = Vec::new();
        let is_away = self.is_away;
        if now_ms >= node.keep_alive_ms && !is_away {
            node.keep_alive_ms = now_ms + LEASE_MS / 6;
            if self.coordinator.keep_alive(peer, now_ms).is_err() {
                // Its lease ended: it must not go on.
                return self.restart(peer);
            }
            // Less what clocks may differ in pace.
            let margin_ms = if self.faults.worst { LEASE_MS / 100 } else { 0 };
            node.actor.set_deadline(match self.planted {
                Planted::NoFencing => u64::MAX,
                _ => node.clock(now_ms) + LEASE_MS - margin_ms,
            });
        }
        let local_ms = node.clock(now_ms);
        node.actor.on_tick(&mut self.common, local_ms, &mut out);
        if !self.common.is_calm {
            node.actor.work(&mut self.common, &mut self.random, local_ms, &mut out);
        }
        node.actor.flush(local_ms, &mut out);
        self.agenda.plan(now_ms + TICK_MS, Happening::Tick(peer));
        self.carry_out(peer, out);
    }

    /// Lets somebody do something.
    fn ask(&mut self, peer: Peer, ask: impl FnOnce(&mut A, u64, &mut Vec<NodeCommand>)) {
        let (mut out, now_ms) = (Vec::new(), self.now_ms);
        if let Some(node) = self.awake(peer) {
            let local_ms = node.clock(now_ms);
            ask(&mut node.actor, local_ms, &mut out);
        }
        self.carry_out(peer, out);
    }

    /// Those who live.
    pub fn actors(&self) -> impl Iterator<Item = &A> {
        self.nodes.values().map(|node| &node.actor)
    }

    /// What a node keeps as a super peer.
    pub fn super_peers(&self) -> impl Iterator<Item = &SuperPeer> {
        self.nodes.values().map(|node| node.actor.super_peer())
    }

    /// Questions without an answer.
    pub fn waiting(&self) -> usize {
        self.nodes.values().map(|node| node.actor.waiting()).sum()
    }

    /// Lets a member of each group hold another thing than its leader, though it counts as many
    /// batches: of each creator it lacks a range. Memory or a message that was damaged does that,
    /// and comparing contents is there to find it. Returns of how many creators.
    pub fn damage_replicas(&mut self) -> usize {
        let mut damaged = Vec::new();
        for creator in self.common.ledger.truth().summaries().map(|summary| summary.creator) {
            let group = self.view().groups.get(position(creator));
            let Some([leader, member, ..]) = group.map(|group| &group.members[..]) else {
                continue;
            };
            let held = self.nodes.get(&leader.node).map(|node| node.actor.super_peer().catalog());
            let Some(mut snapshot) = held.and_then(|held| held.snapshot(creator)) else { continue };
            if snapshot.ranges.pop().is_some() {
                damaged.push((*leader, *member, snapshot));
            }
        }
        let count = damaged.len();
        for (from, to, snapshot) in damaged {
            let (mut bytes, at_ms) = (Vec::new(), self.now_ms + 1);
            Packet::Overlay(Message::Install { snapshot }).encode(&mut bytes);
            self.agenda.plan(at_ms, Happening::Arrives { from, to, bytes: bytes.into() });
        }
        count
    }

    /// What the coordinator decided.
    pub fn view(&self) -> &View {
        self.coordinator.view()
    }

    fn carry_out(&mut self, from: Peer, effects: Vec<NodeCommand>) {
        for effect in effects {
            match effect {
                NodeCommand::Send(to, packet) => self.send(from, to, &packet),
                NodeCommand::Propose(proposal) => {
                    for delay_ms in arrivals(self.faults.weather, &mut self.random) {
                        let at_ms = self.now_ms + delay_ms;
                        self.agenda.plan(at_ms, Happening::Proposed(proposal.clone()));
                    }
                }
                NodeCommand::Log(event) => {
                    self.common.ledger.on_event(&event);
                    if let OverlayEvent::Committed(creator, version) = event {
                        let edits = self.common.ledger.edits_of(creator, version);
                        let view = self.coordinator.view();
                        races::committed(edits, view, &mut self.common.reached);
                    }
                }
                // The actor saw it; and nobody has no node of its own.
                NodeCommand::Completed(..) | NodeCommand::Reply(..) => {}
                NodeCommand::Stop(error) => {
                    self.common.wrong.push(format!("{from:?} cannot note down: {error}"));
                }
            }
        }
    }

    fn send(&mut self, from: Peer, to: Peer, packet: &Packet) {
        if let Packet::Overlay(Message::Change { edit, .. }) = packet {
            self.note_asked(edit);
        }
        if !self.partition.lets_through(from, to) {
            return;
        }
        self.encoded.clear();
        packet.encode(&mut self.encoded);
        let arrivals = arrivals(self.faults.weather, &mut self.random);
        self.watch.sent((from, to), packet, arrivals.len(), &mut self.common.reached);
        if let (Planted::IgnoredErrors, Packet::Backup(BackupMessage::Append { .. }), true) =
            (self.planted, packet, arrivals.is_empty())
        {
            let Packet::Backup(message) = packet else { return };
            let mut answer = Vec::new();
            Packet::Backup(as_if_kept(message)).encode(&mut answer);
            let (from, to, bytes) = (to, from, answer.into());
            self.agenda.plan(self.now_ms + 5, Happening::Arrives { from, to, bytes });
        }
        for delay_ms in arrivals {
            let (at_ms, bytes) = (self.now_ms + delay_ms, self.encoded.as_slice().into());
            self.agenda.plan(at_ms, Happening::Arrives { from, to, bytes });
        }
    }

    /// What is asked for may be committed at any time from now on, also when nobody lives any more
    /// who asked.
    fn note_asked(&mut self, edit: &Edit) {
        if let Change::Migrate(set) | Change::CompleteFailover(set, _) = edit.change {
            let asked = (edit.ids.first().creator(), edit.request);
            self.asked.entry(asked).or_insert_with(|| set.peers().collect());
        }
    }

    fn restart(&mut self, peer: Peer) {
        if self.nodes.remove(&peer.node).is_some_and(|node| node.actor.is_recovering()) {
            self.common.reached.note("an heir that died while it recovered");
        }
        if self.faults.worst {
            // Of a log that others wait for the machine goes on.
            let has_power = self.random.percent(50) || self.is_cold() && !self.common.is_synced;
            self.crash_disk(peer.node, has_power);
        }
        let name = self.names[&peer].clone();
        let at_ms = self.now_ms + self.random.below(4_000);
        self.agenda.plan(at_ms, Happening::Starts(name));
        self.crashes += 1;
        self.died_alone = true;
        self.rot();
    }

    /// The disk that rots does. It is another one when its node starts again: damage of what was
    /// written last before an end is taken for a torn write.
    fn rot(&mut self) {
        let Some(node) = self.rotten else { return };
        if !self.nodes.contains_key(&node) {
            self.common.disks.remove(&node);
        } else if let Some(disk) = self.common.disks.get_mut(&node) {
            disk.rot(&mut self.chance_of_rot);
        }
    }

    fn crash_disk(&mut self, node: NodeId, has_power: bool) {
        if let Some(disk) = self.common.disks.get_mut(&node) {
            disk.crash(has_power, &mut self.random);
        }
    }

    /// The whole cluster ends, as processes, or by a loss of power where that is promised to be
    /// survived.
    fn all_end(&mut self) {
        if self.common.is_calm {
            return;
        }
        self.note_recovered();
        // Logs have all until somebody dies whose place is taken, or is taken for dead.
        self.died_alone |= self.nodes.values().any(|node| !self.view().has(node.peer));
        let is_in_logs = self.is_cold() && !self.died_alone;
        if !is_in_logs && !self.is_backed_up() {
            return self.agenda.plan(self.now_ms + 20, Happening::AllEnd);
        }
        if self.is_cold() {
            self.common.reached.note("all nodes ended again while they came back");
        }
        let has_power = !self.common.is_synced || self.random.percent(30);
        self.common.reached.note(match has_power {
            true => "all processes ended at once",
            false => "all nodes lost their power",
        });
        self.cold = self.names.keys().map(|peer| (peer.node, peer.incarnation)).collect();
        self.died_alone = false;
        self.stalls = None;
        for peer in self.nodes.values().map(|node| node.peer).collect::<Vec<_>>() {
            self.nodes.remove(&peer.node);
            self.crash_disk(peer.node, has_power);
            let most_ms = if self.random.percent(20) { 6_000 } else { 1_500 };
            let at_ms = self.now_ms + self.random.below(most_ms);
            self.agenda.plan(at_ms, Happening::Starts(self.names[&peer].clone()));
            self.crashes += 1;
        }
        self.rot();
        let most_ms = if self.random.percent(30) { 8_000 } else { POWER_MS };
        self.agenda.plan(self.now_ms + 1 + self.random.below(most_ms), Happening::AllEnd);
    }

    fn fault(&mut self) {
        let next_ms = self.now_ms + 200 + self.random.below(2_000);
        self.agenda.plan(next_ms, Happening::Fault);
        self.note_recovered();
        if self.common.is_calm {
            return;
        }
        self.rot();
        let peers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        let Some(peer) = self.random.pick(&peers).copied() else { return };
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
                // Shorter than a lease, or it would be a crash.
                let (now_ms, most_ms) = (self.now_ms, LEASE_MS / 2);
                let until_ms = now_ms + self.random.below(most_ms);
                let node = self.awake(peer).expect("it is there");
                if node.paused_until_ms + most_ms < now_ms {
                    node.paused_until_ms = until_ms;
                }
            }
            _ => {}
        }
    }

    fn worst_fault(&mut self, peer: Peer) {
        match self.random.below(4) {
            0 if !self.is_away => {
                self.common.reached.note("the coordinator away");
                self.is_away = true;
                let back_ms = self.now_ms + 200 + self.random.below(4_000);
                self.agenda.plan(back_ms, Happening::ComesBack);
            }
            1 | 2 if !self.is_needed(peer) => {
                let (now_ms, for_ms) = (self.now_ms, self.random.below(3 * LEASE_MS));
                self.common.reached.note("a pause, perhaps past the lease");
                let node = self.awake(peer).expect("it is there");
                node.paused_until_ms = node.paused_until_ms.max(now_ms + for_ms);
            }
            3 if !self.is_needed(peer) => {
                self.stalls = Some((peer, self.random.below(3 * LEASE_MS)));
            }
            _ => {}
        }
    }

    /// The coordinator answers again. As etcd's new leaders do, it gives everybody a whole lease.
    fn come_back(&mut self) {
        self.is_away = false;
        let members = self.coordinator.view().members.iter();
        let members: Vec<Peer> = members
            .map(|(node, member)| Peer { node: *node, incarnation: member.incarnation })
            .collect();
        self.coordinator.prolong(&members, self.now_ms);
    }
}

impl World<Editor> {
    /// Asks all over again where all ids are, which the tests compare.
    pub fn look_up_all(&mut self) {
        let creators: Vec<NodeId> = self.coordinator_names();
        let askers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for creator in creators {
            for counter in 0..IDS {
                let id = ChunkId::new(Creator::from(creator), counter).expect("an id");
                let peer = *self.random.pick(&askers).expect("there is one");
                self.ask(peer, |editor, now_ms, out| editor.look_up(id, now_ms, out));
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

impl<const SAFE: bool> World<Host<Naming<SAFE>>> {
    /// Reads all keys.
    pub fn read_names(&mut self) {
        let askers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for number in 0..Host::<Naming<SAFE>>::names() {
            let peer = *self.random.pick(&askers).expect("there is one");
            let keys = Host::<Naming<SAFE>>::keys(number, &self.common);
            self.ask(peer, |namer, now_ms, out| namer.read_names(keys, now_ms, out));
        }
        self.run(2_000);
    }

    /// Tells a node to leave. It stops once others have all it had, and starts again in another
    /// life a second later. Whether it stopped within some time.
    pub fn leave(&mut self, place: usize, within_ms: u64) -> bool {
        let Some(peer) = self.nodes.values().map(|node| node.peer).nth(place) else { return false };
        self.ask(peer, |namer, _, _| namer.leave());
        let until_ms = self.now_ms + within_ms;
        while self.now_ms < until_ms {
            self.run(100);
            let has_left = self.awake(peer).is_some_and(|node| node.actor.has_left());
            if has_left && self.coordinator.leave(peer).is_ok() {
                self.nodes.remove(&peer.node);
                let name = self.names[&peer].clone();
                self.agenda.plan(self.now_ms + 1_000, Happening::Starts(name));
                return true;
            }
        }
        false
    }
}

impl<P: Pursuit> World<Host<P>> {
    /// Operations without an answer, and what is known of their chunks.
    pub fn unanswered(&self) -> Vec<String> {
        let truth = self.common.ledger.truth();
        let mut lines = Vec::new();
        for host in self.actors() {
            for (action, began_ms) in host.doing.values() {
                let range = action.id().and_then(|id| truth.find(id).1);
                let owner = range.and_then(|range| self.nodes.get(&range.placement.owner()));
                let state = owner.map(|owner| {
                    let chunks = owner.actor.node().chunks();
                    let serves = action.id().is_some_and(|id| chunks.serves(id));
                    (
                        owner.peer,
                        serves,
                        chunks.failovers(),
                        chunks.moves(),
                        chunks.copies().status(),
                    )
                });
                let range = range.map(|range| (range.ids, range.placement));
                lines.push(format!("{action:?} of {began_ms}: {range:?}, {state:?}"));
            }
        }
        lines
    }

    /// Reads all chunks that were created.
    pub fn read_all(&mut self) {
        let askers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for id in self.common.chunks.clone() {
            let peer = *self.random.pick(&askers).expect("there is one");
            self.ask(peer, |host, now_ms, out| host.submit(Action::Get(id), now_ms, out));
        }
        self.run(2_000);
    }
}
