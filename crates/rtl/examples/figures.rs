//! The tables of docs/hardware.md, measured: `cargo run --release -p amalgam-rtl --features
//! verilated --example figures [simulation]`. All but the last lines are the same on every machine.

#[cfg(not(feature = "verilated"))]
fn main() {
    eprintln!("build with --features verilated");
}

#[cfg(feature = "verilated")]
fn main() {
    if std::env::args().all(|argument| argument != "simulation") {
        figures::speed_and_latency();
        figures::loss();
        figures::conflicts();
    }
    figures::simulation();
}

#[cfg(feature = "verilated")]
mod figures {
    use std::time::Instant;

    use amalgam_rtl::{Configuration, PRINTED, Reference, Request, SOFTWARE, Simulation, status};
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    const CLOCK_MEGAHERTZ: f64 = 156.25;

    fn key(number: usize, bytes: usize) -> Vec<u8> {
        let mut key = format!("{number:06}").into_bytes();
        key.resize(bytes, b'k');
        key
    }

    fn table(is_table_only: bool) -> Simulation {
        let mut simulation = Simulation::new(PRINTED);
        simulation.set_table_only(is_table_only);
        simulation
    }

    /// Millions of requests a second.
    fn rate(is_table_only: bool, request: impl Fn(usize) -> Request) -> f64 {
        let mut simulation = table(is_table_only);
        (0..1000).for_each(|number| simulation.send(request(number)));
        while simulation.counters.left < 250 {
            simulation.cycle();
        }
        let start = simulation.counters.cycles;
        while simulation.counters.left < 1000 {
            simulation.cycle();
        }
        CLOCK_MEGAHERTZ * 750.0 / (simulation.counters.cycles - start) as f64
    }

    fn latency(key_bytes: usize) -> u64 {
        let mut simulation = table(true);
        simulation.send(Request::get(&key(1, key_bytes)));
        simulation.run(1);
        simulation.counters.last_status_cycle - simulation.counters.last_key_cycle
    }

    pub fn speed_and_latency() {
        println!(
            "| key | line rate | GET | SET | GET, SET half each | with 1-byte values | latency |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for bytes in [6, 16, 24, 25, 48, 72, 73, 96, 120, 121, 144, 168] {
            let line = CLOCK_MEGAHERTZ / ((90 + bytes) as f64 / 8.0);
            let get = rate(true, |number| Request::get(&key(number, bytes)));
            let set = rate(true, |number| Request::set(&key(number, bytes), b""));
            let half = |number| match number % 2 {
                0 => Request::get(&key(number, bytes)),
                _ => Request::set(&key(number, bytes), b""),
            };
            let half = rate(true, half);
            let values = rate(false, |number| match number % 2 {
                0 => Request::set(&key(number, bytes), b"v"),
                _ => Request::get(&key(number.saturating_sub(101), bytes)),
            });
            let cycles = latency(bytes);
            let nanoseconds = cycles as f64 * 1000.0 / CLOCK_MEGAHERTZ;
            println!(
                "| {bytes} | {line:.2} | {get:.2} | {set:.2} | {half:.2} | {values:.2} | \
                 {cycles} ({nanoseconds:.0} ns) |"
            );
        }
        println!();
    }

    /// Percent of keys that find no slot, by slots of a bucket and by how full the table is then.
    pub fn loss() {
        println!("| full | 1 slot | 2 | 4 | 8 | 16 |\n| --- | --- | --- | --- | --- | --- |");
        let slots = [1, 2, 4, 8, 16];
        let configuration = |slots: usize| Configuration {
            slots,
            bucket_bits: 18 - slots.trailing_zeros(),
            block_bits: 18,
            ..SOFTWARE
        };
        let mut tables = slots.map(|slots| (Reference::new(configuration(slots)), 0_u32));
        for percent in (10..=100).step_by(10) {
            let (from, to) = ((percent - 10) << 18, percent << 18);
            for number in from / 100..to / 100 {
                let set = Request::set(format!("user:{number}").as_bytes(), b"");
                for (table, lost) in &mut tables {
                    table.evicts = false;
                    let answer = table.apply(&set, 0).expect("not quiet");
                    *lost += u32::from(answer.status == status::NO_MEMORY);
                }
            }
            print!("| {percent} % |");
            for (_, lost) in &tables {
                print!(" {:.3} |", f64::from(*lost) * 100.0 / ((percent << 18) / 100) as f64);
            }
            println!();
        }
        println!();
    }

    pub fn conflicts() {
        println!("| addresses | writes | in the section | stalled | formula | Mrps |");
        println!("| --- | --- | --- | --- | --- | --- |");
        for (addresses, writes) in [(500, 0.1), (500, 0.3), (500, 0.5), (100, 0.3), (900, 0.5)] {
            let reference = Reference::new(PRINTED);
            let mut seen = vec![false; 1 << PRINTED.bucket_bits];
            let mut is_new =
                |key: &Vec<u8>| !std::mem::replace(&mut seen[reference.bucket(key)], true);
            let keys: Vec<_> =
                (0..).map(|n| key(n, 12)).filter(|key| is_new(key)).take(addresses).collect();
            let mut random = SmallRng::seed_from_u64(9);
            let mut simulation = table(true);
            for _ in 0..20_000 {
                let key = &keys[random.random_range(0..addresses)];
                let is_write = random.random_bool(writes);
                simulation.send(if is_write { Request::set(key, b"") } else { Request::get(key) });
            }
            simulation.run(20_000);
            let counters = simulation.counters;
            let occupancy = counters.occupancy as f64 / counters.entered as f64;
            println!(
                "| {addresses} | {writes} | {occupancy:.1} | {:.2} % | {:.2} % | {:.2} |",
                100.0 * counters.stalled as f64 / counters.entered as f64,
                100.0 * (1.0 - (1.0 - writes / addresses as f64).powf(occupancy)),
                CLOCK_MEGAHERTZ * 20_000.0 / counters.cycles as f64
            );
        }
        println!();
    }

    /// Simulated cycles a second under load: GETs on the table alone, and half SETs with values.
    pub fn simulation() {
        for (configuration, has_values) in
            [(SOFTWARE, false), (SOFTWARE, true), (PRINTED, false), (PRINTED, true)]
        {
            let mut simulation = Simulation::new(configuration);
            simulation.set_table_only(!has_values);
            for number in 0..200_000 {
                let key = key(number / 2, 16);
                simulation.send(match number % 2 {
                    0 if has_values => Request::set(&key, b"value"),
                    _ => Request::get(&key),
                });
            }
            let start = Instant::now();
            let cycles = 500_000;
            simulation.wait(cycles);
            println!(
                "{}{}: {:.2} million cycles a second, {:.0} requests a second",
                configuration.name,
                if has_values { " with values" } else { "" },
                cycles as f64 / start.elapsed().as_secs_f64() / 1e6,
                simulation.counters.left as f64 / start.elapsed().as_secs_f64()
            );
        }
    }
}
