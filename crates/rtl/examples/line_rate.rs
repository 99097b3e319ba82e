//! The hardware at the pace of 10 Gb/s, in front of the memory `ddr600`: for each mix, value length
//! and header the rate at some key lengths, and at every length whether it is held.
//! `cargo run --release -p amalgam-rtl --features verilated --example line_rate [all]`.

#[cfg(not(feature = "verilated"))]
fn main() {
    eprintln!("build with --features verilated");
}

#[cfg(feature = "verilated")]
fn main() {
    use amalgam_rtl::Memory;
    use amalgam_rtl::line_rate::{Load, Rate};

    let is_all = std::env::args().any(|argument| argument == "all");
    let sample = [6, 7, 9, 16, 24, 25, 48, 72, 73, 96, 120, 121, 144, 168];
    let lengths: Vec<usize> = if is_all { (6..=168).collect() } else { sample.to_vec() };
    println!(
        "| header | value | sets | held at | tightest key | line | answered | the port's \
         utilisation there | highest |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for has_header in [false, true] {
        for value_bytes in [1, 64, 512] {
            for sets_percent in [0, 5, 50] {
                let measure = |&key_bytes: &usize| {
                    let load = Load { key_bytes, value_bytes, sets_percent, has_header };
                    (key_bytes, load.measure(&Memory::DDR600, 1000))
                };
                let rates: Vec<(usize, Rate)> = lengths.iter().map(measure).collect();
                let held = rates.iter().filter(|(_, rate)| rate.is_held()).count();
                let part = |rate: &Rate| rate.answered / rate.line;
                let by_part = |a: &&(usize, Rate), b: &&(usize, Rate)| {
                    part(&a.1)
                        .total_cmp(&part(&b.1))
                        .then(b.1.utilisation.total_cmp(&a.1.utilisation))
                };
                let (key, rate) = rates.iter().min_by(by_part).expect("there are lengths");
                let highest = rates.iter().map(|rate| rate.1.utilisation).fold(0.0, f64::max);
                println!(
                    "| {} | {value_bytes} | {sets_percent} % | {held} of {} | {key} | {:.2} | \
                     {:.2} | {:.0} % | {:.0} % |",
                    if has_header { "yes" } else { "no" },
                    rates.len(),
                    rate.line,
                    rate.answered,
                    100.0 * rate.utilisation,
                    100.0 * highest
                );
                for (key, rate) in rates.iter().filter(|(_, rate)| !rate.is_held()) {
                    eprintln!("    {key}: {rate:?}");
                }
            }
        }
    }
}
