//! Writes the page of the model's results.

use std::fmt::Write;

use super::fit::{Fit, VALUE_BYTES};
use super::model::{Cluster, Failure, NODE_CHUNKS_MAX, RANGE_IDS};
use super::{CACHE_BYTES, CHUNKS, GETS, LINKS, MOVED, ScaleArguments, percent, power};
use crate::figures::markdown::machine;
use crate::figures::picture::number;
use amalgam_bench::measure::{Machine, commit};

/// A number of bytes for people, with its unit.
fn bytes(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let step = (bytes.max(1.0).log10() / 3.0).floor().min(5.0);
    format!("{} {}", number(bytes / 1_000_f64.powf(step)), units[step as usize])
}

/// A time for people, in seconds, minutes or hours.
fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 600.0 => format!("{} s", number(seconds)),
        _ if seconds < 36_000.0 => format!("{} min", number(seconds / 60.0)),
        _ => format!("{} h", number(seconds / 3_600.0)),
    }
}

/// The text of the page.
pub fn text(fit: &Fit, arguments: &ScaleArguments) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, fit, arguments);
    text
}

fn write_all(text: &mut String, fit: &Fit, arguments: &ScaleArguments) -> std::fmt::Result {
    let ScaleArguments { readable, full, cores, detect, ids, .. } = arguments;
    writeln!(text, "# Clusters that nobody here has\n")?;
    writeln!(
        text,
        "A model, not a measurement, of clusters of 10 to 10,000 nodes and 10^9 to 10^13"
    )?;
    writeln!(text, "chunks of {VALUE_BYTES} bytes with three backups. Its equations are in")?;
    writeln!(
        text,
        "`crates/reproduce/src/scale/model.rs`. This page and its pictures are written by\n"
    )?;
    writeln!(text, "```console")?;
    writeln!(
        text,
        "$ amalgam-lab bench scale --readable {readable} --full {full} --cores {cores} \\"
    )?;
    writeln!(text, "      --detect {detect} --ids {ids} --out docs/results")?;
    let here = machine(&serde_json::to_value(Machine::describe()).unwrap_or_default());
    writeln!(text, "```\n\nBuilt from commit {}, on {here}.\n", commit())?;
    parameters(text, fit, arguments)?;
    metadata(text, fit)?;
    lookups(text, fit)?;
    recovery(text, fit, arguments)?;
    limits(text)
}

fn parameters(text: &mut String, fit: &Fit, arguments: &ScaleArguments) -> std::fmt::Result {
    writeln!(text, "## What it is fitted to\n\n| parameter | value | from | error |")?;
    writeln!(text, "| --- | --- | --- | --- |")?;
    for (share, bytes) in &fit.range_bytes {
        let error = match fit.error_of_range_bytes(*share) {
            Some(error) => {
                format!("{} % of what 100 million ids took", signed(100.0 * error))
            }
            None => "not checked".to_owned(),
        };
        let (share, bytes) = (percent(*share), number(*bytes));
        let from = format!("a map of {} ids, counted, times what is resident", arguments.ids);
        writeln!(text, "| bytes a range, {share} moved | {bytes} | {from} | {error} |")?;
    }
    let lookup = number(fit.lookup_bytes);
    writeln!(
        text,
        "| a lookup and its answer | {lookup} bytes | the messages, encoded | counted |"
    )?;
    let copy = number(fit.copy_bytes);
    writeln!(
        text,
        "| a chunk on its way to a backup | {copy} bytes | the record and its message | not \
         checked |"
    )?;
    let rows =
        [("readable", fit.readable_core_seconds), ("with all copies", fit.full_core_seconds)];
    for (what, seconds) in rows {
        let us = number(seconds * 1e6);
        let from = "`bench recovery` | of one run, so without a spread";
        writeln!(text, "| core time of a chunk until {what} | {us} us | {from} |")?;
    }
    let detect = number(arguments.detect);
    writeln!(text, "| until a death is known | {detect} s | the lease | {DETECTED} |\n")?;
    writeln!(
        text,
        "What follows is off by as much as these are: metadata and lookups by the error of a range,"
    )?;
    writeln!(
        text,
        "recoveries by that of a chunk's time, which two runs of other sizes would have to tell."
    )?;
    writeln!(
        text,
        "A range's bytes are those of a thousand nodes: of 50 it takes 2.5 at 10 % moved"
    )?;
    writeln!(
        text,
        "([ids.md](ids.md)), and where there are more placements than a dictionary holds, more."
    )?;
    writeln!(text, "What the model leaves out comes on top and stands at the end.\n")
}

/// The time that processes took until they detected a death (docs/results/backups.md).
const DETECTED: &str = "2.4 to 3.4 s measured";

/// A number for people, with its sign.
fn signed(value: f64) -> String {
    let sign = if value < 0.0 { "−" } else { "+" };
    format!("{sign}{}", number(value.abs()))
}

fn metadata(text: &mut String, fit: &Fit) -> std::fmt::Result {
    writeln!(text, "## Metadata\n\n![metadata of a super peer](scale-metadata.svg)\n")?;
    writeln!(
        text,
        "Of one super peer; 8 of 100 nodes are, and three hold each piece. Where a node"
    )?;
    let most = power(NODE_CHUNKS_MAX);
    writeln!(text, "would have more than {most} chunks nothing is said.\n")?;
    let nodes = [10.0, 100.0, 1_000.0, 10_000.0];
    write!(text, "| chunks | moved |")?;
    nodes.iter().try_for_each(|nodes| write!(text, " {nodes} nodes |"))?;
    writeln!(
        text,
        " bytes a chunk, all nodes |\n| --- | --- |{} --- |",
        " --- |".repeat(nodes.len())
    )?;
    for chunks in CHUNKS {
        for moved in MOVED {
            write!(text, "| {} | {} |", power(chunks), percent(moved))?;
            for nodes in nodes {
                let cluster = Cluster { nodes, chunks, moved };
                let own = bytes(cluster.super_peer_bytes(fit));
                write!(text, " {} |", if cluster.is_possible() { &own } else { "-" })?;
            }
            let cluster = Cluster { nodes: 10_000.0, chunks, moved };
            let each = cluster.metadata_bytes(fit) * 3.0 / chunks;
            writeln!(text, " {} |", number(each))?;
        }
    }
    let cluster = Cluster { nodes: 10_000.0, chunks: 1e13, moved: 0.01 };
    let remembered = bytes(cluster.remembered_bytes(fit));
    writeln!(
        text,
        "\nIn addition to ranges, a super peer remembers each node's last request about each \
         creator:"
    )?;
    writeln!(
        text,
        "at most {remembered} with 10,000 nodes. What moves costs, and not how many nodes or"
    )?;
    writeln!(
        text,
        "chunks there are: 10^13 chunks of which one in a thousand moved take about as much as"
    )?;
    writeln!(text, "10^12 of which one in a hundred did.\n")
}

fn lookups(text: &mut String, fit: &Fit) -> std::fmt::Result {
    writeln!(text, "## Lookups\n\n![lookups of a super peer](scale-lookups.svg)\n")?;
    writeln!(
        text,
        "Each node asks for {} chunks a second, all alike often, which is the worst for a",
        GETS
    )?;
    writeln!(
        text,
        "cache, and remembers ranges in {}. As long as those hold them all nobody is asked;",
        bytes(CACHE_BYTES)
    )?;
    writeln!(
        text,
        "then lookups of a super peer grow towards a bound that does not depend on the number"
    )?;
    writeln!(text, "of nodes, as super peers are a share of them.\n")?;
    writeln!(
        text,
        "| chunks | moved | a cache holds | lookups a second of a super peer | its traffic, Mb/s |"
    )?;
    writeln!(text, "| --- | --- | --- | --- | --- |")?;
    for chunks in CHUNKS {
        for moved in MOVED {
            let cluster = Cluster { nodes: 1_000.0, chunks, moved };
            let held = (CACHE_BYTES / cluster.metadata_bytes(fit)).min(1.0);
            let lookups = cluster.lookups(GETS, CACHE_BYTES, fit);
            let megabits = number(lookups * fit.lookup_bytes * 8.0 / 1e6);
            let (chunks, moved) = (power(chunks), percent(moved));
            let (held, lookups) = (percent(held), number(lookups));
            writeln!(text, "| {chunks} | {moved} | {held} | {lookups} | {megabits} |")?;
        }
    }
    writeln!(text)
}

fn recovery(text: &mut String, fit: &Fit, arguments: &ScaleArguments) -> std::fmt::Result {
    writeln!(text, "## Recovery\n\n![seconds until all is readable](scale-recovery.svg)\n")?;
    let range = number(RANGE_IDS / 1e6);
    writeln!(
        text,
        "A range of {range} million ids is recovered by one node, on one core, which sends"
    )?;
    writeln!(
        text,
        "three copies of it. So a node's chunks come back from as many nodes as it has ranges,"
    )?;
    writeln!(
        text,
        "and more nodes do not help beyond. Times hold the {} s until the death is known.\n",
        number(arguments.detect)
    )?;
    write!(text, "| nodes | chunks a node | fail |")?;
    LINKS.iter().try_for_each(|link| write!(text, " {} Gb/s |", link / 1e9))?;
    writeln!(
        text,
        " all copies, 100 Gb/s |\n| --- | --- | --- |{} --- |",
        " --- |".repeat(LINKS.len())
    )?;
    let rows = [(10.0, 1.0), (100.0, 1.0), (100.0, 10.0), (1_000.0, 1.0), (1_000.0, 40.0)];
    let rows = rows.into_iter().chain([(10_000.0, 1.0), (10_000.0, 40.0)]);
    for (nodes, failed) in rows {
        for chunks in [1e8, 1e9] {
            let cluster = Cluster { nodes, chunks: nodes * chunks, moved: 0.01 };
            let of = |link_bits| Failure { cluster, failed, link_bits }.recovery(fit);
            write!(text, "| {nodes} | {} | {failed} |", power(chunks))?;
            for link in LINKS {
                write!(text, " {} |", time(arguments.detect + of(link).readable))?;
            }
            writeln!(text, " {} |", time(arguments.detect + of(1e11).full))?;
        }
    }
    writeln!(text)
}

fn limits(text: &mut String) -> std::fmt::Result {
    writeln!(text, "## What it leaves out\n")?;
    writeln!(
        text,
        "- Disks: logs are read as fast as cores check them. Switches: links do not meet."
    )?;
    writeln!(text, "- Load: nothing else happens while a node is recovered.")?;
    writeln!(
        text,
        "- Loss: of more than three nodes that fail at once some held all copies of something."
    )?;
    writeln!(
        text,
        "- etcd holds the members in one value of at most 1.5 MB, so 10,000 nodes are its end."
    )?;
    writeln!(text, "- Moved chunks lie apart; those that move in runs take one range together.")
}
