//! Proposals to the coordinator.

use std::ops::Range;

use super::ring::RingSegment;
use super::view::{Group, Peer, Term};

/// A proposal of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Makes an ordinary peer a super peer.
    Promote(Peer),
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
