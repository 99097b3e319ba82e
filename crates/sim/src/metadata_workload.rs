//! The metadata workload: nodes without chunks whose clients change the owners of ids at random.

use std::collections::BTreeMap;

use amalgam_cluster::ids::{ChunkId, Creator, IdRange};
use amalgam_cluster::node::NodeCommand;
use amalgam_cluster::overlay::{
    Answer, Change, Locator, OverlayCommand, OverlaySettings, Peer, ReplicaSet, SuperPeer, View,
};
use amalgam_cluster::ranges::LIMIT_BYTES_MIN;
use amalgam_cluster::wire::Packet;

use crate::node_process::NodeProcess;
use crate::observations::Observations;
use crate::random::Random;

/// Ids of a creator that are in use; few, so that clients contend for them.
pub const IDS: u64 = 200;

/// A node that runs the metadata workload.
#[derive(Debug)]
pub struct MetadataNode {
    peer: Peer,
    super_peer: SuperPeer,
    locator: Locator,
    asked: BTreeMap<u64, Creator>,
}

impl MetadataNode {
    /// Looks up an id.
    pub fn look_up(&mut self, id: ChunkId, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let mut commands = Vec::new();
        self.locator.look_up(id, now_ms, &mut commands);
        send(commands, out);
    }

    fn answered(&self, answers: Vec<Answer>, observed: &mut Observations) {
        for answer in answers {
            match answer {
                Answer::Changed(request, Ok(epoch)) => {
                    observed.oracle.on_answer(self.asked[&request.sequence], request, epoch);
                }
                Answer::Located(_, located) if observed.is_settling => {
                    let (ids, owner) = (located.range.ids, located.range.placement.owner());
                    for counter in ids.first().counter()..=ids.last().counter() {
                        let id = ChunkId::new(ids.first().creator(), counter).expect("an id");
                        observed.located.insert(id, Some(owner));
                    }
                }
                Answer::Unowned(_, id) if observed.is_settling => {
                    observed.located.insert(id, None);
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

impl NodeProcess for MetadataNode {
    fn start(
        peer: Peer,
        supers: Vec<Peer>,
        settings: OverlaySettings,
        _: &mut Observations,
    ) -> Self {
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
        observed: &mut Observations,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        let Packet::Overlay(message) = packet else { return };
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        self.locator.on_message(&message, now_ms, &mut commands, &mut answers);
        self.super_peer.on_message(from, message, &mut commands);
        send(commands, out);
        self.answered(answers, observed);
    }

    fn on_tick(&mut self, observed: &mut Observations, now_ms: u64, out: &mut Vec<NodeCommand>) {
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        self.super_peer.on_tick(now_ms, &mut commands);
        self.locator.on_tick(now_ms, &mut commands, &mut answers);
        send(commands, out);
        self.answered(answers, observed);
    }

    fn work(
        &mut self,
        observed: &mut Observations,
        random: &mut Random,
        now_ms: u64,
        out: &mut Vec<NodeCommand>,
    ) {
        if random.percent(70) || self.locator.waiting() > 20 {
            return;
        }
        let creator = random.pick(&observed.peers).expect("there is one").node;
        let other = *random.pick(&observed.peers).expect("there is one");
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
