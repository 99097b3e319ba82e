//! Events in the order of simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Things that will happen, by time; those of one time in the order in which they were planned.
///
/// The heap holds times and places only: things are large, and a heap moves what it holds often.
#[derive(Debug)]
pub struct EventQueue<T> {
    /// When, its number, and where it lies; the least is on top.
    times: BinaryHeap<Reverse<(u64, u64, usize)>>,
    things: Vec<Option<T>>,
    free: Vec<usize>,
    next: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { times: BinaryHeap::new(), things: Vec::new(), free: Vec::new(), next: 0 }
    }
}

impl<T> EventQueue<T> {
    /// Plans a thing.
    pub fn schedule(&mut self, at_ms: u64, thing: T) {
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
