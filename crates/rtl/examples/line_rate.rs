//! The hardware at the pace of 10 Gb/s, in front of the memory `ddr600`: for each mix, value length
//! and header the rate at some key lengths, and whether it is held at all of them.
//! `cargo run --release -p amalgam-rtl --features verilated --example line_rate [all] [plain]
//! [header]`: all lengths; only without or with memcached's header. With the feature `wide` and
//! `40` or `100`: at so many Gb/s, in front of the memories that those tables have.

#[cfg(not(feature = "verilated"))]
fn main() {
    eprintln!("build with --features verilated");
}

#[cfg(feature = "verilated")]
fn main() {
    use amalgam_rtl::Memory;
    use amalgam_rtl::line_rate::Load;
    use amalgam_rtl::link::Port;

    let is_asked = |word: &str| std::env::args().any(|argument| argument == word);
    let sample = [6, 7, 9, 16, 24, 25, 48, 72, 73, 96, 120, 121, 144, 168];
    let lengths = if is_asked("all") { (6..=168).collect() } else { sample.to_vec() };
    println!(
        "| header | value | sets | held at | tightest key | line | answered | the port's \
         utilisation there | highest |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    let (port, memory) = match () {
        () if is_asked("40") => (Port::GIGABITS_40, Memory::FAST),
        () if is_asked("100") => (Port::GIGABITS_100, Memory::FAST),
        () => (Port::GIGABITS_10, Memory::DDR600),
    };
    let mut is_held = true;
    for has_header in [false, true] {
        if is_asked(if has_header { "plain" } else { "header" }) {
            continue;
        }
        for value_bytes in [1, 64, 512] {
            let load = Load { port, key_bytes: 0, value_bytes, sets_percent: 0, has_header };
            is_held &= line_rate::print(load, &memory, &lengths);
        }
    }
    assert!(is_held, "line rate is not held");
}

#[cfg(feature = "verilated")]
mod line_rate {
    use amalgam_rtl::Memory;
    use amalgam_rtl::line_rate::{Load, Rate};

    const MIXES: [usize; 3] = [0, 5, 50];

    /// A line for each mix. Whether all are held.
    pub fn print(mut load: Load, memory: &Memory, lengths: &[usize]) -> bool {
        let Load { value_bytes, has_header, .. } = load;
        // As many cycles at least as make a latency or two no matter.
        let requests = if load.port.gigabits > 10.0 { 4000 } else { 1000 };
        let requests = if value_bytes < 500 { requests } else { 300 };
        let mut mixes: [Vec<(usize, Rate)>; MIXES.len()] = Default::default();
        for &key_bytes in lengths {
            load.key_bytes = key_bytes;
            load.sets_percent = 0;
            let mut link = load.prepare(memory);
            for (rates, sets_percent) in mixes.iter_mut().zip(MIXES) {
                load.sets_percent = sets_percent;
                rates.push((key_bytes, load.measure_on(&mut link, requests)));
            }
        }
        for (rates, sets_percent) in mixes.iter().zip(MIXES) {
            let held = rates.iter().filter(|(_, rate)| rate.is_held()).count();
            // As many lengths are answered as they are asked, the fullest port decides.
            let share = |rate: &Rate| (rate.answered / rate.line).min(0.995);
            let tightest = rates.iter().min_by(|(_, a), (_, b)| {
                share(a).total_cmp(&share(b)).then(b.utilisation.total_cmp(&a.utilisation))
            });
            let (key, rate) = tightest.expect("there are lengths");
            let highest = rates.iter().map(|rate| rate.1.utilisation).fold(0.0, f64::max);
            println!(
                "| {} | {value_bytes} | {sets_percent} % | {held} of {} | {key} | {:.2} | {:.2} | \
                 {:.0} % | {:.0} % |",
                if has_header { "yes" } else { "no" },
                rates.len(),
                rate.line,
                rate.answered,
                100.0 * rate.utilisation,
                100.0 * highest
            );
            for (key, rate) in rates.iter().filter(|(_, rate)| !rate.is_held()) {
                eprintln!("    {key} bytes, {sets_percent} % sets: {rate:?}");
            }
        }
        mixes.iter().flatten().all(|(_, rate)| rate.is_held())
    }
}
