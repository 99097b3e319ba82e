//! Memcached's clients at the gateways of a cluster.

#[path = "../../server/tests/support/mod.rs"]
mod support;
#[path = "../../server/tests/support/scripts.rs"]
mod texts;

use std::sync::Arc;

use amalgam_index::model::Model;
use amalgam_node::{Embedded, Membership, NodeConfiguration, RunningNode, start_local};
use amalgam_server::Server;
use support::{Running, settings};
use texts::SCRIPTS;

/// Longer than anything here stands still.
const LEASE_MS: u64 = 600_000;

/// A cluster with a server in front of each node. Servers end before their nodes.
struct Cluster {
    servers: Vec<Running>,
    _nodes: Vec<RunningNode<Model>>,
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
    Cluster { servers: nodes.iter().map(server).collect(), _nodes: nodes }
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
