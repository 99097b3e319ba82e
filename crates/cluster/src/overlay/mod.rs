//! The overlay of super peers, who know where everything is (DXRAM, section 2.2).
//!
//! Super peers form a ring in the order of their node ids. Each is responsible for the creators
//! from its predecessor on up to itself, and leads the group that holds their metadata: itself and
//! its two successors. The coordinator knows the members and the groups; peers know the list of
//! super peers, and ask the one responsible, or any.
//!
//! How an edit becomes certain: the leader gives each creator's edits an order, in batches. A
//! batch is answered when a majority of the group holds it. A leader to come first has a majority
//! of the old group promise to follow nobody earlier, takes the furthest replica of each creator,
//! brings a majority of its own group to the same, and has the coordinator put its group in the
//! place of the old one. So the next leader's catalog holds every batch that was answered.
//!
//! Invariants of this room:
//! 1. At each position of the ring the terms that come into force ascend, and each has one leader.
//! 2. Of each creator, all replicas that ever committed a sequence number committed the same batch
//!    there; [`Catalog`] makes of equal batches equal owners. So every id has at most one owner.
//! 3. An edit is carried out at most once, also if it is asked for again or arrives late; one that
//!    is older than the asker's last is refused.
//! 4. What a leader answers to a lookup may be out of date or not yet committed: owners check the
//!    epoch of every request, so a wrong answer costs its user a retry and nothing else.
//! 5. Who restarts has another incarnation: neither its promises nor its replicas count, unless it
//!    has them whole from a log. Then it speaks for its former lives ([`SuperPeer::resume`]).
//! 6. Ids that were backed up are not given up because all who have them are gone: one may come
//!    back with its log. They are once it says that it has nothing.
//! 7. Replicas of a group come to have the same digests while messages arrive.

mod catalog;
mod edit;
mod locator;
mod message;
mod record;
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
pub use ring::{POSITIONS, RingSegment, position};
pub use super_peer::SuperPeer;
pub use view::{GROUP_MEMBERS, Group, Member, OverlaySettings, Peer, Term, View};
