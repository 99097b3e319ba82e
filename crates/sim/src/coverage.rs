//! Which races a run came across: seen from outside, in packets, edits and views.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_cluster::chunks::{ChunkError, MoveMessage, Reply, Response};
use amalgam_cluster::overlay::{Catalog, Change, Edit, Peer, View};
use amalgam_cluster::replication::ReplicationMessage;
use amalgam_cluster::wire::Packet;

/// How often each fault and race came up.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// What a thousand runs must come across.
    pub const REQUIRED: [&str; 24] = [
        "a pause between the look at the clock and the answer",
        "a pause, perhaps past the lease",
        "a torn write",
        "the coordinator away",
        "an append after the seal",
        "a set changed by an owner whose life is over",
        "a set changed towards a backup whose life is over",
        "a move committed though its source's life is over",
        "a move committed though its target's life is over",
        "a move's end that got lost",
        "an heir that died while it recovered",
        "a backup that adopted what it had",
        "holders that had come to different changes",
        "a leader that stood still when its group changed",
        "a member of a set that came back in a new life",
        "a request by a stale cache",
        "an operation answered again by another owner",
        "a read of a write that is not answered yet",
        "all processes ended at once",
        "all nodes lost their power",
        "all nodes ended again while they came back",
        "a backup whose new life has all it had",
        "a backup whose new life has nothing",
        "a log that does not count",
    ];

    /// What only some scenarios come across.
    const SCENARIO_ONLY: [&str; 1] = ["an heir that fetched what it could not read"];

    /// It did once more.
    pub fn record(&mut self, what: &'static str) {
        self.record_times(what, 1);
    }

    /// It did so many times more.
    pub fn record_times(&mut self, what: &'static str, times: u64) {
        debug_assert!(
            Self::REQUIRED.iter().chain(&Self::SCENARIO_ONLY).any(|known| *known == what)
        );
        *self.0.entry(what).or_default() += times;
    }

    /// What came up, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, times)| (*what, *times))
    }
}

/// Looks for races.
#[derive(Debug, Default)]
pub struct RaceDetector {
    /// Who answered an operation first that changed something.
    answered: BTreeMap<(Peer, u64), Peer>,
    leaders: BTreeSet<Peer>,
}

impl RaceDetector {
    /// A node sends a packet, of which so many copies will arrive.
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
                coverage.record("a backup that adopted what it had");
            }
            Packet::Replication(ReplicationMessage::Sealed { beyond: Some(beyond), .. })
                if !beyond.is_empty() =>
            {
                coverage.record("holders that had come to different changes");
            }
            Packet::Replication(ReplicationMessage::Fetched { found, .. }) if !found.is_empty() => {
                coverage.record("an heir that fetched what it could not read");
            }
            Packet::Move(
                MoveMessage::Declined { .. }
                | MoveMessage::Transferred { .. }
                | MoveMessage::TransferAck { .. }
                | MoveMessage::Cancelled { .. },
            ) if copies == 0 => coverage.record("a move's end that got lost"),
            Packet::Reply(reply) => self.replied(from, to, reply, coverage),
            _ => {}
        }
    }

    fn replied(&mut self, from: Peer, to: Peer, reply: &Reply, coverage: &mut Coverage) {
        for (number, result) in reply {
            match result {
                Err(ChunkError::Outdated | ChunkError::Moved(_) | ChunkError::Restarted(_)) => {
                    coverage.record("a request by a stale cache");
                }
                Ok(Response::Ok | Response::Created(_))
                    if *self.answered.entry((to, *number)).or_insert(from) != from =>
                {
                    coverage.record("an operation answered again by another owner");
                }
                _ => {}
            }
        }
    }

    /// The view changed; these stand still.
    pub fn viewed(&mut self, view: &View, paused: &BTreeSet<Peer>, coverage: &mut Coverage) {
        let groups = view.groups.iter();
        let leaders: BTreeSet<Peer> =
            groups.filter_map(|(_, group)| group.members.first().copied()).collect();
        if self.leaders.difference(&leaders).any(|leader| paused.contains(leader)) {
            coverage.record("a leader that stood still when its group changed");
        }
        self.leaders = leaders;
    }
}

/// Edits were committed.
pub fn committed(edits: &[Edit], view: &View, coverage: &mut Coverage) {
    for edit in edits {
        let set = match edit.change {
            Change::Migrate(set) => set,
            Change::Rejoin(..) => {
                coverage.record("a backup whose new life has all it had");
                continue;
            }
            Change::MarkLost(_) => {
                coverage.record("a backup whose new life has nothing");
                continue;
            }
            _ => continue,
        };
        let mut peers = set.peers();
        let Some(owner) = peers.next().filter(|owner| owner.incarnation > 0) else { continue };
        let asker = edit.request.peer;
        let race = match owner.node == asker.node {
            true if !view.has(asker) => "a set changed by an owner whose life is over",
            true if !peers.all(|backup| view.has(backup)) => {
                "a set changed towards a backup whose life is over"
            }
            false if !view.has(asker) => "a move committed though its source's life is over",
            false if !view.has(owner) => "a move committed though its target's life is over",
            _ => continue,
        };
        coverage.record(race);
    }
}

/// A node starts in a life.
pub fn started(peer: Peer, truth: &Catalog, coverage: &mut Coverage) {
    let former = Peer { incarnation: peer.incarnation.saturating_sub(1), ..peer };
    let mut creators = truth.summaries().map(|summary| summary.creator);
    if creators.any(|creator| truth.replica_sets(creator).any(|peers| peers.contains(&former))) {
        coverage.record("a member of a set that came back in a new life");
    }
}
