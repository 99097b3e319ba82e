//! Who lives in the world.

use std::collections::BTreeMap;

use amalgam_cluster::backup::{RecoveredState, Vault};
use amalgam_cluster::chunks::{Action, ChunkError, ChunkSettings, ChunkStore, ClientId, Response};
use amalgam_cluster::ids::{ChunkId, Creator, IdRange, NodeId};
use amalgam_cluster::node::{Node, NodeCommand, NodeSettings};
use amalgam_cluster::overlay::{
    Answer, Change, Locator, OverlayCommand, OverlaySettings, Peer, ReplicaSet, SuperPeer, View,
};
use amalgam_cluster::ranges::LIMIT_BYTES_MIN;
use amalgam_cluster::wire::Packet;

use crate::disk::Disk;
use crate::ledger::Ledger;
use crate::names::Names;
use crate::races::Reached;
use crate::random::Random;
use crate::store::History;

/// Ids of a creator that are in use; few, so that many contend for the same.
pub const IDS: u64 = 200;

/// What all actors share, as nobody in a real cluster does: what exists, and what was observed.
#[derive(Debug, Default)]
pub struct Common {
    /// Every life so far.
    pub peers: Vec<Peer>,
    /// What leaders committed.
    pub ledger: Ledger,
    /// What lookups named, once the work is over.
    pub located: BTreeMap<ChunkId, Option<NodeId>>,
    /// Chunks that were created.
    pub chunks: Vec<ChunkId>,
    /// What clients saw.
    pub history: History,
    /// What clients saw of named items.
    pub names: Names,
    /// What nobody should have been answered.
    pub wrong: Vec<String>,
    /// Whether the work is over.
    pub is_calm: bool,
    /// The time that no node knows: their clocks differ.
    pub true_ms: u64,
    /// For how long the node that is called stands still before it looks at its clock last.
    pub stall_ms: u64,
    /// Whether what is written to disks is synced before it is answered.
    pub is_synced: bool,
    /// The disks of nodes, which outlive them.
    pub disks: BTreeMap<NodeId, Disk>,
    /// Which races the run reached.
    pub reached: Reached,
}

/// A node with its workload.
pub trait Actor: Sized {
    /// A new life begins.
    fn start(peer: Peer, supers: Vec<Peer>, settings: OverlaySettings, common: &mut Common)
    -> Self;

    /// Its part of the overlay.
    fn super_peer(&self) -> &SuperPeer;

    /// Questions without an answer.
    fn waiting(&self) -> usize;

    /// Whether it is about to take the place of an owner that died.
    fn is_recovering(&self) -> bool {
        false
    }

    /// Its lease was prolonged.
    fn set_deadline(&mut self, deadline_ms: u64);

    /// The coordinator decided something.
    fn on_view(&mut self, view: &View, out: &mut Vec<NodeCommand>);

    /// A packet arrived.
    fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        common: &mut Common,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    );

    /// Time went on.
    fn on_tick(&mut self, common: &mut Common, now_ms: u64, out: &mut Vec<NodeCommand>);

    /// Many packets were handed over: what waited to go along goes.
    fn flush(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let _ = (now_ms, out);
    }

    /// Something that it may want, whether it is possible or not.
    fn work(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    );
}

/// Changes owners at random.
#[derive(Debug)]
pub struct Editor {
    peer: Peer,
    super_peer: SuperPeer,
    locator: Locator,
    asked: BTreeMap<u64, Creator>,
}

impl Editor {
    /// Asks where an id is.
    pub fn look_up(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let mut commands = Vec::new();
        self.locator.look_up(id, now_ms, &mut commands);
        send(commands, out);
    }

    fn answered(&self, answers: Vec<Answer>, common: &mut Common) {
        for answer in answers {
            match answer {
                Answer::Changed(request, Ok(epoch)) => {
                    common.ledger.on_answer(self.asked[&request.sequence], request, epoch);
                }
                Answer::Located(_, located) if common.is_calm => {
                    let (ids, owner) = (located.range.ids, located.range.placement.owner());
                    for counter in ids.first().counter()..=ids.last().counter() {
                        let id = ChunkId::new(ids.first().creator(), counter).expect("an id");
                        common.located.insert(id, Some(owner));
                    }
                }
                Answer::Unowned(_, id) if common.is_calm => {
                    common.located.insert(id, None);
                }
                _ => {}
            }
        }
    }
}

fn send(commands: Vec<OverlayCommand>, out: &mut Vec<NodeCommand>) {
    out.extend(commands.into_iter().map(|command| match command {
        OverlayCommand::Send(to, message) => NodeCommand::Send(to, Packet::Overlay(message)),
        OverlayCommand::Propose(proposal) => NodeCommand::Propose(proposal),
        OverlayCommand::Log(event) => NodeCommand::Log(event),
    }));
}

impl Actor for Editor {
    fn start(peer: Peer, supers: Vec<Peer>, settings: OverlaySettings, _: &mut Common) -> Self {
        let super_peer = SuperPeer::new(peer, settings);
        let locator = Locator::new(peer, settings, LIMIT_BYTES_MIN, supers);
        Self { peer, super_peer, locator, asked: BTreeMap::new() }
    }

    fn super_peer(&self) -> &SuperPeer {
        &self.super_peer
    }

    fn waiting(&self) -> usize {
        self.locator.waiting()
    }

    fn set_deadline(&mut self, _: u64) {}

    fn on_view(&mut self, view: &View, out: &mut Vec<NodeCommand>) {
        let mut commands = Vec::new();
        self.super_peer.on_view(view, &mut commands);
        send(commands, out);
    }

    fn on_packet(
        &mut self,
        from: Peer,
        packet: Packet,
        common: &mut Common,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let Packet::Overlay(message) = packet else { return };
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        self.locator.on_message(&message, now_ms, &mut commands, &mut answers);
        self.super_peer.on_message(from, message, &mut commands);
        send(commands, out);
        self.answered(answers, common);
    }

    fn on_tick(&mut self, common: &mut Common, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        self.super_peer.on_tick(now_ms, &mut commands);
        self.locator.on_tick(now_ms, &mut commands, &mut answers);
        send(commands, out);
        self.answered(answers, common);
    }

    fn work(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        if random.percent(70) || self.locator.waiting() > 20 {
            return;
        }
        let creator = random.pick(&common.peers).expect("there is one").node;
        let other = *random.pick(&common.peers).expect("there is one");
        let start = random.below(IDS);
        let most = if random.percent(50) { 1 } else { IDS - start };
        let first = ChunkId::new(Creator::from(creator), start).expect("an id");
        let length = (1 + random.below(most)).min(IDS - start);
        let ids = IdRange::starting_at(first, length).expect("a range");
        let change = match random.below(10) {
            0..2 => Change::Claim(ReplicaSet::of_owner(self.peer)),
            2..6 => Change::Migrate(ReplicaSet::of_owner(other)),
            6 => Change::Release,
            7 => Change::Fence,
            _ => return self.look_up(first, now_ms, out),
        };
        let mut commands = Vec::new();
        let request = self.locator.change(ids, change, now_ms, &mut commands);
        self.asked.insert(request.sequence, first.creator());
        send(commands, out);
    }
}

/// What the client of a [`Host`]'s node is after.
pub trait Pursuit: Sized {
    /// Where the node keeps what it holds.
    type Store: ChunkStore;

    /// Begins, with a node of its liking.
    fn open(settings: &mut NodeSettings) -> (Self, Self::Store);

    /// Where it keeps backups of others, if it does, and what its former lives left there.
    fn vault(peer: Peer, common: &mut Common) -> Option<(Vault, RecoveredState)> {
        let _ = (peer, common);
        None
    }

    /// An operation was answered that began at a time.
    fn observe(
        &mut self,
        common: &mut Common,
        action: Action,
        began_ms: u64,
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    );

    /// Something that it may want.
    fn work(
        host: &mut Host<Self>,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    );
}

/// A node whose client is after something.
#[derive(Debug)]
pub struct Host<P: Pursuit> {
    pub(crate) peer: Peer,
    pub(crate) node: Node<P::Store>,
    /// What the client is doing: the action and when it began.
    pub(crate) doing: BTreeMap<u64, (Action, u64)>,
    pub(crate) pursuit: P,
    true_ms: u64,
}

impl<P: Pursuit> Host<P> {
    /// The node.
    pub fn node(&self) -> &Node<P::Store> {
        &self.node
    }

    /// Begins an operation.
    pub fn submit(&mut self, action: Action, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let number = self.node.submit(action.clone(), now_ms, out);
        self.doing.insert(number, (action, self.true_ms));
    }

    fn observe(&mut self, common: &mut Common, effects: &[NodeCommand]) {
        let now_ms = common.true_ms;
        for effect in effects {
            let NodeCommand::Completed(number, result) = effect else { continue };
            let Some((action, began_ms)) = self.doing.remove(number) else { continue };
            self.pursuit.observe(common, action, began_ms, result, now_ms);
        }
    }
}

impl<P: Pursuit> Actor for Host<P> {
    fn start(peer: Peer, supers: Vec<Peer>, overlay: OverlaySettings, common: &mut Common) -> Self {
        let chunks = ChunkSettings {
            claim_ids: 300,
            low_ids: 100,
            load_ids: 130,
            ..ChunkSettings::default()
        };
        let cache_bytes = LIMIT_BYTES_MIN;
        let mut settings = NodeSettings { overlay, chunks, holds_items: false, cache_bytes };
        let (pursuit, store) = P::open(&mut settings);
        let client = ClientId(u64::from(peer.node.get()) << 32 | u64::from(peer.incarnation));
        let mut node = Node::new(peer, settings, supers, client, store);
        if let Some((vault, recovered)) = P::vault(peer, common) {
            node.resume(vault, &recovered);
        }
        Self { peer, node, doing: BTreeMap::new(), pursuit, true_ms: common.true_ms }
    }

    fn super_peer(&self) -> &SuperPeer {
        self.node.super_peer()
    }

    fn waiting(&self) -> usize {
        self.doing.len()
    }

    fn is_recovering(&self) -> bool {
        self.node.chunks().failovers() > 0
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
        common: &mut Common,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        self.true_ms = common.true_ms;
        let (mut looks, stall_ms) = (0, common.stall_ms);
        // It looks when the packet arrives, before the work and after it.
        let mut clock = || {
            looks += 1;
            if looks > 2 { now_ms + stall_ms } else { now_ms }
        };
        self.node.on_packet(from, packet, &mut clock, out);
        self.observe(common, out);
    }

    fn on_tick(&mut self, common: &mut Common, now_ms: u64, out: &mut Vec<NodeCommand>) {
        self.true_ms = common.true_ms;
        self.node.on_tick(now_ms, out);
        self.observe(common, out);
    }

    fn flush(&mut self, now_ms: u64, out: &mut Vec<NodeCommand>) {
        self.node.flush(now_ms, out);
    }

    fn work(
        &mut self,
        common: &mut Common,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        P::work(self, common, random, now_ms, out);
    }
}
