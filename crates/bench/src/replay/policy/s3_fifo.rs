//! S3-FIFO (Yang et al., SOSP 2023): a small queue for new items, a main queue for those that were
//! asked for again, and a ghost of the keys that left the small queue.

use super::list::{Links, List};
use super::{Policy, Request};

/// The small queue's share of the capacity.
const SMALL_SHARE: f64 = 0.1;

/// Bytes whose keys the ghost keeps, as a share of the capacity.
const GHOST_SHARE: f64 = 0.9;

/// Hits in the small queue from which an item moves to the main queue.
const HITS_TO_MAIN: u8 = 2;

/// The most hits that count.
const MOST_HITS: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Out,
    Small,
    Main,
    Ghost,
}

/// A cache under S3-FIFO.
pub struct S3Fifo {
    capacity_bytes: u64,
    small_bytes: u64,
    ghost_bytes: u64,
    links: Links,
    small: List,
    main: List,
    ghost: List,
    place: Vec<Place>,
    hits: Vec<u8>,
    has_evicted: bool,
}

impl S3Fifo {
    /// An empty cache.
    pub fn new(items: usize, capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            small_bytes: (capacity_bytes as f64 * SMALL_SHARE) as u64,
            ghost_bytes: (capacity_bytes as f64 * GHOST_SHARE) as u64,
            links: Links::new(items),
            small: List::new(),
            main: List::new(),
            ghost: List::new(),
            place: vec![Place::Out; items],
            hits: vec![0; items],
            has_evicted: false,
        }
    }

    fn evict(&mut self, bytes: &[u32]) {
        self.has_evicted = true;
        let main_bytes = self.capacity_bytes - self.small_bytes;
        if self.main.bytes > main_bytes || self.small.oldest().is_none() {
            self.evict_from_main(bytes);
        } else {
            self.evict_from_small(bytes);
        }
    }

    /// Moves items to the main queue until one leaves for the ghost.
    fn evict_from_small(&mut self, bytes: &[u32]) {
        while let Some(item) = self.small.oldest() {
            let size = u64::from(bytes[item as usize]);
            self.small.remove(&mut self.links, item, size);
            if self.hits[item as usize] >= HITS_TO_MAIN {
                self.hits[item as usize] = 0;
                self.put(item, Place::Main, size);
                continue;
            }
            self.put(item, Place::Ghost, size);
            while self.ghost.bytes > self.ghost_bytes {
                let Some(oldest) = self.ghost.oldest() else { break };
                self.ghost.remove(&mut self.links, oldest, u64::from(bytes[oldest as usize]));
                self.place[oldest as usize] = Place::Out;
            }
            return;
        }
    }

    fn evict_from_main(&mut self, bytes: &[u32]) {
        while let Some(item) = self.main.oldest() {
            let size = u64::from(bytes[item as usize]);
            self.main.remove(&mut self.links, item, size);
            let hits = &mut self.hits[item as usize];
            if *hits == 0 {
                self.place[item as usize] = Place::Out;
                return;
            }
            *hits -= 1;
            self.main.add(&mut self.links, item, size);
        }
    }

    fn put(&mut self, item: u32, place: Place, size: u64) {
        let list = match place {
            Place::Small => &mut self.small,
            Place::Main => &mut self.main,
            Place::Ghost => &mut self.ghost,
            Place::Out => return,
        };
        list.add(&mut self.links, item, size);
        self.place[item as usize] = place;
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, request: Request, bytes: &[u32]) -> bool {
        let item = request.item;
        let size = u64::from(bytes[item as usize]);
        let mut was_ghost = false;
        match self.place[item as usize] {
            Place::Small | Place::Main => {
                let hits = &mut self.hits[item as usize];
                *hits = (*hits + 1).min(MOST_HITS);
                return true;
            }
            Place::Ghost => {
                self.ghost.remove(&mut self.links, item, size);
                self.place[item as usize] = Place::Out;
                was_ghost = true;
            }
            Place::Out => {}
        }
        let goes_to_main = was_ghost
            // As long as there is room, new items fill both queues.
            || (!self.has_evicted && self.small.bytes >= self.small_bytes);
        let limit = if goes_to_main { self.capacity_bytes } else { self.small_bytes };
        if size <= limit {
            while self.small.bytes + self.main.bytes + size > self.capacity_bytes {
                self.evict(bytes);
            }
            self.hits[item as usize] = 0;
            self.put(item, if goes_to_main { Place::Main } else { Place::Small }, size);
        }
        false
    }
}
