//! Coverage: which faults and races a run went through, as seen in packets, edits and views.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_cluster::chunks::{ChunkError, Reply, Response};
use amalgam_cluster::overlay::{Catalog, Change, Edit, Peer, View};
use amalgam_cluster::replication::{Mutation, ReplicationEntry, ReplicationMessage};
use amalgam_cluster::shard::MoveMessage;
use amalgam_cluster::wire::Packet;

/// Number of occurrences of each fault and race.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// Races that a thousand runs must go through.
    pub const REQUIRED: [&str; 25] = [
        "a stall between reading the clock and replying",
        "a pause, perhaps past the lease",
        "a torn write",
        "the coordinator away",
        "an append after the seal",
        "a replica set changed by a dead owner",
        "a replica set changed to include a dead backup",
        "a move committed after its source died",
        "a move committed after its target died",
        "the last message of a move lost",
        "a new owner that died during failover",
        "a backup in place after failover",
        "holders with different last changes",
        "a leader paused while its group changed",
        "a member of a replica set restarted",
        "a request sent by a stale cache",
        "an operation answered again by another owner",
        "a read of an unacknowledged write",
        "all processes killed at once",
        "all nodes lost power at once",
        "all nodes stopped again during recovery",
        "a backup back with all its replicas",
        "a backup back without its replicas",
        "a log that is not authoritative",
        "a second process under a live node's name",
    ];

    /// Races that only some scenarios go through.
    const SCENARIO_ONLY: [&str; 17] = [
        "a cache that lost everything",
        "an item evicted",
        "an item forgotten by a backup",
        "an item read after a pause, before the node's thread ran",
        "an item read around the node's thread",
        "an item read around the node's thread, and not answered",
        "an item written around the node's thread",
        "a disk that hangs",
        "a node cut off in one direction",
        "a member voted out",
        "a disk that hung while writes waited",
        "all nodes stopped while writes waited for a disk",
        "a new owner that fetched unreadable chunks",
        "a process that started while its predecessor ran",
        "a change refused for its token",
        "a lock sent to backups in place",
        "a new owner that fetched an unreadable lock",
    ];

    /// Counts one occurrence.
    pub fn record(&mut self, what: &'static str) {
        self.record_times(what, 1);
    }

    /// Counts occurrences.
    pub fn record_times(&mut self, what: &'static str, times: u64) {
        debug_assert!(
            Self::REQUIRED.iter().chain(&Self::SCENARIO_ONLY).any(|known| *known == what)
        );
        *self.0.entry(what).or_default() += times;
    }

    /// The names and numbers of occurrences.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, times)| (*what, *times))
    }
}

fn is_lock(mutation: &Mutation) -> bool {
    matches!(mutation, Mutation::PutLock(..))
}

/// Detects races in what nodes send.
#[derive(Debug, Default)]
pub struct RaceDetector {
    /// The node that first answered an operation that changed something.
    answered: BTreeMap<(Peer, u64), Peer>,
    leaders: BTreeSet<Peer>,
}

impl RaceDetector {
    /// A node sends a packet of which `copies` will arrive.
    pub fn sent(
        &mut self,
        (from, to): (Peer, Peer),
        packet: &Packet,
        copies: usize,
        coverage: &mut Coverage,
    ) {
        match packet {
            Packet::Replication(ReplicationMessage::Refused { is_sealed: true, .. }) => {
                coverage.record("an append after the seal");
            }
            Packet::Replication(ReplicationMessage::Append { entries, .. }) if entries.adopts() => {
                coverage.record("a backup in place after failover");
                let is_lock = |entry: &ReplicationEntry| is_lock(&entry.mutation);
                if entries.to_vec().iter().any(is_lock) {
                    coverage.record("a lock sent to backups in place");
                }
            }
            Packet::Replication(ReplicationMessage::Sealed { beyond: Some(beyond), .. })
                if !beyond.is_empty() =>
            {
                coverage.record("holders with different last changes");
            }
            Packet::Replication(ReplicationMessage::Fetched { found, .. }) if !found.is_empty() => {
                coverage.record("a new owner that fetched unreadable chunks");
                if found.iter().any(is_lock) {
                    coverage.record("a new owner that fetched an unreadable lock");
                }
            }
            Packet::Move(
                MoveMessage::Declined { .. }
                | MoveMessage::Transferred { .. }
                | MoveMessage::TransferAck { .. }
                | MoveMessage::Cancelled { .. },
            ) if copies == 0 => coverage.record("the last message of a move lost"),
            Packet::Reply(reply) => self.replied(from, to, reply, coverage),
            _ => {}
        }
    }

    fn replied(&mut self, from: Peer, to: Peer, reply: &Reply, coverage: &mut Coverage) {
        for (number, result) in reply {
            match result {
                Err(ChunkError::Outdated | ChunkError::Moved(_) | ChunkError::Restarted(_)) => {
                    coverage.record("a request sent by a stale cache");
                }
                Err(ChunkError::Fenced) => coverage.record("a change refused for its token"),
                Ok(Response::Ok | Response::Created(_))
                    if *self.answered.entry((to, *number)).or_insert(from) != from =>
                {
                    coverage.record("an operation answered again by another owner");
                }
                _ => {}
            }
        }
    }

    /// The view has changed while the `paused` nodes stand still.
    pub fn viewed(&mut self, view: &View, paused: &BTreeSet<Peer>, coverage: &mut Coverage) {
        let groups = view.groups.iter();
        let leaders: BTreeSet<Peer> =
            groups.filter_map(|(_, group)| group.members.first().copied()).collect();
        if self.leaders.difference(&leaders).any(|leader| paused.contains(leader)) {
            coverage.record("a leader paused while its group changed");
        }
        self.leaders = leaders;
    }
}

/// Detects races in committed edits.
pub fn committed(edits: &[Edit], view: &View, coverage: &mut Coverage) {
    for edit in edits {
        let set = match edit.change {
            Change::Migrate(set) => set,
            Change::Rejoin(..) => {
                coverage.record("a backup back with all its replicas");
                continue;
            }
            Change::MarkLost(_) => {
                coverage.record("a backup back without its replicas");
                continue;
            }
            _ => continue,
        };
        let mut peers = set.peers();
        let Some(owner) = peers.next().filter(|owner| owner.incarnation > 0) else { continue };
        let requester = edit.request.peer;
        let race = match owner.node == requester.node {
            true if !view.has(requester) => "a replica set changed by a dead owner",
            true if !peers.all(|backup| view.has(backup)) => {
                "a replica set changed to include a dead backup"
            }
            false if !view.has(requester) => "a move committed after its source died",
            false if !view.has(owner) => "a move committed after its target died",
            _ => continue,
        };
        coverage.record(race);
    }
}

/// A node starts in this incarnation.
pub fn started(peer: Peer, truth: &Catalog, coverage: &mut Coverage) {
    let former = Peer { incarnation: peer.incarnation.saturating_sub(1), ..peer };
    let mut creators = truth.summaries().map(|summary| summary.creator);
    if creators.any(|creator| truth.replica_sets(creator).any(|peers| peers.contains(&former))) {
        coverage.record("a member of a replica set restarted");
    }
}
