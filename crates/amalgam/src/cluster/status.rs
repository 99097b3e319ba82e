//! `amalgam cluster status`: the nodes of a cluster and what they hold, as a table or as JSON.

use std::io::Write;

use amalgam_node::cluster::ids::ChunkId;
use amalgam_node::cluster::wire::{MemoryUse, NodeMemory, NodeStatus};
use amalgam_node::{ClientError, ClusterClient, ClusterStatus, NodeAnswer, NodeEntry};
use anyhow::Context;
use clap::Args;

use super::{ConnectOptions, holding};
use crate::color::{Color, Ink, Palette};

/// Options of `amalgam cluster status`: how to reach a node, and what to show.
#[derive(Args)]
pub struct StatusOptions {
    #[command(flatten)]
    connect: ConnectOptions,
    /// Show the owner of this key, its replicas and how far they lag behind, and the same for the
    /// chunk that the key names, if any [default: all nodes are shown]
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Show the owner and the replicas of the chunk with this id: creator in hexadecimal, colon,
    /// counter [default: all nodes are shown]
    #[arg(long, value_name = "ID", conflicts_with = "key", value_parser = holding::parse_id)]
    id: Option<ChunkId>,
    /// Print one JSON object for each node
    #[arg(long, conflicts_with_all = ["key", "id"])]
    json: bool,
    /// When to colour nodes that need attention: auto is on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
}

/// The columns: name and width, negative where the text is at the left.
const COLUMNS: [(&str, i32); 18] = [
    ("node", 5),
    ("inc", 4),
    ("address", -21),
    ("super", -5),
    ("partitions", 10),
    ("chunk ids", 12),
    ("spans", 7),
    ("ranges", 9),
    ("from", 5),
    ("to", 5),
    ("copies", 7),
    ("kept", 9),
    ("full", 5),
    ("lag", 6),
    ("lease ms", 8),
    ("ops/s", 8),
    ("hot", 4),
    ("release", 8),
];

/// Shows the nodes of a cluster, or who has the key or chunk that is named.
///
/// # Errors
///
/// If the node does not answer, or standard output cannot be written.
pub fn status(options: &StatusOptions) -> anyhow::Result<()> {
    let credentials = options.connect.credentials()?;
    let connect = |address: &str| ClusterClient::connect(&[address.to_owned()], &credentials, 0);
    let asked = options.connect.node()?;
    let home = connect(asked)
        .with_context(|| format!("no node of a cluster answers at {asked}"))?
        .status()?;
    let palette = Palette { is_on: options.color.colors(&std::io::stdout()) };
    let mut output = std::io::stdout().lock();
    if options.key.is_some() || options.id.is_some() {
        let named = holding::Named { key: options.key.as_deref(), id: options.id };
        return holding::show(&mut output, &named, &home, asked, connect);
    }
    let all = ClusterStatus::ask(&home, connect);
    if options.json {
        for object in all.to_json() {
            writeln!(output, "{object}")?;
        }
        return Ok(());
    }
    let head = row(&COLUMNS.map(|(name, _)| name.to_owned()));
    writeln!(output, "{}", palette.paint(&head, Ink::Bold))?;
    for node in &all.nodes {
        let line = line(node, all.revision);
        let line = match concern(&node.answer) {
            Some(ink) => palette.paint(&line, ink),
            None => line,
        };
        writeln!(output, "{line}")?;
    }
    Ok(())
}

/// The texts in columns.
fn row(texts: &[String]) -> String {
    let cell = |(text, (_, width)): (&String, &(&str, i32))| {
        let columns = width.unsigned_abs() as usize;
        if *width < 0 { format!("{text:<columns$}") } else { format!("{text:>columns$}") }
    };
    texts.iter().zip(&COLUMNS).map(cell).collect::<Vec<_>>().join(" ")
}

/// The part of what clients can fill that is used, in percent: of keys or of chunks, whichever is
/// more.
fn full_percent(memory: &NodeMemory) -> u64 {
    let percent = |one: &MemoryUse| one.used * 100 / one.fillable.max(1);
    percent(&memory.items).max(percent(&memory.chunks))
}

fn line(node: &NodeEntry, revision: u64) -> String {
    let mut texts = vec![
        node.peer.node.get().to_string(),
        node.peer.incarnation.to_string(),
        node.address.clone(),
        if node.is_super { "yes" } else { "-" }.to_owned(),
    ];
    match &node.answer {
        Ok(NodeAnswer { status: own, memory, .. }) => {
            let numbers = [own.partitions, own.ids, own.spans, own.ranges.0];
            texts.extend(numbers.map(|number| number.to_string()));
            texts.extend([own.moves.0, own.moves.1].map(|number| number.to_string()));
            texts.push(copies(own));
            let lag = revision.saturating_sub(own.revision);
            texts.push(own.kept.to_string());
            let full = memory.as_ref().map(|memory| format!("{}%", full_percent(memory)));
            texts.push(full.unwrap_or_else(|| "-".to_owned()));
            let numbers = [lag, own.lease_left_ms, own.rate, own.hot_moves];
            texts.extend(numbers.map(|number| number.to_string()));
            texts.push(own.release.clone());
            row(&texts)
        }
        Err(error) => format!("{} does not answer: {error}", row(&texts)),
    }
}

/// The colour of a node that needs attention: red if it does not answer, yellow if it owns
/// something that lacks copies.
fn concern(answer: &Result<NodeAnswer, ClientError>) -> Option<Ink> {
    match answer {
        Ok(NodeAnswer { status: own, .. }) => {
            (own.reduced.0 + own.reduced.1 > 0).then_some(Ink::Yellow)
        }
        Err(_) => Some(Ink::Red),
    }
}

/// The column "copies": "whole" if everything that a node owns has its backups, else the number of
/// spans that lack some; "-" if no backups are configured.
fn copies(status: &NodeStatus) -> String {
    match status.reduced.0 + status.reduced.1 {
        0 if status.backups == 0 => "-".to_owned(),
        0 => "whole".to_owned(),
        spans => format!("short:{spans}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_their_names() {
        let names = row(&COLUMNS.map(|(name, _)| name.to_owned()));
        assert!(names.starts_with(" node  inc address               super partitions"), "{names}");
        assert!(names.ends_with(" hot  release"), "{names}");
    }
}
