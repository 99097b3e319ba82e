//! Mutants: deliberate defects around the logic, each of which the simulation must find. Each is a
//! mistake that a published system made, or that its authors warn of; `docs/mutants.md` lists them.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{Action, ChunkError, ClientState, LockGrant, Response};
use amalgam_cluster::ids::{ChunkId, NodeId};
use amalgam_cluster::node::NodeCommand;
use amalgam_cluster::overlay::{Catalog, FailoverGrant, Message, Peer, Summary};
use amalgam_cluster::replication::{Mutation, ReplicationEntry, ReplicationMessage};
use amalgam_cluster::shard::MoveMessage;
use amalgam_cluster::wire::{Packet, Wire};

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
    /// A backup whose log is full acknowledges the new value of an item and keeps the old one.
    KeepsOldValuesWhenFull,
    /// The replies that clients got do not move along with their chunks.
    ForgetsRepliesInMoves,
    /// Backups do not store the replies that owners gave.
    ForgetsRepliesAtBackups,
    /// Locks do not move along with their chunks.
    ForgetsLocksInMoves,
    /// Backups store locks without their tokens, so that a new owner counts from the start.
    RestartsTokens,
    /// A lock ends before its lease.
    ShortensLocks,
    /// Metadata that is installed as a whole lacks its last range.
    TruncatesSnapshots,
    /// Replicas of the metadata count a batch of edits and do not apply it.
    CountsWithoutApplying,
    /// Nodes acknowledge before their disks have synced, though they promise it.
    AcknowledgesBeforeSync,
    /// A restarted node takes its log for complete, whatever is missing.
    TrustsIncompleteLog,
    /// A restarted node tells leaders that it has all replicas.
    ClaimsAllReplicas,
    /// The coordinator comes back with the view before its last change.
    RestoresOldView,
    /// A former owner goes on answering reads with the values that it last read.
    FormerOwnerAnswers,
    /// Clients repeat an operation that is not answered soon as a new one.
    RepeatsUnanswered,
    /// Nodes count their lease for twice as long as it lasts.
    DoubleLease,
}

/// Values that owners read last, for [`Mutant::FormerOwnerAnswers`].
#[derive(Debug, Default)]
pub(crate) struct LastReads {
    /// The chunks of reads under way, by client and number.
    asked: BTreeMap<(Peer, u64), ChunkId>,
    values: BTreeMap<(Peer, ChunkId), Vec<u8>>,
}

impl LastReads {
    /// Changes what a former owner refuses to answer.
    pub fn answer(&mut self, from: Peer, to: Peer, packet: &mut Packet) {
        match packet {
            Packet::Request(request) => {
                for operation in &request.operations {
                    if let Action::Get(id) = operation.action {
                        self.asked.insert((from, operation.number), id);
                    }
                }
            }
            Packet::Reply(reply) => {
                for (number, result) in reply {
                    let Some(id) = self.asked.get(&(to, *number)) else { continue };
                    match result {
                        Ok(Response::Value(value)) => {
                            self.values.insert((from, *id), value.clone());
                        }
                        Err(ChunkError::Moved(_) | ChunkError::Outdated) => {
                            if let Some(value) = self.values.get(&(from, *id)) {
                                *result = Ok(Response::Value(value.clone()));
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

/// The entries of a batch, each changed.
fn changed(
    message: ReplicationMessage,
    change: impl Fn(&mut Vec<ReplicationEntry>),
) -> Option<Packet> {
    let ReplicationMessage::Append { stream, first, entries } = message else { return None };
    let mut list = entries.to_vec();
    change(&mut list);
    let entries = list.into();
    Some(Packet::Replication(ReplicationMessage::Append { stream, first, entries }))
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

/// Applies a mutant to a packet. None if nothing arrives; answers go to `out`.
pub(crate) fn mutate(
    mutant: Mutant,
    packet: Packet,
    out: &mut Vec<NodeCommand>,
    (from, to): (Peer, Peer),
) -> Option<Packet> {
    match packet {
        Packet::Replication(message) => mutate_replication(mutant, message, out, from),
        Packet::Overlay(message) => mutate_overlay(mutant, message, out, (from, to)),
        Packet::Move(MoveMessage::Page { number, page, mut chunks, tail: Some(mut state) }) => {
            match mutant {
                Mutant::LostLastPage => (chunks, state) = (Vec::new(), ClientState::default()),
                Mutant::ForgetsRepliesInMoves => {
                    state.sessions.iter_mut().for_each(|session| session.answers.clear());
                }
                Mutant::ForgetsLocksInMoves => state.locks.clear(),
                _ => {}
            }
            Some(Packet::Move(MoveMessage::Page { number, page, chunks, tail: Some(state) }))
        }
        Packet::Request(mut request) => {
            for operation in &mut request.operations {
                match &mut operation.action {
                    Action::Fenced(change) if mutant == Mutant::UncheckedTokens => {
                        operation.action = match change.value.take() {
                            Some(value) => Action::Put(change.id, value),
                            None => Action::Delete(change.id),
                        };
                    }
                    Action::Lock { lease_ms, .. } if mutant == Mutant::ShortensLocks => {
                        *lease_ms /= 4;
                    }
                    _ => {}
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
        packet => Some(packet),
    }
}

fn mutate_replication(
    mutant: Mutant,
    message: ReplicationMessage,
    out: &mut Vec<NodeCommand>,
    from: Peer,
) -> Option<Packet> {
    let is_append = matches!(message, ReplicationMessage::Append { .. });
    match (mutant, &message) {
        (Mutant::NoReplication, _) if is_append => {
            out.push(NodeCommand::Send(from, Packet::Replication(as_if_stored(&message))));
            None
        }
        (Mutant::NoFencing, ReplicationMessage::Refused { .. }) => {
            Some(Packet::Replication(as_if_stored(&message)))
        }
        (Mutant::SilentHolders, ReplicationMessage::Fetch { .. }) => None,
        (Mutant::KeepsRemovedItems, _) if is_append => changed(message, |list| {
            without(list, |mutation| matches!(mutation, Mutation::RemoveItem(_)));
        }),
        (Mutant::KeepsOldValuesWhenFull, _) if is_append => changed(message, |list| {
            without(list, |mutation| matches!(mutation, Mutation::PutItem(..)));
        }),
        (Mutant::UnreplicatedLocks, _) if is_append => changed(message, |list| {
            without(list, |mutation| matches!(mutation, Mutation::PutLock(..)));
        }),
        (Mutant::LostLastBuffer, _) if is_append => changed(message, |list| {
            if list.iter().any(|entry| entry.mutation == Mutation::RepliesOnly) {
                without(list, |_| true);
            }
        }),
        (Mutant::UnreconciledReplicas, _) if is_append => changed(message, |list| {
            let mut is_adopting = false;
            for entry in list {
                match entry.mutation {
                    Mutation::ChangeOwner(..) => is_adopting = true,
                    Mutation::RepliesOnly => is_adopting = false,
                    _ if is_adopting => entry.mutation = Mutation::RepliesOnly,
                    _ => {}
                }
            }
        }),
        (Mutant::ForgetsRepliesAtBackups, _) if is_append => changed(message, |list| {
            let sessions = list.iter_mut().flat_map(|entry| &mut entry.sessions);
            sessions.for_each(|session| session.answers.clear());
        }),
        (Mutant::RestartsTokens, _) if is_append => changed(message, |list| {
            for entry in list {
                let Mutation::PutLock(_, bytes) = &mut entry.mutation else { continue };
                if let Ok(grant) = LockGrant::decode_all(bytes) {
                    bytes.clear();
                    LockGrant { token: 0, ..grant }.encode(bytes);
                }
            }
        }),
        _ => Some(Packet::Replication(message)),
    }
}

/// Leaves out some mutations of a batch.
fn without(list: &mut [ReplicationEntry], is_left_out: impl Fn(&Mutation) -> bool) {
    let mutations = list.iter_mut().map(|entry| &mut entry.mutation);
    mutations
        .filter(|mutation| is_left_out(mutation))
        .for_each(|mutation| *mutation = Mutation::RepliesOnly);
}

fn mutate_overlay(
    mutant: Mutant,
    message: Message,
    out: &mut Vec<NodeCommand>,
    (from, to): (Peer, Peer),
) -> Option<Packet> {
    let message = match message {
        Message::GrantFailover(grant)
            if mutant == Mutant::WrongSource
                && grant.ids.first().creator().get() != grant.source.node.get() =>
        {
            let node = NodeId::new(grant.ids.first().creator().get()).expect("no named id");
            let source = Peer { node, incarnation: grant.source.incarnation };
            Message::GrantFailover(FailoverGrant { source, ..grant })
        }
        Message::Append { creator, version, .. } if mutant == Mutant::CommitsWithoutMajority => {
            let message = Message::Appended { creator, version };
            out.push(NodeCommand::Send(from, Packet::Overlay(message)));
            return None;
        }
        Message::Append { creator, version, .. } if mutant == Mutant::CountsWithoutApplying => {
            Message::Append { creator, version, edits: Vec::new() }
        }
        Message::Seal { segment, term } if mutant == Mutant::NoSeal => {
            let message =
                Message::Sealed { segment, term, held: Vec::new(), since: to.incarnation };
            out.push(NodeCommand::Send(from, Packet::Overlay(message)));
            return None;
        }
        Message::Install { mut snapshot } if mutant == Mutant::TruncatesSnapshots => {
            snapshot.ranges.pop();
            Message::Install { snapshot }
        }
        Message::ReplicaStatus { creator, former, .. } if mutant == Mutant::ClaimsAllReplicas => {
            Message::ReplicaStatus { creator, former, is_whole: true }
        }
        message => message,
    };
    Some(Packet::Overlay(message))
}
