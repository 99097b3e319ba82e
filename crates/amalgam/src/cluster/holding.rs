//! `amalgam cluster status` of one key or chunk: its owner, its copies and their lag.

use std::io::Write;

use amalgam_node::cluster::ids::{ChunkId, Creator};
use amalgam_node::cluster::overlay::Peer;
use amalgam_node::cluster::wire::NodeStatus;
use amalgam_node::{ClientError, ClusterClient};
use anyhow::{Context, bail};

/// The key or the id that the command line names; one of them is given.
pub struct Named<'a> {
    pub key: Option<&'a str>,
    pub id: Option<ChunkId>,
}

/// An id as the cluster writes it: its creator in hexadecimal, a colon, its counter.
pub fn parse_id(text: &str) -> Result<ChunkId, String> {
    let parse = || {
        let (creator, counter) = text.split_once(':')?;
        let creator = Creator::new(u16::from_str_radix(creator, 16).ok()?).ok()?;
        ChunkId::new(creator, counter.parse().ok()?).ok()
    };
    parse().ok_or_else(|| "an id is its creator in hexadecimal, a colon and a counter".to_owned())
}

/// Writes the owner and the copies of `named`. `home` is the status of the node at `address`.
///
/// # Errors
///
/// If no node that answers owns it; the text names the nodes that did not answer.
pub fn show(
    output: &mut impl Write,
    named: &Named<'_>,
    home: &NodeStatus,
    address: &str,
    connect: impl Fn(&str) -> Result<ClusterClient, ClientError>,
) -> anyhow::Result<()> {
    if let Some(id) = named.id {
        return show_id(output, id, home, &connect);
    }
    let Some(key) = named.key else { return Ok(()) };
    let mut client = connect(address)?;
    let id = client.place(key.as_bytes())?;
    writeln!(output, "key {key}: {id}")?;
    show_id(output, id, home, &connect)?;
    // Most keys do not name a chunk.
    if let Ok(chunk) = client.named(key.as_bytes()) {
        writeln!(output, "names chunk {chunk}")?;
        show_id(output, chunk, home, &connect)?;
    }
    Ok(())
}

/// Asks every member, because only the owner knows the lag of its copies.
fn show_id(
    output: &mut impl Write,
    id: ChunkId,
    home: &NodeStatus,
    connect: &impl Fn(&str) -> Result<ClusterClient, ClientError>,
) -> anyhow::Result<()> {
    let mut silent = Vec::new();
    for (owner, address) in &home.members {
        let holding = match connect(address).and_then(|mut client| client.holding(id)) {
            Ok(Some(holding)) => holding,
            Ok(None) => continue,
            Err(error) => {
                silent.push(format!("node {} at {address}: {error}", owner.node.get()));
                continue;
            }
        };
        writeln!(output, "ids {:?}, since epoch {}", holding.ids, holding.epoch)?;
        writeln!(
            output,
            "{:>5} {:>4} {:<21} {:<6} {:>6}",
            "node", "inc", "address", "is", "behind"
        )?;
        let mut line = |peer: &Peer, is: &str, behind: u64| {
            let at = home.members.iter().find(|(member, _)| member == peer);
            let at = at.map_or("gone", |(_, address)| address);
            let (node, incarnation) = (peer.node.get(), peer.incarnation);
            writeln!(output, "{node:>5} {incarnation:>4} {at:<21} {is:<6} {behind:>6}")
        };
        line(owner, "owner", 0)?;
        holding.replicas.iter().try_for_each(|(peer, behind)| line(peer, "backup", *behind))?;
        return Ok(());
    }
    if silent.is_empty() {
        bail!("no node owns {id}");
    }
    Err(anyhow::anyhow!("{}", silent.join("; ")))
        .with_context(|| format!("no node that answers owns {id}, and not all members answer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for text in ["0:0", "1f:77", "f012:281474976710655"] {
            assert_eq!(parse_id(text).expect("an id").to_string(), text);
        }
        for text in ["", "7", "ffff:1", "1:281474976710656", "x:1", "1:-1", "10000:1"] {
            assert!(parse_id(text).is_err(), "{text}");
        }
    }
}
