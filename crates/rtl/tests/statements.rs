//! Tests the paper's arithmetic as statements about the hardware, numbered as in docs/hardware.md.
//! Cycles are counted in the simulation, so they are the same on every machine.

#![cfg(feature = "verilated")]

use amalgam_rtl::{
    Configuration, HALF_LINES, Memory, PAPER, Pace, Reference, Request, SMALL, SOFTWARE,
    Simulation, opcode, status,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The frequency of the paper's clock in cycles a second.
const CLOCK: f64 = 156.25e6;
/// The number of cycles that a memory line takes.
const LINE_CYCLES: usize = 5;

fn key(number: usize, bytes: usize) -> Vec<u8> {
    let mut key = format!("{number:06}").into_bytes();
    key.resize(bytes, b'k');
    key
}

/// The number of memory lines of a request for a key of this length, in the printed configuration.
fn lines(key_bytes: usize) -> usize {
    (24 + key_bytes).div_ceil(48)
}

/// The number of cycles from request to request by statement 4.
fn service(key_bytes: usize) -> usize {
    (LINE_CYCLES * lines(key_bytes)).max(key_bytes.div_ceil(8)).max(key_bytes.div_ceil(12))
}

/// A simulation of the table without values, in front of the printed memory.
fn table(configuration: Configuration) -> Simulation {
    let mut simulation = Simulation::new(configuration);
    simulation.set_table_only(true);
    simulation
}

/// The mean number of cycles from request to request. The first quarter of the requests fills the
/// pipeline and is not counted.
fn cycles_each(simulation: &mut Simulation, requests: impl Iterator<Item = Request>) -> f64 {
    let requests: Vec<_> = requests.collect();
    let (warm, rest) = requests.split_at(requests.len() / 4);
    warm.iter().for_each(|request| simulation.send(request.clone()));
    rest.iter().for_each(|request| simulation.send(request.clone()));
    while simulation.counters.left < warm.len() as u64 {
        simulation.cycle();
    }
    let start = simulation.counters;
    while simulation.counters.left < requests.len() as u64 {
        simulation.cycle();
    }
    let cycles = simulation.counters.cycles - start.cycles;
    simulation.run(requests.len());
    cycles as f64 / rest.len() as f64
}

#[test]
fn statement_2_and_4_service_stays_within_the_budget_of_a_packet() {
    for key_bytes in (6..=168).step_by(9).chain([24, 25, 72, 73, 120, 121, 168]) {
        let mut simulation = table(PAPER);
        let requests = (0..400).map(|number| Request::get(&key(number, key_bytes)));
        let cycles = cycles_each(&mut simulation, requests);
        assert!(cycles <= service(key_bytes) as f64 * 1.005, "{key_bytes}: {cycles}");
        assert!(service(key_bytes) as f64 <= (90 + key_bytes) as f64 / 8.0, "{key_bytes}");
    }
}

#[test]
fn statement_3_a_slot_is_192_bytes_in_either_layout() {
    for configuration in [PAPER, HALF_LINES] {
        assert_eq!(configuration.record_words() * 8, 192);
        assert_eq!(configuration.key_word() * 8 + configuration.key_bytes, 192);
        assert_eq!(configuration.stripe_bytes * configuration.slots, 384);
    }
}

#[test]
fn statement_4_short_keys_at_31_million_a_second() {
    for key_bytes in [6, 16, 24] {
        let mut simulation = table(PAPER);
        // Half of the requests are hits.
        (0..200).for_each(|number| simulation.send(Request::set(&key(number, key_bytes), b"")));
        simulation.run(200);
        simulation.counters = Default::default();
        let requests = (0..1000).map(|number| Request::get(&key(number % 400, key_bytes)));
        let rate = CLOCK / cycles_each(&mut simulation, requests);
        assert!(rate >= 31.25e6 * 0.999, "{key_bytes}: {rate}");
    }
}

#[test]
fn statement_5_stalls_of_five_percent_cost_line_rate_at_25_bytes() {
    // At 25 bytes a request takes two lines, 10 of the 14.4 cycles of a packet. The rest allows for
    // a stall of the whole critical section, about 75 cycles, in one request of twenty.
    let budget = (90.0 + 25.0) / 8.0;
    // A key of each bucket: what repeats a key is forwarded, another of its bucket waits.
    let reference = Reference::new(PAPER);
    let mut others = vec![Vec::new(); 1 << PAPER.bucket_bits];
    for key in (10_000..30_000).map(|number| key(number, 25)) {
        let bucket = reference.bucket(&key);
        others[bucket] = key;
    }
    let run = |conflicts: usize| {
        let mut simulation = table(PAPER);
        let mut random = SmallRng::seed_from_u64(5);
        let requests = (0..2000).map(|number| match number % 20 {
            // A read right after a write of its address: one request of twenty stalls.
            0 if conflicts > 0 => Request::set(&key(number, 25), b""),
            1 if conflicts > 0 => Request::get(&others[reference.bucket(&key(number - 1, 25))]),
            _ => Request::get(&key(random.random_range(2000..9999), 25)),
        });
        let requests: Vec<_> = requests.collect();
        cycles_each(&mut simulation, requests.into_iter())
    };
    assert!(run(0) < budget);
    assert!(run(1) > budget * 0.95, "{} of {budget}", run(1));
}

#[test]
fn statement_6_six_lanes_and_the_ring_take_a_word_a_cycle() {
    // The longest keys have 14 words of 12 bytes in 21 beats of 8, so the bus is the bottleneck.
    // Where the first line has no part of the key, the key buffer takes one cycle more.
    for (configuration, bound) in [(PAPER, 21.0), (HALF_LINES, 22.0)] {
        let mut simulation = table(configuration);
        simulation.set_memory(Memory { burst: 1, ..Memory::FIT31 });
        let requests = (0..400).map(|number| Request::get(&key(number, 168)));
        let cycles = cycles_each(&mut simulation, requests);
        assert!(cycles <= bound * 1.005, "{}: {cycles}", configuration.name);
    }
}

#[test]
fn statement_7_latency_of_an_unloaded_get() {
    for key_bytes in 6..=168 {
        let mut simulation = table(PAPER);
        simulation.send(Request::get(&key(1, key_bytes)));
        simulation.run(1);
        let counters = simulation.counters;
        let latency = (counters.last_status_cycle - counters.last_key_cycle) as usize;
        let bound = 90 + 6 * key_bytes.div_ceil(12) + LINE_CYCLES * (lines(key_bytes) - 1);
        assert!(latency <= bound, "{key_bytes}: {latency} of {bound}");
        assert!(latency > 60, "the memory alone takes 60");
    }
}

/// Offers as many keys as half of the slots of a table without eviction. Returns the share of keys
/// that found no slot.
fn lost_at_half_fill(configuration: Configuration) -> f64 {
    let mut simulation = table(configuration);
    simulation.set_evicts(false);
    simulation.set_memory(Memory { latency: 4, burst: 0, ..Memory::FIT31 });
    let keys = (configuration.slots << configuration.bucket_bits) / 2;
    (0..keys).for_each(|number| simulation.send(Request::set(&key(number, 12), b"")));
    let answers = simulation.run(keys);
    let lost = answers.iter().filter(|answer| answer.response.status == status::NO_MEMORY);
    lost.count() as f64 / keys as f64
}

#[test]
fn statement_8_loss_at_half_fill() {
    let lost = lost_at_half_fill(PAPER);
    assert!((0.004..0.010).contains(&lost), "{lost} with 8 slots, 8192 of them");
}

#[test]
fn statement_9_conflicts_follow_the_formula() {
    let (addresses, writes) = (500, 0.3);
    let mut simulation = table(PAPER);
    let reference = Reference::new(PAPER);
    // Many keys for each of 500 buckets, since what repeats a key is forwarded.
    let mut keys = vec![Vec::new(); addresses];
    for number in 0..40_000 {
        let key = key(number, 12);
        if let Some(keys) = keys.get_mut(reference.bucket(&key)) {
            keys.push(key);
        }
    }
    let mut random = SmallRng::seed_from_u64(9);
    let count = 20_000;
    for _ in 0..count {
        let keys = &keys[random.random_range(0..addresses)];
        let key = &keys[random.random_range(0..keys.len())];
        let is_write = random.random_bool(writes);
        simulation.send(if is_write { Request::set(key, b"") } else { Request::get(key) });
    }
    simulation.run(count);
    let counters = simulation.counters;
    let occupancy = counters.occupancy as f64 / counters.entered as f64;
    let measured = counters.stalled as f64 / counters.entered as f64;
    let formula = 1.0 - (1.0 - writes / addresses as f64).powf(occupancy);
    println!("occupancy {occupancy:.1}: {measured:.4} stalled, by the formula {formula:.4}");
    assert!((measured / formula - 1.0).abs() < 0.25, "{measured} against {formula}");
}

#[test]
fn statement_10_every_request_is_checked_against_older_writes() {
    // Inserts into few buckets back to back: without the check two of them would take the same
    // slot, and one key would be lost.
    for configuration in [SOFTWARE, PAPER, SMALL] {
        let mut simulation = table(configuration);
        let mut reference = Reference::new(configuration);
        reference.is_table_only = true;
        let in_few = |number: &usize| reference.bucket(&key(*number, 8)) < 2;
        let numbers: Vec<_> = (0..4000).filter(in_few).collect();
        for number in &numbers {
            let request = Request::set(&key(*number, 8), b"");
            reference.apply(&request, 0);
            simulation.send(request);
        }
        simulation.run(numbers.len());
        simulation.wait(100);
        for (bucket, slot) in (0..2).flat_map(|b| (0..configuration.slots).map(move |s| (b, s))) {
            assert_eq!(simulation.word(bucket, slot, 0), reference.word(bucket, slot, 0));
        }
    }
}

#[test]
fn statement_11_a_match_outranks_a_free_slot_and_expired_slots_are_freed() {
    let mut simulation = Simulation::new(SOFTWARE);
    let reference = Reference::new(SOFTWARE);
    let bucket = reference.bucket(&key(0, 8));
    let mut same: Vec<_> =
        (0..9000).map(|n| key(n, 8)).filter(|key| reference.bucket(key) == bucket).collect();
    same.truncate(SOFTWARE.slots);
    assert_eq!(same.len(), SOFTWARE.slots);
    simulation.set_now(10);
    for (place, key) in same.iter().enumerate() {
        let expiry = if place % 2 == 0 { 20 } else { 0 };
        simulation.send(Request::set(key, b"v").with_expiry(expiry));
    }
    simulation.run(same.len());
    simulation.set_now(20);
    // The bucket is full. The last key's slot is overwritten, although lower ones have expired.
    simulation.send(Request::set(&same[7], b"w"));
    simulation.send(Request::get(&same[7]));
    let answers = simulation.run(2);
    assert_eq!(answers[1].response.value.as_deref(), Some(&b"w"[..]));
    simulation.wait(100);
    let taken: Vec<_> = (0..8).map(|slot| simulation.word(bucket, slot, 0) != 0).collect();
    assert_eq!(taken, [false, true, false, true, false, true, false, true]);
    assert_eq!(simulation.log_head(), 1 + 8, "the new value lies where the old one was");
}

#[test]
fn statement_13_parameters_change_no_answer() {
    // One script for all configurations. No bucket fills, so the number of slots does not show.
    let mut random = SmallRng::seed_from_u64(13);
    let script: Vec<_> = (0..600)
        .map(|id| {
            let number = random.random_range(0..40);
            let key = key(number, 6 + number % 11);
            let request = match random.random_range(0..10) {
                0..5 => Request::get(&key),
                5..9 => Request::set(&key, &vec![id as u8; random.random_range(0..200)]),
                _ => Request::new(opcode::DELETEQ, &key, b""),
            };
            request.with_id(id)
        })
        .collect();
    let mut answers = Vec::new();
    for configuration in [SOFTWARE, PAPER, HALF_LINES, SMALL] {
        for latency in [1, 60, 333] {
            let mut simulation = Simulation::new(configuration);
            simulation.set_memory(Memory { latency, jitter: 31, ..Memory::FIT31 });
            simulation.set_pace(Pace { idle: 100, back_pressure: 100 }, latency.into());
            script.iter().for_each(|request| simulation.send(request.clone()));
            let mut found = simulation.run(1);
            simulation.wait(60_000);
            found.extend(simulation.run(0));
            let found: Vec<_> = found
                .into_iter()
                .map(|answer| (answer.response.id, answer.response.status, answer.response.value))
                .collect();
            answers.push(found);
        }
    }
    assert!(answers[0].iter().any(|(_, _, value)| value.is_some()), "the script finds values");
    assert!(answers.iter().all(|other| *other == answers[0]), "an answer depends on a parameter");
}
