//! Table 2: how full the table gets until an insert fails, and how fast, compared with chains.

use super::super::plan::{Claim, Figure, Panel, Paper, Program, Reading, Run};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

/// The numbers in the paper: walks, % full, bytes per item, million inserts per second.
const PRINTED: [(&str, f64, f64, f64); 4] = [
    ("1", 90.84, 9.91, 6.46),
    ("2", 92.78, 9.70, 6.66),
    ("3", 94.48, 9.53, 6.19),
    ("4", 95.19, 9.45, 6.03),
];
/// The paper's row of chains, which has no % full: bytes, inserts and items of the largest bucket;
/// then the items of the largest bucket of its cuckoo tables.
const CHAINS: &str = "chaining";
const CHAINS_PRINTED: (f64, f64, f64) = (13.33, 14.38, 13.0);
const LARGEST_BUCKET: f64 = 4.0;

/// The slots that are expected to be filled per second.
const SLOTS_PER_SECOND: f64 = 4e6;

/// The number of slots at this scale; the paper has 2^27.
pub fn slots(profile: &ScaleProfile) -> u64 {
    1 << profile.choose(12, 20, 27)
}

/// A run of `bench occupancy` with `paths`, whose points have `place`.
pub fn fill(profile: &ScaleProfile, paths: &str, place: AxisPosition, reading: Reading) -> Run {
    occupancy(profile, &format!("--slots=4 --paths={paths}"), place, reading)
}

fn occupancy(profile: &ScaleProfile, table: &str, place: AxisPosition, reading: Reading) -> Run {
    let (slots, runs) = (slots(profile), profile.choose(1, 3, 10));
    let arguments = format!("bench occupancy {table} --size={slots} --runs={runs} --json");
    let arguments = arguments.split(' ').map(str::to_owned).collect();
    let seconds = slots as f64 * f64::from(runs) / SLOTS_PER_SECOND;
    Run { place, program: Program::Own, arguments, reading, seconds, repeats: true }
}

pub fn figure(profile: &ScaleProfile) -> Figure {
    let panel = |title: &str, y, field, unit| {
        let run = |(index, (paths, ..)): (usize, &(&str, f64, f64, f64))| {
            let reading = Reading::Named("memc3".to_owned(), field, unit);
            fill(profile, paths, AxisPosition::named(index, *paths), reading)
        };
        let runs = PRINTED.iter().enumerate().map(run).collect();
        Panel { title: title.to_owned(), x: "paths", y, runs, ..Panel::default() }
    };
    let with_chains = |title: &str, y, field, unit| {
        let mut panel = panel(title, y, field, unit);
        let place = AxisPosition::named(PRINTED.len(), CHAINS);
        let reading = Reading::Named(CHAINS.to_owned(), field, unit);
        panel.runs.push(occupancy(profile, "--chaining", place, reading));
        panel
    };
    Figure {
        paper: Paper::MemC3,
        name: "table-2",
        title: "how full the table gets, and how fast",
        printed_setting: "2^27 slots, 4 a bucket, one-byte tags; inserts of one thread until one \
                          fails after 128 displacements a path, or until chains have 1.5 items a \
                          bucket; mean of 10 runs.",
        our_setting: format!(
            "{} slots, mean of {} runs. A slot has 8 bytes here, 9 in the paper (a tag and a \
             pointer). Both tables are bare: chains have a head a bucket, half as many as slots, \
             and a link an item. Inserts count the table's memory when it is first touched; the \
             smaller the table, the more of it the caches hold.",
            slots(profile),
            profile.choose(1, 3, 10)
        ),
        panels: vec![
            panel("how full", "% full", "load_percent", 1.0),
            with_chains("memory", "bytes an item", "bytes_per_item", 1.0),
            with_chains("speed", "million inserts a second", "inserts_per_second", 1e6),
            with_chains("largest bucket", "items", "largest_bucket", 1.0),
        ],
        claims: claims(),
    }
}

fn claims() -> Vec<Claim> {
    let mut claims = Vec::new();
    for (paths, full, bytes, inserts) in PRINTED {
        let claim = |what: &str, printed| {
            Claim::value(&format!("{what}, {paths} paths"), printed, "memc3", paths)
        };
        claims.push(claim("% full", full));
        claims.push(claim("bytes an item", bytes).of_panel(1).less());
        claims.push(claim("million inserts a second", inserts).of_panel(2));
        claims.push(claim("items of the largest bucket", LARGEST_BUCKET).of_panel(3).less());
    }
    let (bytes, inserts, largest) = CHAINS_PRINTED;
    // Chains are what the paper compares with, so neither more nor less of them is better.
    let claim = |what: &str, printed| {
        Claim::value(&format!("{what}, {CHAINS}"), printed, CHAINS, CHAINS).same()
    };
    claims.push(claim("bytes an item", bytes).of_panel(1));
    claims.push(claim("million inserts a second", inserts).of_panel(2));
    claims.push(claim("items of the largest bucket", largest).of_panel(3));
    claims
}
