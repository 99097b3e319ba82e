//! The simulated network: delays, reordering, repetition, loss and partitions.

use std::collections::BTreeSet;

use amalgam_cluster::overlay::Peer;

use crate::faults::NetworkFaults;
use crate::random::Random;

/// A network partition: the nodes of one side.
#[derive(Clone, Debug, Default)]
pub struct Partition(BTreeSet<Peer>);

impl Partition {
    /// Splits `peers` at random.
    pub fn draw(peers: &[Peer], random: &mut Random) -> Self {
        Self(peers.iter().copied().filter(|_| random.percent(40)).collect())
    }

    /// Whether messages between two nodes pass.
    pub fn lets_through(&self, one: Peer, other: Peer) -> bool {
        self.0.contains(&one) == self.0.contains(&other)
    }
}

/// The delay of each copy of a message, in milliseconds; empty if it is lost.
pub fn arrivals(network: NetworkFaults, random: &mut Random) -> Vec<u64> {
    let copies = match (random.percent(network.lost_percent), random.percent(network.twice_percent))
    {
        (true, _) => 0,
        (false, true) => 2,
        (false, false) => 1,
    };
    let delay = |random: &mut Random| {
        let most = if random.percent(network.late_percent) { 500 } else { 10 };
        1 + random.below(most)
    };
    (0..copies).map(|_| delay(random)).collect()
}
