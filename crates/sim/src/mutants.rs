//! Defects around the logic, each of which the simulation must find.

use amalgam_cluster::ids::NodeId;
use amalgam_cluster::node::NodeCommand;
use amalgam_cluster::overlay::{Catalog, FailoverGrant, Message, Peer, Summary};
use amalgam_cluster::replication::{Mutation, ReplicationMessage};
use amalgam_cluster::wire::Packet;

/// A defect that the world plants around the logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// None.
    None,
    /// Leaders count replicas that never got the batch: replication whose failures are ignored.
    CommitsWithoutMajority,
    /// New leaders do not wait for what the old group holds.
    NoSeal,
    /// What was written while chunks were copied does not reach the target.
    LostLastPage,
    /// Puts do not reach backups, which are taken to have them.
    NoReplication,
    /// What a backup failed to get is taken to be kept: messages of one way whose errors nobody
    /// looks at.
    IgnoredReplicationErrors,
    /// Owners do not stop when their lease ends, and backups take what a deposed owner sends.
    NoFencing,
    /// The last buffer of a copy to a new backup is not sent.
    LostLastBuffer,
    /// Backups that adopt what they have are not sent what of it is not as the heir's.
    UnreconciledReplicas,
    /// Holders do not hear what an heir asks them for that it cannot read.
    SilentHolders,
    /// A node that restarts takes up its former life: its number did not survive.
    ReusedIncarnation,
    /// What was not created by the owner that died is looked for under its creator.
    WrongSource,
    /// Replicas that count as many batches as their leader are taken to hold the same.
    ComparesCountsOnly,
}

/// What a backup would answer that kept it.
pub(crate) fn as_if_stored(message: &ReplicationMessage) -> ReplicationMessage {
    match message {
        ReplicationMessage::Append { stream, first, entries } => {
            ReplicationMessage::Appended { stream: *stream, next: first + entries.count() as u64 }
        }
        ReplicationMessage::Refused { stream, .. } => {
            ReplicationMessage::Appended { stream: *stream, next: u64::MAX }
        }
        answer => answer.clone(),
    }
}

/// What a leader would say that it holds if it held what a member does wherever both count as many
/// batches.
pub(crate) fn as_if_same(leaders: &[Summary], members: &Catalog) -> Vec<Summary> {
    let as_if = |leader: &Summary| {
        let own = members.summary(leader.creator);
        let own = own.filter(|own| own.version.sequence == leader.version.sequence);
        Summary { digest: own.map_or(leader.digest, |own| own.digest), ..*leader }
    };
    leaders.iter().map(as_if).collect()
}

/// What becomes of a packet about backups under a defect; none if nothing comes of it but `out`.
pub(crate) fn mutate(
    mutant: Mutant,
    packet: Packet,
    out: &mut Vec<NodeCommand>,
    from: Peer,
) -> Option<Packet> {
    match packet {
        Packet::Replication(message @ ReplicationMessage::Append { .. })
            if mutant == Mutant::NoReplication =>
        {
            out.push(NodeCommand::Send(from, Packet::Replication(as_if_stored(&message))));
            None
        }
        Packet::Replication(message @ ReplicationMessage::Refused { .. })
            if mutant == Mutant::NoFencing =>
        {
            Some(Packet::Replication(as_if_stored(&message)))
        }
        Packet::Replication(ReplicationMessage::Append { stream, first, entries })
            if mutant == Mutant::LostLastBuffer =>
        {
            let mut list = entries.to_vec();
            if list.iter().any(|entry| entry.mutation == Mutation::RepliesOnly) {
                list.iter_mut().for_each(|entry| entry.mutation = Mutation::RepliesOnly);
            }
            let entries = list.into();
            Some(Packet::Replication(ReplicationMessage::Append { stream, first, entries }))
        }
        Packet::Replication(ReplicationMessage::Append { stream, first, entries })
            if mutant == Mutant::UnreconciledReplicas =>
        {
            let (mut list, mut is_adopting) = (entries.to_vec(), false);
            for entry in &mut list {
                match entry.mutation {
                    Mutation::ChangeOwner(..) => is_adopting = true,
                    Mutation::RepliesOnly => is_adopting = false,
                    _ if is_adopting => entry.mutation = Mutation::RepliesOnly,
                    _ => {}
                }
            }
            let entries = list.into();
            Some(Packet::Replication(ReplicationMessage::Append { stream, first, entries }))
        }
        Packet::Replication(ReplicationMessage::Fetch { .. })
            if mutant == Mutant::SilentHolders =>
        {
            None
        }
        Packet::Overlay(Message::GrantFailover(grant))
            if mutant == Mutant::WrongSource
                && grant.ids.first().creator().get() != grant.source.node.get() =>
        {
            let node = NodeId::new(grant.ids.first().creator().get()).expect("no named id");
            let source = Peer { node, incarnation: grant.source.incarnation };
            Some(Packet::Overlay(Message::GrantFailover(FailoverGrant { source, ..grant })))
        }
        packet => Some(packet),
    }
}
