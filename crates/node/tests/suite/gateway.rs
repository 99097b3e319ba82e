//! Memcached's clients at the gateways of a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use amalgam_index::model::Model;
use amalgam_index::{Engine, Mercury, Store};
use amalgam_node::cluster::chunks::{Action, ChunkError, MAX_CHUNK_BYTES, Response};
use amalgam_node::cluster::coordinator::Proposal;
use amalgam_node::cluster::ids::ChunkId;
use amalgam_node::cluster::overlay::Peer;
use amalgam_node::{
    ClusterClient, Embedded, Joined, Membership, MembershipError, NodeConfiguration, RunningNode,
    Snapshot, start_local,
};
use amalgam_server::Server;

use crate::support::{Running, settings};
use crate::texts::SCRIPTS;

/// Longer than anything here stands still.
const LEASE_MS: u64 = 600_000;

/// A cluster with a server in front of each node. Servers end before their nodes.
struct Cluster {
    servers: Vec<Running>,
    nodes: Vec<RunningNode>,
}

fn cluster(nodes: usize, threads: usize) -> Cluster {
    cluster_of(Arc::new(Embedded::new(7, 8, LEASE_MS)), nodes, threads)
}

fn cluster_of(membership: Arc<dyn Membership>, nodes: usize, threads: usize) -> Cluster {
    let template = NodeConfiguration { threads, ..NodeConfiguration::default() };
    cluster_as(membership, nodes, template)
}

fn cluster_as(
    membership: Arc<dyn Membership>,
    nodes: usize,
    template: NodeConfiguration,
) -> Cluster {
    cluster_with::<Model>(membership, nodes, template)
}

fn cluster_with<E: Engine>(
    membership: Arc<dyn Membership>,
    nodes: usize,
    template: NodeConfiguration,
) -> Cluster {
    let (threads, token) = (template.threads, "a secret".to_owned());
    let template = NodeConfiguration { token, ..template };
    let nodes = start_local::<E>(nodes, &template, &membership).expect("they start");
    let server = |node: &RunningNode| {
        let server = Server::open_around(settings(threads), node.gateway()).expect("it starts");
        Running::of(server)
    };
    Cluster { servers: nodes.iter().map(server).collect(), nodes }
}

#[test]
fn every_node_answers_as_one_server_would() {
    let cluster = cluster(3, 2);
    for server in &cluster.servers {
        let mut client = server.connect();
        for (sent, expected) in SCRIPTS {
            client.talk(sent, expected);
        }
    }
    // What one wrote all see, and reads of many keys gather them from all nodes.
    let keys: Vec<String> = (0..50).map(|number| format!("key{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let server = &cluster.servers[number % cluster.servers.len()];
        server.connect().talk(format!("set {key} {number} 0 2\r\nhi\r\n"), "STORED\r\n");
    }
    let values = |(number, key): (usize, &String)| format!("VALUE {key} {number} 2\r\nhi\r\n");
    let all: String = keys.iter().enumerate().map(values).collect();
    for server in &cluster.servers {
        let get = format!("get {}\r\n", keys.join(" "));
        server.connect().talk(get, format!("{all}END\r\n"));
    }
    // flush_all at one node drops the keys of all, and what is written after it stays.
    cluster.servers[1].connect().talk("flush_all\r\n", "OK\r\n");
    for (number, server) in cluster.servers.iter().enumerate() {
        server.connect().talk(format!("get {}\r\n", keys.join(" ")), "END\r\n");
        let (set, get) =
            (format!("set after{number} 0 0 1\r\nx\r\n"), format!("get after{number}"));
        server.connect().talk(set, "STORED\r\n");
        let value = format!("VALUE after{number} 0 1\r\nx\r\nEND\r\n");
        cluster.servers[0].connect().talk(format!("{get}\r\n"), value);
    }
}

/// While the keys of a node move, a batch finds some of them here, some there, and some that have
/// just left; each is answered, in its place.
#[test]
fn reads_of_many_keys_are_whole_while_keys_move() {
    let cluster = cluster(3, 1);
    let keys: Vec<String> = (0..120).map(|number| format!("key{number}")).collect();
    for key in &keys {
        cluster.servers[0].connect().talk(format!("set {key} 0 0 2\r\nhi\r\n"), "STORED\r\n");
    }
    let values: String = keys.iter().map(|key| format!("VALUE {key} 0 2\r\nhi\r\n")).collect();
    let (get, all) = (format!("get {}\r\n", keys.join(" ")), format!("{values}END\r\n"));
    let (has_left, batches) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for server in &cluster.servers {
            scope.spawn(|| {
                let mut client = server.connect();
                while !has_left.load(Ordering::Acquire) {
                    client.talk(&get[..], &all[..]);
                    batches.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let does_leave = cluster.nodes[1].leave(Duration::from_secs(30));
        has_left.store(true, Ordering::Release);
        assert!(does_leave, "others take everything");
    });
    assert!(batches.load(Ordering::Relaxed) > 3, "the move was too short");
}

/// Others may take over from a node that stops, before its lease has ended.
#[test]
fn nothing_is_answered_for_a_node_that_has_stopped() {
    let mut cluster = cluster(1, 1);
    let mut client = cluster.servers[0].connect();
    client.talk("set key 0 0 2\r\nhi\r\n", "STORED\r\n");
    client.talk("get key\r\n", "VALUE key 0 2\r\nhi\r\nEND\r\n");
    cluster.nodes[0].stop();
    let refused = "SERVER_ERROR the key's owner is unavailable; nothing was done\r\n";
    client.talk("get key\r\n", refused);
    client.talk("set key 0 0 2\r\nho\r\n", refused);
}

/// A coordinator that cannot be reached for a while when it is to count a flush or to renew a
/// lease, or does not answer.
#[derive(Debug)]
struct Absent {
    inner: Embedded,
    is_away: AtomicBool,
    hangs: AtomicBool,
    /// How often it was.
    missed: AtomicU32,
}

impl Membership for Absent {
    fn lease_ms(&self) -> u64 {
        self.inner.lease_ms()
    }

    fn poll_ms(&self) -> u64 {
        self.inner.poll_ms()
    }

    fn join(&self, name: &str, address: &str, rack: &str) -> Result<Joined, MembershipError> {
        self.inner.join(name, address, rack)
    }

    fn keep_alive(&self, peer: Peer) -> Result<(), MembershipError> {
        if self.is_away.load(Ordering::Acquire) {
            return Err(MembershipError::Unreachable("nobody is there".to_owned()));
        }
        self.inner.keep_alive(peer)
    }

    fn leave(&self, peer: Peer) -> Result<(), MembershipError> {
        self.inner.leave(peer)
    }

    fn propose(&self, proposal: &Proposal) -> Result<(), MembershipError> {
        self.inner.propose(proposal)
    }

    fn flush(&self) -> Result<u64, MembershipError> {
        while self.hangs.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.is_away.load(Ordering::Acquire) {
            self.missed.fetch_add(1, Ordering::AcqRel);
            return Err(MembershipError::Unreachable("nobody is there".to_owned()));
        }
        self.inner.flush()
    }

    fn schedule_flush(&self, due_unix_ms: u64) -> Result<(), MembershipError> {
        self.inner.schedule_flush(due_unix_ms)
    }

    fn flush_as_scheduled(&self, due_unix_ms: u64) -> Result<(), MembershipError> {
        if self.is_away.load(Ordering::Acquire) {
            self.missed.fetch_add(1, Ordering::AcqRel);
            return Err(MembershipError::Unreachable("nobody is there".to_owned()));
        }
        self.inner.flush_as_scheduled(due_unix_ms)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, MembershipError> {
        self.inner.snapshot()
    }
}

/// Waits for something.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed().as_secs() < 60, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_flush_that_did_not_happen_is_no_ok() {
    let membership = Arc::new(Absent {
        inner: Embedded::new(7, 8, LEASE_MS),
        is_away: AtomicBool::new(true),
        hangs: AtomicBool::new(false),
        missed: AtomicU32::new(0),
    });
    let missed = || membership.missed.load(Ordering::Acquire);
    let cluster = cluster_of(Arc::clone(&membership) as Arc<dyn Membership>, 2, 1);
    let mut client = cluster.servers[0].connect();
    let (set, hit) = ("set key 0 0 2\r\nhi\r\n", "VALUE key 0 2\r\nhi\r\nEND\r\n");
    client.talk(set, "STORED\r\n");
    client.talk("flush_all\r\n", "SERVER_ERROR not all nodes have dropped their items\r\n");
    client.talk("get key\r\n", hit);
    assert_eq!(missed(), 1);
    // One that was promised comes when the coordinator does.
    client.talk("flush_all 1\r\n", "OK\r\n");
    wait_for("it is not tried again", || missed() >= 3);
    client.talk("get key\r\n", hit);
    membership.is_away.store(false, Ordering::Release);
    let mut is_gone = || {
        client.send("get key\r\n");
        client.until("END\r\n") == "END\r\n"
    };
    wait_for("what was promised does not happen", &mut is_gone);
    // Above thirty days it is a time, and this one is over.
    let mut other = cluster.servers[1].connect();
    other.talk(set, "STORED\r\n");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
    other.talk(format!("flush_all {}\r\n", now - 5), "OK\r\n");
    wait_for("a time is taken as a delay", &mut is_gone);
}

/// Nobody can take anything over from it any more.
#[test]
fn a_node_without_a_lease_hands_nothing_over() {
    let membership = Arc::new(Absent {
        inner: Embedded::new(7, 8, 2_000),
        is_away: AtomicBool::new(false),
        hangs: AtomicBool::new(false),
        missed: AtomicU32::new(0),
    });
    let mut cluster = cluster_of(Arc::clone(&membership) as Arc<dyn Membership>, 2, 1);
    let mut client = cluster.servers[0].connect();
    client.talk("set key 0 0 2\r\nhi\r\n", "STORED\r\n");
    membership.is_away.store(true, Ordering::Release);
    // An error alone may also say that the other node was slow.
    let gateway = cluster.nodes[0].gateway();
    wait_for("the lease does not end", || gateway.unready().is_some());
    client.send("get key\r\nmn\r\n");
    assert!(client.until("MN\r\n").starts_with("SERVER_ERROR"));
    let (node, (sender, receiver)) = (cluster.nodes.remove(0), std::sync::mpsc::channel());
    std::thread::spawn(move || sender.send(node.leave(Duration::from_secs(86_400))));
    let has_left = receiver.recv_timeout(Duration::from_secs(60));
    assert_eq!(has_left, Ok(false), "it waits for others");
}

#[test]
fn a_flush_that_takes_long_stops_no_other_client() {
    let membership = Arc::new(Absent {
        inner: Embedded::new(7, 8, LEASE_MS),
        is_away: AtomicBool::new(false),
        hangs: AtomicBool::new(true),
        missed: AtomicU32::new(0),
    });
    let cluster = cluster_of(Arc::clone(&membership) as Arc<dyn Membership>, 2, 1);
    let (mut flushing, mut client) = (cluster.servers[0].connect(), cluster.servers[0].connect());
    client.talk("set key 0 0 2\r\nhi\r\n", "STORED\r\n");
    flushing.send("flush_all\r\nget key\r\n");
    client.talk("get key\r\n", "VALUE key 0 2\r\nhi\r\nEND\r\n");
    membership.hangs.store(false, Ordering::Release);
    flushing.expect("OK\r\nEND\r\n");
    client.talk("get key\r\n", "END\r\n");
}

#[test]
fn a_delayed_flush_survives_the_node_that_took_it() {
    let mut cluster = cluster(2, 1);
    cluster.servers[0].connect().talk("flush_all 2\r\n", "OK\r\n");
    drop(cluster.servers.remove(0));
    cluster.nodes.remove(0).stop();
    let home = [cluster.nodes[0].address().to_string()];
    let mut other = ClusterClient::connect(&home, "a secret", 0).expect("connects");
    let mut flushes = || other.status().expect("it answers").flushes;
    assert_eq!(flushes(), 0, "it is not due yet");
    wait_for("nobody carries it out", || flushes() == 1);
}

#[test]
fn a_name_leads_to_a_chunk_from_every_node() {
    let cluster = cluster(3, 1);
    let connect = |node: &RunningNode| {
        let home = [node.address().to_string()];
        ClusterClient::connect(&home, "a secret", 1 << 20).expect("connects")
    };
    let mut clients: Vec<ClusterClient> = cluster.nodes.iter().map(connect).collect();
    let ids: Vec<_> =
        (0..3u8).map(|of| clients[usize::from(of)].create(&[of]).expect("id")).collect();
    for (number, id) in ids.iter().enumerate() {
        let name = format!("chunk {number}");
        assert_eq!(clients[0].named(name.as_bytes()), Err(ChunkError::NoChunk));
        clients[(number + 1) % 3].name(name.as_bytes(), *id).expect("named");
        for client in &mut clients {
            assert_eq!(client.named(name.as_bytes()), Ok(*id));
            assert_eq!(client.get(*id), Ok(vec![number as u8]));
        }
    }
    // It is an item as any other: a name of something else names no chunk.
    clients[0].name(b"alias", ids[2]).expect("named");
    let mut text = cluster.servers[1].connect();
    text.talk("append alias 0 0 1\r\nx\r\n", "STORED\r\n");
    assert_eq!(clients[2].named(b"alias"), Err(ChunkError::NoChunk));
    clients[0].unname(b"alias").expect("it was there");
    assert_eq!(clients[1].unname(b"alias"), Err(ChunkError::NoChunk));
    text.talk("get alias\r\n", "END\r\n");
    assert_eq!(clients[0].name(&[b'n'; 251], ids[0]), Err(ChunkError::TooLarge));
    assert_eq!(clients[0].named(b""), Err(ChunkError::TooLarge));
    assert_eq!(clients[0].get(ids[2]), Ok(vec![2]), "the chunk stays");
}

#[test]
fn what_is_no_chunk_is_an_error_of_its_own() {
    let cluster = cluster(2, 1);
    let home = [cluster.nodes[0].address().to_string()];
    let mut client = ClusterClient::connect(&home, "a secret", 1 << 20).expect("connects");
    let id = client.create(b"value").expect("an id");
    // Longer than a chunk, than what a request holds, and than a frame; what goes along is done.
    for bytes in [MAX_CHUNK_BYTES + 1, 5 << 20, 20 << 20] {
        let large = vec![0; bytes];
        assert_eq!(client.create(&large), Err(ChunkError::TooLarge));
        let done = client.call_all(vec![Action::Put(id, large), Action::Get(id)]);
        assert_eq!(done, [Err(ChunkError::TooLarge), Ok(Response::Value(b"value".to_vec()))]);
    }
    let largest = vec![7; MAX_CHUNK_BYTES];
    client.put(id, &largest).expect("it is long enough");
    assert_eq!(client.get(id), Ok(largest));
    // Deleted, never created, and of a node that there is not.
    client.delete(id).expect("it was there");
    let unknown = |bits| ChunkId::from_bits(bits).expect("an id");
    for id in [id, unknown(id.bits() + 1_000), unknown(0x0777 << 48)] {
        assert_eq!(client.get(id), Err(ChunkError::NoChunk), "{id}");
        assert_eq!(client.put(id, b"x"), Err(ChunkError::NoChunk), "{id}");
        assert_eq!(client.delete(id), Err(ChunkError::NoChunk), "{id}");
        assert_eq!(client.lock(id, 1_000), Err(ChunkError::NoChunk), "{id}");
    }
}

#[test]
fn a_full_cluster_refuses_what_is_new_and_keeps_what_it_has() {
    const VALUE_BYTES: usize = 4_000;
    const MEMORY_BYTES: usize = 256 << 10;
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let (memory_bytes, chunk_memory_bytes) = (MEMORY_BYTES, MEMORY_BYTES);
    let template = NodeConfiguration {
        threads: 1,
        memory_bytes,
        chunk_memory_bytes,
        max_item_bytes: 64 << 10,
        ..NodeConfiguration::default()
    };
    let cluster = cluster_as(membership, 2, template);
    let most = 2 * MEMORY_BYTES / VALUE_BYTES;
    let mut text = cluster.servers[0].connect();
    let value = "x".repeat(VALUE_BYTES);
    let mut stored = 0;
    let refusal = loop {
        assert!(stored <= most, "more is stored than there is memory");
        text.send(format!("set key{stored} 0 0 {VALUE_BYTES}\r\n{value}\r\n"));
        let answer = text.until("\r\n");
        if answer != "STORED\r\n" {
            break answer;
        }
        stored += 1;
    };
    assert_eq!(refusal, "SERVER_ERROR out of memory storing object\r\n");
    assert!(stored > most / 8, "only {stored} of {most}");
    for number in 0..stored {
        let expected = format!("VALUE key{number} 0 {VALUE_BYTES}\r\n{value}\r\nEND\r\n");
        text.talk(format!("get key{number}\r\n"), expected);
    }
    text.talk(format!("get key{stored}\r\n"), "END\r\n");
    // Chunks have memory of their own, and an error of their own.
    let home = [cluster.nodes[0].address().to_string()];
    let mut client = ClusterClient::connect(&home, "a secret", 1 << 20).expect("connects");
    let chunk = |number: usize| vec![number as u8; VALUE_BYTES];
    let mut ids = Vec::new();
    let refusal = loop {
        assert!(ids.len() <= most, "more is stored than there is memory");
        match client.create(&chunk(ids.len())) {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
    };
    assert_eq!(refusal, ChunkError::Full);
    assert!(ids.len() > most / 8, "only {} of {most}", ids.len());
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(client.get(*id), Ok(chunk(number)), "{id}");
    }
    // What goes makes room.
    client.delete(ids[0]).expect("it was there");
    let id = client.create(&chunk(7)).expect("there is room");
    assert_eq!(client.get(id), Ok(chunk(7)));
}

#[test]
fn a_cas_id_is_read_where_nothing_more_can_be_stored() {
    const VALUE_BYTES: usize = 4_000;
    const MEMORY_BYTES: usize = 4 << 20;
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let template =
        NodeConfiguration { threads: 1, memory_bytes: MEMORY_BYTES, ..Default::default() };
    let cluster = cluster_with::<Mercury>(membership, 1, template);
    let mut text = cluster.servers[0].connect();
    let value = "x".repeat(VALUE_BYTES);
    let mut stored = 0;
    loop {
        text.send(format!("set key{stored} 0 0 {VALUE_BYTES}\r\n{value}\r\n"));
        if text.until("\r\n") != "STORED\r\n" {
            break;
        }
        stored += 1;
        assert!(stored <= MEMORY_BYTES / VALUE_BYTES, "more is stored than there is memory");
    }
    assert!(stored > 100, "only {stored}");
    for number in 0..stored {
        text.send(format!("gets key{number}\r\n"));
        let answer = text.until("END\r\n");
        let head = format!("VALUE key{number} 0 {VALUE_BYTES} ");
        let cas = answer.strip_prefix(&head).and_then(|rest| rest.split_once("\r\n"));
        let cas: u64 = cas.expect("the item with its id").0.parse().expect("a number");
        text.talk(format!("mg key{number} c\r\n"), format!("HD c{cas}\r\n"));
        text.talk(format!("md key{number} C{}\r\n", cas + 1), "EX\r\n");
    }
    // No answer has an id that was not asked for.
    text.talk("md key0\r\nms key0 1\r\n7\r\nmn\r\n", "HD\r\nHD\r\nMN\r\n");
    text.talk("mg key0 v\r\nma key0 v\r\n", "VA 1\r\n7\r\nVA 1\r\n8\r\n");
}

#[test]
fn a_hot_chunk_moves_to_a_node_that_is_less_busy() {
    let cluster = cluster(2, 1);
    let connect = |place: usize| {
        let home = [cluster.nodes[place].address().to_string()];
        ClusterClient::connect(&home, "a secret", 1 << 20).expect("connects")
    };
    let (mut client, mut other) = (connect(0), connect(1));
    let hot = [client.create(b"one").expect("an id"), client.create(b"two").expect("an id")];
    let questions: Vec<_> = (0..512).map(|number| hot[number % 2]).collect();
    let begin = std::time::Instant::now();
    while client.status().expect("an answer").hot_moves == 0 {
        assert!(begin.elapsed().as_secs() < 60, "{:?}", client.status());
        let values = client.get_all(&questions);
        assert!(values.iter().all(Result::is_ok), "{values:?}");
    }
    // Both nodes have one of them now, and clients go where they are.
    while other.status().expect("an answer").rate == 0 {
        assert!(begin.elapsed().as_secs() < 60, "{:?}", other.status());
        client.get_all(&questions);
    }
    assert_eq!(client.get(hot[0]), Ok(b"one".to_vec()));
    assert_eq!(other.get(hot[1]), Ok(b"two".to_vec()));
}

#[test]
fn operations_of_all_nodes_on_one_key_are_as_on_one_server() {
    const ROUNDS: usize = 20;
    let cluster = cluster(5, 1);
    for round in 0..ROUNDS {
        // Exactly one of five adds at once is stored.
        let answers: Vec<String> = std::thread::scope(|scope| {
            let add = |server: &'_ Running| {
                let mut client = server.connect();
                client.send(format!("add once{round} 0 0 1\r\nx\r\n"));
                client.until("\r\n")
            };
            let adds: Vec<_> =
                cluster.servers.iter().map(|server| scope.spawn(move || add(server))).collect();
            adds.into_iter().map(|add| add.join().expect("an answer")).collect()
        });
        let stored = answers.iter().filter(|answer| *answer == "STORED\r\n").count();
        let refused = answers.iter().filter(|answer| *answer == "NOT_STORED\r\n").count();
        assert_eq!((stored, refused), (1, 4), "{answers:?}");
    }
    // Increments through all nodes all count.
    cluster.servers[0].connect().talk("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    std::thread::scope(|scope| {
        for server in &cluster.servers {
            scope.spawn(move || {
                let mut client = server.connect();
                for _ in 0..ROUNDS {
                    client.send("incr n 1\r\n");
                    client.until("\r\n");
                }
            });
        }
    });
    let total = (5 * ROUNDS).to_string();
    let value = format!("VALUE n 0 {}\r\n{total}\r\nEND\r\n", total.len());
    cluster.servers[3].connect().talk("get n\r\n", value);
    // A cas id of one node is good at another, and only once.
    let mut client = cluster.servers[4].connect();
    client.send("gets n\r\n");
    let text = client.until("END\r\n");
    let cas = text.split_whitespace().nth(4).expect("an id").to_owned();
    let swap = format!("cas n 0 0 1 {cas}\r\nx\r\n");
    cluster.servers[1].connect().talk(&swap, "STORED\r\n");
    cluster.servers[2].connect().talk(&swap, "EXISTS\r\n");
}
