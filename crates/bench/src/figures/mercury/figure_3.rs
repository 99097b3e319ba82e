//! Figure 3: DRAM accesses of a GET.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Place, Reading};
use super::super::setting::Setting;

const ENGINES: [&str; 2] = ["mercury", "global-lock"];
const ONE: &str = "1 thread";
/// Of memory, that a count takes to load and to read, at the pace of a simulated cache.
const SIMULATED_KEYS_PER_SECOND: f64 = 60e3;

pub fn figure(setting: &Setting) -> Figure {
    let keys = setting.keys(32_000_000, 160).min(setting.choose(4_000, 700_000, 32_000_000));
    let mut run = IndexRun::new(setting, &ENGINES, "get", keys)
        .with_all("--theta=0 --dram")
        .once()
        .at(Place::named(0, ONE), Reading::Field("dram_accesses_per_op", 1.0));
    run.seconds += 2.0 * ENGINES.len() as f64 * keys as f64 / SIMULATED_KEYS_PER_SECOND;
    Figure {
        paper: Paper::Mercury,
        name: "figure-3",
        title: "DRAM accesses of a GET",
        printed_setting: "32 million items of 8 + 8 bytes; third-level misses by PAPI. On 8 \
                          threads 2.85 and 5.44, on one 1.2 fewer for Mercury.",
        our_setting: format!(
            "{} Misses are counted by cachegrind in a modelled cache of 32 MiB; it has one \
             thread. A GET that waits for nothing else uses 2 accesses, so 2 over the count is \
             the use of memory's bandwidth that the paper states (70 and 36.7 %).",
            setting.about(keys, 1)
        ),
        panels: vec![Panel {
            x: "",
            y: "DRAM accesses a GET",
            runs: vec![run],
            ..Panel::default()
        }],
        claims: vec![
            Claim::value("accesses, Mercury (printed: 8 threads)", 2.85, "mercury", ONE),
            Claim::value("accesses, memcached (printed: 8 threads)", 5.44, "global-lock", ONE),
        ],
    }
}
