//! Figure 3: the map of ranges beside hash tables.

use super::super::plan::{Claim, Figure, Panel, Paper, Place, Program, Reading, Run, Shape};
use super::super::setting::Setting;

/// Bytes an id of the largest map that is compared.
const BYTES_AN_ID: u64 = 60;
const IDS_PER_SECOND: f64 = 2e6;

pub fn figure(setting: &Setting) -> Figure {
    let sizes: &[u64] = setting.choose(
        &[10_000][..],
        &[100_000, 1_000_000][..],
        &[1_000_000, 10_000_000, 100_000_000, 1_000_000_000][..],
    );
    let fits = |ids: u64| ids * BYTES_AN_ID < setting.available_bytes / 2;
    let run = |ids: u64, field, unit| {
        let structures = if fits(ids) { "cid-tree,b-tree,hash,cuckoo" } else { "cid-tree" };
        let gets = setting.choose(1000, 200_000, 2_000_000);
        let moves = (ids / 100).min(setting.choose(100, 20_000, 200_000));
        let rounds = setting.rounds();
        let arguments = format!(
            "bench ids --ids={ids} --migrated=0.01 --structure={structures} --gets={gets} \
             --moves={moves} --rounds={rounds} --json"
        );
        Run {
            place: Place::number(ids as f64),
            program: Program::Own,
            arguments: arguments.split(' ').map(str::to_owned).collect(),
            reading: Reading::Field(field, unit),
            seconds: 4.0 * ids as f64 / IDS_PER_SECOND + 0.5,
        }
    };
    let panel = |title: &str, y, field, unit| Panel {
        title: title.to_owned(),
        x: "ids",
        y,
        shape: Shape::LogLines,
        runs: sizes.iter().map(|ids| run(*ids, field, unit)).collect(),
        ..Panel::default()
    };
    let largest =
        sizes.iter().rev().find(|ids| fits(**ids)).map_or(String::new(), |ids| ids.to_string());
    let ratio = "cuckoo table's memory over the tree's";
    let mut claims = vec![Claim::ratio(ratio, 50.0, "cuckoo", "cid-tree", &largest)];
    if sizes.contains(&1_000_000_000) {
        let look_up = Claim::value("ns a look-up, a billion ids", 1e3, "cid-tree", "1000000000");
        claims.push(look_up.of_panel(2).less());
    }
    Figure {
        paper: Paper::Dxram,
        name: "figure-3",
        title: "the map of ranges beside hash tables",
        printed_setting: "Up to a billion ids on a node of 4 cores. The tree is about 50 times \
                          smaller than a cuckoo table and 150 times smaller than Java's; a \
                          look-up takes about twice as long, at most a microsecond at a billion.",
        our_setting: "1 % of the ids migrated one by one; hash tables as far as memory goes; \
                      resident bytes. `bench ids --structure java` measures Java's where there is \
                      a JDK."
            .to_owned(),
        panels: vec![
            panel("(a) memory", "MB", "bytes", 1e6),
            panel("(b) a migration", "ns", "migrate_ns", 1.0),
            panel("(c) a look-up", "ns", "get_ns", 1.0),
        ],
        claims,
    }
}
