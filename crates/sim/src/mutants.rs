//! Mutants: deliberate defects around the logic, each of which the simulation must find.

use amalgam_cluster::chunks::{Action, ChunkError, Response};
use amalgam_cluster::ids::NodeId;
use amalgam_cluster::node::NodeCommand;
use amalgam_cluster::overlay::{Catalog, FailoverGrant, Message, Peer, Summary};
use amalgam_cluster::replication::{Mutation, ReplicationEntry, ReplicationMessage};
use amalgam_cluster::wire::Packet;

/// A defect that the world introduces in what passes between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutant {
    /// No defect.
    #[default]
    None,
    /// Leaders count replicas that never got the batch, as if replication errors were ignored.
    CommitsWithoutMajority,
    /// New leaders do not wait for what the old group holds.
    NoSeal,
    /// The last page of a move, with the writes made meanwhile, does not arrive.
    LostLastPage,
    /// Writes do not reach backups, which count as having them.
    NoReplication,
    /// A write whose message was lost counts as stored at the backup.
    IgnoredReplicationErrors,
    /// Owners do not stop when their lease ends, and backups accept what a deposed owner sends.
    NoFencing,
    /// The last buffer of a copy to a new backup is not sent.
    LostLastBuffer,
    /// Backups in place are not sent what differs between their replicas and the new owner's.
    UnreconciledReplicas,
    /// Holders ignore requests for what a new owner cannot read.
    SilentHolders,
    /// A restarted node reuses its former incarnation.
    ReusedIncarnation,
    /// A second process under a live node's name is let in at once, while the first serves.
    JoinsOverLiveIncarnation,
    /// A failover looks for chunks under their creator instead of their last owner.
    WrongSource,
    /// Disks that hang seem idle, so that backups acknowledge what is not written.
    AcknowledgesBeforeWriting,
    /// Backups do not store the locks that owners grant.
    UnreplicatedLocks,
    /// Owners do not check the tokens of locks, as if changes carried none.
    UncheckedTokens,
    /// Owners answer some writes as refused that they have executed.
    RefusesAfterExecuting,
    /// Replicas with as many batches as their leader count as equal to it.
    ComparesCountsOnly,
    /// One vote removes a member.
    VotesWithoutMajority,
    /// A member that is voted out leaves the view at once, and its failover begins, while it may
    /// still answer under its lease.
    RemovesBeforeLeaseEnds,
    /// Items are collected for a move while threads around the node's still write them.
    MovesWhileOthersWrite,
    /// Threads around the node's answer what they read without any check.
    AnswersWithoutCheck,
    /// Backups do not hear of a delete that finds no item, though the item may have been evicted.
    DeletesOnlyWhatIsThere,
    /// Backups keep items that were removed.
    KeepsRemovedItems,
}

/// The answer of a backup that stored the message.
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

/// A leader's summaries, with a member's digests wherever both have applied as many batches.
pub(crate) fn as_if_same(leaders: &[Summary], members: &Catalog) -> Vec<Summary> {
    let as_if = |leader: &Summary| {
        let own = members.summary(leader.creator);
        let own = own.filter(|own| own.version.sequence == leader.version.sequence);
        Summary { digest: own.map_or(leader.digest, |own| own.digest), ..*leader }
    };
    leaders.iter().map(as_if).collect()
}

/// Applies a mutant to a packet about replication or failover. None if nothing arrives; answers go
/// to `out`.
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
            if mutant == Mutant::KeepsRemovedItems =>
        {
            let mut list = entries.to_vec();
            let removals = list.iter_mut().map(|entry| &mut entry.mutation);
            removals
                .filter(|mutation| matches!(mutation, Mutation::RemoveItem(_)))
                .for_each(|mutation| *mutation = Mutation::RepliesOnly);
            let entries = list.into();
            Some(Packet::Replication(ReplicationMessage::Append { stream, first, entries }))
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
        Packet::Replication(ReplicationMessage::Append { stream, first, entries })
            if mutant == Mutant::UnreplicatedLocks =>
        {
            let mut list = entries.to_vec();
            let locks =
                |entry: &&mut ReplicationEntry| matches!(entry.mutation, Mutation::PutLock(..));
            list.iter_mut().filter(locks).for_each(|entry| entry.mutation = Mutation::RepliesOnly);
            let entries = list.into();
            Some(Packet::Replication(ReplicationMessage::Append { stream, first, entries }))
        }
        Packet::Request(mut request) if mutant == Mutant::UncheckedTokens => {
            for operation in &mut request.operations {
                if let Action::Fenced(change) = &mut operation.action {
                    operation.action = match change.value.take() {
                        Some(value) => Action::Put(change.id, value),
                        None => Action::Delete(change.id),
                    };
                }
            }
            Some(Packet::Request(request))
        }
        Packet::Reply(mut reply) if mutant == Mutant::RefusesAfterExecuting => {
            let executed = reply.iter_mut().filter(|(number, _)| number.is_multiple_of(8));
            executed.filter(|(_, result)| *result == Ok(Response::Ok)).for_each(|(_, result)| {
                *result = Err(ChunkError::Retry);
            });
            Some(Packet::Reply(reply))
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
