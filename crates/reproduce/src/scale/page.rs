//! Writes the page of the model's results.

use std::fmt::Write;

use super::fit::{Fit, VALUE_BYTES};
use super::model::{Cluster, Failure, GROUP, NODE_CHUNKS_MAX, RANGE_IDS};
use super::{CACHE_BYTES, CHUNKS, GETS, LINKS, MOVED, ScaleArguments, percent, power};
use crate::figures::markdown::machine;
use crate::figures::picture::number;
use amalgam_bench::measure::{Machine, commit};

/// The length of a line of prose.
const COLUMNS: usize = 98;

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

/// Writes a paragraph in lines of at most [`COLUMNS`], and an empty line behind it.
fn prose(text: &mut String, words: &str) -> std::fmt::Result {
    let mut columns = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > COLUMNS {
            writeln!(text)?;
            columns = 0;
        } else if columns > 0 {
            write!(text, " ")?;
            columns += 1;
        }
        write!(text, "{word}")?;
        columns += length;
    }
    writeln!(text, "\n")
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
    writeln!(text, "# Larger clusters, by a model\n")?;
    prose(
        text,
        &format!(
            "This page computes, from a model, what clusters of 10 to 10,000 nodes need for 10^9 \
             to 10^13 chunks of {VALUE_BYTES} bytes with three backups. No such cluster was \
             measured. The equations are in `crates/reproduce/src/scale/model.rs`. The command \
             that writes this page and its pictures:"
        ),
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
    writeln!(text, "## Parameters of the model\n\n| parameter | value | from | error |")?;
    writeln!(text, "| --- | --- | --- | --- |")?;
    for (share, bytes) in &fit.range_bytes {
        let error = match fit.error_of_range_bytes(*share) {
            Some(error) => {
                format!("{} % of the bytes of 100 million ids", signed(100.0 * error))
            }
            None => "not checked".to_owned(),
        };
        let (share, bytes) = (percent(*share), number(*bytes));
        let from = format!(
            "a map of {} ids, counted, times resident bytes for each byte counted",
            arguments.ids
        );
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
    let rows = [("readable", fit.readable_core_seconds), ("copied in full", fit.full_core_seconds)];
    for (what, seconds) in rows {
        let us = number(seconds * 1e6);
        let from = "`bench recovery` | one run, so no spread is known";
        writeln!(text, "| core time of a chunk until it is {what} | {us} us | {from} |")?;
    }
    let detect = number(arguments.detect);
    writeln!(text, "| until a death is detected | {detect} s | the lease | {DETECTED} |\n")?;
    prose(
        text,
        "The errors of these parameters are those of the results: metadata and lookups have the \
         error of a range's bytes, recoveries that of a chunk's time, which runs of two other \
         sizes would tell. The bytes of a range hold for a thousand nodes. With 50 nodes and 10 % \
         moved, a range takes 2.5 ([ids.md](ids.md)), and more where there are more placements \
         than a dictionary holds. The last section lists what the model leaves out.",
    )
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
    let most = power(NODE_CHUNKS_MAX);
    prose(
        text,
        &format!(
            "The table shows the bytes of one super peer. 8 of 100 nodes are super peers, and \
             {GROUP} of them store each part of the metadata. `-`: a node would have more than \
             {most} chunks."
        ),
    )?;
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
            let each = cluster.metadata_bytes(fit) * GROUP / chunks;
            writeln!(text, " {} |", number(each))?;
        }
    }
    let cluster = Cluster { nodes: 10_000.0, chunks: 1e13, moved: 0.01 };
    let remembered = bytes(cluster.remembered_bytes(fit));
    writeln!(text)?;
    prose(
        text,
        &format!(
            "A super peer also stores each node's last request about each creator: at most \
             {remembered} with 10,000 nodes. Memory depends on the number of moved chunks, hardly \
             on that of nodes or chunks: 10^13 chunks with 0.1 % moved take about as much as \
             10^12 chunks with 1 % moved."
        ),
    )
}

fn lookups(text: &mut String, fit: &Fit) -> std::fmt::Result {
    writeln!(text, "## Lookups\n\n![lookups of a super peer](scale-lookups.svg)\n")?;
    prose(
        text,
        &format!(
            "Each node requests {GETS} chunks a second, uniformly distributed, which is the worst \
             case for a cache, and caches ranges in {}. While the caches hold all ranges, super \
             peers get no lookups. Beyond that, the lookups of a super peer approach a bound that \
             does not depend on the number of nodes, because super peers are a fixed share of \
             them.",
            bytes(CACHE_BYTES)
        ),
    )?;
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
    writeln!(
        text,
        "## Recovery\n\n![seconds until all chunks are readable](scale-recovery.svg)\n"
    )?;
    let range = number(RANGE_IDS / 1e6);
    prose(
        text,
        &format!(
            "One node recovers a range of {range} million ids on one core, and sends three copies \
             of it. So as many nodes as a failed node had ranges recover its chunks, and further \
             nodes do not help. Times include the {} s until the death is detected.",
            number(arguments.detect)
        ),
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
    writeln!(text, "## What the model leaves out\n")?;
    writeln!(text, "- Disks: a log is read as fast as the cores check it.")?;
    writeln!(
        text,
        "- Switches: transfers between different pairs of nodes do not slow each other down."
    )?;
    writeln!(text, "- Load: no requests are served during a recovery.")?;
    writeln!(
        text,
        "- Loss: if more than three nodes fail at once, some ranges may lose all copies."
    )?;
    writeln!(
        text,
        "- etcd: the members are one value of at most 1.5 MB, so there are at most 10,000 nodes."
    )?;
    writeln!(
        text,
        "- Moves: moved chunks are isolated; a run of moved chunks would take one range."
    )
}
