//! `amalgam cluster check`: whether any one node may be taken away now.

use std::io::Write;

use amalgam_node::ClusterClient;
use amalgam_node::cluster::ids::PARTITIONS;
use amalgam_node::cluster::wire::{MemoryUse, NodeMemory, NodeStatus};
use anyhow::{Context, bail};

use super::ConnectOptions;

/// Members below which a cluster cannot lose one and keep two copies.
const MEMBERS_MIN: usize = 3;

/// What one member says of itself.
struct Member {
    address: String,
    status: NodeStatus,
    memory: NodeMemory,
}

/// Prints one line if any node may be taken away.
///
/// # Errors
///
/// The reasons why none may, or that the node that was asked does not answer.
pub fn check(options: &ConnectOptions) -> anyhow::Result<()> {
    let credentials = options.credentials()?;
    let connect = |address: &str| ClusterClient::connect(&[address.to_owned()], &credentials, 0);
    let asked = options.node()?;
    let home = connect(asked)
        .with_context(|| format!("no node of a cluster answers at {asked}"))?
        .status()?;
    let (mut members, mut reasons) = (Vec::new(), Vec::new());
    for (_, address) in &home.members {
        let answer = connect(address).and_then(|mut client| {
            let (address, status) = (address.clone(), client.status()?);
            Ok(Member { address, status, memory: client.memory()? })
        });
        match answer {
            Ok(member) => members.push(member),
            Err(error) => reasons.push(format!("the node at {address} does not answer: {error}")),
        }
    }
    reasons.extend(against(&members));
    if !reasons.is_empty() {
        bail!("no node may be taken away: {}", reasons.join("; "));
    }
    let count = members.len();
    writeln!(std::io::stdout(), "any one of {count} nodes may be taken away")?;
    Ok(())
}

/// The reasons why none of these nodes may be taken away.
fn against(members: &[Member]) -> Vec<String> {
    let mut reasons = Vec::new();
    if members.len() < MEMBERS_MIN {
        reasons.push(format!(
            "with {} nodes, one less leaves no two copies; add nodes",
            members.len()
        ));
    }
    if members.iter().any(|member| member.status.backups == 0) {
        reasons.push("there are no backups (--backups)".to_owned());
    }
    for Member { address, status, .. } in members {
        let (fewer, recovering) = status.reduced;
        if fewer + recovering > 0 {
            let spans = fewer + recovering;
            reasons.push(format!("{address} lacks copies of {spans} spans; wait"));
        }
        if status.moves != (0, 0) {
            let moves = status.moves.0 + status.moves.1;
            reasons.push(format!("{moves} moves from or to {address} are under way; wait"));
        }
    }
    let served: u64 = members.iter().map(|member| member.status.partitions).sum();
    if served < u64::from(PARTITIONS) {
        reasons.push(format!("{served} of {PARTITIONS} parts of the keys are served; wait"));
    }
    reasons
        .extend(lacking_room(members, "keys", |memory| (!memory.evicts).then_some(memory.items)));
    reasons.extend(lacking_room(members, "chunks", |memory| Some(memory.chunks)));
    reasons
}

/// The reason if a node has no room for its part of what another one has; `part` is None for memory
/// whose contents make way.
fn lacking_room(
    members: &[Member],
    name: &str,
    part: impl Fn(&NodeMemory) -> Option<MemoryUse>,
) -> Option<String> {
    let uses: Vec<_> = members
        .iter()
        .filter_map(|member| Some((&member.address, part(&member.memory)?)))
        .collect();
    let others = (members.len() as u64).saturating_sub(1).max(1);
    let place = |(at, (address, own)): (usize, &(&String, MemoryUse))| {
        let rest = uses.iter().enumerate().filter(|(other, _)| *other != at);
        let taken = rest.map(|(_, (_, other))| other.used / others).max()?;
        (own.used + taken > own.limit).then(|| {
            let (used, limit) = (own.used >> 20, own.limit >> 20);
            format!(
                "{address} uses {used} of {limit} MiB for {name}, which leaves no room for another \
                 node's; raise its memory, add nodes, or delete"
            )
        })
    };
    uses.iter().enumerate().find_map(place)
}

#[cfg(test)]
mod tests {
    use amalgam_node::cluster::ids::NodeId;
    use amalgam_node::cluster::overlay::Peer;

    use super::*;

    /// Three nodes that are whole, and use this part of 100 MiB.
    fn members(used_mebibytes: u64) -> Vec<Member> {
        let member = |number: u16| {
            let peer = Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 };
            let items =
                MemoryUse { used: used_mebibytes << 20, fillable: 63 << 20, limit: 100 << 20 };
            let chunks = MemoryUse { used: 0, ..items };
            let status = NodeStatus {
                peer,
                members: Vec::new(),
                supers: vec![peer],
                revision: 1,
                flushes: 0,
                partitions: u64::from(PARTITIONS) / 3,
                ids: 0,
                spans: 0,
                ranges: (0, 0),
                moves: (0, 0),
                reduced: (0, 0),
                kept: 0,
                lease_left_ms: 1_000,
                rate: 0,
                hot_moves: 0,
                release: String::new(),
                backups: 1,
            };
            let memory = NodeMemory { items, chunks, evicts: false };
            Member { address: format!("host{number}:1"), status, memory }
        };
        (1..=3).map(member).collect()
    }

    fn reason(members: &[Member]) -> String {
        against(members).join("; ")
    }

    #[test]
    fn what_a_cluster_lacks_is_named() {
        assert_eq!(reason(&members(63)), "");
        assert!(reason(&members(63)[..2]).contains("add nodes"));
        let changed = |change: fn(&mut Member)| {
            let mut members = members(63);
            change(&mut members[1]);
            reason(&members)
        };
        assert!(changed(|one| one.status.backups = 0).contains("--backups"));
        assert!(changed(|one| one.status.reduced.0 = 2).contains("host2:1 lacks copies of 2"));
        assert!(changed(|one| one.status.moves.1 = 4).contains("4 moves from or to host2:1"));
        assert!(changed(|one| one.status.partitions -= 1).contains("4094 of 4095"));
    }

    #[test]
    fn a_node_needs_room_for_its_part_of_another() {
        assert!(reason(&members(70)).contains("host1:1 uses 70 of 100 MiB for keys"));
        let mut cache = members(99);
        cache.iter_mut().for_each(|member| member.memory.evicts = true);
        assert_eq!(reason(&cache), "", "keys make way");
        cache[2].memory.chunks.used = 80 << 20;
        cache[1].memory.chunks.used = 70 << 20;
        assert!(reason(&cache).contains("for chunks"));
    }
}
