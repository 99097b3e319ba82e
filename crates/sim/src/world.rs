//! The world: runs nodes against each other.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{Export, MoveMessage};
use amalgam_cluster::coordinator::{Coordinator, Proposal};
use amalgam_cluster::ids::{ChunkId, Creator, NodeId};
use amalgam_cluster::node::Effect;
use amalgam_cluster::overlay::{Message, Peer, Settings, SuperPeer, View};
use amalgam_cluster::wire::{Packet, Wire};

use crate::actor::{Actor, Common, Editor, IDS, Keeper};
use crate::names::Namer;
use crate::network::{Agenda, Partition, Weather, arrivals};
use crate::random::Random;

/// How long a lease lasts.
const LEASE_MS: u64 = 2_000;
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
}

impl Faults {
    /// Nothing happens.
    pub const NONE: Self = Self { weather: Weather::FAIR, crashes: false, partitions: false };
    /// Everything happens.
    pub const ALL: Self = Self { weather: Weather::FOUL, crashes: true, partitions: true };
}

/// A defect that the world plants around the logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// None.
    Nothing,
    /// Leaders count replicas that never got the batch: replication whose failures are ignored.
    UnheldBatches,
    /// New leaders do not wait for what the old group holds.
    NoSeal,
    /// What was written while chunks were copied does not reach the target.
    LostTail,
}

#[derive(Debug)]
struct Resident<A> {
    peer: Peer,
    actor: A,
    keep_alive_ms: u64,
    /// Until when it stands still.
    paused_until_ms: u64,
}

#[derive(Debug)]
enum Happening {
    /// Packets travel as bytes.
    Arrives {
        from: Peer,
        to: Peer,
        bytes: Vec<u8>,
    },
    Told {
        to: Peer,
        view: View,
    },
    Proposed(Proposal),
    Tick(Peer),
    Starts(String),
    Fault,
}

/// A cluster, its network and its workload.
#[derive(Debug)]
pub struct World<A> {
    now_ms: u64,
    random: Random,
    settings: Settings,
    faults: Faults,
    planted: Planted,
    agenda: Agenda<Happening>,
    coordinator: Coordinator,
    told_revision: u64,
    nodes: BTreeMap<NodeId, Resident<A>>,
    partition: Partition,
    names: BTreeMap<Peer, String>,
    /// What is known beside.
    pub common: Common,
    /// Crashes so far.
    pub crashes: u64,
}

impl<A: Actor> World<A> {
    /// `nodes` nodes that start within a second.
    pub fn new(seed: u64, nodes: usize, faults: Faults, planted: Planted) -> Self {
        let settings = Settings::default();
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
            common: Common::default(),
            crashes: 0,
        };
        for number in 0..nodes {
            let at_ms = world.random.below(1_000);
            world.agenda.plan(at_ms, Happening::Starts(format!("node-{number}")));
        }
        world.agenda.plan(1_000, Happening::Fault);
        world
    }

    /// Lets time go on.
    pub fn run(&mut self, for_ms: u64) {
        let until_ms = self.now_ms + for_ms;
        while let Some((at_ms, happening)) = self.agenda.pop_until(until_ms) {
            self.now_ms = at_ms;
            self.happen(happening);
            self.coordinator.expire(self.now_ms);
            self.tell();
        }
        self.now_ms = until_ms;
    }

    /// No more faults and no more work: what is under way comes to its end.
    pub fn calm(&mut self) {
        self.faults = Faults::NONE;
        self.partition = Partition::default();
        self.common.is_calm = true;
        self.run(10_000);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Starts(name) => self.start(&name),
            Happening::Tick(peer) => self.tick(peer),
            Happening::Fault => self.fault(),
            Happening::Proposed(proposal) => {
                // Who is refused learns it from the next view.
                let _ = self.coordinator.propose(&proposal);
            }
            Happening::Told { to, view } => {
                let mut out = Vec::new();
                if let Some(node) = self.awake(to) {
                    node.actor.on_view(&view, &mut out);
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
        let peer = self.coordinator.join(name, self.now_ms).expect("there is room");
        let supers = self.coordinator.view().supers().collect();
        let actor = A::start(peer, supers, self.settings);
        let node = Resident { peer, actor, keep_alive_ms: 0, paused_until_ms: 0 };
        self.common.peers.push(peer);
        self.names.insert(peer, name.to_owned());
        self.nodes.insert(peer.node, node);
        self.agenda.plan(self.now_ms + 1, Happening::Tick(peer));
        self.told_revision = 0;
    }

    /// Sends a new view to everybody, sooner or later.
    fn tell(&mut self) {
        if self.coordinator.view().revision == self.told_revision {
            return;
        }
        let view = self.coordinator.view().clone();
        self.told_revision = view.revision;
        for to in self.nodes.values().map(|node| node.peer).collect::<Vec<_>>() {
            let most = if self.random.percent(10) { 600 } else { 30 };
            let at_ms = self.now_ms + 1 + self.random.below(most);
            self.agenda.plan(at_ms, Happening::Told { to, view: view.clone() });
        }
    }

    fn arrive(&mut self, from: Peer, to: Peer, bytes: Vec<u8>) {
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
        match &packet {
            Packet::Overlay(Message::Append { creator, version, .. })
                if planted == Planted::UnheldBatches && weather.lost_percent > 0 =>
            {
                let (creator, version) = (*creator, *version);
                let message = Message::Appended { creator, version };
                out.push(Effect::Send(from, Packet::Overlay(message)));
            }
            Packet::Overlay(Message::Seal { arc, term }) if planted == Planted::NoSeal => {
                let (arc, term, held) = (*arc, *term, Vec::new());
                let message = Message::Sealed { arc, term, held };
                out.push(Effect::Send(from, Packet::Overlay(message)));
            }
            Packet::Move(MoveMessage::Page { number, page, tail: Some(_), .. })
                if planted == Planted::LostTail =>
            {
                let (number, page) = (*number, *page);
                let (chunks, tail) = (Vec::new(), Some(Export::default()));
                let message = MoveMessage::Page { number, page, chunks, tail };
                let packet = Packet::Move(message);
                node.actor.on_packet(from, packet, &mut self.common, now_ms, &mut out);
            }
            _ => node.actor.on_packet(from, packet, &mut self.common, now_ms, &mut out),
        }
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
        if now_ms >= node.keep_alive_ms {
            node.keep_alive_ms = now_ms + LEASE_MS / 6;
            if self.coordinator.keep_alive(peer, now_ms).is_err() {
                // Its lease ended: it must not go on.
                return self.restart(peer);
            }
            node.actor.set_deadline(now_ms + LEASE_MS);
        }
        node.actor.on_tick(&mut self.common, now_ms, &mut out);
        if !self.common.is_calm {
            node.actor.work(&mut self.common, &mut self.random, now_ms, &mut out);
        }
        self.agenda.plan(now_ms + TICK_MS, Happening::Tick(peer));
        self.carry_out(peer, out);
    }

    /// Lets somebody do something.
    fn ask(&mut self, peer: Peer, ask: impl FnOnce(&mut A, u64, &mut Vec<Effect>)) {
        let (mut out, now_ms) = (Vec::new(), self.now_ms);
        if let Some(node) = self.awake(peer) {
            ask(&mut node.actor, now_ms, &mut out);
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

    /// What the coordinator decided.
    pub fn view(&self) -> &View {
        self.coordinator.view()
    }

    fn carry_out(&mut self, from: Peer, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(to, packet) => self.send(from, to, &packet),
                Effect::Propose(proposal) => {
                    for delay_ms in arrivals(self.faults.weather, &mut self.random) {
                        let at_ms = self.now_ms + delay_ms;
                        self.agenda.plan(at_ms, Happening::Proposed(proposal.clone()));
                    }
                }
                Effect::Log(event) => self.common.ledger.on_event(&event),
                // The actor saw it.
                Effect::Answered(..) => {}
            }
        }
    }

    fn send(&mut self, from: Peer, to: Peer, packet: &Packet) {
        if !self.partition.lets_through(from, to) {
            return;
        }
        let mut bytes = Vec::new();
        packet.encode(&mut bytes);
        for delay_ms in arrivals(self.faults.weather, &mut self.random) {
            let (at_ms, bytes) = (self.now_ms + delay_ms, bytes.clone());
            self.agenda.plan(at_ms, Happening::Arrives { from, to, bytes });
        }
    }

    fn restart(&mut self, peer: Peer) {
        self.nodes.remove(&peer.node);
        let name = self.names[&peer].clone();
        let at_ms = self.now_ms + self.random.below(4_000);
        self.agenda.plan(at_ms, Happening::Starts(name));
        self.crashes += 1;
    }

    fn fault(&mut self) {
        let next_ms = self.now_ms + 200 + self.random.below(2_000);
        self.agenda.plan(next_ms, Happening::Fault);
        let peers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        let Some(peer) = self.random.pick(&peers).copied() else { return };
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

    /// Whether a group would be left without a majority of those who run.
    fn is_needed(&self, peer: Peer) -> bool {
        let runs = |member: &&Peer| {
            let node = self.nodes.get(&member.node);
            **member != peer && node.is_some_and(|node| node.peer == **member)
        };
        self.view().groups.iter().any(|(_, group)| {
            group.members.contains(&peer)
                && group.members.iter().filter(runs).count() < group.majority()
        })
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

impl World<Namer> {
    /// Reads all counters.
    pub fn read_counters(&mut self) {
        let askers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for number in 0..Namer::counters() {
            let peer = *self.random.pick(&askers).expect("there is one");
            self.ask(peer, |namer, now_ms, out| namer.read_counter(number, now_ms, out));
        }
        self.run(2_000);
    }
}

impl World<Keeper> {
    /// Reads all chunks that were created.
    pub fn read_all(&mut self) {
        let askers: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        for id in self.common.chunks.clone() {
            let peer = *self.random.pick(&askers).expect("there is one");
            self.ask(peer, |keeper, now_ms, out| keeper.get(id, now_ms, out));
        }
        self.run(2_000);
    }
}
