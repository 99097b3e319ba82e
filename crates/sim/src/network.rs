//! What becomes of messages: they are late, out of order, repeated or lost.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use amalgam_cluster::overlay::Peer;

use crate::random::Random;

/// How bad the network is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Messages of a hundred that get lost.
    pub lost_percent: u64,
    /// Messages of a hundred that arrive twice.
    pub twice_percent: u64,
    /// Messages of a hundred that are late by up to half a second.
    pub late_percent: u64,
}

impl Weather {
    /// Everything arrives within 10 ms.
    pub const FAIR: Self = Self { lost_percent: 0, twice_percent: 0, late_percent: 0 };
    /// Everything happens.
    pub const FOUL: Self = Self { lost_percent: 5, twice_percent: 5, late_percent: 5 };
}

/// Things that will happen, by time; those of one time in the order in which they were planned.
///
/// The heap holds times and places only: things are large, and a heap moves what it holds often.
#[derive(Debug)]
pub struct Agenda<T> {
    /// When, its number, and where it lies; the least is on top.
    times: BinaryHeap<Reverse<(u64, u64, usize)>>,
    things: Vec<Option<T>>,
    free: Vec<usize>,
    next: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { times: BinaryHeap::new(), things: Vec::new(), free: Vec::new(), next: 0 }
    }
}

impl<T> Agenda<T> {
    /// Plans a thing.
    pub fn plan(&mut self, at_ms: u64, thing: T) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.things.push(None);
            self.things.len() - 1
        });
        self.things[place] = Some(thing);
        self.times.push(Reverse((at_ms, self.next, place)));
        self.next += 1;
    }

    /// The next thing up to a time, and when it happens.
    pub fn pop_until(&mut self, until_ms: u64) -> Option<(u64, T)> {
        self.times.peek().filter(|Reverse((at_ms, ..))| *at_ms <= until_ms)?;
        let Reverse((at_ms, _, place)) = self.times.pop()?;
        self.free.push(place);
        self.things[place].take().map(|thing| (at_ms, thing))
    }
}

/// Who is cut off from whom.
#[derive(Clone, Debug, Default)]
pub struct Partition(BTreeSet<Peer>);

impl Partition {
    /// Some of `peers` on one side, the others on the other.
    pub fn draw(peers: &[Peer], random: &mut Random) -> Self {
        Self(peers.iter().copied().filter(|_| random.percent(40)).collect())
    }

    /// Whether a message between two passes.
    pub fn lets_through(&self, one: Peer, other: Peer) -> bool {
        self.0.contains(&one) == self.0.contains(&other)
    }
}

/// After how many milliseconds each copy of a message arrives.
pub fn arrivals(weather: Weather, random: &mut Random) -> Vec<u64> {
    let copies = match (random.percent(weather.lost_percent), random.percent(weather.twice_percent))
    {
        (true, _) => 0,
        (false, true) => 2,
        (false, false) => 1,
    };
    let delay = |random: &mut Random| {
        let most = if random.percent(weather.late_percent) { 500 } else { 10 };
        1 + random.below(most)
    };
    (0..copies).map(|_| delay(random)).collect()
}
