//! Load balancing: which ids of a node are the hottest, and whether it helps to move one.
//!
//! The hottest ids are sampled as the server samples hot keys ([`amalgam_sketch`]), among the
//! operations that this owner executes. Once a second a node with a hot id asks a few others for
//! their load.
//!
//! Invariants of this module:
//! 1. An operation costs one increment, and every [`amalgam_sketch::ACCESSES_PER_SAMPLE`]th a
//!    lookup in one set of the sketch.
//! 2. A move must lower the load of the busier of the two nodes by at least a tenth. So an id does
//!    not move back and forth, and one that is all of a node's load stays.

use amalgam_op::HashSeed;
use amalgam_sketch::{AccessSampler, Sketch};

use crate::ids::ChunkId;
use crate::overlay::Peer;

/// A fixed seed suffices: clients do not choose ids, so they cannot choose collisions.
const SEED: HashSeed = HashSeed::new(0);
/// Length of a window, in milliseconds.
const WINDOW_MS: u64 = 1_000;
/// Operations in a window below which nothing is worth moving.
const OPERATIONS_MIN: u64 = 2_000;
/// Windows to wait after a move.
const COOLDOWN_WINDOWS: u32 = 5;
/// Other nodes that are asked in a window.
const ASKED_MAX: usize = 3;

/// A message between nodes about their load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMessage {
    /// Asks for the load.
    Query,
    /// The load: operations in the last second.
    Report(u64),
}

/// A command of the load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadCommand {
    /// Ask this node for its load.
    Query(Peer),
    /// Move this id to this node.
    Move(ChunkId, Peer),
}

/// The load balancer of one node; see the head of this module.
#[derive(Debug)]
pub struct LoadBalancer {
    /// Samples by window. None marks a slot without an id.
    sketch: Sketch<Option<ChunkId>>,
    sampler: AccessSampler,
    operations: u64,
    /// Operations in the last complete window.
    rate: u64,
    window_ends_ms: u64,
    windows: u32,
    cooldown_until: u32,
    /// Nodes that answered in this window, and their loads.
    answers: Vec<(Peer, u64)>,
    moved: u64,
}

impl Default for LoadBalancer {
    fn default() -> Self {
        Self {
            sketch: Sketch::new(None),
            sampler: AccessSampler::default(),
            operations: 0,
            rate: 0,
            window_ends_ms: 0,
            windows: 0,
            cooldown_until: 0,
            answers: Vec::new(),
            moved: 0,
        }
    }
}

impl LoadBalancer {
    /// Counts an operation on an id.
    pub fn record(&mut self, id: ChunkId) {
        self.operations += 1;
        if !self.sampler.skip(1) {
            let hash = SEED.hash(&id.bits().to_le_bytes());
            self.sampler.choose(1, |_| self.sketch.record(hash, |name| *name = Some(id)));
        }
    }

    /// Counts operations of other threads, of which these ids are a sample of one in
    /// [`amalgam_sketch::ACCESSES_PER_SAMPLE`].
    pub fn record_sampled(&mut self, operations: u64, samples: &[ChunkId]) {
        self.operations += operations;
        for id in samples {
            let hash = SEED.hash(&id.bits().to_le_bytes());
            self.sketch.record(hash, |name| *name = Some(*id));
        }
    }

    /// Operations in the last complete second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Ids that were moved because they were hot.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Takes another node's report of its load.
    pub fn on_report(&mut self, from: Peer, rate: u64) {
        if self.answers.len() < ASKED_MAX {
            self.answers.push((from, rate));
        }
    }

    /// The hottest id that `serves` accepts, and its estimated operations per window.
    fn hottest(&self, serves: impl Fn(ChunkId) -> bool) -> Option<(ChunkId, u64)> {
        let ids = self.sketch.estimates().filter_map(|seen| Some(((*seen.name)?, seen.count)));
        let (id, count) = ids.filter(|(id, _)| serves(*id)).max_by_key(|(_, count)| *count)?;
        Some((id, self.rate * u64::from(count) / self.sketch.samples().max(1)))
    }

    /// Advances the time to `now_ms`. `others` are the other members; `serves` tells which ids this
    /// node may move.
    pub fn on_tick(
        &mut self,
        now_ms: u64,
        others: &[Peer],
        serves: impl Fn(ChunkId) -> bool,
    ) -> Vec<LoadCommand> {
        if now_ms < self.window_ends_ms {
            return Vec::new();
        }
        let is_whole = now_ms < self.window_ends_ms + WINDOW_MS;
        self.rate = if is_whole { self.operations } else { 0 };
        (self.operations, self.window_ends_ms) = (0, now_ms + WINDOW_MS);
        self.windows += 1;
        let commands = self.decide(others, serves);
        self.answers.clear();
        self.sketch.advance(self.windows);
        commands
    }

    fn decide(&mut self, others: &[Peer], serves: impl Fn(ChunkId) -> bool) -> Vec<LoadCommand> {
        if self.rate < OPERATIONS_MIN || self.windows < self.cooldown_until {
            return Vec::new();
        }
        let Some((id, share)) = self.hottest(serves) else { return Vec::new() };
        let bound = self.rate - self.rate / 10;
        let is_hot = self.rate - share < bound && share < bound;
        let least_loaded = self.answers.iter().min_by_key(|(_, rate)| *rate);
        match least_loaded.filter(|(peer, _)| others.contains(peer)) {
            Some((peer, rate)) if is_hot && rate + share < bound => {
                self.cooldown_until = self.windows + COOLDOWN_WINDOWS;
                self.moved += 1;
                vec![LoadCommand::Move(id, *peer)]
            }
            _ if is_hot && !others.is_empty() => {
                // A different group of nodes in each window.
                let first = self.windows as usize * ASKED_MAX;
                let asked = (0..ASKED_MAX.min(others.len())).map(|place| first + place);
                asked.map(|place| LoadCommand::Query(others[place % others.len()])).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Creator, NodeId};

    fn peer(node: u16) -> Peer {
        Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 }
    }

    fn id(counter: u64) -> ChunkId {
        ChunkId::new(Creator::from(peer(0).node), counter).expect("an id")
    }

    /// One window with `hot` operations on each of ids 0 and 1, and `others` on the rest.
    fn window(balancer: &mut LoadBalancer, now_ms: u64, hot: u64, others: u64) -> Vec<LoadCommand> {
        for number in 0..hot.max(others) {
            (number < hot).then(|| balancer.record(id(0)));
            (number < hot).then(|| balancer.record(id(1)));
            (number < others).then(|| balancer.record(id(2 + number % 1_000)));
        }
        balancer.on_tick(now_ms, &[peer(1), peer(2)], |_| true)
    }

    #[test]
    fn a_hot_id_moves_to_the_least_loaded_node() {
        let mut balancer = LoadBalancer::default();
        assert!(window(&mut balancer, 1_000, 5_000, 1_000).is_empty(), "no whole window yet");
        let asked = window(&mut balancer, 2_000, 5_000, 1_000);
        assert!(matches!(asked[..], [LoadCommand::Query(_), LoadCommand::Query(_)]), "{asked:?}");
        balancer.on_report(peer(1), 9_000);
        balancer.on_report(peer(2), 1_000);
        let commands = window(&mut balancer, 3_000, 5_000, 1_000);
        let is_it = |one: &LoadCommand| {
            matches!(one, LoadCommand::Move(hot, to) if *to == peer(2)
            && hot.counter() < 2)
        };
        assert!(commands.len() == 1 && commands.iter().all(is_it), "{commands:?}");
        balancer.on_report(peer(2), 1_000);
        assert!(window(&mut balancer, 4_000, 5_000, 1_000).is_empty(), "it rests");
        assert_eq!(balancer.moved(), 1);
    }

    #[test]
    fn a_move_that_would_not_help_is_not_made() {
        // The others are as busy.
        let mut balancer = LoadBalancer::default();
        for second in 1..10 {
            balancer.on_report(peer(1), 9_000);
            let commands = window(&mut balancer, second * 1_000, 5_000, 1_000);
            assert!(!commands.iter().any(|one| matches!(one, LoadCommand::Move(..))));
        }
        // Nothing is hot, or there is hardly any load.
        for (hot, others) in [(0, 20_000), (500, 100)] {
            let mut balancer = LoadBalancer::default();
            for second in 1..10 {
                balancer.on_report(peer(1), 0);
                assert!(window(&mut balancer, second * 1_000, hot, others).is_empty());
            }
        }
        // One id is the whole load: it would be as hot elsewhere.
        let mut balancer = LoadBalancer::default();
        for second in 1..10 {
            balancer.on_report(peer(1), 0);
            (0..10_000).for_each(|_| balancer.record(id(0)));
            assert!(balancer.on_tick(second * 1_000, &[peer(1)], |_| true).is_empty());
        }
    }
}
