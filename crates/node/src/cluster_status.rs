//! What the nodes of a cluster tell of themselves, for `amalgam cluster status` and the live page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{MemoryUse, NodeMemory, NodeStatus};
use amalgam_op::IgnorePoison;
use serde_json::{Value, json};

use crate::client::ClusterClient;
use crate::client_connection::ClientError;
use crate::clock::boot_ms;
use crate::handshake::Credentials;
use crate::report::NodeReport;

/// Age at which an overview of the nodes is outdated, in milliseconds.
const OVERVIEW_MS: u64 = 2_000;
/// Nodes that are asked at a time.
const ASKED_MAX: usize = 16;

/// The members of a cluster, as one of them knows them, and what they answered.
#[derive(Debug)]
pub struct ClusterStatus {
    /// In the order of their numbers.
    pub nodes: Vec<NodeEntry>,
    /// The latest revision of the coordinator that any of them knows: the node that was asked first
    /// may be the one that is cut off.
    pub revision: u64,
}

/// A member.
#[derive(Debug)]
pub struct NodeEntry {
    /// The node and its incarnation.
    pub peer: Peer,
    /// Where it listens for nodes.
    pub address: String,
    /// Whether it keeps metadata.
    pub is_super: bool,
    /// What it answered.
    pub answer: Result<NodeAnswer, ClientError>,
}

/// What a node tells of itself.
#[derive(Debug)]
pub struct NodeAnswer {
    /// What it owns and does.
    pub status: NodeStatus,
    /// Its memory, unless it is of another release, which may not tell.
    pub memory: Option<NodeMemory>,
    /// How long it takes to answer: a probe of the node that asks, smoothed, or the question for
    /// its status if no node asks, or none that probes it.
    pub round_trip: Duration,
}

/// What all nodes told last, for whoever looks at one of them all the time.
#[derive(Debug, Default)]
pub struct Overview {
    /// In JSON, and when they had told it, in [`boot_ms`].
    last: Mutex<(u64, String)>,
    /// Whether they are being asked.
    is_asking: AtomicBool,
}

impl Overview {
    /// What the members told, as a JSON object with its age. Never waits: if it is outdated, a
    /// thread of its own asks the members that `home` names.
    pub fn json(
        self: &Arc<Self>,
        home: Option<&Arc<NodeReport>>,
        credentials: &Credentials,
    ) -> String {
        let (taken_ms, nodes) = self.last.lock().ignore_poison().clone();
        let age_ms = boot_ms().saturating_sub(taken_ms);
        if let Some(home) = home
            && (nodes.is_empty() || age_ms >= OVERVIEW_MS)
            && !self.is_asking.swap(true, Ordering::AcqRel)
        {
            let asking = Asking(Arc::clone(self));
            let (home, credentials) = (Arc::clone(home), credentials.clone());
            let ask = move || asking.ask(&home, &credentials);
            // Without a thread the next request tries again.
            let _ = std::thread::Builder::new().name("overview".to_owned()).spawn(ask);
        }
        match nodes.is_empty() {
            true => r#"{"age_ms":null,"nodes":[]}"#.to_owned(),
            false => format!(r#"{{"age_ms":{age_ms},"nodes":{nodes}}}"#),
        }
    }
}

/// Whoever asks all nodes; another may when this is dropped.
struct Asking(Arc<Overview>);

impl Asking {
    fn ask(&self, home: &NodeReport, credentials: &Credentials) {
        let connect = |at: &str| ClusterClient::connect(&[at.to_owned()], credentials, 0);
        let mut all = ClusterStatus::ask(&home.status, connect);
        for (peer, time) in &home.round_trips {
            let answers = all.nodes.iter_mut().filter(|node| node.peer == *peer);
            let answers = answers.flat_map(|node| &mut node.answer);
            answers.for_each(|answer| answer.round_trip = *time);
        }
        let nodes = Value::from(all.to_json()).to_string();
        *self.0.last.lock().ignore_poison() = (boot_ms(), nodes);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.is_asking.store(false, Ordering::Release);
    }
}

impl ClusterStatus {
    /// Asks all members that `home` names; `connect` connects to an address. Blocks, for some
    /// seconds if a node does not answer.
    pub fn ask(
        home: &NodeStatus,
        connect: impl Fn(&str) -> Result<ClusterClient, ClientError> + Sync,
    ) -> Self {
        let ask = |address: &str| {
            let mut client = connect(address)?;
            let begin = Instant::now();
            let status = client.status()?;
            let round_trip = begin.elapsed();
            let is_same = status.release == home.release;
            let memory = is_same.then(|| client.memory()).and_then(Result::ok);
            Ok(NodeAnswer { status, memory, round_trip })
        };
        let mut answers = ask_all(&home.members, ask);
        let entry = |(number, (peer, address)): (usize, &(Peer, String))| NodeEntry {
            peer: *peer,
            address: address.clone(),
            is_super: home.supers.contains(peer),
            answer: answers
                .remove(&number)
                .unwrap_or_else(|| Err(ClientError::Answer("asking it failed".to_owned()))),
        };
        let nodes: Vec<NodeEntry> = home.members.iter().enumerate().map(entry).collect();
        let revisions = nodes.iter().flat_map(|node| &node.answer).map(|own| own.status.revision);
        let revision = latest(home.revision, revisions);
        Self { nodes, revision }
    }

    /// An object for each node, with names that do not change.
    pub fn to_json(&self) -> Vec<Value> {
        self.nodes.iter().map(|node| node.to_json(self.revision)).collect()
    }
}

impl NodeEntry {
    fn to_json(&self, revision: u64) -> Value {
        let mut object = json!({
            "node": self.peer.node.get(),
            "incarnation": self.peer.incarnation,
            "address": self.address,
            "is_super_peer": self.is_super,
            "answers": self.answer.is_ok(),
        });
        let more = match &self.answer {
            Ok(NodeAnswer { status: own, memory, round_trip }) => json!({
                "partitions": own.partitions,
                "chunk_ids": own.ids,
                "spans": own.spans,
                "ranges": own.ranges.0,
                "moves_from": own.moves.0,
                "moves_to": own.moves.1,
                "backups": own.backups,
                "spans_short_of_copies": own.reduced.0 + own.reduced.1,
                "kept_for_others": own.kept,
                "memory": memory.map(|memory| json!({
                    "keys": of_memory(&memory.items),
                    "chunks": of_memory(&memory.chunks),
                    "evicts": memory.evicts,
                })),
                "revision_lag": revision.saturating_sub(own.revision),
                "lease_left_ms": own.lease_left_ms,
                "operations_per_second": own.rate,
                "hot_moves": own.hot_moves,
                "round_trip_us": u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX),
                "release": own.release,
            }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
            object.extend(more.clone());
        }
        object
    }
}

/// What the members answer, by their places in the list. Each thread takes the next member that
/// nobody has asked: a silent one occupies one of [`ASKED_MAX`] threads and delays no other member.
fn ask_all<T: Send>(
    members: &[(Peer, String)],
    ask: impl Fn(&str) -> T + Sync,
) -> BTreeMap<usize, T> {
    let next = AtomicUsize::new(0);
    let ask_next = || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        members.get(number).map(|(_, address)| (number, ask(address)))
    };
    let ask_some = || std::iter::from_fn(ask_next).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let others = 1..ASKED_MAX.min(members.len());
        // Fewer threads take longer.
        let started: Vec<_> = others
            .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, ask_some).ok())
            .collect();
        let own = ask_some();
        let others = started.into_iter().flat_map(|one| one.join().unwrap_or_default());
        others.chain(own).collect()
    })
}

fn of_memory(one: &MemoryUse) -> Value {
    json!({ "used": one.used, "fillable": one.fillable, "limit": one.limit })
}

/// The latest of revisions.
fn latest(asked: u64, others: impl Iterator<Item = u64>) -> u64 {
    others.fold(asked, u64::max)
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::ids::NodeId;

    use super::*;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn members_that_do_not_answer_hold_up_no_others() {
        // One thread is left for the others.
        let silent = ASKED_MAX - 1;
        let member = |number| {
            let node = NodeId::new(number).expect("a node");
            (Peer { node, incarnation: 1 }, number.to_string())
        };
        let members: Vec<(Peer, String)> = (0..5 * ASKED_MAX as u16).map(member).collect();
        let (answered, begin) = (AtomicUsize::new(0), Instant::now());
        let answers = ask_all(&members, |address| {
            let number: usize = address.parse().expect("a number");
            let is_silent = number < silent;
            while is_silent && answered.load(Ordering::Acquire) < members.len() - silent {
                assert!(begin.elapsed() < PATIENCE, "the others wait for this one");
                std::thread::sleep(Duration::from_millis(1));
            }
            answered.fetch_add(usize::from(!is_silent), Ordering::Release);
            number
        });
        assert!(answers.into_iter().eq((0..members.len()).map(|number| (number, number))));
        assert!(ask_all(&[], |_| ()).is_empty());
    }

    #[test]
    fn a_node_that_is_cut_off_shows_as_behind_when_it_is_asked_itself() {
        assert_eq!(latest(3, [3, 9, 8].into_iter()), 9);
        assert_eq!(latest(3, std::iter::empty()), 3);
    }
}
