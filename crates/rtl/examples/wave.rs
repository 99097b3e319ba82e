//! Draws one GET through the printed table as a waveform: `target/rtl-wave.vcd` for a viewer of
//! waveforms and `target/rtl-wave.svg` as a picture.

#[cfg(not(feature = "verilated"))]
fn main() {
    eprintln!("build with --features verilated, or run `make rtl-wave`");
}

#[cfg(feature = "verilated")]
fn main() -> std::io::Result<()> {
    let trace = wave::trace();
    std::fs::create_dir_all("target")?;
    std::fs::write("target/rtl-wave.vcd", wave::vcd(&trace))?;
    std::fs::write("target/rtl-wave.svg", wave::svg(&trace))?;
    println!("target/rtl-wave.vcd and target/rtl-wave.svg: {} cycles", trace[0].levels.len());
    Ok(())
}

#[cfg(feature = "verilated")]
mod wave {
    use std::fmt::Write;

    use amalgam_rtl::{PAPER, Request, Simulation};

    /// A signal's name and its level in each cycle.
    pub struct Signal {
        name: &'static str,
        pub levels: Vec<bool>,
    }

    /// The stages' valid signals by their bit in the probe, in the order of the pipeline.
    const PROBES: [(&str, u32); 10] = [
        ("key beat in", 0),
        ("hash", 1),
        ("line read issued", 2),
        ("line beat back", 3),
        ("verdict", 4),
        ("header write", 6),
        ("status", 5),
        ("value access", 7),
        ("answer out", 8),
        ("value out", 9),
    ];
    const COLUMN: usize = 7;
    const ROW: usize = 22;
    const MARGIN: usize = 130;

    /// A GET of a 25-byte key (two memory lines) that finds 20 bytes.
    pub fn trace() -> Vec<Signal> {
        let mut simulation = Simulation::new(PAPER);
        let key = b"a key of twenty-five byte";
        simulation.send(Request::set(key, b"a value of 20 bytes."));
        simulation.run(1);
        simulation.wait(300);
        simulation.send(Request::get(key));
        let mut signals: Vec<_> =
            PROBES.iter().map(|(name, _)| Signal { name, levels: Vec::new() }).collect();
        let mut idle = 0;
        while idle < 90 {
            let probe = simulation.probe();
            for (signal, (_, bit)) in signals.iter_mut().zip(PROBES) {
                signal.levels.push(probe >> bit & 1 == 1);
            }
            idle = if probe == 0 { idle + 1 } else { 0 };
        }
        // The rest of the last wait is cut off, because it shows nothing.
        let length = signals[0].levels.len() - 85;
        signals.iter_mut().for_each(|signal| signal.levels.truncate(length));
        signals
    }

    pub fn vcd(trace: &[Signal]) -> String {
        let mut text = "$timescale 6400 ps $end\n$scope module ht_top $end\n".to_owned();
        let code = |place: usize| char::from(b'!' + place as u8);
        for (place, signal) in trace.iter().enumerate() {
            let name = signal.name.replace(' ', "_");
            writeln!(text, "$var wire 1 {} {name} $end", code(place)).expect("text");
        }
        text += "$upscope $end\n$enddefinitions $end\n";
        for cycle in 0..trace[0].levels.len() {
            writeln!(text, "#{cycle}").expect("text");
            for (place, signal) in trace.iter().enumerate() {
                let level = signal.levels[cycle];
                if cycle == 0 || signal.levels[cycle - 1] != level {
                    writeln!(text, "{}{}", u8::from(level), code(place)).expect("text");
                }
            }
        }
        text
    }

    pub fn svg(trace: &[Signal]) -> String {
        let cycles = trace[0].levels.len();
        let (width, height) = (MARGIN + cycles * COLUMN + 10, (trace.len() + 1) * ROW + 10);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for cycle in (0..cycles).step_by(10) {
            let x = MARGIN + cycle * COLUMN;
            let bottom = trace.len() * ROW;
            writeln!(text, "<path d=\"M{x} 4V{bottom}\" stroke=\"#ddd\"/>").expect("text");
            writeln!(text, "<text x=\"{x}\" y=\"{}\">{cycle}</text>", bottom + 16).expect("text");
        }
        for (place, signal) in trace.iter().enumerate() {
            let (low, high) = ((place + 1) * ROW - 5, place * ROW + 6);
            writeln!(text, "<text x=\"4\" y=\"{low}\">{}</text>", signal.name).expect("text");
            let mut path = format!("M{MARGIN} {low}");
            for (cycle, level) in signal.levels.iter().enumerate() {
                let y = if *level { high } else { low };
                write!(path, "V{y}H{}", MARGIN + (cycle + 1) * COLUMN).expect("text");
            }
            writeln!(text, "<path d=\"{path}\" fill=\"none\" stroke=\"#0a58a6\"/>").expect("text");
        }
        text + "</svg>\n"
    }
}
