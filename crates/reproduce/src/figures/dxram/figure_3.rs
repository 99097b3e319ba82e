//! Figure 3: the map of ranges compared with hash tables.

use super::super::plan::{Claim, Figure, Panel, Paper, Program, Reading, Run, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;
use super::is_installed;

const TREE: &str = "cid-tree";
const NO_JAVA: &str = "needs a JDK";

/// Bytes per id of the largest map that is compared.
const BYTES_AN_ID: u64 = 60;
const IDS_PER_SECOND: f64 = 2e6;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let sizes: &[u64] = profile.choose(
        &[10_000][..],
        &[100_000, 1_000_000][..],
        &[1_000_000, 10_000_000, 100_000_000, 1_000_000_000][..],
    );
    let fits = |ids: u64| ids * BYTES_AN_ID < profile.available_bytes / 2;
    // A JDK is needed because the program runs from its source.
    let has_java = is_installed("javac") && profile.choose(false, true, true);
    let run = |ids: u64, field, unit| {
        let structures = match fits(ids) {
            true if has_java => "cid-tree,b-tree,hash,cuckoo,java",
            true => "cid-tree,b-tree,hash,cuckoo",
            false => "cid-tree",
        };
        let gets = profile.choose(1000, 200_000, 2_000_000);
        let moves = (ids / 100).min(profile.choose(100, 20_000, 200_000));
        let rounds = profile.rounds();
        let arguments = format!(
            "bench ids --ids={ids} --migrated=0.01 --structure={structures} --gets={gets} \
             --moves={moves} --rounds={rounds} --json"
        );
        Run {
            place: AxisPosition::number(ids as f64),
            program: Program::Own,
            arguments: arguments.split(' ').map(str::to_owned).collect(),
            reading: Reading::Field(field, unit),
            seconds: 4.0 * ids as f64 / IDS_PER_SECOND + if has_java { 4.0 } else { 0.5 },
            repeats: true,
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
    // Memory is compared as a table over the tree, times as the tree over a table.
    let times = |what, printed, one, to| Claim::ratio(what, printed, one, to, &largest);
    let mut claims = vec![
        times("cuckoo table's memory over the tree's", 50.0, "cuckoo", TREE),
        times("tree's migration over the cuckoo table's (3 to 5)", 5.0, TREE, "cuckoo")
            .of_panel(1)
            .less(),
    ];
    claims.extend(if has_java {
        [
            times("Java's map's memory over the tree's", 150.0, "java", TREE),
            times("tree's migration over Java's map's (3 to 5)", 5.0, TREE, "java")
                .of_panel(1)
                .less(),
            times("tree's look-up over Java's map's", 2.0, TREE, "java").of_panel(2).less(),
        ]
    } else {
        [
            Claim::absent("Java's map's memory over the tree's", 150.0, NO_JAVA),
            Claim::absent("tree's migration over Java's map's (3 to 5)", 5.0, NO_JAVA),
            Claim::absent("tree's look-up over Java's map's", 2.0, NO_JAVA),
        ]
    });
    if sizes.contains(&1_000_000_000) {
        let look_up = Claim::value("ns a look-up, a billion ids", 1e3, "cid-tree", "1000000000");
        claims.push(look_up.of_panel(2).less());
    }
    Figure {
        paper: Paper::Dxram,
        name: "figure-3",
        title: "the map of ranges compared with hash tables",
        printed_setting: "Up to a billion ids on a node of 4 cores. The tree is about 50 times \
                          smaller than a cuckoo table and 150 times smaller than Java's; a \
                          look-up takes about twice as long as Java's, a migration 3 to 5 times \
                          as long as the tables' where there are many ids; at most a microsecond \
                          at a billion.",
        our_setting: format!(
            "1 % of the ids migrated one by one; hash tables as far as memory goes. Bytes are \
             resident ones, or what the structure counts where that is more. {}",
            match has_java {
                true =>
                    "Java's `HashMap<Long, Short>` has a process of its own and moves random ids.",
                false => "Java's map is left out: it needs a JDK, and more than toy scale.",
            }
        ),
        panels: vec![
            panel("(a) memory", "MB", "size_bytes", 1e6),
            panel("(b) a migration", "ns", "migrate_ns", 1.0),
            panel("(c) a look-up", "ns", "get_ns", 1.0),
        ],
        claims,
    }
}
