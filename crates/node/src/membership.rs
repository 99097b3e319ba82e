//! What a cluster decides in one place: its members, their addresses, and the number of flushes.
//!
//! Invariants of this module:
//! 1. [`ClusterState`] is pure: every change is one of its methods, whether this process holds it,
//!    or etcd as one value that is replaced by compare-and-swap.
//! 2. A node sees a [`Snapshot`] of one moment; later ones have higher revisions.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use amalgam_cluster::coordinator::{Coordinator, CoordinatorError, Proposal};
use amalgam_cluster::ids::NodeId;
use amalgam_cluster::overlay::{Group, Member, OverlaySettings, Peer, View};
use amalgam_cluster::wire::{Wire, WireError, WireReader};
use amalgam_op::IgnorePoison;

use crate::clock;

/// The format of the state as bytes, and the format of a state without racks, which releases that
/// do not know racks read.
const DIRECTORY_VERSION: u16 = 2;
const RACKLESS_VERSION: u16 = 1;
/// Counts of the state are below this, so that there is room for all changes to come.
const COUNT_MAX: u64 = 1 << 63;

/// Members, groups with their positions, names, addresses.
type Lists =
    (Vec<(Peer, bool)>, Vec<(u64, u64, Group)>, Vec<(String, Peer)>, Vec<(NodeId, String)>);

/// What is decided, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The cluster's number; 0 while there is none.
    pub cluster: u64,
    /// Members and groups.
    pub view: View,
    /// Where members listen for each other, as `host:port`.
    pub addresses: BTreeMap<NodeId, String>,
    /// The racks of the members that named one.
    pub racks: BTreeMap<NodeId, String>,
    /// Number of flushes of the whole cluster so far.
    pub flushes: u64,
    /// When the next flush is due, in milliseconds since 1970; None if none is scheduled.
    pub flush_due_unix_ms: Option<u64>,
}

impl Snapshot {
    /// The members with their addresses.
    pub fn members(&self) -> impl Iterator<Item = (Peer, &str)> {
        self.view.members.iter().filter_map(|(node, member)| {
            let peer = Peer { node: *node, incarnation: member.incarnation };
            Some((peer, self.addresses.get(node)?.as_str()))
        })
    }
}

/// What a node is told when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its number and its incarnation.
    pub peer: Peer,
    /// The cluster's number.
    pub cluster: u64,
    /// The seed that the cluster's keys are hashed with.
    pub seed: u64,
    /// The revision of the view that the join made: unique among all joins of the cluster.
    pub join_revision: u64,
}

/// Why the coordinator did not answer, or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipError {
    /// The coordinator refused.
    Refused(CoordinatorError),
    /// The coordinator cannot be reached, perhaps only now; the text says why.
    Unreachable(String),
    /// The coordinator holds something that this program cannot read; the text says why.
    Unreadable(String),
    /// The coordinator already holds a cluster, under these keys, which a restored one may not
    /// replace.
    Present(String),
}

impl fmt::Display for MembershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Unreachable(why) => write!(f, "the coordinator cannot be reached: {why}"),
            Self::Unreadable(why) => {
                write!(f, "the cluster's state at the coordinator cannot be read: {why}")
            }
            Self::Present(keys) => write!(
                f,
                "etcd already holds a cluster under {keys}, which was left as it is; if a node \
                 that was started too early founded it, stop all nodes and run `etcdctl del \
                 --prefix {keys}`"
            ),
        }
    }
}

impl std::error::Error for MembershipError {}

impl From<CoordinatorError> for MembershipError {
    fn from(error: CoordinatorError) -> Self {
        Self::Refused(error)
    }
}

/// Why bytes cannot be read as a cluster's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterStateError {
    /// Another release wrote them, in this format.
    Version(u16),
    /// They are malformed.
    Wire(WireError),
}

impl fmt::Display for ClusterStateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "it has format {version}, this release reads format {DIRECTORY_VERSION}: start \
                 the release that the cluster runs, or name another cluster (--cluster)"
            ),
            Self::Wire(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClusterStateError {}

impl From<WireError> for ClusterStateError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Access to the coordinator. Calls block; any thread may make them.
pub trait Membership: Send + Sync + fmt::Debug {
    /// How long a lease lasts, in milliseconds.
    fn lease_ms(&self) -> u64;

    /// Interval between two polls for a new snapshot, in milliseconds.
    fn poll_ms(&self) -> u64;

    /// Makes a node a member; an empty `rack` stands for none.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Alive`] until the lease of the name's previous incarnation has ended.
    fn join(&self, name: &str, address: &str, rack: &str) -> Result<Joined, MembershipError>;

    /// Renews a node's lease from now on.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::NoMember`] if it ended.
    fn keep_alive(&self, peer: Peer) -> Result<(), MembershipError>;

    /// Removes a node that stops.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Needed`] if metadata would be lost.
    fn leave(&self, peer: Peer) -> Result<(), MembershipError>;

    /// Submits a change of the view.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Outdated`] if it was proposed from another state.
    fn propose(&self, proposal: &Proposal) -> Result<(), MembershipError>;

    /// Counts one more flush of the whole cluster, and returns the new count.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    fn flush(&self) -> Result<u64, MembershipError>;

    /// Schedules a flush of the whole cluster, in place of one that is scheduled. It survives the
    /// node that scheduled it.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    fn schedule_flush(&self, due_unix_ms: u64) -> Result<(), MembershipError>;

    /// Counts the flush that is scheduled for this time, unless another node did, or it is not
    /// scheduled any more.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    fn flush_as_scheduled(&self, due_unix_ms: u64) -> Result<(), MembershipError>;

    /// The present snapshot.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    fn snapshot(&self) -> Result<Arc<Snapshot>, MembershipError>;

    /// The state behind the last snapshot or a later one, as bytes that
    /// [`ClusterState::from_bytes`] reads; None if it cannot outlive this process.
    fn state_copy(&self) -> Option<Vec<u8>> {
        None
    }
}

/// Everything that the coordinator of a cluster decides.
#[derive(Debug)]
pub struct ClusterState {
    /// Members and groups.
    pub coordinator: Coordinator,
    /// Where members listen.
    pub addresses: BTreeMap<NodeId, String>,
    /// The racks of the members that named one.
    pub racks: BTreeMap<NodeId, String>,
    /// The cluster's number.
    pub cluster: u64,
    /// What its keys are hashed with.
    pub seed: u64,
    /// Number of flushes of the whole cluster so far.
    pub flushes: u64,
    /// When the next flush is due, in milliseconds since 1970; None if none is scheduled. Not part
    /// of the bytes: older releases read those.
    pub flush_due_unix_ms: Option<u64>,
}

impl ClusterState {
    /// The state of a new cluster.
    pub fn new(cluster: u64, seed: u64, lease_ms: u64) -> Self {
        let coordinator = Coordinator::new(OverlaySettings::default(), lease_ms);
        let (addresses, racks) = (BTreeMap::new(), BTreeMap::new());
        let (flushes, flush_due_unix_ms) = (0, None);
        Self { coordinator, addresses, racks, cluster, seed, flushes, flush_due_unix_ms }
    }

    /// Makes a node a member; an empty `rack` stands for none.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Full`], [`CoordinatorError::Alive`].
    pub fn join(
        &mut self,
        name: &str,
        (address, rack): (&str, &str),
        now_ms: u64,
    ) -> Result<Joined, CoordinatorError> {
        let peer = self.coordinator.join(name, now_ms)?;
        self.addresses.insert(peer.node, address.to_owned());
        if rack.is_empty() {
            self.racks.remove(&peer.node);
        } else {
            self.racks.insert(peer.node, rack.to_owned());
        }
        // Every change has a revision of its own, and so has this one.
        let join_revision = self.coordinator.view().revision;
        Ok(Joined { peer, cluster: self.cluster, seed: self.seed, join_revision })
    }

    /// Encodes the state; later releases read it too.
    pub fn to_bytes(&self) -> Vec<u8> {
        let view = self.coordinator.view();
        let mut bytes = Vec::new();
        let version = if self.racks.is_empty() { RACKLESS_VERSION } else { DIRECTORY_VERSION };
        version.encode(&mut bytes);
        let member = |(node, member): (&NodeId, &Member)| {
            (Peer { node: *node, incarnation: member.incarnation }, member.is_super)
        };
        let members: Vec<(Peer, bool)> = view.members.iter().map(member).collect();
        let group = |(span, group): (Range<u64>, &Group)| (span.start, span.end, group.clone());
        let groups: Vec<(u64, u64, Group)> = view.groups.iter().map(group).collect();
        let names = self.coordinator.names().iter();
        let names: Vec<(String, Peer)> = names.map(|(name, peer)| (name.clone(), *peer)).collect();
        let list = |texts: &BTreeMap<NodeId, String>| -> Vec<(NodeId, String)> {
            texts.iter().map(|(node, text)| (*node, text.clone())).collect()
        };
        (self.cluster, self.seed, self.flushes, view.revision).encode(&mut bytes);
        (members, groups, names, list(&self.addresses)).encode(&mut bytes);
        if version > RACKLESS_VERSION {
            list(&self.racks).encode(&mut bytes);
        }
        bytes
    }

    /// Decodes what [`Self::to_bytes`] made. Leases are not part of it.
    ///
    /// # Errors
    ///
    /// If the bytes are malformed, or of an unknown format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ClusterStateError> {
        let mut from = WireReader::new(bytes);
        let version = u16::decode(&mut from)?;
        if !(RACKLESS_VERSION..=DIRECTORY_VERSION).contains(&version) {
            return Err(ClusterStateError::Version(version));
        }
        let (cluster, seed, flushes, revision) = Wire::decode(&mut from)?;
        if flushes >= COUNT_MAX || revision >= COUNT_MAX {
            return Err(WireError::Invalid.into());
        }
        let (members, groups, names, addresses): Lists = Wire::decode(&mut from)?;
        let mut racks: Vec<(NodeId, String)> = Vec::new();
        if version > RACKLESS_VERSION {
            racks = Wire::decode(&mut from)?;
        }
        if from.left() > 0 {
            return Err(WireError::Long.into());
        }
        let mut view = View { revision, ..View::default() };
        for (Peer { node, incarnation }, is_super) in members {
            view.members.insert(node, Member { incarnation, is_super });
        }
        for (start, end, group) in groups {
            view.groups.assign(start..end, Some(group));
        }
        let names = names.into_iter().collect();
        let coordinator = Coordinator::resume(OverlaySettings::default(), 0, view, names);
        let (addresses, racks) = (addresses.into_iter().collect(), racks.into_iter().collect());
        let flush_due_unix_ms = None;
        Ok(Self { coordinator, addresses, racks, cluster, seed, flushes, flush_due_unix_ms })
    }

    /// The present snapshot.
    pub fn snapshot(&self) -> Snapshot {
        let view = self.coordinator.view().clone();
        let (addresses, racks) = (self.addresses.clone(), self.racks.clone());
        let Self { flushes, flush_due_unix_ms, .. } = *self;
        Snapshot { cluster: self.cluster, view, addresses, racks, flushes, flush_due_unix_ms }
    }
}

/// A coordinator in this process, for a whole cluster on one machine.
#[derive(Debug)]
pub struct Embedded {
    state: Mutex<(ClusterState, Arc<Snapshot>)>,
    lease_ms: u64,
}

impl Embedded {
    /// The state of a new cluster.
    pub fn new(cluster: u64, seed: u64, lease_ms: u64) -> Self {
        let directory = ClusterState::new(cluster, seed, lease_ms);
        let snapshot = Arc::new(directory.snapshot());
        Self { state: Mutex::new((directory, snapshot)), lease_ms }
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut ClusterState, u64) -> Result<T, CoordinatorError>,
    ) -> Result<T, MembershipError> {
        let mut state = self.state.lock().ignore_poison();
        let (directory, snapshot) = &mut *state;
        let now_ms = clock::boot_ms();
        directory.coordinator.expire(now_ms);
        let result = change(directory, now_ms);
        let is_same = snapshot.view.revision == directory.coordinator.view().revision
            && snapshot.flushes == directory.flushes
            && snapshot.flush_due_unix_ms == directory.flush_due_unix_ms;
        if !is_same {
            *snapshot = Arc::new(directory.snapshot());
        }
        Ok(result?)
    }
}

impl Membership for Embedded {
    fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    fn poll_ms(&self) -> u64 {
        10
    }

    fn join(&self, name: &str, address: &str, rack: &str) -> Result<Joined, MembershipError> {
        self.change(|directory, now_ms| directory.join(name, (address, rack), now_ms))
    }

    fn keep_alive(&self, peer: Peer) -> Result<(), MembershipError> {
        self.change(|directory, now_ms| directory.coordinator.keep_alive(peer, now_ms))
    }

    fn leave(&self, peer: Peer) -> Result<(), MembershipError> {
        self.change(|directory, _| directory.coordinator.leave(peer))
    }

    fn propose(&self, proposal: &Proposal) -> Result<(), MembershipError> {
        self.change(|directory, now_ms| directory.coordinator.propose(proposal, now_ms))
    }

    fn flush(&self) -> Result<u64, MembershipError> {
        self.change(|directory, _| {
            directory.flushes += 1;
            Ok(directory.flushes)
        })
    }

    fn schedule_flush(&self, due_unix_ms: u64) -> Result<(), MembershipError> {
        self.change(|directory, _| {
            directory.flush_due_unix_ms = Some(due_unix_ms);
            Ok(())
        })
    }

    fn flush_as_scheduled(&self, due_unix_ms: u64) -> Result<(), MembershipError> {
        self.change(|directory, _| {
            if directory.flush_due_unix_ms == Some(due_unix_ms) {
                directory.flush_due_unix_ms = None;
                directory.flushes += 1;
            }
            Ok(())
        })
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, MembershipError> {
        self.change(|_, _| Ok(()))?;
        let state = self.state.lock().ignore_poison();
        Ok(Arc::clone(&state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_survives_as_bytes() {
        let mut directory = ClusterState::new(7, 8, 1_000);
        for name in ["a", "b", "c", "d", "e"] {
            directory.join(name, (&format!("{name}:1"), ""), 0).expect("there is room");
        }
        let view = directory.coordinator.view();
        let leader = view.supers().next().expect("one");
        let segment = view.segment(leader).expect("a segment");
        let term = amalgam_cluster::overlay::Term { number: 1, leader };
        let group = Group { term, members: view.wanted_group(leader) };
        let regroup = Proposal::Regroup { segment, group, replaces: Vec::new() };
        assert_eq!(directory.coordinator.propose(&regroup, 0), Ok(()));
        directory.flushes = 9;
        let bytes = directory.to_bytes();
        assert_eq!(bytes[..2], RACKLESS_VERSION.to_le_bytes(), "older releases read it");
        ClusterState::from_bytes(&bytes).expect("it is read");
        assert_eq!(directory.join("e", ("e:2", "r1"), 0), Err(CoordinatorError::Alive));
        directory.coordinator.end(directory.coordinator.names()["e"]);
        directory.join("e", ("e:2", "r1"), 0).expect("its lease has ended");
        let bytes = directory.to_bytes();
        let again = ClusterState::from_bytes(&bytes).expect("the same");
        assert_eq!((again.snapshot(), again.to_bytes()), (directory.snapshot(), bytes.clone()));
        assert_eq!(again.coordinator.names(), directory.coordinator.names());
        assert_eq!(again.racks.values().collect::<Vec<_>>(), ["r1"]);
        for cut in 0..bytes.len() {
            assert!(ClusterState::from_bytes(&bytes[..cut]).is_err());
        }
        // The count of flushes, and the revision, which no change could increment.
        for at in [2 + 8 + 8, 2 + 8 + 8 + 8] {
            let mut damaged = bytes.clone();
            damaged[at..at + 8].fill(0xff);
            assert!(ClusterState::from_bytes(&damaged).is_err(), "{at}");
        }
        let later = [&(DIRECTORY_VERSION + 1).to_le_bytes()[..], &bytes[2..]].concat();
        let error = ClusterState::from_bytes(&later).expect_err("it cannot be read");
        assert_eq!(error, ClusterStateError::Version(DIRECTORY_VERSION + 1));
        assert!(error.to_string().contains("format 3"), "{error}");
    }

    #[test]
    fn lives_and_flushes_are_counted_and_told() {
        let embedded = Embedded::new(7, 8, 60_000);
        let first = embedded.join("a", "here:1", "").expect("there is room");
        let second = embedded.join("b", "there:2", "r1").expect("there is room");
        let alive = MembershipError::Refused(CoordinatorError::Alive);
        assert_eq!(embedded.join("a", "here:3", "r2"), Err(alive));
        assert_eq!(embedded.keep_alive(first.peer), Ok(()), "it goes on");
        embedded.leave(first.peer).expect("it holds no metadata");
        let again = embedded.join("a", "here:3", "r2").expect("its name is free");
        assert!(
            first.join_revision < second.join_revision
                && second.join_revision < again.join_revision
        );
        assert_eq!((again.peer.node, again.peer.incarnation), (first.peer.node, 2));
        embedded.schedule_flush(5).expect("it answers");
        embedded.flush_as_scheduled(4).expect("another time is not meant");
        assert_eq!(embedded.snapshot().expect("it answers").flush_due_unix_ms, Some(5));
        for _ in 0..2 {
            // Two nodes that find it due.
            embedded.flush_as_scheduled(5).expect("it answers");
        }
        let snapshot = embedded.snapshot().expect("it answers");
        let members: Vec<_> = snapshot.members().collect();
        assert_eq!(members, [(again.peer, "here:3"), (second.peer, "there:2")]);
        assert_eq!(snapshot.flushes, 1);
        assert_eq!(snapshot.racks.values().collect::<Vec<_>>(), ["r2", "r1"]);
        let gone = MembershipError::Refused(CoordinatorError::NoMember);
        assert_eq!(embedded.keep_alive(first.peer), Err(gone));
        assert_eq!(embedded.keep_alive(again.peer), Ok(()));
    }
}
