//! Table 2: how full the table gets until an insert fails.

use super::super::plan::{Claim, Figure, Panel, Paper, Place, Program, Reading, Run};
use super::super::setting::Setting;

/// What the paper prints: walks, % full, bytes an item.
const PRINTED: [(&str, f64, f64); 4] =
    [("1", 90.84, 9.91), ("2", 92.78, 9.70), ("3", 94.48, 9.53), ("4", 95.19, 9.45)];

/// Slots that are filled in a second.
const SLOTS_PER_SECOND: f64 = 4e6;

/// A table of 2^27 slots is the paper's.
pub fn slots(setting: &Setting) -> u64 {
    1 << setting.choose(12, 20, 27)
}

/// `bench occupancy` with `paths`, whose points stand at `place`.
pub fn fill(setting: &Setting, paths: &str, place: Place, reading: Reading) -> Run {
    let (slots, runs) = (slots(setting), setting.choose(1, 3, 10));
    let arguments =
        format!("bench occupancy --slots=4 --size={slots} --paths={paths} --runs={runs} --json");
    let arguments = arguments.split(' ').map(str::to_owned).collect();
    let seconds = slots as f64 * f64::from(runs) / SLOTS_PER_SECOND;
    Run { place, program: Program::Own, arguments, reading, seconds }
}

pub fn figure(setting: &Setting) -> Figure {
    let panel = |field, y| {
        let run = |(index, (paths, ..)): (usize, &(&str, f64, f64))| {
            let reading = Reading::Named("memc3".to_owned(), field, 1.0);
            fill(setting, paths, Place::named(index, *paths), reading)
        };
        let runs = PRINTED.iter().enumerate().map(run).collect();
        Panel { x: "paths", y, runs, ..Panel::default() }
    };
    let claims = PRINTED.iter().flat_map(|(paths, full, bytes)| {
        let full = Claim::value(&format!("% full, {paths} paths"), *full, "memc3", paths);
        let bytes = Claim::value(&format!("bytes an item, {paths} paths"), *bytes, "memc3", paths);
        [full, bytes.of_panel(1).less()]
    });
    Figure {
        paper: Paper::MemC3,
        name: "table-2",
        title: "how full the table gets",
        printed_setting: "2^27 slots, 4 a bucket, one-byte tags; inserts until one fails after \
                          128 displacements a path, mean of 10 runs.",
        our_setting: format!(
            "{} slots, mean of {} runs. A slot has 8 bytes here, 9 in the paper (a tag and a \
             pointer).",
            slots(setting),
            setting.choose(1, 3, 10)
        ),
        panels: vec![panel("load_percent", "% full"), panel("bytes_per_item", "bytes an item")],
        claims: claims.collect(),
    }
}
