//! The overlay of super peers, which replicates the metadata: who owns which ids (DXRAM, section
//! 2.2).
//!
//! Super peers form a ring in the order of their node ids. Each is responsible for the ring segment
//! from its predecessor's position to its own, and leads the group that holds the metadata of the
//! creators there: itself and its four successors. The coordinator knows the members and the
//! groups. Ordinary peers know the list of super peers, and ask the responsible one, or any.
//!
//! The replication protocol is Vertical Paxos (Lamport, Malkhi, Zhou: Vertical Paxos and
//! Primary-Backup Replication, PODC 2009): a reconfiguration master (the coordinator, which is etcd
//! in a cluster) decides the groups, and within a group a majority commits. The leader orders the
//! edits of each creator in batches, and answers a batch when a majority of the group holds it. A
//! new leader first reserves its segment at the master, has enough of each old group promise to
//! accept nothing of earlier terms that no majority is without one of them, takes their latest
//! replica of each creator, installs it at a majority of its own group, and then has the master
//! activate its group in place of the old ones. So the next leader's catalog holds every batch that
//! was answered.
//!
//! Why this is not a Raft library (raft-rs was considered):
//! - Membership and leadership follow from the ring in etcd: each super peer leads its own segment.
//!   Raft would elect leaders by timeouts and change members through its own log, a second source
//!   of truth next to etcd's leases.
//! - Segments split and merge whenever a super peer joins or dies. A takeover collects any parts of
//!   old groups in one step; Raft groups would need a protocol of their own to split and merge.
//! - Order matters per creator only, and at most one batch of a creator is uncommitted. A replica
//!   is the catalog itself: there is no log to index, compact or truncate, and an idle group sends
//!   nothing but a periodic comparison of digests.
//! - The simulation needs the same run from the same seed; raft-rs draws its election timeouts
//!   itself.
//!
//! The price is that the protocol needs its own verification: the simulation checks every commit
//! against an oracle, and its mutants must be found.
//!
//! Invariants of this module:
//! 1. At each position of the ring, active terms ascend, and each has one leader.
//! 2. All replicas that ever committed a sequence number of a creator committed the same batch
//!    there, and [`Catalog`] maps equal batches to equal owners. So every id has at most one owner.
//! 3. An edit is executed at most once, even if it is repeated or arrives late; one that is older
//!    than the requester's last is refused.
//! 4. A leader's answer to a lookup may be outdated or not committed yet. Owners check the epoch of
//!    every request, so a wrong answer costs a retry and nothing else.
//! 5. A restarted node has a new incarnation. Neither its promises nor its replicas count, unless
//!    it has all of them from a log; then it speaks for its former incarnations
//!    ([`SuperPeer::resume`]).
//! 6. Replicated ids are not given up because all their holders are dead: one may come back with
//!    its log. They are given up once the last holder reports that it has nothing.
//! 7. While messages arrive, replicas of a group converge to equal digests.

mod attempt;
mod catalog;
mod creator_state;
mod edit;
mod locator;
mod message;
mod named_owners;
mod proposal;
mod ring;
mod super_peer;
mod takeover;
mod view;

pub use catalog::Catalog;
pub use edit::{
    Change, EDIT_IDS_MAX, Edit, FailoverGrant, LastRequest, MetadataRecord, Refusal, ReplicaSet,
    RequestId, Snapshot, Summary, Version,
};
pub use locator::{Answer, Located, Locator};
pub use message::{HOPS_MAX, Message, OverlayCommand, OverlayEvent};
pub use proposal::{Proposal, VOTE_MS, VOTE_OUT_LEASES};
pub use ring::{POSITIONS, RingSegment, position};
pub use super_peer::SuperPeer;
pub use view::{GROUP_MEMBERS, Group, Member, OverlaySettings, Peer, Term, View};
