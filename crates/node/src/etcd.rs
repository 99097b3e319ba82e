//! Membership in etcd (3.4 and later), over its HTTP and JSON gateway.
//!
//! One key holds the whole [`ClusterState`]; a change replaces it in a transaction that compares
//! its revision with the one that was read. Each node has a key of its own, bound to its lease. A
//! member whose key is gone is removed by the first node that notices, in a transaction that
//! compares that the key is gone. A name joins again in a transaction that compares the same.
//!
//! Invariants of this module:
//! 1. Every change is one transaction on the state that was read; if that has changed meanwhile it
//!    is read again.
//! 2. A member is removed only after its lease has ended at etcd, which is after the node itself
//!    has stopped serving; also one that was voted out (`votes`).
//! 3. A member whose lease has ended gets another one as long as nobody has removed it, in a
//!    transaction that compares that: of its removal and its new lease one succeeds. So after a
//!    time without etcd, in which all leases end, the members are the same as before it.
//! 4. Every call ends: a transaction is tried at most [`TRANSACTIONS_MAX`] times, and each request
//!    has a time limit (`etcd_client`).

use std::fmt;
use std::sync::{Arc, Mutex};

use amalgam_cluster::coordinator::{CoordinatorError, Proposal};
use amalgam_cluster::overlay::Peer;
use amalgam_op::IgnorePoison;
use amalgam_protocol::{append_base64, decode_base64};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use crate::clock::boot_ms;
use crate::etcd_client::{EtcdClient, EtcdConfiguration};
use crate::membership::{ClusterState, Joined, Membership, MembershipError, Snapshot};

mod contact;
mod votes;

use contact::Contact;

/// Times that a transaction is tried while others change the state.
const TRANSACTIONS_MAX: u32 = 50;
/// Name of the key that holds when a flush is due. Releases that do not know it ignore it.
const FLUSH: &str = "flush";
/// etcd counts leases in seconds, and raises shorter ones to this.
const LEASE_SECONDS_MIN: u64 = 2;

/// The state of one cluster in etcd. Shared by all threads.
pub struct Etcd {
    client: EtcdClient,
    /// What the names of all keys of the cluster begin with.
    prefix: String,
    lease_seconds: u64,
    /// etcd's lease of each node that joined through this value.
    leases: Mutex<Vec<(Peer, String)>>,
    /// The snapshot that was read last, and its revision.
    last: Mutex<(String, Arc<Snapshot>)>,
    /// The state that was read last, as bytes.
    last_state: Mutex<Vec<u8>>,
    contact: Mutex<Contact>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({:?}, {})", self.client, self.prefix)
    }
}

/// All keys of the cluster at one revision of etcd.
pub(crate) struct ClusterKeys {
    /// None before the first node joins.
    pub state: Option<ClusterState>,
    /// The revision at which the state was written; 0 before the first node joins.
    revision: String,
    /// Names of the members whose leases have not ended.
    pub alive: Vec<String>,
    /// When a flush is due, as [`Snapshot::flush_due_unix_ms`].
    flush_due_unix_ms: Option<u64>,
    voting: votes::VoteKeys,
}

fn unreadable(why: impl fmt::Display) -> MembershipError {
    MembershipError::Unreadable(why.to_string())
}

fn unreachable(why: impl fmt::Display) -> MembershipError {
    MembershipError::Unreachable(why.to_string())
}

/// Whether `lease` lives, after the answer to a keep-alive. Only an answer about this lease can say
/// that it has ended: with a TTL of 0, which etcd leaves out as JSON's default.
fn is_alive(answer: &Value, lease: &str) -> Result<bool, MembershipError> {
    let result = &answer["result"];
    if result["ID"].as_str() != Some(lease) {
        return Err(unreachable("the answer to a keep-alive is about no lease of this node"));
    }
    let seconds = match &result["TTL"] {
        Value::Null => Some(0),
        Value::String(text) => text.parse::<i64>().ok(),
        other => other.as_i64(),
    };
    let seconds = seconds.ok_or_else(|| unreachable("the answer to a keep-alive has a bad TTL"))?;
    Ok(seconds > 0)
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    append_base64(&mut text, bytes);
    String::from_utf8(text).unwrap_or_default()
}

fn decoded(text: &Value) -> Result<Vec<u8>, MembershipError> {
    let text = text.as_str().unwrap_or_default();
    let mut bytes = vec![0; text.len()];
    let count = decode_base64(text.as_bytes(), &mut bytes);
    bytes.truncate(count.ok_or_else(|| unreadable("a value is not in base64"))?);
    Ok(bytes)
}

fn lease_name(peer: Peer) -> String {
    format!("{}-{}", peer.node.get(), peer.incarnation)
}

impl Etcd {
    /// Access to one cluster; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// If an endpoint cannot be one, or a certificate cannot be used; the text says which and why.
    pub fn open(configuration: &EtcdConfiguration) -> Result<Self, String> {
        let lease_seconds = configuration.lease_seconds.max(LEASE_SECONDS_MIN);
        Ok(Self {
            client: EtcdClient::new(configuration, lease_seconds)?,
            prefix: format!("amalgam/{}/", configuration.cluster),
            lease_seconds,
            leases: Mutex::default(),
            last: Mutex::default(),
            last_state: Mutex::default(),
            contact: Mutex::default(),
        })
    }

    fn call(&self, path: &str, request: &Value) -> Result<Value, MembershipError> {
        self.client.call(path, request).map_err(MembershipError::Unreachable)
    }

    fn key(&self, name: &str) -> String {
        encoded(format!("{}{name}", self.prefix).as_bytes())
    }

    fn state_key(&self) -> String {
        self.key("directory")
    }

    fn lease_key(&self, peer: Peer) -> String {
        self.key(&format!("alive/{}", lease_name(peer)))
    }

    /// Reads all keys of the cluster at one revision.
    fn read(&self) -> Result<ClusterKeys, MembershipError> {
        // '/' and the byte after it.
        let end = format!("{}0", &self.prefix[..self.prefix.len() - 1]);
        let request = json!({ "key": self.key(""), "range_end": encoded(end.as_bytes()) });
        self.keys(&self.call("/v3/kv/range", &request)?)
    }

    /// What an answer says of the keys of the cluster.
    pub(crate) fn keys(&self, answer: &Value) -> Result<ClusterKeys, MembershipError> {
        let (revision, alive) = ("0".to_owned(), Vec::new());
        let (flush_due_unix_ms, voting) = (None, votes::VoteKeys::default());
        let mut keys = ClusterKeys { state: None, revision, alive, flush_due_unix_ms, voting };
        for entry in answer["kvs"].as_array().into_iter().flatten() {
            let key = decoded(&entry["key"])?;
            let key = String::from_utf8_lossy(&key);
            let name = key.strip_prefix(&self.prefix).unwrap_or_default();
            keys.voting.take(name, entry)?;
            if name == "directory" {
                let bytes = decoded(&entry["value"])?;
                keys.state = Some(ClusterState::from_bytes(&bytes).map_err(unreadable)?);
                *self.last_state.lock().ignore_poison() = bytes;
                keys.revision = entry["mod_revision"].as_str().unwrap_or("0").to_owned();
            } else if name == FLUSH {
                let text = decoded(&entry["value"])?;
                keys.flush_due_unix_ms =
                    std::str::from_utf8(&text).ok().and_then(|ms| ms.parse().ok());
            } else if let Some(lease) = name.strip_prefix("alive/") {
                keys.alive.push(lease.to_owned());
            }
        }
        if let Some(state) = &mut keys.state {
            state.flush_due_unix_ms = keys.flush_due_unix_ms;
        }
        Ok(keys)
    }

    /// Replaces the state that was read at `revision`, unless it changed since. `compare` and
    /// `success` are further conditions and operations of the transaction. Whether it succeeded.
    fn replace(
        &self,
        revision: &str,
        state: &ClusterState,
        compare: Option<Value>,
        success: Option<Value>,
    ) -> Result<bool, MembershipError> {
        let (key, value) = (self.state_key(), encoded(&state.to_bytes()));
        let same = json!({
            "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision,
        });
        let put = json!({ "requestPut": { "key": key, "value": value } });
        let mut compares = vec![same];
        compares.extend(compare);
        let mut puts = vec![put];
        puts.extend(success);
        let request = json!({ "compare": compares, "success": puts, "failure": [] });
        let answer = self.call("/v3/kv/txn", &request)?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }

    /// Changes the state, again on what was read anew if other nodes change it meanwhile.
    fn change<T>(
        &self,
        mut change: impl FnMut(&mut ClusterState) -> Result<T, CoordinatorError>,
    ) -> Result<T, MembershipError> {
        for _ in 0..TRANSACTIONS_MAX {
            let ClusterKeys { state, revision, .. } = self.read()?;
            let mut state = state.ok_or_else(|| unreadable("the key of its state is missing"))?;
            let changed = change(&mut state)?;
            if self.replace(&revision, &state, None, None)? {
                return Ok(changed);
            }
        }
        Err(unreachable("other nodes changed the state at each try"))
    }

    /// Removes one member whose lease has ended, if there is any; later reads remove the others.
    /// After a time without etcd it first leaves the members the time to get new leases.
    fn remove_expired(&self, keys: &mut ClusterKeys) -> Result<(), MembershipError> {
        if !self.contact.lock().ignore_poison().is_settled(boot_ms(), self.lease_ms()) {
            return Ok(());
        }
        let Some(state) = &mut keys.state else { return Ok(()) };
        let snapshot = state.snapshot();
        let members = snapshot.view.members.iter();
        let mut peers = members.map(|(node, m)| Peer { node: *node, incarnation: m.incarnation });
        let Some(peer) = peers.find(|peer| !keys.alive.contains(&lease_name(*peer))) else {
            return Ok(());
        };
        state.coordinator.end(peer);
        let gone = self.is_gone(peer);
        // If another node was faster the read below shows it.
        if self.replace(&keys.revision, state, Some(gone), None)? {
            let (node, incarnation) = (peer.node.get(), peer.incarnation);
            log::info!(node, incarnation; "removed a member: its lease ended");
        }
        *keys = self.read()?;
        Ok(())
    }

    /// Gives a member a new lease in place of one that has ended. False if it was removed or voted
    /// out.
    fn regain(&self, peer: Peer) -> Result<bool, MembershipError> {
        let name = lease_name(peer);
        for _ in 0..TRANSACTIONS_MAX {
            let keys = self.read()?;
            let is_member =
                keys.state.as_ref().is_some_and(|state| state.coordinator.view().has(peer));
            if !is_member || keys.alive.contains(&name) || keys.voting.is_voted_out(&name) {
                return Ok(false);
            }
            let lease = self.grant(self.lease_seconds)?;
            let same = json!({
                "key": self.state_key(), "target": "MOD", "result": "EQUAL",
                "mod_revision": keys.revision,
            });
            let put = json!({ "requestPut": {
                "key": self.lease_key(peer), "value": encoded(b"1"), "lease": lease,
            }});
            if self.transact(&[same, self.is_gone(peer)], &[put])? {
                let mut leases = self.leases.lock().ignore_poison();
                leases.retain(|(other, _)| *other != peer);
                leases.push((peer, lease));
                log::info!("the lease had ended, but the node was still a member: it goes on");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The condition that a member's lease has ended.
    fn is_gone(&self, peer: Peer) -> Value {
        let key = self.lease_key(peer);
        json!({ "key": key, "target": "VERSION", "result": "EQUAL", "version": "0" })
    }

    /// A new lease, which ends by itself unless it is used.
    fn grant(&self, seconds: u64) -> Result<String, MembershipError> {
        let granted = self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let lease = granted["ID"].as_str();
        lease.map(str::to_owned).ok_or_else(|| unreadable("the answer to a grant has no lease"))
    }

    /// Ends a lease, if it has not ended.
    fn revoke(&self, lease: &str) -> Result<(), MembershipError> {
        match self.call("/v3/lease/revoke", &json!({ "ID": lease })) {
            Err(MembershipError::Unreachable(why)) if why.contains("lease not found") => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Writes the state of a cluster that this etcd does not hold.
    ///
    /// # Errors
    ///
    /// If it holds one, which stays as it is, or cannot be reached.
    pub fn restore(&self, state: &ClusterState) -> Result<(), MembershipError> {
        match self.replace("0", state, None, None)? {
            true => Ok(()),
            false => Err(MembershipError::Present(self.prefix.clone())),
        }
    }

    fn lease_of(&self, peer: Peer) -> Option<String> {
        let leases = self.leases.lock().ignore_poison();
        leases.iter().find(|(other, _)| *other == peer).map(|(_, lease)| lease.clone())
    }
}

fn new_cluster(lease_ms: u64) -> Result<ClusterState, MembershipError> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| unreachable("the system's random numbers cannot be read"))?;
    let (cluster, seed) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Ok(ClusterState::new(number(cluster).max(1), number(seed), lease_ms))
}

impl Membership for Etcd {
    fn lease_ms(&self) -> u64 {
        self.lease_seconds * 1_000
    }

    fn poll_ms(&self) -> u64 {
        100
    }

    fn join(&self, name: &str, address: &str, rack: &str) -> Result<Joined, MembershipError> {
        for _ in 0..TRANSACTIONS_MAX {
            let ClusterKeys { state, revision, alive, .. } = self.read()?;
            let mut state = match state {
                Some(state) => state,
                None => new_cluster(self.lease_ms())?,
            };
            let last = state.coordinator.names().get(name).copied();
            if last.is_some_and(|last| alive.contains(&lease_name(last))) {
                return Err(CoordinatorError::Alive.into());
            }
            // Its lease has ended, which the transaction compares again.
            last.into_iter().for_each(|last| state.coordinator.end(last));
            let joined = state.join(name, (address, rack), 0)?;
            let lease = self.grant(self.lease_seconds)?;
            let put = json!({ "requestPut": {
                "key": self.lease_key(joined.peer), "value": encoded(b"1"), "lease": lease,
            }});
            let is_free = last.map(|last| self.is_gone(last));
            if self.replace(&revision, &state, is_free, Some(put))? {
                let mut leases = self.leases.lock().ignore_poison();
                leases.push((joined.peer, lease));
                return Ok(joined);
            }
        }
        Err(unreachable("other nodes changed the state at each try"))
    }

    fn keep_alive(&self, peer: Peer) -> Result<(), MembershipError> {
        let ended = || MembershipError::Refused(CoordinatorError::NoMember);
        let lease = self.lease_of(peer).ok_or_else(ended)?;
        let answer = self.call("/v3/lease/keepalive", &json!({ "ID": lease }))?;
        if is_alive(&answer, &lease)? || self.regain(peer)? { Ok(()) } else { Err(ended()) }
    }

    fn leave(&self, peer: Peer) -> Result<(), MembershipError> {
        let left = self.change(|state| state.coordinator.leave(peer));
        // Even if its metadata is needed: it answers nothing more, and its name is free at once.
        // The key of one that was voted out is bound to another lease than its own.
        self.call("/v3/kv/deleterange", &json!({ "key": self.lease_key(peer) }))?;
        self.lease_of(peer).map_or(Ok(()), |lease| self.revoke(&lease))?;
        left
    }

    fn propose(&self, proposal: &Proposal) -> Result<(), MembershipError> {
        match proposal {
            Proposal::VoteOut { voter, member } => self.vote_out(*voter, *member),
            _ => self.change(|state| state.coordinator.propose(proposal, 0)),
        }
    }

    fn flush(&self) -> Result<u64, MembershipError> {
        self.change(|state| {
            state.flushes += 1;
            Ok(state.flushes)
        })
    }

    fn schedule_flush(&self, due_unix_ms: u64) -> Result<(), MembershipError> {
        let value = encoded(due_unix_ms.to_string().as_bytes());
        self.call("/v3/kv/put", &json!({ "key": self.key(FLUSH), "value": value })).map(drop)
    }

    fn flush_as_scheduled(&self, due_unix_ms: u64) -> Result<(), MembershipError> {
        let value = encoded(due_unix_ms.to_string().as_bytes());
        let key = self.key(FLUSH);
        for _ in 0..TRANSACTIONS_MAX {
            let ClusterKeys { state, revision, flush_due_unix_ms, .. } = self.read()?;
            let Some(mut state) = state.filter(|_| flush_due_unix_ms == Some(due_unix_ms)) else {
                return Ok(());
            };
            state.flushes += 1;
            let same = json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": value });
            let remove = json!({ "requestDeleteRange": { "key": key } });
            if self.replace(&revision, &state, Some(same), Some(remove))? {
                return Ok(());
            }
        }
        Err(unreachable("other nodes changed the state at each try"))
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, MembershipError> {
        let mut keys = self.read()?;
        if let Err(error) = self.end_marked(&keys.voting) {
            // It is tried again at the next poll, here and by other nodes.
            log::debug!(error:%; "the lease of a member that was voted out is not ended yet");
        }
        self.remove_expired(&mut keys)?;
        let mut last = self.last.lock().ignore_poison();
        if last.0 != keys.revision || last.1.flush_due_unix_ms != keys.flush_due_unix_ms {
            let snapshot = keys.state.map(|state| state.snapshot());
            *last = (keys.revision, Arc::new(snapshot.unwrap_or_default()));
        }
        Ok(Arc::clone(&last.1))
    }

    fn state_copy(&self) -> Option<Vec<u8>> {
        let bytes = self.last_state.lock().ignore_poison().clone();
        Some(bytes).filter(|bytes| !bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_about_the_lease_can_end_it() {
        let header = json!({ "revision": "1" });
        for (answer, alive) in [
            (json!({ "result": { "header": header, "ID": "7", "TTL": "30" } }), Some(true)),
            // What etcd 3.4 answers after a revocation.
            (json!({ "result": { "header": header, "ID": "7" } }), Some(false)),
            (json!({ "result": { "ID": "7", "TTL": "0" } }), Some(false)),
            (json!({ "result": { "ID": "7", "TTL": "-1" } }), Some(false)),
            (json!({}), None),
            (json!({ "result": { "header": header } }), None),
            (json!({ "result": { "ID": "8" } }), None),
            (json!({ "result": { "ID": "7", "TTL": "soon" } }), None),
            (json!({ "error": { "message": "etcdserver: no leader" } }), None),
        ] {
            match is_alive(&answer, "7") {
                Ok(left) => assert_eq!(Some(left), alive, "{answer}"),
                Err(MembershipError::Unreachable(_)) => assert_eq!(alive, None, "{answer}"),
                Err(other) => panic!("{answer}: {other}"),
            }
        }
    }
}
