//! Memcached's clients at the gateways of a cluster.

#[path = "../../server/tests/support/mod.rs"]
mod support;
#[path = "../../server/tests/support/scripts.rs"]
mod texts;

use std::sync::Arc;

use amalgam_index::model::Model;
use amalgam_node::cluster::chunks::{Action, ChunkError, Done, MAX_CHUNK_BYTES};
use amalgam_node::cluster::ids::ChunkId;
use amalgam_node::{
    ClusterClient, Embedded, Membership, NodeConfiguration, RunningNode, start_local,
};
use amalgam_server::Server;
use support::{Running, settings};
use texts::SCRIPTS;

/// Longer than anything here stands still.
const LEASE_MS: u64 = 600_000;

/// A cluster with a server in front of each node. Servers end before their nodes.
struct Cluster {
    servers: Vec<Running>,
    nodes: Vec<RunningNode<Model>>,
}

fn cluster(nodes: usize, threads: usize) -> Cluster {
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let token = "a secret".to_owned();
    let template = NodeConfiguration { threads, token, ..NodeConfiguration::default() };
    let nodes = start_local::<Model>(nodes, &template, &membership).expect("they start");
    let server = |node: &RunningNode<Model>| {
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

#[test]
fn a_name_leads_to_a_chunk_from_every_node() {
    let cluster = cluster(3, 1);
    let connect = |node: &RunningNode<Model>| {
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
        assert_eq!(done, [Err(ChunkError::TooLarge), Ok(Done::Value(b"value".to_vec()))]);
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
