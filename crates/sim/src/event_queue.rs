//! A queue of events in the order of simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Scheduled events by time; events of the same time keep the order in which they were scheduled.
///
/// The heap holds only times and indices: events are large, and a heap moves its elements often.
#[derive(Debug)]
pub struct EventQueue<T> {
    /// Time, sequence number and index of each event; the earliest is on top.
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
    /// Schedules an event.
    pub fn schedule(&mut self, at_ms: u64, thing: T) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.things.push(None);
            self.things.len() - 1
        });
        self.things[place] = Some(thing);
        self.times.push(Reverse((at_ms, self.next, place)));
        self.next += 1;
    }

    /// Takes out the next event that is due by `until_ms`, with its time.
    pub fn pop_until(&mut self, until_ms: u64) -> Option<(u64, T)> {
        self.times.peek().filter(|Reverse((at_ms, ..))| *at_ms <= until_ms)?;
        let Reverse((at_ms, _, place)) = self.times.pop()?;
        self.free.push(place);
        self.things[place].take().map(|thing| (at_ms, thing))
    }
}
