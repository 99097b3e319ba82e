//! Figure 3: DRAM accesses of a GET, and the misses of the caches in front of it.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Reading, Run};
use super::super::point::{AxisPosition, Point};
use super::super::scale_profile::ScaleProfile;

const ENGINES: [&str; 2] = ["mercury", "global-lock"];
const ONE: &str = "1 thread";
/// The fields of a result that are shown.
const FIRST: &str = "first_level_misses_per_op";
const LAST: &str = "dram_accesses_per_op";
/// The size of the paper's second-level cache. The first level has 64 KiB there and here, half of
/// it for instructions.
const SECOND_LEVEL_KIBIBYTES: u64 = 256;
/// The keys per second that are loaded and read with simulated caches.
const SIMULATED_KEYS_PER_SECOND: f64 = 60e3;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(32_000_000, 160).min(profile.choose(4_000, 500_000, 32_000_000));
    // The cache has the same size per key at all scales.
    let cache_kibibytes = profile.choose(64, 512, 32 << 10);
    let misses = |kibibytes: u64, place, field| {
        let mut run = IndexRun::new(profile, &ENGINES, "get", keys)
            .with_all("--theta=0 --dram")
            .with(format!("--dram-cache={kibibytes}Ki"))
            .once()
            .at(place, Reading::Field(field, 1.0));
        run.seconds += 2.0 * ENGINES.len() as f64 * keys as f64 / SIMULATED_KEYS_PER_SECOND;
        run
    };
    let run = || misses(cache_kibibytes, AxisPosition::named(0, ONE), LAST);
    // The model has one level behind the first, which is the second level here.
    let second = profile.choose(cache_kibibytes, SECOND_LEVEL_KIBIBYTES, SECOND_LEVEL_KIBIBYTES);
    let levels: Vec<Run> = vec![
        misses(cache_kibibytes, AxisPosition::named(0, "first"), FIRST),
        misses(second, AxisPosition::named(1, "second"), LAST),
    ];
    Figure {
        paper: Paper::Mercury,
        name: "figure-3",
        title: "DRAM accesses of a GET",
        printed_setting: "32 million items of 8 + 8 bytes; third-level misses by PAPI. On 8 \
                          threads 2.85 and 5.44, on one 1.2 fewer for Mercury; 31 to 46 % fewer \
                          in all. Of the first level it misses up to 34 % less often, of the \
                          second up to 53 %.",
        our_setting: format!(
            "{} Misses are counted by cachegrind in a modelled cache of {cache_kibibytes} KiB, \
             about a byte for each key, so that it holds few of them; it has one thread. A GET \
             needs 2 accesses; 2 over the count is the part of memory's bandwidth that serves \
             them, which is what the paper states as use of the practical limit. The second \
             level's misses are those of a cache of {second} KiB in its place.",
            profile.about(keys, 1)
        ),
        panels: vec![
            Panel {
                title: "accesses to memory".to_owned(),
                y: "DRAM accesses a GET",
                runs: vec![run()],
                ..Panel::default()
            },
            Panel {
                title: "misses of the caches".to_owned(),
                x: "level",
                y: "misses a GET",
                runs: levels,
                ..Panel::default()
            },
            Panel {
                title: "accesses that are needed".to_owned(),
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
            Claim::fewer("accesses fewer than memcached's", 1.2, "mercury", "global-lock", ONE),
            of_memcached("accesses, of memcached's (31 to 46 % fewer)", 0.69, ONE),
            of_memcached("first-level misses, of memcached's (up to 34 % fewer)", 0.66, "first")
                .of_panel(1),
            of_memcached("second-level misses, of memcached's (up to 53 % fewer)", 0.47, "second")
                .of_panel(1),
            Claim::value("% of bandwidth in use, Mercury (8 threads)", 70.0, "mercury", ONE)
                .of_panel(2),
            Claim::value("% of bandwidth in use, memcached (8 threads)", 36.7, "global-lock", ONE)
                .of_panel(2)
                .same(),
        ],
    }
}

fn of_memcached(what: &str, printed: f64, place: &str) -> Claim {
    Claim::ratio(what, printed, "mercury", "global-lock", place).less()
}

/// The accesses that a GET needs: the cache lines of the bucket and of the item.
const NEEDED: f64 = 2.0;

fn useful(accesses: &[Point]) -> Vec<Point> {
    let part = |point: &Point| Point { value: 100.0 * NEEDED / point.value, ..point.clone() };
    accesses.iter().filter(|point| point.value > 0.0).map(part).collect()
}
