//! The nodes of a cluster, as `/api/cluster` of one of them tells about all.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::text::{duration, number, percent, short, tame};
use crate::color::{Ink, Palette};

/// The columns of [`Row::cells`].
pub const COLUMNS: usize = 8;

/// The head of a table of nodes, without the columns of the node and its state.
pub const HEAD: [&str; COLUMNS] =
    ["keys", "memory", "from", "to", "copies", "lease", "ops/s", "round trip"];

/// A node.
pub struct Row {
    /// Its number and address.
    pub name: String,
    /// "serves", or why it does not.
    pub state: &'static str,
    /// The share of the keys that it owns, the share of its fullest memory that is used, moves,
    /// copies that are missing, lease, operations and round trip; empty if it does not answer.
    pub cells: Option<[String; COLUMNS]>,
    /// The colour of a node that needs attention, as in `cluster status`.
    pub ink: Option<Ink>,
}

/// The nodes, in the order of their numbers.
pub fn rows(cluster: &Value) -> Vec<Row> {
    let nodes = cluster["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let all = nodes.iter().map(|node| number(node, "/partitions")).sum::<f64>();
    nodes.iter().map(|node| row(node, all)).collect()
}

fn row(node: &Value, partitions: f64) -> Row {
    let name = format!("{} {}", number(node, "/node"), tame(&node["address"]));
    if node["answers"] != true {
        return Row { name, state: "no answer", cells: None, ink: Some(Ink::Red) };
    }
    let share = |part: f64, whole: f64| percent((whole > 0.0).then(|| part / whole));
    let full = ["keys", "chunks"].map(|kind| {
        let of = |part| number(node, &format!("/memory/{kind}/{part}"));
        of("used") / of("fillable").max(1.0)
    });
    let full = (!node["memory"].is_null()).then(|| full[0].max(full[1]));
    let lacking = number(node, "/spans_short_of_copies");
    let copies = match (lacking > 0.0, number(node, "/backups") > 0.0) {
        (true, _) => format!("-{}", short(lacking)),
        (false, true) => "whole".to_owned(),
        (false, false) => "–".to_owned(),
    };
    let time = |path, unit_us| {
        duration(node.pointer(path).and_then(Value::as_f64).map(|time| time * unit_us))
    };
    let cells = [
        share(number(node, "/partitions"), partitions),
        percent(full),
        short(number(node, "/moves_from")),
        short(number(node, "/moves_to")),
        copies,
        time("/lease_left_ms", 1e3),
        short(number(node, "/operations_per_second")),
        time("/round_trip_us", 1.0),
    ];
    let (state, ink) = match (node["lease_left_ms"] == 0, lacking > 0.0) {
        (true, _) => ("no lease", Some(Ink::Red)),
        (false, true) => ("serves", Some(Ink::Yellow)),
        (false, false) => ("serves", None),
    };
    Row { name, state, cells: Some(cells), ink }
}

/// What to say about the age of the nodes' answers, behind a word; nothing if it is not known.
pub fn age(age: Option<Duration>) -> String {
    let text = |age: Duration| format!(", {} ago", duration(Some(age.as_secs_f64() * 1e6)));
    age.map(text).unwrap_or_default()
}

/// The nodes, one a line, and the age of their answers; nothing if there are none.
pub fn table(cluster: &Value, age_of_answers: Option<Duration>, palette: Palette) -> String {
    let rows = rows(cluster);
    if rows.is_empty() {
        return String::new();
    }
    let columns = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(4);
    let line = |name: &str, state: &str, cells: &[String]| {
        let mut line = format!("{name:<columns$}  {state:<9}");
        cells.iter().for_each(|cell| line.push_str(&format!(" {cell:>10}")));
        line
    };
    let head = line("NODE", "STATE", &HEAD.map(str::to_uppercase));
    let mut text = format!("\n{}\n", palette.paint(&head, Ink::Bold));
    for row in rows {
        let cells = row.cells.as_ref().map_or(&[][..], |cells| &cells[..]);
        let line = line(&row.name, row.state, cells);
        let line = row.ink.map_or(line.clone(), |ink| palette.paint(&line, ink));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if age_of_answers.is_some() {
        let _ = writeln!(text, "as answered{}", age(age_of_answers).trim_start_matches(','));
    }
    text
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// Two nodes, and one that does not answer.
    pub fn cluster() -> Value {
        let memory = |used| json!({ "used": used, "fillable": 400, "limit": 500 });
        json!({ "age_ms": 5, "nodes": [
            { "node": 0, "address": "one\u{1b}[2J:1", "answers": true, "partitions": 3000,
              "memory": { "keys": memory(100), "chunks": memory(300) }, "backups": 1,
              "spans_short_of_copies": 0, "moves_from": 2, "moves_to": 7, "lease_left_ms": 2500,
              "operations_per_second": 12_345, "round_trip_us": 180 },
            { "node": 1, "address": "two:2", "answers": true, "partitions": 1000, "memory": null,
              "backups": 1, "spans_short_of_copies": 4, "round_trip_us": 2100 },
            { "node": 2, "address": "three:3", "answers": false, "error": "refused" },
        ] })
    }

    #[test]
    fn the_nodes_are_a_table() {
        let text = table(&cluster(), Some(Duration::from_millis(1500)), Palette { is_on: false });
        let lines: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["NODE", "STATE", "KEYS", "MEMORY"]);
        let one = "0 one?[2J:1 serves 75.0 % 75.0 % 2 7 whole 2.5 s 12.3 k 180 µs";
        assert_eq!(lines[1].join(" "), one);
        let two = "1 two:2 serves 25.0 % – 0 0 -4 – 0 2.1 ms";
        assert_eq!(lines[2].join(" "), two);
        assert_eq!(lines[3].join(" "), "2 three:3 no answer");
        assert_eq!(lines[4].join(" "), "as answered 1.5 s ago");
        let colored = table(&cluster(), None, Palette { is_on: true });
        assert!(colored.contains("\u{1b}[33m1 two:2") && colored.contains("\u{1b}[31m2 three:3"));
        for nonsense in [json!(null), json!({ "nodes": [] }), json!({ "nodes": 3 })] {
            assert_eq!(table(&nonsense, None, Palette { is_on: false }), "");
        }
        assert!(
            table(&json!({ "nodes": [null, 7] }), None, Palette { is_on: false }).contains('?')
        );
    }
}
