//! Votes against members that others cannot reach, as keys of etcd.
//!
//! A vote is the key `votes/MEMBER/VOTER`, bound to a lease of its own, which is short. The voter
//! whose vote makes a majority *marks* the member: in one transaction, which compares that the
//! directory, the votes and the member's key are those that it read, the member's key is taken off
//! the member's lease, and holds that lease's number and length instead. Whoever reads the mark
//! revokes the lease, and then binds the key to a new lease of the same length. Once that has ended
//! the key is gone, and the member is removed like any other whose lease ended.
//!
//! Invariants of this module:
//! 1. The key of a member that was voted out is gone only after a full lease from the moment at
//!    which its lease was revoked, or when the node itself deletes it, so after the node has
//!    stopped serving. Each step may be repeated, by any node, and one that is left undone by a
//!    node that died is done by another.
//! 2. At most one member is marked in [`VOTE_OUT_LEASES`] leases: the transaction compares that
//!    the key `voted-out`, which lives that long, does not exist.
//! 3. To releases that know nothing of votes, the member has a lease until its key is gone.

use std::collections::BTreeSet;

use amalgam_cluster::coordinator::CoordinatorError;
use amalgam_cluster::overlay::{Peer, VOTE_MS, VOTE_OUT_LEASES};
use serde_json::{Value, json};

use super::{Etcd, decoded, encoded, lease_name, unreachable};
use crate::membership::MembershipError;

/// Name of the key that exists while no other member may be voted out.
const VOTED_OUT: &str = "voted-out";
/// What the names of votes begin with.
const VOTES: &str = "votes/";
/// What the value of a marked member's key begins with.
const MARK: &str = "out:";

/// What the keys of a cluster say of votes.
#[derive(Default)]
pub(super) struct VoteKeys {
    /// Votes, as `MEMBER/VOTER`.
    votes: BTreeSet<String>,
    /// The member that was voted out last, while no other may be.
    voted_out: Option<String>,
    /// The keys of members' leases.
    leases: Vec<LeaseKey>,
}

/// The key of one member's lease.
struct LeaseKey {
    /// The member, as in the names of keys.
    member: String,
    /// The revision at which the key was written.
    revision: String,
    /// The number of the lease that it is bound to.
    lease: String,
    value: String,
}

/// The number and length of a lease, as a mark names them.
fn marked_lease(value: &str) -> Option<(&str, u64)> {
    let (lease, seconds) = value.strip_prefix(MARK)?.split_once(':')?;
    Some((lease, seconds.parse().ok()?))
}

impl VoteKeys {
    /// Takes a key of the cluster, by its name after the cluster's prefix, as far as it is about
    /// votes.
    pub(super) fn take(&mut self, name: &str, entry: &Value) -> Result<(), MembershipError> {
        if name == VOTED_OUT {
            self.voted_out = Some(String::from_utf8_lossy(&decoded(&entry["value"])?).into_owned());
        } else if let Some(vote) = name.strip_prefix(VOTES) {
            self.votes.insert(vote.to_owned());
        } else if let Some(member) = name.strip_prefix("alive/") {
            let text = |field: &str| entry[field].as_str().unwrap_or("0").to_owned();
            let value = String::from_utf8_lossy(&decoded(&entry["value"])?).into_owned();
            let (member, revision, lease) =
                (member.to_owned(), text("mod_revision"), text("lease"));
            self.leases.push(LeaseKey { member, revision, lease, value });
        }
        Ok(())
    }

    /// Whether a member was voted out lately.
    pub(super) fn is_voted_out(&self, member: &str) -> bool {
        self.voted_out.as_deref() == Some(member)
    }
}

fn equals(key: &str, target: &str, field: &str, value: &str) -> Value {
    let mut compare = json!({ "key": key, "target": target, "result": "EQUAL" });
    compare[field] = json!(value);
    compare
}

/// The condition that a key exists.
fn exists(key: &str) -> Value {
    json!({ "key": key, "target": "VERSION", "result": "GREATER", "version": "0" })
}

impl Etcd {
    fn vote_key(&self, member: Peer, voter: Peer) -> String {
        self.key(&format!("{VOTES}{}/{}", lease_name(member), lease_name(voter)))
    }

    pub(super) fn transact(
        &self,
        compare: &[Value],
        success: &[Value],
    ) -> Result<bool, MembershipError> {
        let request = json!({ "compare": compare, "success": success, "failure": [] });
        let answer = self.call("/v3/kv/txn", &request)?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }

    /// Writes a vote, and marks the member if there are enough.
    pub(super) fn vote_out(&self, voter: Peer, member: Peer) -> Result<(), MembershipError> {
        let key = self.vote_key(member, voter);
        let lease = self.grant(VOTE_MS.div_ceil(1_000))?;
        let put = json!({ "requestPut": { "key": key, "value": encoded(b"1"), "lease": lease } });
        if !self.transact(&[exists(&self.lease_key(voter))], &[put])? {
            return Err(CoordinatorError::NoMember.into());
        }
        self.mark(member)
    }

    /// Marks a member if the votes suffice, and no member was marked lately.
    fn mark(&self, member: Peer) -> Result<(), MembershipError> {
        let keys = self.read()?;
        let Some(state) = &keys.state else { return Ok(()) };
        let name = lease_name(member);
        let has_voted =
            |voter: &Peer| keys.voting.votes.contains(&format!("{name}/{}", lease_name(*voter)));
        let voters: Vec<Peer> = state.coordinator.view().peers().filter(has_voted).collect();
        let held = keys.voting.leases.iter().find(|key| key.member == name);
        let Some(held) = held.filter(|key| !key.value.starts_with(MARK) && key.lease != "0") else {
            return Ok(());
        };
        if keys.voting.voted_out.is_some() || !state.coordinator.may_vote_out(member, &voters) {
            return Ok(());
        }
        let asked = json!({ "ID": held.lease });
        let left = self.call("/v3/lease/timetolive", &asked)?;
        let seconds = left["grantedTTL"].as_str().and_then(|text| text.parse::<u64>().ok());
        let seconds = seconds.ok_or_else(|| unreachable("the lease of a member has no length"))?;
        let (key, barred) = (self.lease_key(member), self.key(VOTED_OUT));
        let mut compare = vec![
            equals(&self.state_key(), "MOD", "mod_revision", &keys.revision),
            equals(&key, "MOD", "mod_revision", &held.revision),
            equals(&barred, "VERSION", "version", "0"),
        ];
        compare.extend(voters.iter().map(|voter| exists(&self.vote_key(member, *voter))));
        let bar = self.grant(VOTE_OUT_LEASES * seconds)?;
        let mark = format!("{MARK}{}:{seconds}", held.lease);
        let success = [
            json!({ "requestPut": { "key": key, "value": encoded(mark.as_bytes()) } }),
            json!({ "requestPut": {
                "key": barred, "value": encoded(name.as_bytes()), "lease": bar,
            }}),
        ];
        if self.transact(&compare, &success)? {
            let (node, incarnation, votes) = (member.node.get(), member.incarnation, voters.len());
            log::warn!(
                node, incarnation, votes;
                "voted out a member that renews its lease, but does not answer its super peers"
            );
        }
        Ok(())
    }

    /// Ends the leases of the members that are marked.
    pub(super) fn end_marked(&self, keys: &VoteKeys) -> Result<(), MembershipError> {
        for marked in &keys.leases {
            let Some((lease, seconds)) = marked_lease(&marked.value) else { continue };
            self.revoke(lease)?;
            // From now on no renewal succeeds, so the member answers for a full lease at most.
            let fence = self.grant(seconds)?;
            let key = self.key(&format!("alive/{}", marked.member));
            let put = json!({ "requestPut": {
                "key": key, "value": encoded(b"fenced"), "lease": fence,
            }});
            self.transact(&[equals(&key, "MOD", "mod_revision", &marked.revision)], &[put])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_the_lease_and_its_length() {
        assert_eq!(marked_lease("out:7587:30"), Some(("7587", 30)));
        for text in ["1", "fenced", "out:", "out:7", "out:7:", "out:7:x"] {
            assert_eq!(marked_lease(text), None, "{text}");
        }
    }

    #[test]
    fn keys_of_votes_are_told_from_others() {
        let mut keys = VoteKeys::default();
        let entry = json!({ "value": encoded(b"1"), "mod_revision": "9", "lease": "7" });
        for name in ["directory", "flush", "votes/3-1/0-2", "alive/3-1", "voted-out", "later"] {
            keys.take(name, &entry).expect("it is one");
        }
        assert_eq!(keys.votes.iter().collect::<Vec<_>>(), ["3-1/0-2"]);
        let held = &keys.leases[0];
        assert_eq!(
            (held.member.as_str(), held.lease.as_str(), held.revision.as_str()),
            ("3-1", "7", "9")
        );
        assert!(keys.is_voted_out("1") && keys.leases.len() == 1);
    }
}
