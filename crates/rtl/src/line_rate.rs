//! Measures whether the hardware sustains line rate for a mix of requests.
//!
//! Line rate is set by the busier of the two directions: requests where keys are longer than
//! values, answers otherwise. Requests are offered at exactly that rate.

use crate::ethernet::{Client, Link, Port, SHORTEST_FRAME, WIRE_BYTES, frame};
use crate::{Memory, Request};

/// Number of keys in the table, as in the paper's figure on conflicts.
const KEYS: usize = 500;
/// Number of warm-up requests, which are not measured.
const WARM_REQUESTS: usize = 100;
/// Bytes of the Ethernet, IPv4, UDP and memcached binary headers.
const HEADERS_BYTES: usize = 66;
/// Bytes of memcached's UDP header.
const DATAGRAM_HEADER: [u8; 8] = [0, 0, 0, 0, 0, 1, 0, 0];
const CLIENT: Client = Client { mac: [2, 0, 0, 0, 0, 2], ip: [10, 0, 0, 2], port: 40_000 };

/// How requests choose among the keys of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popularity {
    /// Every key in turn, in no order, and SETs spread evenly.
    Uniform,
    /// Zipf's distribution with the exponent 0.99, as YCSB has it; keys and SETs in random order.
    Zipf,
    /// One key only.
    Single,
}

/// The load of a measurement: a mix of requests.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The port that the requests arrive at.
    pub port: Port,
    /// How often each key is asked for.
    pub popularity: Popularity,
    /// Length of each key.
    pub key_bytes: usize,
    /// Length of each value.
    pub value_bytes: usize,
    /// Percentage of requests that are SETs.
    pub sets_percent: usize,
    /// Whether each datagram begins with memcached's UDP header.
    pub has_header: bool,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Millions of requests a second on a full wire.
    pub line: f64,
    /// Millions of answers a second that were received.
    pub answered: f64,
    /// Fraction of the cycles in which the memory port was busy; the mean over several ports.
    pub utilisation: f64,
    /// Number of requests whose frames were dropped.
    pub dropped: u64,
    /// Number of dropped frames and of missing or wrong answers: each missing answer counts as
    /// missing, and makes later ones wrong. 0 only if all is right.
    pub lost: u64,
}

impl Rate {
    /// Whether nothing was lost and answers came as fast as requests. A shortfall of 1 in 200 is
    /// allowed, because the latencies of the first and the last answer differ.
    pub fn is_held(&self) -> bool {
        self.lost == 0 && self.answered >= 0.995 * self.line
    }
}

impl Load {
    /// The paper's load: GETs of 500 keys, each as often as any other, without memcached's header.
    pub fn uniform(port: Port, key_bytes: usize, value_bytes: usize) -> Self {
        Self {
            port,
            popularity: Popularity::Uniform,
            key_bytes,
            value_bytes,
            sets_percent: 0,
            has_header: false,
        }
    }

    /// Returns key `number`: the number fills the first six bytes, or all of a shorter key.
    fn key(&self, number: usize) -> Vec<u8> {
        let mut key = format!("{number:06}").into_bytes();
        key.resize(self.key_bytes, b'k');
        key
    }

    fn frame(&self, request: &Request) -> Vec<u8> {
        let header: &[u8] = if self.has_header { &DATAGRAM_HEADER } else { &[] };
        frame(&CLIENT, &[header, &request.packet(0)].concat())
    }

    fn request(&self, key: usize, is_set: bool) -> Request {
        let key = self.key(key);
        let value = vec![b'v'; self.value_bytes];
        if is_set { Request::set(&key, &value) } else { Request::get(&key) }
    }

    /// Draws the key of each request, and whether it is a SET.
    fn draw(&self, count: usize) -> Vec<(usize, bool)> {
        // Evenly spread: the share of SETs among the first requests is that among all.
        let is_even_set =
            |n: usize| (n + 1) * self.sets_percent / 100 > n * self.sets_percent / 100;
        match self.popularity {
            Popularity::Uniform => {
                // Multiplied by a prime of that size: every key, in no order.
                (0..count).map(|number| (number * 387 % KEYS, is_even_set(number))).collect()
            }
            Popularity::Single => (0..count).map(|number| (0, is_even_set(number))).collect(),
            Popularity::Zipf => {
                let mut sum = 0.0;
                let sums: Vec<f64> = (1..=KEYS)
                    .map(|rank| {
                        sum += (rank as f64).powf(-0.99);
                        sum
                    })
                    .collect();
                let mut random = 0x9e37_79b9_7f4a_7c15_u64;
                let mut uniform = || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    (random >> 11) as f64 / (1_u64 << 53) as f64
                };
                (0..count)
                    .map(|_| {
                        let point = uniform() * sum;
                        let rank = sums.partition_point(|sum| *sum <= point);
                        (rank.min(KEYS - 1), uniform() * 100.0 < self.sets_percent as f64)
                    })
                    .collect()
            }
        }
    }

    /// Length of an answer's frame in bytes.
    fn answer_bytes(&self, is_set: bool) -> usize {
        let header = if self.has_header { 8 } else { 0 };
        let body = if is_set { 0 } else { 4 + self.value_bytes };
        (HEADERS_BYTES + header + body).max(SHORTEST_FRAME)
    }

    /// Creates hardware that holds the items.
    pub fn prepare(&self, memory: &Memory) -> Link {
        let mut link = Link::new(&self.port, memory, self.has_header);
        for key in 0..KEYS {
            let frame = self.frame(&self.request(key, true));
            let spacing = frame.len() as u64 + 150;
            link.send_spaced(frame, spacing);
        }
        link.settle();
        link
    }

    /// Offers `requests` requests at line rate.
    pub fn measure(&self, memory: &Memory, requests: usize) -> Rate {
        self.measure_on(&mut self.prepare(memory), requests)
    }

    /// Like [`Self::measure`], on hardware that already holds the items; they may have been stored
    /// by another mix.
    pub fn measure_on(&self, link: &mut Link, requests: usize) -> Rate {
        let total = WARM_REQUESTS + requests;
        let frames: Vec<_> = self
            .draw(total)
            .into_iter()
            .map(|(key, is_set)| (is_set, self.frame(&self.request(key, is_set))))
            .collect();
        let wire = |bytes: usize| bytes as u64 + WIRE_BYTES;
        let asked: u64 = frames.iter().map(|(_, frame)| wire(frame.len())).sum();
        let answers = frames.iter().map(|(is_set, _)| self.answer_bytes(*is_set));
        let answered: u64 = answers.clone().map(wire).sum();
        let line_bytes = asked.max(answered);
        let mut offered = 0;
        for (_, frame) in &frames {
            // Where answers fill the wire, the same share more behind each request.
            let before = offered * line_bytes / asked;
            offered += wire(frame.len());
            link.send_spaced(frame.clone(), offered * line_bytes / asked - before);
        }
        let expected: Vec<usize> = answers.collect();
        let mut rate = run(link, &expected);
        rate.line = self.port.megahertz * self.port.wire_bytes() * total as f64 / line_bytes as f64;
        rate.answered *= self.port.megahertz;
        rate.utilisation /= self.port.configuration.tables as f64;
        rate
    }
}

/// Runs until every request is answered or no more answers arrive. `expected` holds the answers'
/// lengths in bytes, in order. Rates are per cycle.
fn run(link: &mut Link, expected: &[usize]) -> Rate {
    let before = link.dropped.total();
    let (mut count, mut lost, mut quiet) = (0, 0, 0);
    let (mut begin, mut end) = ((0, 0), (0, 0));
    while count < expected.len() && quiet < 5000 {
        link.cycle();
        quiet = if link.unsent() > 0 { 0 } else { quiet + 1 };
        for frame in link.take_frames() {
            lost += u64::from(expected.get(count) != Some(&frame.len().max(SHORTEST_FRAME)));
            count += 1;
            quiet = 0;
            end = (link.cycles, link.busy_cycles);
            if count == WARM_REQUESTS {
                begin = end;
            }
        }
    }
    let (cycles, busy) = ((end.0 - begin.0) as f64, (end.1 - begin.1) as f64);
    let answered = count.saturating_sub(WARM_REQUESTS) as f64;
    let dropped = link.dropped.total() - before;
    Rate {
        line: 0.0,
        answered: answered / cycles,
        utilisation: busy / cycles,
        dropped,
        lost: lost + dropped + (expected.len() - count) as u64,
    }
}
