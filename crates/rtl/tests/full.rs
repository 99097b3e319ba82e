//! The table in its full size: 2^21 slots and a log of 2^21 beats.

#![cfg(feature = "full")]

use amalgam_rtl::{FULL, Memory, Request, Simulation, register_map as register, status};

/// Requests under way at a time.
const BATCH: u32 = 1 << 14;

fn key(number: u32) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

/// 1 to 64 bytes that tell the key's number.
fn value(number: u32) -> Vec<u8> {
    let scattered = number.wrapping_mul(0x9e37_79b9);
    let mut value = scattered.to_le_bytes().repeat(16);
    value.truncate(1 + (scattered >> 26) as usize);
    value
}

/// Stores these items. Returns the number of refusals.
fn store(simulation: &mut Simulation, numbers: std::ops::Range<u32>) -> usize {
    let mut refused = 0;
    for first in numbers.clone().step_by(BATCH as usize) {
        let batch = first..numbers.end.min(first + BATCH);
        let count = batch.len();
        batch.for_each(|number| simulation.send(Request::set(&key(number), &value(number))));
        let answers = simulation.run(count);
        refused += answers.iter().filter(|answer| answer.response.status != status::OK).count();
    }
    refused
}

/// Asks for these items. Returns how many there are; each must have its value.
fn found(simulation: &mut Simulation, numbers: std::ops::Range<u32>) -> usize {
    let mut found = 0;
    for first in numbers.clone().step_by(BATCH as usize) {
        let batch = first..numbers.end.min(first + BATCH);
        batch.clone().for_each(|number| simulation.send(Request::get(&key(number))));
        for (answer, number) in simulation.run(batch.len()).into_iter().zip(batch) {
            if answer.response.status == status::OK {
                assert_eq!(answer.response.value, Some(value(number)), "item {number}");
                found += 1;
            } else {
                assert_eq!(answer.response.status, status::NOT_FOUND);
            }
        }
    }
    found
}

#[test]
fn a_million_values_are_live_and_no_set_is_ever_refused() {
    let mut simulation = Simulation::new(FULL);
    simulation.set_evicts(true);
    simulation.set_memory(Memory { latency: 8, burst: 0, ..Memory::FIT31 });
    // Full buckets give up a slot of a hundred, so a few more than there are to be.
    let million = 1 << 20;
    let items = million + (1 << 14);
    let mut refused = store(&mut simulation, 0..items);
    let live = found(&mut simulation, 0..items);
    println!("{live} of {items} items of 1 to 64 bytes are live, {refused} were refused");
    assert!(live >= million as usize);
    // On, until the log is full and has given up the first of them.
    let all = (1 << FULL.log_bits) + 100_000;
    refused += store(&mut simulation, items..all);
    assert_eq!(refused, 0);
    assert_eq!(simulation.read_counter(register::REFUSED_NO_MEMORY), 0);
    assert_eq!(simulation.log_head(), 1 + u64::from(all), "one beat a value");
    assert_eq!(found(&mut simulation, 0..99_999), 0, "the oldest are gone");
    let live = found(&mut simulation, all - million..all);
    println!("of {all} items, {live} of the last {million} are live");
    // Only what full buckets gave up is missing.
    assert!(live > 900_000);
}
