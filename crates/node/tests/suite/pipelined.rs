//! Clients that send many requests at once to the gateways of a cluster, most of whose keys other
//! nodes own: they are answered as by a single server, byte for byte.

use std::sync::Arc;

use amalgam_index::model::Model;
use amalgam_node::{Embedded, Membership, NodeConfiguration, RunningNode, start_local};
use amalgam_server::Server;

use crate::support::{Running, settings};

/// Longer than anything here stands still.
const LEASE_MS: u64 = 600_000;

/// Three nodes with a server in front of each. Servers end before their nodes.
struct Cluster {
    servers: Vec<Running>,
    _nodes: Vec<RunningNode>,
}

fn cluster() -> Cluster {
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(7, 8, LEASE_MS));
    let template = NodeConfiguration { threads: 2, ..NodeConfiguration::default() };
    let nodes = start_local::<Model>(3, &template, &membership).expect("they start");
    let server = |node: &RunningNode| {
        Running::of(Server::open_around(settings(2), node.gateway()).expect("it starts"))
    };
    Cluster { servers: nodes.iter().map(server).collect(), _nodes: nodes }
}

/// A generator of numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }

    /// A request on the keys of a client.
    fn request(&mut self, client: usize) -> String {
        let key = |numbers: &mut Self| format!("c{client}-{}", numbers.below(24));
        let one = key(self);
        match self.below(16) {
            0..4 => format!("get {one}\r\n"),
            4 => {
                let count = self.below(40) + 2;
                let keys: Vec<String> = (0..count).map(|_| key(self)).collect();
                format!("get {}\r\n", keys.join(" "))
            }
            5..8 => {
                let length = [2, 100, 20_000][self.below(8).saturating_sub(5) as usize];
                format!("set {one} {} 0 {length}\r\n{}\r\n", self.below(9), "v".repeat(length))
            }
            8 => format!("set {one} 0 0 1 noreply\r\n{}\r\n", self.below(9)),
            9 => format!("append {one} 0 0 2\r\nab\r\n"),
            10 => format!("incr {one} {}\r\n", self.below(100)),
            11 => format!("delete {one}\r\n"),
            12 => format!("gat 0 {one} {}\r\n", key(self)),
            13 => format!("mg {one} v f s\r\nmg {} v q\r\nmn\r\n", key(self)),
            14 => format!("md {one} I T30\r\n"),
            _ => format!("ma {one} N30 J5 v\r\n"),
        }
    }
}

#[test]
fn what_is_sent_at_once_is_answered_as_by_one_server() {
    let cluster = cluster();
    let single = Running::start(settings(1));
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (single, server) = (&single, &cluster.servers[client % 3]);
            scope.spawn(move || {
                let mut numbers = Numbers(client as u64 + 1);
                let (mut expected, mut answered) = (single.connect(), server.connect());
                for round in 0..32 {
                    let count = [1, 3, 40, 120][round % 4];
                    let mut sent: String = (0..count).map(|_| numbers.request(client)).collect();
                    // Nothing else answers so.
                    sent.push_str("mn\r\nmn\r\nmn\r\n");
                    let end = "MN\r\nMN\r\nMN\r\n";
                    expected.send(&sent);
                    answered.send(&sent);
                    let (one, other) = (expected.until(end), answered.until(end));
                    let differ = one.bytes().zip(other.bytes()).position(|(a, b)| a != b);
                    let start = differ.unwrap_or(0).saturating_sub(60);
                    let part = |text: &str| text[start..text.len().min(start + 120)].to_owned();
                    assert!(one == other, "{:?} instead of {:?}", part(&other), part(&one));
                }
            });
        }
    });
}

/// More operations than a worker has under way at a time wait for room.
#[test]
fn many_clients_with_many_keys_are_all_answered() {
    let cluster = cluster();
    let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
    let sets: String = keys.iter().map(|key| format!("set {key} 0 0 2\r\nhi\r\n")).collect();
    cluster.servers[0].connect().talk(sets, "STORED\r\n".repeat(100));
    let values: String = keys.iter().map(|key| format!("VALUE {key} 0 2\r\nhi\r\n")).collect();
    let (get, all) = (format!("get {}\r\n", keys.join(" ")), format!("{values}END\r\n"));
    let mut clients: Vec<_> = (0..60).map(|_| cluster.servers[1].connect()).collect();
    for _ in 0..5 {
        clients.iter_mut().for_each(|client| client.send(&get));
        // Some leave before they are answered.
        (0..5).for_each(|_| cluster.servers[1].connect().send(&get));
        clients.iter_mut().for_each(|client| client.expect(&all));
    }
}

/// A get that fills the output is answered in parts; what stands behind it comes after all of them.
#[test]
fn what_follows_a_long_answer_does_not_overtake_it() {
    let cluster = cluster();
    let mut client = cluster.servers[0].connect();
    let keys: Vec<String> = (0..60).map(|number| format!("key{number}")).collect();
    let value = "x".repeat(10_000);
    for _ in 0..20 {
        for key in &keys {
            client.talk(format!("set {key} 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
        }
        let get = format!("get {}\r\n", keys.join(" "));
        let sets: String = keys.iter().map(|key| format!("set {key} 0 0 2\r\nhi\r\n")).collect();
        client.send(format!("{}{get}{sets}{get}", "mn\r\n".repeat(600)));
        client.expect("MN\r\n".repeat(600));
        for key in &keys {
            client.expect(format!("VALUE {key} 0 10000\r\n{value}\r\n"));
        }
        client.expect(format!("END\r\n{}", "STORED\r\n".repeat(60)));
        for key in &keys {
            client.expect(format!("VALUE {key} 0 2\r\nhi\r\n"));
        }
        client.expect("END\r\n");
    }
}

/// A client that does not read costs its own answers.
#[test]
fn a_client_that_reads_late_is_answered_in_order() {
    let cluster = cluster();
    let value = "x".repeat(100_000);
    let mut client = cluster.servers[2].connect();
    for number in 0..30 {
        client.talk(format!("set big{number} 0 0 100000\r\n{value}\r\n"), "STORED\r\n");
    }
    let mut slow = cluster.servers[2].connect();
    let keys: Vec<String> = (0..120).map(|number| format!("big{}", number % 30)).collect();
    slow.send(format!("get {}\r\nset big1 0 0 2\r\nhi\r\nget big1\r\n", keys.join(" ")));
    // It goes on for others meanwhile.
    for number in 0..30 {
        let key = format!("big{number}");
        client
            .talk(format!("get {key}\r\n"), format!("VALUE {key} 0 100000\r\n{value}\r\nEND\r\n"));
    }
    for key in &keys {
        slow.expect(format!("VALUE {key} 0 100000\r\n{value}\r\n"));
    }
    slow.expect("END\r\nSTORED\r\nVALUE big1 0 2\r\nhi\r\nEND\r\n");
}
