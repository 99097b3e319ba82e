//! Proposals to the coordinator.

use std::ops::Range;

use super::ring::RingSegment;
use super::view::{Group, Peer, Term};

/// How long a vote against a member counts, in milliseconds.
pub const VOTE_MS: u64 = 5_000;
/// At most one member is voted out in as many leases.
pub const VOTE_OUT_LEASES: u64 = 10;

/// A proposal of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Makes an ordinary peer a super peer.
    Promote(Peer),
    /// A super peer votes against a member that it watches and that does not answer it. The vote
    /// counts for [`VOTE_MS`].
    VoteOut {
        /// The super peer.
        voter: Peer,
        /// The member.
        member: Peer,
    },
    /// Reserves a segment for this term, if its groups are still those in `replaces`: from then on,
    /// earlier proposals for the segment are refused, and no group leads there. The members of the
    /// groups stay.
    Claim {
        /// The positions.
        segment: RingSegment,
        /// A term that no group has.
        term: Term,
        /// As in [`Self::Regroup`].
        replaces: Vec<(Range<u64>, Group)>,
    },
    /// Gives a segment to another group, if its groups are still those in `replaces`.
    Regroup {
        /// The positions.
        segment: RingSegment,
        /// The new group.
        group: Group,
        /// The present groups, part by part; parts without a group are left out.
        replaces: Vec<(Range<u64>, Group)>,
    },
}
