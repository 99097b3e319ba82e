//! Policies with one queue: FIFO, LRU, CLOCK and SIEVE.

use super::list::{Links, List};
use super::{Policy, Request};

/// What a hit and the hand do to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A hit moves the item to the front.
    Lru,
    /// A hit counts up to this; the hand takes one off and moves the item to the front. FIFO
    /// counts to zero.
    Clock(u8),
    /// A hit marks the item; the hand unmarks it where it is (Zhang et al., NSDI 2024).
    Sieve,
}

/// A cache with one queue.
pub struct Queue {
    rule: Rule,
    capacity_bytes: u64,
    links: Links,
    list: List,
    is_in: Vec<bool>,
    hits: Vec<u8>,
    /// SIEVE's hand: the next item that it looks at; None is the oldest.
    hand: Option<u32>,
}

impl Queue {
    /// An empty cache.
    pub fn new(rule: Rule, items: usize, capacity_bytes: u64) -> Self {
        Self {
            rule,
            capacity_bytes,
            links: Links::new(items),
            list: List::new(),
            is_in: vec![false; items],
            hits: vec![0; items],
            hand: None,
        }
    }

    /// Removes the item that the rule names.
    fn evict(&mut self, bytes: &[u32]) {
        let mut hand = if self.rule == Rule::Sieve { self.hand } else { None };
        // Ends: each step takes a hit off, and hits are finite.
        while let Some(item) = hand.or(self.list.oldest()) {
            let size = u64::from(bytes[item as usize]);
            let hits = &mut self.hits[item as usize];
            if *hits > 0 {
                *hits -= 1;
                if self.rule == Rule::Sieve {
                    hand = self.links.newer(item);
                } else {
                    self.list.remove(&mut self.links, item, size);
                    self.list.add(&mut self.links, item, size);
                }
                continue;
            }
            self.hand = self.links.newer(item);
            self.list.remove(&mut self.links, item, size);
            self.is_in[item as usize] = false;
            return;
        }
    }
}

impl Policy for Queue {
    fn request(&mut self, request: Request, bytes: &[u32]) -> bool {
        let item = request.item;
        let size = u64::from(bytes[item as usize]);
        if self.is_in[item as usize] {
            match self.rule {
                Rule::Lru => {
                    self.list.remove(&mut self.links, item, size);
                    self.list.add(&mut self.links, item, size);
                }
                Rule::Clock(most) => {
                    let hits = &mut self.hits[item as usize];
                    *hits = (*hits + 1).min(most);
                }
                Rule::Sieve => self.hits[item as usize] = 1,
            }
            return true;
        }
        if size <= self.capacity_bytes {
            while self.list.bytes + size > self.capacity_bytes {
                self.evict(bytes);
            }
            self.list.add(&mut self.links, item, size);
            self.is_in[item as usize] = true;
            self.hits[item as usize] = 0;
        }
        false
    }
}
