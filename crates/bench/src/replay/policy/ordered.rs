//! Policies that evict the item with the lowest priority: GDSF, and Belady's, which knows the
//! future.

use std::collections::BTreeSet;

use super::{Policy, Request};

/// How an item's priority comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Greedy dual, size and frequency: the last victim's priority, and hits over bytes (Cherkasova
    /// 1998).
    Gdsf,
    /// The item whose next request is the farthest goes first, whatever its size (Belady 1966).
    Belady,
}

/// A cache with priorities.
pub struct Ordered {
    priority: Priority,
    capacity_bytes: u64,
    used_bytes: u64,
    /// Items by priority: the first goes first.
    order: BTreeSet<(u64, u32)>,
    /// The priority of each item; None of an item that is not in.
    current: Vec<Option<u64>>,
    hits: Vec<u32>,
    /// GDSF's clock: the priority of the last victim.
    inflation: f64,
}

impl Ordered {
    /// An empty cache.
    pub fn new(priority: Priority, items: usize, capacity_bytes: u64) -> Self {
        Self {
            priority,
            capacity_bytes,
            used_bytes: 0,
            order: BTreeSet::new(),
            current: vec![None; items],
            hits: vec![0; items],
            inflation: 0.0,
        }
    }

    fn place(&mut self, request: Request, size: u64) {
        let item = request.item;
        let priority = match self.priority {
            // Positive numbers are ordered as their bits are.
            Priority::Gdsf => {
                let hits = f64::from(self.hits[item as usize]);
                (self.inflation + hits / size.max(1) as f64).to_bits()
            }
            Priority::Belady => u64::MAX - u64::from(request.next),
        };
        if let Some(former) = self.current[item as usize].replace(priority) {
            self.order.remove(&(former, item));
        }
        self.order.insert((priority, item));
    }
}

impl Policy for Ordered {
    fn request(&mut self, request: Request, bytes: &[u32]) -> bool {
        let item = request.item as usize;
        let size = u64::from(bytes[item]);
        if self.current[item].is_some() {
            self.hits[item] += 1;
            self.place(request, size);
            return true;
        }
        if size <= self.capacity_bytes {
            while self.used_bytes + size > self.capacity_bytes {
                let Some((priority, victim)) = self.order.pop_first() else { break };
                self.current[victim as usize] = None;
                self.used_bytes -= u64::from(bytes[victim as usize]);
                if self.priority == Priority::Gdsf {
                    self.inflation = f64::from_bits(priority);
                }
            }
            self.hits[item] = 1;
            self.used_bytes += size;
            self.place(request, size);
        }
        false
    }
}
