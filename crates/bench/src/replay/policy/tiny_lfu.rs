//! W-TinyLFU (Einziger et al. 2017): an LRU window, from which items get into a segmented LRU if
//! they are more popular than its victims; a hill climber sizes the window (Einziger et al. 2018).

use super::list::{Links, List};
use super::{Policy, Request};
use crate::workload::mix64;

/// The window's share of the capacity at the start, and always if it does not adapt.
const WINDOW_SHARE: f64 = 0.01;

/// The share of the main cache that is for items that were asked for again.
const PROTECTED_SHARE: f64 = 0.8;

/// The climber's first step, as a share of the capacity.
const FIRST_STEP: f64 = 0.0625;

/// What a step is multiplied with after each sample.
const STEP_DECAY: f64 = 0.98;

/// The change of the hit ratio from which steps begin anew at full length.
const RESTART_AT: f64 = 0.05;

/// Requests of a sample, over the number of items that fit.
const SAMPLE_FACTOR: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Out,
    Window,
    Probation,
    Protected,
}

/// A cache under W-TinyLFU.
pub struct TinyLfu {
    capacity_bytes: u64,
    window_bytes: u64,
    links: Links,
    window: List,
    probation: List,
    protected: List,
    place: Vec<Place>,
    sketch: Sketch,
    climber: Option<Climber>,
}

struct Climber {
    sample: u64,
    requests: u64,
    hits: u64,
    last_ratio: f64,
    step: f64,
}

impl TinyLfu {
    /// An empty cache for about `fitting` items at once.
    pub fn new(items: usize, capacity_bytes: u64, fitting: u64, is_adaptive: bool) -> Self {
        let climber = Climber {
            sample: SAMPLE_FACTOR * fitting.max(1),
            requests: 0,
            hits: 0,
            last_ratio: 0.0,
            step: FIRST_STEP,
        };
        Self {
            capacity_bytes,
            window_bytes: (capacity_bytes as f64 * WINDOW_SHARE) as u64,
            links: Links::new(items),
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            place: vec![Place::Out; items],
            sketch: Sketch::new(fitting),
            climber: is_adaptive.then_some(climber),
        }
    }

    fn take(&mut self, item: u32, size: u64) {
        let list = match self.place[item as usize] {
            Place::Out => return,
            Place::Window => &mut self.window,
            Place::Probation => &mut self.probation,
            Place::Protected => &mut self.protected,
        };
        list.remove(&mut self.links, item, size);
        self.place[item as usize] = Place::Out;
    }

    fn put(&mut self, item: u32, place: Place, size: u64) {
        self.take(item, size);
        let list = match place {
            Place::Out => return,
            Place::Window => &mut self.window,
            Place::Probation => &mut self.probation,
            Place::Protected => &mut self.protected,
        };
        list.add(&mut self.links, item, size);
        self.place[item as usize] = place;
    }

    fn main_bytes(&self) -> u64 {
        self.capacity_bytes - self.window_bytes
    }

    /// The main cache's least recently used item.
    fn victim(&self) -> Option<u32> {
        self.probation.oldest().or(self.protected.oldest())
    }

    /// Moves what the window has no room for to the main cache, or out.
    fn drain_window(&mut self, bytes: &[u32]) {
        while self.window.bytes > self.window_bytes {
            let Some(candidate) = self.window.oldest() else { return };
            let size = u64::from(bytes[candidate as usize]);
            self.take(candidate, size);
            let mut is_admitted = size <= self.main_bytes();
            while is_admitted
                && self.probation.bytes + self.protected.bytes + size > self.main_bytes()
            {
                let Some(victim) = self.victim() else { break };
                is_admitted = self.sketch.estimate(candidate) > self.sketch.estimate(victim);
                if is_admitted {
                    self.take(victim, u64::from(bytes[victim as usize]));
                }
            }
            if is_admitted {
                self.put(candidate, Place::Probation, size);
            }
        }
    }

    fn climb(&mut self, is_hit: bool, bytes: &[u32]) {
        let Some(climber) = &mut self.climber else { return };
        climber.requests += 1;
        climber.hits += u64::from(is_hit);
        if climber.requests < climber.sample {
            return;
        }
        let ratio = climber.hits as f64 / climber.requests as f64;
        let change = ratio - climber.last_ratio;
        let step = if change >= 0.0 { climber.step } else { -climber.step };
        climber.step =
            if change.abs() >= RESTART_AT { FIRST_STEP.copysign(step) } else { STEP_DECAY * step };
        (climber.last_ratio, climber.requests, climber.hits) = (ratio, 0, 0);
        let capacity = self.capacity_bytes as f64;
        let window = self.window_bytes as f64 + step * capacity;
        self.window_bytes = window.clamp(0.0, 0.8 * capacity) as u64;
        while self.probation.bytes + self.protected.bytes > self.main_bytes() {
            let Some(item) = self.victim() else { break };
            self.put(item, Place::Window, u64::from(bytes[item as usize]));
        }
        self.drain_window(bytes);
    }
}

impl Policy for TinyLfu {
    fn request(&mut self, request: Request, bytes: &[u32]) -> bool {
        let item = request.item;
        let size = u64::from(bytes[item as usize]);
        self.sketch.count(item);
        let place = self.place[item as usize];
        match place {
            Place::Out if size > self.capacity_bytes => {}
            Place::Out | Place::Window => {
                self.put(item, Place::Window, size);
                self.drain_window(bytes);
            }
            Place::Probation | Place::Protected => {
                self.put(item, Place::Protected, size);
                let most = (self.main_bytes() as f64 * PROTECTED_SHARE) as u64;
                while self.protected.bytes > most {
                    let Some(oldest) = self.protected.oldest() else { break };
                    self.put(oldest, Place::Probation, u64::from(bytes[oldest as usize]));
                }
            }
        }
        let is_hit = place != Place::Out;
        self.climb(is_hit, bytes);
        is_hit
    }
}

/// A count-min sketch of four-bit counts that are halved from time to time.
struct Sketch {
    counts: Vec<u8>,
    mask: u64,
    counted: u64,
    sample: u64,
}

/// Rows of the sketch.
const ROWS: u64 = 4;

/// The highest count.
const MOST: u8 = 15;

impl Sketch {
    fn new(fitting: u64) -> Self {
        let width = fitting.max(64).next_power_of_two() * 2;
        let counts = vec![0; (width * ROWS) as usize];
        Self { counts, mask: width - 1, counted: 0, sample: SAMPLE_FACTOR * fitting.max(1) }
    }

    fn places(&self, item: u32) -> impl Iterator<Item = usize> + use<> {
        let (mask, width) = (self.mask, self.mask + 1);
        let hash = mix64(u64::from(item));
        (0..ROWS).map(move |row| {
            (row * width + (mix64(hash ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15)) & mask)) as usize
        })
    }

    fn estimate(&self, item: u32) -> u8 {
        self.places(item).map(|place| self.counts[place]).min().unwrap_or(0)
    }

    fn count(&mut self, item: u32) {
        let least = self.estimate(item);
        if least < MOST {
            for place in self.places(item) {
                self.counts[place] = self.counts[place].max(least + 1);
            }
        }
        self.counted += 1;
        if self.counted >= self.sample {
            self.counted /= 2;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
    }
}
