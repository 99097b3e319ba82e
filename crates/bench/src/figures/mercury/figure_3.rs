//! Figure 3: DRAM accesses of a GET.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Place, Point, Reading};
use super::super::setting::Setting;

const ENGINES: [&str; 2] = ["mercury", "global-lock"];
const ONE: &str = "1 thread";
/// Of memory, that a count takes to load and to read, at the pace of a simulated cache.
const SIMULATED_KEYS_PER_SECOND: f64 = 60e3;

pub fn figure(setting: &Setting) -> Figure {
    let keys = setting.keys(32_000_000, 160).min(setting.choose(4_000, 500_000, 32_000_000));
    // As many keys to a byte of it at all scales.
    let cache_kibibytes = setting.choose(64, 512, 32 << 10);
    let run = || {
        let mut run = IndexRun::new(setting, &ENGINES, "get", keys)
            .with_all("--theta=0 --dram")
            .with(format!("--dram-cache={cache_kibibytes}Ki"))
            .once()
            .at(Place::named(0, ONE), Reading::Field("dram_accesses_per_op", 1.0));
        run.seconds += 2.0 * ENGINES.len() as f64 * keys as f64 / SIMULATED_KEYS_PER_SECOND;
        run
    };
    Figure {
        paper: Paper::Mercury,
        name: "figure-3",
        title: "DRAM accesses of a GET",
        printed_setting: "32 million items of 8 + 8 bytes; third-level misses by PAPI. On 8 \
                          threads 2.85 and 5.44, on one 1.2 fewer for Mercury.",
        our_setting: format!(
            "{} Misses are counted by cachegrind in a modelled cache of {cache_kibibytes} KiB, \
             about a byte for each key, so that it holds few of them; it has one thread. A GET \
             needs 2 accesses; 2 over the count is the part of memory's bandwidth that serves \
             them, which is what the paper states as use of the practical limit.",
            setting.about(keys, 1)
        ),
        panels: vec![
            Panel { y: "DRAM accesses a GET", runs: vec![run()], ..Panel::default() },
            Panel {
                y: "% of the accesses that a GET needs",
                runs: vec![run()],
                derive: Some(useful),
                ..Panel::default()
            },
        ],
        claims: vec![
            Claim::value("accesses, Mercury (printed: 8 threads)", 2.85, "mercury", ONE).less(),
            Claim::value("accesses, memcached (printed: 8 threads)", 5.44, "global-lock", ONE)
                .same(),
            Claim::value("% of bandwidth in use, Mercury (8 threads)", 70.0, "mercury", ONE)
                .of_panel(1),
            Claim::value("% of bandwidth in use, memcached (8 threads)", 36.7, "global-lock", ONE)
                .of_panel(1)
                .same(),
        ],
    }
}

/// The item's line and its bucket's.
const NEEDED: f64 = 2.0;

fn useful(accesses: &[Point]) -> Vec<Point> {
    let part = |point: &Point| Point { value: 100.0 * NEEDED / point.value, ..point.clone() };
    accesses.iter().filter(|point| point.value > 0.0).map(part).collect()
}
