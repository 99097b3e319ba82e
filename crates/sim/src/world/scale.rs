//! Large clusters: racks that fail, and what a run of a thousand nodes is asked at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use amalgam_cluster::chunks::Action;
use amalgam_cluster::ids::NodeId;
use amalgam_cluster::overlay::Peer;

use super::{Event, World};
use crate::faults::Faults;
use crate::mutants::Mutant;
use crate::scale_workload::ScaleNode;

/// Nodes learn of views this often: with a watch of a coordinator that is busy they learn of
/// several changes at once.
const VIEWS_MS: u64 = 50;
/// Reads of one client in flight at most when all chunks are read.
const READS_MAX: usize = 1_000;

impl World<ScaleNode> {
    /// A cluster of `nodes` nodes, whose clients will create `chunks` chunks each. Nodes sync
    /// their disks.
    pub fn large(seed: u64, nodes: usize, backups: usize) -> Self {
        let mut world = Self::new(seed, nodes, Faults::NONE, Mutant::None);
        world.faults_end();
        world.view_interval_ms = VIEWS_MS;
        world.observed.is_synced = true;
        world.observed.scale.backups = backups;
        world
    }

    /// Puts the nodes into racks, as the last digits of a name in a real cluster would.
    pub fn set_racks(&mut self, racks: usize) {
        let members = self.view().peers().enumerate();
        let racks: BTreeMap<NodeId, String> =
            members.map(|(place, peer)| (peer.node, format!("rack-{}", place % racks))).collect();
        self.observed.scale.racks.clone_from(&racks);
        for node in self.nodes.values_mut() {
            node.process.set_racks(racks.clone());
        }
    }

    /// Has the clients create chunks.
    pub fn create_chunks(&mut self, chunks_a_node: usize) {
        let nodes = self.nodes.keys().map(|peer| (peer.node, chunks_a_node));
        self.observed.scale.to_create = nodes.collect();
    }

    /// Chunks that clients have yet to create, and operations that are not answered.
    pub fn unfinished(&self) -> usize {
        self.observed.scale.to_create.values().sum::<usize>() + self.waiting()
    }

    /// The running nodes of a rack.
    pub fn rack(&self, number: usize) -> Vec<Peer> {
        let name = format!("rack-{number}");
        let racks = &self.observed.scale.racks;
        let is_in = |peer: &&Peer| racks.get(&peer.node) == Some(&name);
        self.nodes.keys().filter(is_in).copied().collect()
    }

    /// These nodes lose power, or their processes are killed. They start again after a time.
    pub fn kill(&mut self, peers: &[Peer], has_power: bool, back_after_ms: Option<u64>) {
        for peer in peers {
            if self.nodes.remove(peer).is_none() {
                continue;
            }
            self.crash_disk(peer.node, has_power);
            self.crashes += 1;
            if let Some(after_ms) = back_after_ms {
                let at_ms = self.now_ms + after_ms;
                let name = self.names[peer].clone();
                self.queue.schedule(at_ms, Event::NodeStarts(name));
            }
        }
    }

    /// Starts a node again that is dead.
    pub fn start_again(&mut self, peers: &[Peer]) {
        for peer in peers {
            let name = self.names[peer].clone();
            self.queue.schedule(self.now_ms, Event::NodeStarts(name));
        }
    }

    /// Groups of super peers that have no majority of running members.
    pub fn groups_without_majority(&self) -> usize {
        let runs = |peer: &&Peer| self.nodes.contains_key(*peer) && self.view().has(**peer);
        let mut seen = BTreeSet::new();
        let groups = self.view().groups.iter().filter(|(_, group)| {
            group.members.iter().filter(runs).count() < group.majority()
                && seen.insert(group.members.clone())
        });
        groups.count()
    }

    /// Chunks that no running node serves.
    pub fn unserved(&self) -> usize {
        let serving: BTreeMap<NodeId, &ScaleNode> =
            self.nodes.values().map(|node| (node.peer.node, &node.process)).collect();
        let truth = self.observed.oracle.truth();
        let is_served = |id: &&_| {
            let range = truth.find(**id).1;
            let owner = range.and_then(|range| serving.get(&range.placement.owner()));
            owner.is_some_and(|owner| owner.node().chunks().serves(**id))
        };
        self.observed.chunks.iter().filter(|id| !is_served(id)).count()
    }

    /// Reads all chunks, each through a random node. Whether all reads were answered in time.
    pub fn read_each(&mut self, within_ms: u64) -> bool {
        let clients: Vec<Peer> = self.nodes.values().map(|node| node.peer).collect();
        let until_ms = self.now_ms + within_ms;
        for ids in self.observed.chunks.clone().chunks(clients.len() * READS_MAX / 8) {
            for id in ids {
                let peer = *self.random.pick(&clients).expect("there is one");
                self.with_node(peer, |host, now_ms, out| {
                    host.submit(Action::Get(*id), now_ms, out)
                });
            }
            while self.waiting() > 0 && self.now_ms < until_ms {
                self.run(25);
            }
        }
        self.waiting() == 0
    }

    /// What contradicts the invariants so far.
    pub fn violations(&self) -> Vec<String> {
        let mut violations = self.observed.wrong_answers.clone();
        violations.extend(self.observed.history.violations());
        violations.extend(self.observed.oracle.violations.iter().cloned());
        violations
    }

    /// A number that two runs of a seed share.
    pub fn fingerprint(&self) -> u64 {
        self.observed.scale.fingerprint.finish()
    }

    /// Simulated milliseconds so far.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }
}
