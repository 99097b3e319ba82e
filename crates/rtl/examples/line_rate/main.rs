//! Measures the hardware at the line rate of 10 Gb/s, in front of the memory `ddr600`: for each
//! mix, value length and header setting, prints the rate at some key lengths and whether it is held
//! at all of them. `cargo run --release -p amalgam-rtl --features verilated --example line_rate
//! [all] [plain] [header] [bytes]`: `all` measures every key length, `plain` and `header` only
//! requests without or with memcached's header, and `bytes` only values of a byte. With the feature
//! `wide`, `40` or `100` selects that rate in Gb/s, with the memories of those tables. With
//! `files`, every rate is written to `target/line-rate-10.csv` (40, 100), and the rates of 1-byte
//! values are drawn in a picture next to it. `hot` prints instead what becomes of keys that are
//! asked for far more often than others.

#[cfg(feature = "verilated")]
mod picture;

#[cfg(not(feature = "verilated"))]
fn main() {
    eprintln!("build with --features verilated");
}

#[cfg(feature = "verilated")]
fn main() -> std::io::Result<()> {
    use amalgam_rtl::Memory;
    use amalgam_rtl::ethernet::Port;
    use amalgam_rtl::line_rate::Load;

    let is_asked = |word: &str| std::env::args().any(|argument| argument == word);
    let (port, memory) = match () {
        () if is_asked("40") => (Port::GIGABITS_40, Memory::FAST),
        () if is_asked("100") => (Port::GIGABITS_100, Memory::FAST),
        () => (Port::GIGABITS_10, Memory::DDR600),
    };
    let sample = [6, 7, 9, 13, 16, 19, 24, 25, 48, 72, 73, 96, 120, 121, 144, 168];
    let lengths = if is_asked("all") { (6..=168).collect() } else { sample.to_vec() };
    if is_asked("hot") {
        line_rate::print_hot(port, &memory, &lengths);
        return Ok(());
    }
    println!(
        "| header | value | sets | held at | tightest key | line | answered | the port's \
         utilisation there | highest |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut measured = Vec::new();
    for has_header in [false, true] {
        if is_asked(if has_header { "plain" } else { "header" }) {
            continue;
        }
        let values: &[usize] = if is_asked("bytes") { &[1] } else { &[1, 64, 512] };
        for &value_bytes in values {
            let load = Load { has_header, ..Load::uniform(port, 0, value_bytes) };
            measured.extend(line_rate::print(load, &memory, &lengths));
        }
    }
    if is_asked("files") {
        let path = format!("target/line-rate-{}", port.gigabits);
        std::fs::write(format!("{path}.csv"), line_rate::csv(&measured))?;
        std::fs::write(format!("{path}.svg"), picture::svg(&measured))?;
    }
    assert!(measured.iter().all(|(_, rate)| rate.is_held()), "line rate is not held");
    Ok(())
}

#[cfg(feature = "verilated")]
mod line_rate {
    use std::fmt::Write;

    use amalgam_rtl::Memory;
    use amalgam_rtl::ethernet::Port;
    use amalgam_rtl::line_rate::{Load, Popularity, Rate};

    pub const MIXES: [usize; 3] = [0, 5, 50];

    /// Prints a line for each mix, and returns the rate of each load.
    pub fn print(mut load: Load, memory: &Memory, lengths: &[usize]) -> Vec<(Load, Rate)> {
        // The same time on each wire: about 90 us, in which one or two latencies do not matter.
        let requests = if load.value_bytes < 500 { 100.0 } else { 30.0 } * load.port.gigabits;
        let requests = requests as usize;
        let mut measured = Vec::new();
        for &key_bytes in lengths {
            load.key_bytes = key_bytes;
            load.sets_percent = 0;
            let mut link = load.prepare(memory);
            for sets_percent in MIXES {
                load.sets_percent = sets_percent;
                measured.push((load, load.measure_on(&mut link, requests)));
            }
        }
        for sets_percent in MIXES {
            let of_mix = |(load, _): &&(Load, Rate)| load.sets_percent == sets_percent;
            let rates: Vec<_> = measured.iter().filter(of_mix).collect();
            let held = rates.iter().filter(|(_, rate)| rate.is_held()).count();
            // Of lengths that are answered at the rate of the line, the one with the fullest port
            // is chosen.
            let share = |rate: &Rate| (rate.answered / rate.line).min(0.995);
            let tightest = rates.iter().min_by(|(_, a), (_, b)| {
                share(a).total_cmp(&share(b)).then(b.utilisation.total_cmp(&a.utilisation))
            });
            let (tight, rate) = tightest.expect("there are lengths");
            let highest = rates.iter().map(|rate| rate.1.utilisation).fold(0.0, f64::max);
            println!(
                "| {} | {} | {sets_percent} % | {held} of {} | {} | {:.2} | {:.2} | {:.0} % | \
                 {:.0} % |",
                if load.has_header { "yes" } else { "no" },
                load.value_bytes,
                rates.len(),
                tight.key_bytes,
                rate.line,
                rate.answered,
                100.0 * rate.utilisation,
                100.0 * highest
            );
            for (load, rate) in rates.iter().filter(|(_, rate)| !rate.is_held()) {
                eprintln!("    {} bytes, {sets_percent} % sets: {rate:?}", load.key_bytes);
            }
        }
        measured
    }

    /// Prints the same for keys that are asked for far more often than others, with the key length
    /// that loses most.
    pub fn print_hot(port: Port, memory: &Memory, lengths: &[usize]) {
        println!(
            "| keys | value | sets | held at | tightest key | line | answered | lost |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |"
        );
        // Twice as long as above: what cannot be kept up with fills every buffer.
        let requests = 200 * port.gigabits as usize;
        for (popularity, sets_percent) in [(Popularity::Zipf, 50), (Popularity::Single, 100)] {
            for value_bytes in [0, 8, 64] {
                let uniform = Load::uniform(port, 0, value_bytes);
                let load = Load { popularity, sets_percent, ..uniform };
                let rates: Vec<_> = lengths
                    .iter()
                    .map(|&key_bytes| (key_bytes, Load { key_bytes, ..load }))
                    .map(|(key_bytes, load)| (key_bytes, load.measure(memory, requests)))
                    .collect();
                let held = rates.iter().filter(|(_, rate)| rate.is_held()).count();
                let share = |rate: &Rate| rate.answered / rate.line;
                let (key_bytes, rate) = rates
                    .iter()
                    .min_by(|(_, a), (_, b)| {
                        b.dropped.cmp(&a.dropped).then(share(a).total_cmp(&share(b)))
                    })
                    .expect("there are lengths");
                println!(
                    "| {popularity:?} | {value_bytes} | {sets_percent} % | \
                     {held} of {} | {key_bytes} | {:.2} | {:.2} | {:.1} % |",
                    rates.len(),
                    rate.line,
                    rate.answered,
                    100.0 * rate.dropped as f64 / requests as f64,
                );
                for (key_bytes, rate) in rates.iter().filter(|(_, rate)| !rate.is_held()) {
                    eprintln!("    {key_bytes} bytes: {rate:?}");
                }
            }
        }
    }

    pub fn csv(measured: &[(Load, Rate)]) -> String {
        let mut text = "header,value bytes,sets %,key bytes,line,answered,port,lost\n".to_owned();
        for (load, rate) in measured {
            let Load { has_header, value_bytes, sets_percent, key_bytes, .. } = load;
            let Rate { line, answered, utilisation, lost, .. } = rate;
            let header = u8::from(*has_header);
            let what = format!("{header},{value_bytes},{sets_percent},{key_bytes}");
            writeln!(text, "{what},{line:.3},{answered:.3},{utilisation:.3},{lost}")
                .expect("a string takes it");
        }
        text
    }
}
