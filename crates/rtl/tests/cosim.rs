//! Cosimulation of the hardware and its reference: the same requests must give the same answers and
//! the same memory content.

#![cfg(feature = "verilated")]

use amalgam_index::pipeline::twin::{SLOTS, Twin};
use amalgam_rtl::{
    ALL, COUNTED, Configuration, HALF_LINES, Memory, PAPER, Pace, Reference, Request, Response,
    SMALL, SOFTWARE, Simulation, opcode, status,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The simulated hardware and the reference model, driven by the same requests.
struct Cosim {
    simulation: Simulation,
    reference: Reference,
    configuration: Configuration,
}

impl Cosim {
    fn new(configuration: Configuration) -> Self {
        let mut simulation = Simulation::new(configuration);
        let mut reference = Reference::new(configuration);
        reference.power_on(|bucket, slot, word| simulation.word(bucket, slot, word));
        Self { simulation, reference, configuration }
    }

    /// Draws how the memory and the streams behave, and whether full buckets evict.
    fn draw_surroundings(&mut self, random: &mut SmallRng) {
        self.simulation.set_memory(random_memory(random));
        let pace = random_pace(random);
        self.simulation.set_pace(pace, random.random());
        let evicts = random.random_bool(0.7);
        self.simulation.set_evicts(evicts);
        self.reference.evicts = evicts;
    }

    /// Sends all requests, numbered, and compares all answers.
    fn run(&mut self, requests: Vec<Request>, now: u32) {
        self.simulation.set_now(now);
        let mut expected = Vec::new();
        for (id, request) in (0..).zip(requests) {
            let request = request.with_id(id);
            expected.extend(self.reference.apply(&request, now));
            self.simulation.send(request);
        }
        let answers = self.simulation.run(expected.len());
        let found: Vec<Response> = answers.into_iter().map(|answer| answer.response).collect();
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{}", self.configuration.name);
        }
        assert_eq!(found.len(), expected.len());
        self.simulation.wait(2000);
    }

    /// Compares every word of the slot memory, and what was appended to the log.
    fn compare(&mut self) {
        self.compare_words(false);
    }

    /// The same, but where `is_reset` without the words of keys: a reset leaves old ones.
    fn compare_words(&mut self, is_reset: bool) {
        let terms = self.configuration.terms_word();
        for bucket in 0..1 << self.configuration.bucket_bits {
            for slot in 0..self.configuration.slots {
                for word in 0..self.configuration.record_words() {
                    if is_reset && word != 0 && word != terms {
                        continue;
                    }
                    let expected = self.reference.word(bucket, slot, word);
                    let found = self.simulation.word(bucket, slot, word);
                    let is_header = word == 0 || word == terms;
                    // What was overwritten may have been swept, which changes no answer.
                    if is_header && found == 0 && self.reference.is_overwritten(bucket, slot) {
                        continue;
                    }
                    assert_eq!(found, expected, "bucket {bucket} slot {slot} word {word}");
                }
            }
        }
        assert_eq!(self.simulation.log_head(), self.reference.log_head());
    }
}

/// Uses few keys on a small table, so that buckets fill, conflict and evict.
fn random_request(random: &mut SmallRng, longest: usize, now: u32) -> Request {
    let bytes = random.random_range(1..=longest);
    let number: u32 = random.random_range(0..700);
    let mut key = number.to_le_bytes().to_vec();
    key.resize(bytes.max(4), bytes as u8);
    let expiry = if random.random_bool(0.5) { 0 } else { now + random.random_range(0..3) };
    let value = vec![number as u8; random_length(random)];
    let request = match random.random_range(0..16) {
        0..6 => Request::get(&key),
        6 => Request::new(opcode::GETQ, &key, b""),
        7..12 => Request::set(&key, &value),
        12 => Request::new(opcode::SETQ, &key, &value),
        13 => Request::delete(&key),
        14 => Request::new(opcode::DELETEQ, &key, b""),
        _ => Request::new(opcode::NOOP, b"", b""),
    };
    let cas = if random.random_bool(0.1) { random.random() } else { 0 };
    Request { flags: random.random(), ..request.with_expiry(expiry).with_cas(cas) }
}

/// Mostly short, each block size and some that are too large.
fn random_length(random: &mut SmallRng) -> usize {
    let longest = *[8, 60, 500, 1024, 1030].get(random.random_range(0..9)).unwrap_or(&20);
    random.random_range(0..=longest)
}

fn random_memory(random: &mut SmallRng) -> Memory {
    Memory {
        latency: random.random_range(0..120),
        burst: random.random_range(0..8),
        burst_48ths: random.random_range(0..48),
        is_merging: random.random(),
        row_cycle: [0, 9, 40][random.random_range(0..3)],
        turn: random.random_range(0..10),
        refresh_every: random.random_range(50..2000),
        refresh: random.random_range(0..50),
        jitter: [0, 7, 63][random.random_range(0..3)],
        stall: [0, 60, 200][random.random_range(0..3)],
    }
}

fn random_pace(random: &mut SmallRng) -> Pace {
    let mut draw = || [0, 40, 200][random.random_range(0..3)];
    Pace { idle: draw(), back_pressure: draw() }
}

/// Random requests under random memories and back-pressure, in one configuration.
fn random_requests(configuration: Configuration, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut cosim = Cosim::new(configuration);
    if seed % 2 == 1 {
        cosim.reference.seed = [random.random(), random.random()];
        cosim.simulation.set_seed(cosim.reference.seed);
    }
    for _ in 1..20 {
        // The clock goes both ways.
        let now = random.random_range(1..20);
        cosim.draw_surroundings(&mut random);
        let longest = configuration.key_bytes;
        let requests = (0..150).map(|_| random_request(&mut random, longest, now));
        let requests = requests.collect();
        cosim.run(requests, now);
    }
    cosim.compare();
}

#[test]
fn random_requests_as_in_software() {
    (0..3).for_each(|seed| random_requests(SOFTWARE, seed));
}

#[test]
fn random_requests_as_printed() {
    random_requests(PAPER, 3);
}

#[test]
fn random_requests_in_half_lines() {
    (4..6).for_each(|seed| random_requests(HALF_LINES, seed));
}

#[test]
fn random_requests_with_few_slots() {
    (6..9).for_each(|seed| random_requests(SMALL, seed));
}

#[test]
fn random_requests_with_counted_conflicts() {
    (9..12).for_each(|seed| random_requests(COUNTED, seed));
}

/// The software engine's own slot memory, fed with the hardware's pointers and clock.
#[test]
fn the_engine_s_slots_hold_the_same_words() {
    let mut random = SmallRng::seed_from_u64(21);
    let mut simulation = Simulation::new(SOFTWARE);
    simulation.set_pace(Pace { idle: 40, back_pressure: 40 }, 21);
    let mut engine = Twin::new(1 << SOFTWARE.bucket_bits);
    // The engine's memory begins with zeros.
    let slots = (0..1 << SOFTWARE.bucket_bits).flat_map(|b| (0..SLOTS).map(move |s| (b, s)));
    for (bucket, slot) in slots {
        (0..SOFTWARE.lines).for_each(|line| simulation.poke(bucket, slot, line, 0));
    }
    // Keys of eight buckets, so that these fill and evict while the log never does: the engine
    // does not know it.
    let reference = Reference::new(SOFTWARE);
    let keys = (0..).map(|n: usize| format!("{n:0width$}", width = 1 + n % 16).into_bytes());
    let keys: Vec<_> = keys.filter(|key| reference.bucket(key) < 8).take(110).collect();
    for now in 1..30 {
        simulation.set_now(now);
        let requests: Vec<_> = (0..100)
            .map(|id| Request {
                key: keys[random.random_range(0..keys.len())].clone(),
                ..random_request(&mut random, SOFTWARE.key_bytes, now).with_id(id)
            })
            .map(|request| Request { key_bytes: request.key.len() as u8, ..request })
            .filter(|request| matches!(request.opcode, opcode::GET | opcode::SET | opcode::DELETE))
            .filter(|request| request.opcode == opcode::GET || request.cas == 0)
            .collect();
        requests.iter().for_each(|request| simulation.send(request.clone()));
        for (answer, request) in simulation.run(requests.len()).iter().zip(&requests) {
            let Response { status, pointer, .. } = answer.response;
            engine.now = answer.now;
            match (request.opcode, status) {
                (opcode::SET, status::OK) => {
                    engine.set(&request.key, pointer, request.expiry, request.value.len());
                }
                (opcode::GET, _) => {
                    let found = engine.get(&request.key);
                    let bucket = engine.bucket_of(amalgam_op::lookup3(&request.key, 0, 0));
                    let word = |line| found.map_or(0, |slot| engine.word(bucket, line, slot));
                    let (locator, terms) = (word(0), word(SOFTWARE.lines - 1));
                    let is_live = terms as u32 == 0 || terms as u32 > answer.now;
                    let expected = if is_live { locator & ((1 << 48) - 1) } else { 0 };
                    assert_eq!(pointer, expected);
                }
                // A value that is too large deletes the old one.
                (opcode::SET, found) => {
                    assert_eq!(found, status::TOO_LARGE);
                    engine.delete(&request.key);
                }
                _ => engine.delete(&request.key),
            }
        }
    }
    simulation.wait(2000);
    assert!(simulation.log_head() < 1 << SOFTWARE.log_bits, "no value was overwritten");
    for bucket in 0..1 << SOFTWARE.bucket_bits {
        for (line, slot) in (0..SOFTWARE.lines).flat_map(|l| (0..SLOTS).map(move |s| (l, s))) {
            assert_eq!(simulation.word(bucket, slot, line), engine.word(bucket, line, slot));
        }
    }
}

/// Whoever knows the hash can choose keys that all go to one bucket, unless it has a secret seed.
#[test]
fn a_seed_spreads_keys_that_were_chosen_for_one_bucket() {
    let reference = Reference::new(SOFTWARE);
    let keys = (0_u32..).map(|number| number.to_le_bytes()).filter(|k| reference.bucket(k) == 5);
    let keys: Vec<_> = keys.take(64).collect();
    for (seed, expected) in [([0, 0], SOFTWARE.slots..=SOFTWARE.slots), ([0x1234, 0x5678], 50..=64)]
    {
        let mut cosim = Cosim::new(SOFTWARE);
        cosim.simulation.set_seed(seed);
        cosim.reference.seed = seed;
        cosim.run(keys.iter().map(|key| Request::set(key, b"v")).collect(), 1);
        assert!(expected.contains(&cosim.reference.taken()), "{}", cosim.reference.taken());
        // Another seed would hide all items, so none is taken any more.
        cosim.simulation.set_seed([9, 9]);
        cosim.run(keys.iter().map(|key| Request::get(key)).collect(), 1);
        cosim.compare();
    }
}

#[test]
fn counters_count_each_request_once() {
    let mut cosim = Cosim::new(SOFTWARE);
    let requests = vec![
        Request::set(b"key", b"value"),
        Request::get(b"key"),
        Request::get(b"none"),
        Request::new(opcode::GETKQ, b"none", b""),
        Request::new(opcode::SETQ, b"key", b"value").with_cas(3),
        Request::delete(b"none"),
        Request::delete(b"key").with_cas(3),
        Request::get(b""),
        Request::set(b"key", &[1; 1025]),
        Request::new(0x77, b"", b""),
    ];
    cosim.run(requests, 1);
    use amalgam_rtl::register_map as register;
    let counts = [
        (register::GETS, 4),
        (register::SETS, 3),
        (register::DELETES, 2),
        (register::OTHERS, 1),
        (register::HITS, 1),
        (register::MISSES, 2),
        (register::REFUSED_INVALID, 1),
        (register::REFUSED_TOO_LARGE, 1),
        (register::REFUSED_UNKNOWN, 1),
        (register::REFUSED_CAS, 2),
        (register::ENTERED, 10),
    ];
    for (address, expected) in counts {
        assert_eq!(cosim.simulation.read_counter(address), expected, "{address:#x}");
    }
}

#[test]
fn lengths_that_lie() {
    let mut random = SmallRng::seed_from_u64(1);
    for configuration in ALL {
        let mut cosim = Cosim::new(*configuration);
        let mut requests = Vec::new();
        for _ in 0..400 {
            let mut request = random_request(&mut random, configuration.key_bytes, 1);
            let has_value = !request.value.is_empty();
            match random.random_range(0..6) {
                // A stream of no bytes sends nothing, so a lie needs at least one byte each.
                0 if !request.key.is_empty() => request.key_bytes = random.random_range(1..=255),
                1 if has_value => request.value_bytes = random.random_range(1..=1024),
                2 if !request.key.is_empty() => request.key.resize(random.random_range(1..256), 9),
                3 if has_value => request.value.resize(random.random_range(1..2000), 9),
                4 => request.opcode = random.random_range(0x15..=0xff),
                _ => {}
            }
            requests.push(request);
        }
        cosim.simulation.set_pace(Pace { idle: 30, back_pressure: 30 }, 7);
        cosim.run(requests, 1);
        cosim.compare();
    }
}

/// No SET is refused. Values of all sizes share one memory, so none of a size is missing while
/// another is free.
#[test]
fn a_full_log_gives_up_its_oldest_values() {
    for configuration in [HALF_LINES, SMALL] {
        let mut cosim = Cosim::new(configuration);
        let key = |number: u32| format!("k{number}").into_bytes();
        let capacity = (configuration.beat_bytes() << configuration.log_bits) as u32;
        let (mut number, mut round) = (0, 0);
        for bytes in [1000_u32, 1, 300, 1024] {
            // Once and a half as much as there is room for, of each size, and every one is asked
            // for: the older third is gone.
            let beats = (bytes + 8).div_ceil(configuration.beat_bytes() as u32);
            let count = capacity / configuration.beat_bytes() as u32 * 3 / 2 / beats;
            let value = vec![bytes as u8; bytes as usize];
            let mut requests: Vec<_> = (number..number + count)
                .flat_map(|number| {
                    // What is set again and again never becomes the oldest.
                    [Request::set(&key(number), &value), Request::set(b"steady", &value[..1])]
                })
                .collect();
            requests.push(Request::get(b"steady"));
            requests.extend((number..number + count).map(|number| Request::get(&key(number))));
            number += count;
            round += 1;
            cosim.run(requests, round);
        }
        cosim.compare();
        let log_bits = configuration.log_bits;
        assert!(cosim.simulation.log_head() > 5 << log_bits, "around the ring several times");
        let register = amalgam_rtl::register_map::REFUSED_NO_MEMORY;
        assert_eq!(cosim.simulation.read_counter(register), 0);
        assert!(cosim.simulation.read_counter(amalgam_rtl::register_map::HITS) > 100);
    }
}

/// Expired items' memory comes back without a write to their bucket, because the log goes on.
#[test]
fn memory_of_expired_items_comes_back_without_a_write_to_their_bucket() {
    let mut cosim = Cosim::new(SMALL);
    let buckets = 1 << SMALL.bucket_bits;
    let keys = |lower: bool, count: usize| -> Vec<Vec<u8>> {
        let reference = Reference::new(SMALL);
        let keys = (0_u32..).map(|number| number.to_le_bytes().to_vec());
        keys.filter(|key| (reference.bucket(key) < buckets / 2) == lower).take(count).collect()
    };
    // Everything expires, and nobody writes to these buckets again.
    let set = |key: &Vec<u8>| Request::set(key, &[1; 500]).with_expiry(2);
    cosim.run(keys(true, 80).iter().map(set).collect(), 1);
    // As much again, and more, goes to the others: all of it is stored, and the last found.
    let others = keys(false, 100);
    let mut requests: Vec<_> = others.iter().map(|key| Request::set(key, &[2; 500])).collect();
    requests.extend(others.iter().rev().take(30).map(|key| Request::get(key)));
    requests.extend(keys(true, 80).iter().map(|key| Request::get(key)));
    cosim.run(requests, 3);
    cosim.compare();
}

/// An old pointer must never be taken for a later position: every bucket is swept in time.
#[test]
fn positions_begin_again_and_old_items_stay_gone() {
    let mut cosim = Cosim::new(SMALL);
    let keys: Vec<_> = (0..150_u32).map(|number| number.to_le_bytes()).collect();
    cosim.run(keys.iter().map(|key| Request::set(key, b"old")).collect(), 1);
    // All writes go to one bucket, through all positions and on.
    let mut appended = 0;
    let mut round = 0;
    while appended < 5 << (SMALL.position_bits - 1) {
        let set = Request::set(b"steady", &[round as u8; 1024]);
        let mut requests = vec![set; 20];
        // Appended each time, because the other key's value is longer than that.
        for (number, request) in requests.iter_mut().enumerate() {
            request.value.truncate(1024 - 33 * (19 - number));
            request.value_bytes = request.value.len() as u32;
            appended += request.value.len().div_ceil(SMALL.beat_bytes());
        }
        round += 1;
        requests.extend(keys.iter().map(|key| Request::get(key)));
        cosim.run(requests, 1);
    }
    assert!(cosim.reference.taken() > 100, "the reference does not sweep");
    let taken = (0..1 << SMALL.bucket_bits)
        .flat_map(|bucket| (0..SMALL.slots).map(move |slot| (bucket, slot)))
        .filter(|(bucket, slot)| cosim.simulation.word(*bucket, *slot, 0) != 0);
    assert_eq!(taken.count(), 1, "all others were swept");
    cosim.compare();
}

/// A value may end beyond the end of the log, and goes on at its beginning.
#[test]
fn values_go_around_the_end_of_the_log() {
    let mut cosim = Cosim::new(SMALL);
    let value: Vec<u8> = (0..1024_u32).map(|byte| (byte * 7) as u8).collect();
    let requests = (0..200_u32).flat_map(|number| {
        let key = number.to_le_bytes();
        [Request::set(&key, &value[..1024 - number as usize]), Request::get(&key)]
    });
    cosim.run(requests.collect(), 1);
    cosim.compare();
}

#[test]
fn a_flood_of_expired_entries() {
    for configuration in [SOFTWARE, HALF_LINES] {
        let mut cosim = Cosim::new(configuration);
        for round in 0..4 {
            let sets = (0..500).map(|number: u32| {
                Request::set(format!("{round}.{number}").as_bytes(), b"v").with_expiry(round + 1)
            });
            cosim.run(sets.collect(), round);
        }
        cosim.compare();
    }
}

#[test]
fn back_to_back_on_one_address() {
    for configuration in ALL {
        let mut cosim = Cosim::new(*configuration);
        let requests = (0..600_u32).map(|number| match number % 7 {
            0 | 3 => Request::set(b"key", &number.to_le_bytes()),
            5 => Request::delete(b"key"),
            _ => Request::get(b"key"),
        });
        cosim.run(requests.collect(), 1);
        cosim.compare();
    }
}

/// Few hot keys among others, with every kind of write: requests follow the write of their key
/// without waiting for memory.
#[test]
fn hot_keys_are_forwarded() {
    for configuration in ALL {
        let mut random = SmallRng::seed_from_u64(34);
        let mut cosim = Cosim::new(*configuration);
        let longest = configuration.key_bytes;
        for round in 0..12 {
            cosim.draw_surroundings(&mut random);
            // Keys that differ in their length only, or in their last byte.
            let hot: Vec<_> = [longest, longest - 1, 9, 8, 1]
                .iter()
                .flat_map(|bytes| [0_u8, 1].map(|last| [vec![0; bytes - 1], vec![last]].concat()))
                .collect();
            let requests = (0..400).map(|_| {
                let request = random_request(&mut random, longest, round);
                if request.key.is_empty() || random.random_bool(0.2) {
                    return request;
                }
                let place = random.random_range(0..hot.len()) * random.random_range(0..2);
                let key = hot[place].clone();
                Request { key_bytes: key.len() as u8, key, ..request }
            });
            let requests = requests.collect();
            cosim.run(requests, round);
        }
        cosim.compare();
    }
}

/// What a write left behind must not be forwarded behind a sweep: a turn of all positions later,
/// the position of a value that is long gone counts as young again. The stations remember all the
/// while, because the critical section is never empty and nothing else is written to them; and
/// sweeps make the counters of their keys busy without a write of these.
#[test]
fn writes_of_a_turn_ago_are_not_forwarded_behind_sweeps() {
    let mut cosim = Cosim::new(COUNTED);
    let counters = 1 << COUNTED.counter_bits;
    let mut keys = vec![Vec::new(); counters];
    for number in 0..2000_u32 {
        let bucket = cosim.reference.bucket(&number.to_le_bytes());
        keys[(bucket ^ bucket >> COUNTED.counter_bits) % counters].push(number.to_le_bytes());
    }
    // Writes all through the run go to one counter only, one key to each other.
    let steady = keys.pop().expect("there are counters");
    let old: Vec<_> = keys.iter().map(|keys| keys[0]).collect();
    let mut requests: Vec<_> = old.iter().map(|key| Request::set(key, b"old")).collect();
    // A write takes longer than the next one's value takes to arrive, so there is always one.
    cosim.simulation.set_memory(Memory { latency: 300, ..Memory::FIT31 });
    let (turn, beats) = (1 << COUNTED.position_bits, 1032_usize.div_ceil(COUNTED.beat_bytes()));
    for number in 0..3 * turn / beats {
        requests.push(Request::set(&steady[number % 20], &[number as u8; 1024]));
        requests.extend(old.iter().map(|key| Request::get(key)));
    }
    cosim.run(requests, 1);
    cosim.compare();
}

/// A reset may come at any time: reads are on their way, a line is half written. Whatever memory
/// still returns must not become an answer. `AMALGAM_EFFORT` multiplies the resets.
#[test]
fn resets_under_load_leave_a_table_that_answers_right() {
    let effort = std::env::var("AMALGAM_EFFORT").ok().and_then(|text| text.parse().ok());
    let resets = 14 * effort.unwrap_or(1);
    for configuration in [SOFTWARE, HALF_LINES, SMALL] {
        let mut random = SmallRng::seed_from_u64(configuration.slots as u64);
        let mut cosim = Cosim::new(configuration);
        for number in 0..resets {
            cosim.simulation.set_memory(random_memory(&mut random));
            let pace = random_pace(&mut random);
            cosim.simulation.set_pace(pace, random.random());
            let longest = configuration.key_bytes;
            for _ in 0..60 {
                cosim.simulation.send(random_request(&mut random, longest, 1));
            }
            cosim.simulation.wait(random.random_range(0..1500));
            cosim.simulation.reset();
            cosim.reference = Reference::new(configuration);
            let requests = (0..40).map(|_| random_request(&mut random, longest, 1));
            let requests = requests.collect();
            cosim.run(requests, 1);
            if number % 7 == 6 {
                cosim.compare_words(true);
            }
        }
    }
}

/// Whatever no reset sets differs from table to table, so nothing can depend on it unseen.
#[test]
fn tables_begin_at_random() {
    let words = || {
        let mut simulation = Simulation::new(SMALL);
        (0..1 << SMALL.bucket_bits).map(|bucket| simulation.word(bucket, 0, 1)).collect::<Vec<_>>()
    };
    let (one, another) = (words(), words());
    assert!(one.iter().zip(&another).all(|(one, another)| one != another), "{one:?}");
}

#[test]
fn whatever_memory_held_at_power_on_is_cleared() {
    let mut cosim = Cosim::new(SOFTWARE);
    for slot in 0..SOFTWARE.slots {
        cosim.simulation.poke(3, slot, 0, 0x0312_0000_0000_1000);
        cosim.simulation.poke(3, slot, SOFTWARE.terms_word(), 1);
    }
    cosim.simulation.reset();
    cosim.compare();
}

#[test]
fn set_get_delete() {
    for configuration in ALL {
        let mut cosim = Cosim::new(*configuration);
        cosim.run(
            vec![
                Request::get(b"key"),
                Request::set(b"key", b"value"),
                Request::get(b"key"),
                Request::set(b"key", b"another value"),
                Request::get(b"key"),
                Request::delete(b"key"),
                Request::delete(b"key"),
                Request::get(b"key"),
                Request::set(b"0123456789abcdef", &[7; 1000]),
                Request::get(b"0123456789abcdef"),
            ],
            1,
        );
        cosim.compare();
    }
}
