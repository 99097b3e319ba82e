//! Measures the tables of docs/hardware.md: `cargo run --release -p amalgam-rtl --features
//! verilated --example figures [simulation]`. All lines except the last are the same on every
//! machine. With `rate`, `latency`, `loss` or `conflicts` and `--json` it prints one table as
//! points, for `amalgam-lab reproduce`.

#[cfg(not(feature = "verilated"))]
fn main() {
    eprintln!("build with --features verilated");
}

#[cfg(feature = "verilated")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("simulation") => figures::simulation(),
        Some(table) if arguments.iter().any(|argument| argument == "--json") => {
            figures::print_points(table);
        }
        _ => {
            figures::print_speed_and_latency();
            figures::print_loss();
            figures::print_conflicts();
            figures::simulation();
        }
    }
}

#[cfg(feature = "verilated")]
mod figures {
    use std::time::Instant;

    use amalgam_rtl::{Configuration, PAPER, Reference, Request, SOFTWARE, Simulation, status};
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    const CLOCK_MEGAHERTZ: f64 = 156.25;

    fn key(number: usize, bytes: usize) -> Vec<u8> {
        let mut key = format!("{number:06}").into_bytes();
        key.resize(bytes, b'k');
        key
    }

    fn table(is_table_only: bool) -> Simulation {
        let mut simulation = Simulation::new(PAPER);
        simulation.set_table_only(is_table_only);
        simulation
    }

    /// Measures the rate of requests in millions a second.
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

    /// A row of the table of figure 9: rates in millions of requests a second, and the latency in
    /// cycles.
    struct Speed {
        key_bytes: usize,
        line: f64,
        get: f64,
        set: f64,
        half: f64,
        values: f64,
        cycles: u64,
    }

    impl Speed {
        fn nanoseconds(&self) -> f64 {
            self.cycles as f64 * 1000.0 / CLOCK_MEGAHERTZ
        }
    }

    fn speed_and_latency() -> Vec<Speed> {
        let lengths = [6, 16, 24, 25, 48, 72, 73, 96, 120, 121, 144, 168];
        let speed = |bytes: usize| {
            let half = |number| match number % 2 {
                0 => Request::get(&key(number, bytes)),
                _ => Request::set(&key(number, bytes), b""),
            };
            let values = |number: usize| match number % 2 {
                0 => Request::set(&key(number, bytes), b"v"),
                _ => Request::get(&key(number.saturating_sub(101), bytes)),
            };
            Speed {
                key_bytes: bytes,
                line: CLOCK_MEGAHERTZ / ((90 + bytes) as f64 / 8.0),
                get: rate(true, |number| Request::get(&key(number, bytes))),
                set: rate(true, |number| Request::set(&key(number, bytes), b"")),
                half: rate(true, half),
                values: rate(false, values),
                cycles: latency(bytes),
            }
        };
        lengths.into_iter().map(speed).collect()
    }

    pub fn print_speed_and_latency() {
        println!(
            "| key | line rate | GET | SET | GET, SET half each | with 1-byte values | latency |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for speed in speed_and_latency() {
            let Speed { key_bytes, line, get, set, half, values, cycles } = speed;
            println!(
                "| {key_bytes} | {line:.2} | {get:.2} | {set:.2} | {half:.2} | {values:.2} | \
                 {cycles} ({:.0} ns) |",
                speed.nanoseconds()
            );
        }
        println!();
    }

    const SLOTS: [usize; 5] = [1, 2, 4, 8, 16];

    /// The percentage of keys that find no slot, by how full the table is then and by slots of a
    /// bucket.
    fn loss() -> Vec<(usize, [f64; 5])> {
        let configuration = |slots: usize| Configuration {
            slots,
            bucket_bits: 18 - slots.trailing_zeros(),
            log_bits: 30,
            ..SOFTWARE
        };
        let mut tables = SLOTS.map(|slots| (Reference::new(configuration(slots)), 0_u32));
        let mut lines = Vec::new();
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
            let offered = ((percent << 18) / 100) as f64;
            let part = |table: &(Reference, u32)| f64::from(table.1) * 100.0 / offered;
            lines.push((percent, tables.each_ref().map(part)));
        }
        lines
    }

    pub fn print_loss() {
        println!("| full | 1 slot | 2 | 4 | 8 | 16 |\n| --- | --- | --- | --- | --- | --- |");
        for (percent, lost) in loss() {
            let lost = lost.map(|lost| format!("{lost:.3}"));
            println!("| {percent} % | {} |", lost.join(" | "));
        }
        println!();
    }

    /// A row of the table of conflicts.
    struct Conflicts {
        addresses: usize,
        writes: f64,
        occupancy: f64,
        stalled_percent: f64,
        formula_percent: f64,
        rate: f64,
    }

    fn conflicts(addresses: usize, writes: f64) -> Conflicts {
        let reference = Reference::new(PAPER);
        let mut seen = vec![false; 1 << PAPER.bucket_bits];
        let mut is_new = |key: &Vec<u8>| !std::mem::replace(&mut seen[reference.bucket(key)], true);
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
        Conflicts {
            addresses,
            writes,
            occupancy,
            stalled_percent: 100.0 * counters.stalled as f64 / counters.entered as f64,
            formula_percent: 100.0 * (1.0 - (1.0 - writes / addresses as f64).powf(occupancy)),
            rate: CLOCK_MEGAHERTZ * 20_000.0 / counters.cycles as f64,
        }
    }

    pub fn print_conflicts() {
        println!("| addresses | writes | in the section | stalled | formula | Mrps |");
        println!("| --- | --- | --- | --- | --- | --- |");
        for (addresses, writes) in [(500, 0.1), (500, 0.3), (500, 0.5), (100, 0.3), (900, 0.5)] {
            let line = conflicts(addresses, writes);
            println!(
                "| {} | {} | {:.1} | {:.2} % | {:.2} % | {:.2} |",
                line.addresses,
                line.writes,
                line.occupancy,
                line.stalled_percent,
                line.formula_percent,
                line.rate
            );
        }
        println!();
    }

    /// Prints a table as one line of JSON, whose `points` are triples of series, position and
    /// value.
    ///
    /// # Panics
    ///
    /// If there is no such table.
    pub fn print_points(table: &str) {
        let mut points: Vec<(String, f64, f64)> = Vec::new();
        let mut add = |series: &str, at: f64, value| points.push((series.to_owned(), at, value));
        match table {
            "rate" => speed_and_latency().iter().for_each(|speed| {
                let at = speed.key_bytes as f64;
                add("GET", at, speed.get);
                add("SET", at, speed.set);
                add("half each", at, speed.half);
                add("half each, 1-byte values", at, speed.values);
                add("10 Gb/s", at, speed.line);
            }),
            "latency" => speed_and_latency().iter().for_each(|speed| {
                add("GET", speed.key_bytes as f64, speed.nanoseconds() / 1000.0);
            }),
            "loss" => loss().iter().for_each(|(percent, lost)| {
                for (slots, lost) in SLOTS.iter().zip(lost) {
                    let plural = if *slots == 1 { "" } else { "s" };
                    add(&format!("{slots} slot{plural}"), *percent as f64, *lost);
                }
            }),
            "conflicts" => [0.05, 0.1, 0.2, 0.3, 0.5].iter().for_each(|writes| {
                let line = conflicts(500, *writes);
                add("measured", 100.0 * writes, line.stalled_percent);
                add("formula", 100.0 * writes, line.formula_percent);
            }),
            _ => panic!("there is no table '{table}': rate, latency, loss, conflicts"),
        }
        let points: Vec<String> = points
            .iter()
            .map(|(series, at, value)| format!("[\"{series}\",{at},{value:.6}]"))
            .collect();
        println!("{{\"points\":[{}]}}", points.join(","));
    }

    /// Prints the simulated cycles a second under load: with GETs on the table alone, and with half
    /// SETs and values.
    pub fn simulation() {
        for (configuration, has_values) in
            [(SOFTWARE, false), (SOFTWARE, true), (PAPER, false), (PAPER, true)]
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
