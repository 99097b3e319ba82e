//! Nodes in this process: clients whose home is gone or silent, and nodes that do not start.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amalgam_index::model::Model;
use amalgam_node::cluster::chunks::ChunkError;
use amalgam_node::cluster::client::SESSION_MS;
use amalgam_node::cluster::ids::ChunkId;
use amalgam_node::cluster::log::Durability;
use amalgam_node::cluster::overlay::Peer;
use amalgam_node::cluster::wire::{Hello, WIRE_SINCE, WIRE_VERSION, Wire};
use amalgam_node::{
    BackupConfiguration, ClusterClient, Embedded, Membership, NodeConfiguration, RunningNode,
    start_local,
};

/// Longer than anything here stands still.
const LEASE_MS: u64 = 600_000;
/// What a client may take to turn to another node: far more than the second that it waits for one
/// that is silent, and less than the ten for which it once waited.
const TURN: Duration = Duration::from_secs(8);

fn nodes() -> Vec<RunningNode> {
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let template = NodeConfiguration { threads: 1, ..NodeConfiguration::default() };
    start_local::<Model>(3, &template, &membership).expect("they start")
}

fn connect(addresses: &[String]) -> ClusterClient {
    ClusterClient::connect(addresses, "", 1 << 20).expect("connects")
}

/// In front of a node: passes on what is said until it is told to be silent.
struct Relay {
    address: String,
    is_silent: Arc<AtomicBool>,
}

impl Relay {
    fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let is_silent = Arc::new(AtomicBool::new(false));
        let silence = Arc::clone(&is_silent);
        // They end with the test's process, as they wait for what does not come.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let node = TcpStream::connect(&target).expect("it listens");
                let both = || (client.try_clone().expect("a copy"), node.try_clone());
                let (from, to) = both();
                pass_on(from, to.expect("a copy"), Arc::clone(&silence));
                let (to, from) = both();
                pass_on(from.expect("a copy"), to, Arc::clone(&silence));
            }
        });
        Self { address, is_silent }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, is_silent: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count) = from.read(&mut buffer)
            && count > 0
        {
            if !is_silent.load(Ordering::Acquire) && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    });
}

/// A chunk of a node, of which other clients do not know yet whose it is.
fn chunk_of(node: &RunningNode) -> ChunkId {
    connect(&[node.address().to_string()]).create(b"a value").expect("it serves")
}

#[test]
fn a_silent_home_is_left_for_another() {
    let nodes = nodes();
    let chunk = chunk_of(&nodes[1]);
    let relay = Relay::start(nodes[0].address().to_string());
    let mut client = connect(std::slice::from_ref(&relay.address));
    let home = client.home();
    assert_eq!(home, nodes[0].peer());
    relay.is_silent.store(true, Ordering::Release);
    let begin = Instant::now();
    assert_eq!(client.get(chunk), Ok(b"a value".to_vec()));
    assert!(begin.elapsed() < TURN, "{:?}", begin.elapsed());
    assert_ne!(client.home(), home, "it turned to another");
    // What creates a chunk went to the new home, and what names a key is asked there.
    let created = client.create(b"another").expect("the new home serves");
    assert_eq!(client.get(created), Ok(b"another".to_vec()));
    client.name(b"name", created).expect("it has a name");
    assert_eq!(client.named(b"name"), Ok(created));
}

#[test]
fn a_question_finds_another_home_too() {
    let nodes = nodes();
    let relay = Relay::start(nodes[0].address().to_string());
    let mut client = connect(std::slice::from_ref(&relay.address));
    let place = client.place(b"key").expect("it answers");
    relay.is_silent.store(true, Ordering::Release);
    let begin = Instant::now();
    assert_eq!(client.place(b"key").expect("another answers"), place);
    assert!(begin.elapsed() < TURN, "{:?}", begin.elapsed());
}

#[test]
fn a_home_that_ended_is_left_at_once() {
    let mut nodes = nodes();
    let chunk = chunk_of(&nodes[1]);
    let mut client = connect(&[nodes[0].address().to_string()]);
    let gone = client.home();
    nodes[0].stop();
    let begin = Instant::now();
    assert_eq!(client.get(chunk), Ok(b"a value".to_vec()));
    assert!(begin.elapsed() < TURN, "{:?}", begin.elapsed());
    assert_ne!(client.home(), gone);
    // It speaks of one node and no other.
    client.status().expect_err("that one is gone");
    client.drain().expect_err("nobody else is drained");
}

#[test]
fn nodes_that_do_not_answer_are_passed_over() {
    let nodes = nodes();
    // One refuses connections, one takes them and says nothing.
    let refusing = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addresses = [
        refusing.expect("a port").to_string(),
        mute.local_addr().expect("an address").to_string(),
        nodes[2].address().to_string(),
    ];
    let begin = Instant::now();
    let mut client = connect(&addresses);
    assert!(begin.elapsed() < TURN, "{:?}", begin.elapsed());
    assert_eq!(client.home(), nodes[2].peer());
    let begin = Instant::now();
    ClusterClient::connect(&addresses[..2], "", 0).expect_err("nobody is there");
    assert!(begin.elapsed() < 2 * TURN, "{:?}", begin.elapsed());
    let chunk = client.create(b"a value").expect("it serves");
    assert_eq!(client.get(chunk), Ok(b"a value".to_vec()));
}

fn with_backups(name: &str, folder: &Path) -> NodeConfiguration {
    let (count, durability) = (1, Durability::Buffered);
    let folder = folder.to_owned();
    let (copy_sets, space_bytes) = (0, 64 << 20);
    let backups = BackupConfiguration { count, copy_sets, folder, durability, space_bytes };
    let (name, backups) = (name.to_owned(), Some(backups));
    NodeConfiguration { name, threads: 1, backups, ..NodeConfiguration::default() }
}

#[test]
fn who_cannot_use_its_log_leaves_the_cluster_as_it_was() {
    let folder = std::env::temp_dir().join(format!("amalgam-nodes-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let own: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let start = |configuration: &NodeConfiguration, of: &Arc<dyn Membership>| {
        RunningNode::start::<Model>(configuration, Arc::clone(of))
    };
    let mut first = start(&with_backups("one", &folder), &own).expect("it starts");
    let members = |of: &Arc<dyn Membership>| -> Vec<Peer> {
        of.snapshot().expect("it is here").members().map(|(peer, _)| peer).collect()
    };
    // Started twice by mistake: the first incarnation goes on.
    let error = start(&with_backups("one", &folder), &own).expect_err("the folder is in use");
    assert!(error.to_string().contains("another process"), "{error}");
    assert_eq!(members(&own), [first.peer()]);
    first.stop();
    let other: Arc<dyn Membership> = Arc::new(Embedded::new(9, 8, LEASE_MS));
    let error = start(&with_backups("one", &folder), &other).expect_err("it is not its log");
    assert!(error.to_string().contains("the log belongs to cluster"), "{error}");
    assert_eq!(members(&other), [], "nobody counts on it");
    let mut again = start(&with_backups("one", &folder), &own).expect("the log is as it was");
    assert_eq!(members(&own), [again.peer()]);
    again.stop();
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn backups_lie_in_another_rack() {
    let folder = std::env::temp_dir().join(format!("amalgam-racks-{}", std::process::id()));
    let own: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let start = |(name, rack): (&str, &'static str)| {
        let backed_up = with_backups(name, &folder.join(name));
        let configuration = NodeConfiguration { rack: rack.to_owned(), ..backed_up };
        (RunningNode::start::<Model>(&configuration, Arc::clone(&own)).expect("it starts"), rack)
    };
    let nodes = [("one", "a"), ("two", "a"), ("three", "b"), ("four", "b")].map(start);
    nodes[0].0.wait_until_ready(Duration::from_secs(60)).expect("they share all keys");
    let rack_of = |peer: Peer| {
        let found = nodes.iter().find(|(node, _)| node.peer() == peer);
        found.map(|(_, rack)| *rack)
    };
    // Chunks of who was there first had their backups before there was another rack.
    let begin = Instant::now();
    for (node, rack) in &nodes {
        let mut client = connect(&[node.address().to_string()]);
        let chunk = client.create(b"a value").expect("it serves");
        let other = if *rack == "a" { "b" } else { "a" };
        loop {
            let holding = client.holding(chunk).expect("it answers").expect("its own");
            let racks: Vec<_> = holding.replicas.iter().map(|(peer, _)| rack_of(*peer)).collect();
            if racks == [Some(other)] {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{chunk}: {racks:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(client.get(chunk), Ok(b"a value".to_vec()));
    }
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// A member that says hello as a node of another release does; its membership lasts.
fn member_that_says(hello: impl Fn(Peer) -> Hello) -> Arc<dyn Membership> {
    let own: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let peer = own.join("member", &address, "").expect("there is room").peer;
    let mut said = Vec::new();
    hello(peer).encode(&mut said);
    said.extend([7; 16]);
    let said = [&(said.len() as u16).to_le_bytes()[..], &said].concat();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The other side leaves once it has read that.
            let _ = stream.write_all(&said).and_then(|()| stream.read_to_end(&mut Vec::new()));
        }
    });
    own
}

#[test]
fn who_speaks_no_version_that_a_member_does_is_no_member() {
    let versions = [(WIRE_VERSION + 1, WIRE_VERSION + 1), (WIRE_SINCE - 1, 0)];
    for (version, since) in versions {
        let own = member_that_says(|peer| {
            let mut hello = Hello::new(7, Some(peer));
            (hello.version, hello.since) = (version, since);
            hello
        });
        let before = own.snapshot().expect("it is here");
        let configuration = NodeConfiguration { threads: 1, ..NodeConfiguration::default() };
        let started = RunningNode::start::<Model>(&configuration, Arc::clone(&own));
        let error = started.expect_err("nobody would hear it").to_string();
        assert!(error.contains(&format!("speaks version {version}")), "{error}");
        assert_eq!(own.snapshot().expect("it is here"), before, "nobody counts on it");
    }
}

#[test]
fn nodes_without_a_name_are_as_many_as_their_addresses() {
    let own: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let name = String::new();
    let configuration = NodeConfiguration { name, threads: 1, ..NodeConfiguration::default() };
    let start = || RunningNode::start::<Model>(&configuration, Arc::clone(&own));
    let nodes = [start().expect("it starts"), start().expect("it starts")];
    let members = own.snapshot().expect("it is here");
    let members: Vec<Peer> = members.members().map(|(peer, _)| peer).collect();
    assert_eq!(members, nodes.each_ref().map(RunningNode::peer), "one ended the other");
}

#[test]
fn locks_of_a_client_that_ended_are_released() {
    let nodes = nodes();
    // Of a home, and of another owner.
    let chunks = [chunk_of(&nodes[0]), chunk_of(&nodes[1])];
    let [mut one, mut other] = [0, 2].map(|at: usize| connect(&[nodes[at].address().to_string()]));
    for chunk in chunks {
        let token = one.lock(chunk, SESSION_MS).expect("granted");
        assert_eq!(other.lock(chunk, SESSION_MS), Err(ChunkError::Locked));
        let newer = one.lock(chunk, SESSION_MS).expect("granted anew");
        assert!(newer > token);
        assert_eq!(one.put_fenced(chunk, b"late", token), Err(ChunkError::Fenced));
        assert_eq!(other.put_fenced(chunk, b"value", newer), Ok(()));
        assert_eq!(one.delete_fenced(chunk, token), Err(ChunkError::Fenced));
        assert_eq!(other.get(chunk), Ok(b"value".to_vec()));
    }
    drop(one);
    let begin = Instant::now();
    for chunk in chunks {
        while let Err(error) = other.lock(chunk, SESSION_MS) {
            let is_soon = begin.elapsed() < Duration::from_millis(SESSION_MS / 2);
            assert!(error == ChunkError::Locked && is_soon, "{chunk}: {error:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
