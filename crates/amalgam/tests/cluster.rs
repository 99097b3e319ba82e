//! Clusters as processes: one that holds all nodes, and nodes that meet in etcd.

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_node::cluster::chunks::ChunkError;
use amalgam_node::{ClusterClient, STATE_FILE};
use support::chunks::Written;
use support::etcd::EtcdProcess;
use support::{
    PATIENCE, PROGRAM, Running, backed_up, backed_up_at, command, expect, talk, temporary,
};

#[test]
fn a_cluster_on_one_machine_answers_at_every_node() {
    let arguments = ["cluster", "dev", "--nodes", "3", "--port", "0", "--threads", "1"];
    let cluster = Running::start(&arguments);
    assert_eq!(cluster.nodes.len(), 3);
    for (number, (_, clients)) in cluster.nodes.iter().enumerate() {
        expect(clients, &format!("set k{number} 0 0 1\r\n{number}\r\n"), "STORED\r\n");
    }
    for (_, clients) in &cluster.nodes {
        let all = "VALUE k0 0 1\r\n0\r\nVALUE k1 0 1\r\n1\r\nVALUE k2 0 1\r\n2\r\nEND\r\n";
        expect(clients, "get k0 k1 k2\r\n", all);
        // Where there is IPv6, `localhost` may be its address.
        if std::net::TcpListener::bind("[::1]:0").is_ok() {
            expect(&clients.replace("127.0.0.1", "[::1]"), "get k0 k1 k2\r\n", all);
        }
    }
    let status = command(&["cluster", "status", "--node", &cluster.nodes[1].0]).output();
    let status = String::from_utf8(status.expect("runs").stdout).expect("text");
    assert_eq!(status.lines().count(), 4, "a line a node and a head: {status}");
    assert!(status.contains(&cluster.nodes[2].0), "{status}");
    let rows = columns(&status);
    let numbers = |name: &str| -> Vec<u64> {
        rows.iter()
            .map(|row| row[name].parse().unwrap_or_else(|_| panic!("{name}: {row:?}")))
            .collect()
    };
    assert_eq!(numbers("node").len(), 3);
    assert_eq!(numbers("partitions").iter().sum::<u64>(), 4_095, "{status}");
    for name in ["inc", "chunk ids", "spans", "ranges", "from", "to", "kept", "lag", "ops/s", "hot"]
    {
        numbers(name);
    }
    assert!(numbers("lease ms").iter().all(|left_ms| *left_ms > 0), "{status}");
    let is = |name: &str, value: &str| rows.iter().all(|row| row[name] == value);
    assert!(is("super", "yes") && is("release", env!("CARGO_PKG_VERSION")), "{status}");
    assert!(is("copies", "-"), "none are wanted: {status}");
    // Of one key, and of its id.
    let ask = |what: [&str; 2]| {
        let node = cluster.nodes[1].0.as_str();
        let output = command(&["cluster", "status", "--node", node, what[0], what[1]]).output();
        let output = output.expect("runs");
        (output.status.success(), String::from_utf8(output.stdout).expect("text"))
    };
    let (does, of_key) = ask(["--key", "k1"]);
    assert!(does && of_key.contains(" owner ") && !of_key.contains("names chunk"), "{of_key}");
    let (head, rest) = of_key.split_once('\n').expect("lines");
    let id = head.strip_prefix("key k1: ").expect("the key's id");
    assert_eq!(ask(["--id", id]), (true, rest.to_owned()));
    assert!(!ask(["--id", "7:1"]).0, "nobody owns it");
    assert!(!ask(["--key", ""]).0 && !ask(["--id", "7"]).0, "a malformed key or id is refused");
}

/// The rows of `amalgam cluster status` by the names of its columns.
fn columns(status: &str) -> Vec<BTreeMap<&'static str, String>> {
    const NAMES: [&str; 18] = [
        "node",
        "inc",
        "address",
        "super",
        "partitions",
        "chunk ids",
        "spans",
        "ranges",
        "from",
        "to",
        "copies",
        "kept",
        "full",
        "lag",
        "lease ms",
        "ops/s",
        "hot",
        "release",
    ];
    let head = status.lines().next().expect("a head");
    let words = NAMES.join(" ");
    let is_head = head.split_whitespace().eq(words.split_whitespace());
    assert!(is_head, "{head}");
    let row = |line: &str| -> BTreeMap<&'static str, String> {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells.len(), NAMES.len(), "{line}");
        NAMES.into_iter().zip(cells.into_iter().map(str::to_owned)).collect()
    };
    status.lines().skip(1).map(row).collect()
}

#[test]
fn what_a_node_lacks_is_named() {
    for (arguments, mention) in [
        (&["cluster", "node"][..], "--etcd"),
        (&["cluster", "node", "--etcd", "https://localhost:1"], "--etcd-ca"),
        (&["cluster", "node", "--etcd", "http://127.0.0.1:1"], "coordinator cannot be reached"),
        (&["cluster", "node", "--etcd", "x", "--listen", "0.0.0.0:0"], "--advertise"),
        // Said before it ends for another reason.
        (
            &[
                "cluster",
                "node",
                "--etcd",
                "https://x",
                "--listen",
                "0.0.0.0:0",
                "--advertise",
                "[::1]:1",
            ],
            "may join the cluster",
        ),
        (&["cluster", "dev", "--nodes", "0"], "--nodes"),
        (&["cluster", "dev", "--super-peers", "0"], "--super-peers"),
        (&["cluster", "dev", "--engine", "steam"], "no engine 'steam'"),
        (&["cluster", "status", "--node", "127.0.0.1:1"], "no node of a cluster answers"),
        (&["cluster", "node", "--etcd", "x", "--join-token-file", "/nonexistent"], "/nonexistent"),
    ] {
        let output = command(arguments).output().expect("runs");
        assert!(!output.status.success(), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(mention) && !text.contains("panicked"), "{arguments:?}: {text}");
    }
}

/// Reads a key whose value is `hi`. On a busy machine a node may be silent for as long as makes it
/// unavailable: a client then asks again. A miss is never right.
fn expect_value(address: &str, key: &str) {
    let value = format!("VALUE {key} 0 2\r\nhi\r\nEND\r\n");
    let begin = Instant::now();
    loop {
        let answer = talk(address, &format!("get {key}\r\n"), &value);
        if !answer.starts_with("SERVER_ERROR") || begin.elapsed() >= PATIENCE {
            return assert_eq!(answer, value, "{key} at {address}");
        }
    }
}

#[test]
fn nodes_meet_in_etcd_and_stop_without_it() {
    let Some(mut etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let token = temporary("token");
    let made = command(&["cluster", "token"]).output().expect("runs").stdout;
    std::fs::write(&token, made).expect("a file");
    let token_file = token.to_str().expect("text").to_owned();
    let node = |name: &str, token: Option<&str>| {
        let endpoint = etcd.endpoint.clone();
        let mut arguments = vec!["cluster", "node", "--etcd", &endpoint, "--name", name];
        arguments.extend(["--listen", "127.0.0.1:0", "--clients", "127.0.0.1:0"]);
        arguments.extend(["--lease-seconds", "4", "--threads", "1", "--log-level", "warn"]);
        arguments.extend(token.into_iter().flat_map(|token| ["--join-token-file", token]));
        Running::start(&arguments)
    };
    // They start together, or the first would take all keys.
    let mut nodes: Vec<Running> = std::thread::scope(|scope| {
        let (node, token) = (&node, &token_file);
        let start = |name| scope.spawn(move || node(name, Some(token)));
        let starting: Vec<_> = ["one", "two", "three"].map(start).into_iter().collect();
        starting.into_iter().map(|one| one.join().expect("it serves")).collect()
    });
    let clients = |node: &Running| node.nodes[0].1.clone();
    let keys: Vec<String> = (0..30).map(|number| format!("key{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let at = clients(&nodes[number % 3]);
        expect(&at, &format!("set {key} 0 0 2\r\nhi\r\n"), "STORED\r\n");
    }
    for key in &keys {
        expect_value(&clients(&nodes[0]), key);
    }
    // A node that joins later takes over its share of the keys, and gives it back when it is
    // drained.
    let everything = || {
        for key in &keys {
            expect_value(&clients(&nodes[1]), key);
        }
    };
    let parts = || {
        let asked = &nodes[0].nodes[0].0;
        let ask = ["cluster", "status", "--node", asked, "--join-token-file", &token_file];
        let text = String::from_utf8(command(&ask).output().expect("runs").stdout).expect("text");
        let part = |line: &str| line.split_whitespace().nth(4)?.parse().ok();
        text.lines().skip(1).filter_map(part).collect::<Vec<u64>>()
    };
    let wait_for = |is_so: &dyn Fn(&[u64]) -> bool| {
        let begin = Instant::now();
        while !is_so(&parts()) {
            assert!(begin.elapsed() < PATIENCE, "partitions: {:?}", parts());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let mut fourth = node("four", Some(&token_file));
    wait_for(&|parts| parts.len() == 4 && parts.iter().all(|part| (600..1_500).contains(part)));
    everything();
    expect(&clients(&fourth), "set key0 0 0 2\r\nhi\r\n", "STORED\r\n");
    let told = Command::new("kill").arg(fourth.child.id().to_string()).status();
    assert!(told.expect("runs").success() && fourth.child.wait().expect("ends").success());
    wait_for(&|parts| parts.len() == 3 && parts.iter().sum::<u64>() == 4_095);
    everything();
    // One that dies is none after its lease; under its name it is the same node, in another
    // incarnation.
    nodes[2].kill();
    let again = node("three", Some(&token_file));
    let (status_of, mut lives) = (nodes[0].nodes[0].0.clone(), String::new());
    let ask = ["cluster", "status", "--node", &status_of, "--join-token-file", &token_file];
    let begin = Instant::now();
    while !lives.contains(&again.nodes[0].0) && begin.elapsed() < PATIENCE {
        let output = command(&ask).output().expect("runs");
        lives = String::from_utf8_lossy(&output.stdout).into_owned();
    }
    assert_eq!(lives.lines().count(), 4, "three nodes: {lives}");
    // Its keys are gone, and can be written again: these nodes keep no backups.
    let begin = Instant::now();
    let is_stored = |key: &String| {
        let sent = format!("set {key} 0 0 2\r\nho\r\n");
        talk(&clients(&nodes[0]), &sent, "STORED\r\n") == "STORED\r\n"
    };
    for key in &keys {
        while !is_stored(key) {
            assert!(begin.elapsed() < PATIENCE, "{key} cannot be written");
        }
    }
    // Without etcd they serve as long as their leases allow, and no longer.
    etcd.child.kill().expect("runs");
    etcd.child.wait().expect("ends");
    std::thread::sleep(Duration::from_secs(5));
    let answer = talk(&clients(&nodes[0]), "set key0 0 0 2\r\nhi\r\n", "STORED\r\n");
    assert_ne!(answer, "STORED\r\n", "the lease is over");
    std::fs::remove_file(&token).expect("a file");
}

/// Memcached's options for clients apply to those of a node.
#[test]
fn a_node_asks_clients_for_passwords_and_refuses_what_it_is_told_to() {
    let users = temporary("users");
    std::fs::write(&users, "user:secret\n").expect("a file");
    let file = users.to_str().expect("text");
    let dev = ["cluster", "dev", "--nodes", "1", "--port", "0", "-t", "1"];
    let cache = ["--mode", "cache", "-o", "eviction=probation"];
    let given = ["-Y", file, "-F", "-X", "-c", "8"];
    let cluster = Running::start(&[&dev[..], &cache[..], &given[..]].concat());
    let clients = &cluster.nodes[0].1;
    expect(clients, "get k\r\n", "CLIENT_ERROR unauthenticated\r\n");
    let sent = "set auth 0 0 11\r\nuser secret\r\nset k 0 0 1\r\n1\r\nflush_all\r\nget k\r\n\
                lru_crawler metadump all\r\n";
    let answered = "STORED\r\nSTORED\r\nCLIENT_ERROR flush_all not allowed\r\n\
                    VALUE k 0 1\r\n1\r\nEND\r\nERROR metadump not allowed\r\n";
    expect(clients, sent, answered);
    let mut stream = TcpStream::connect(clients).expect("it listens");
    let sent = "set auth 0 0 11\r\nuser secret\r\nstats settings\r\nquit\r\n";
    stream.write_all(sent.as_bytes()).expect("it reads");
    let mut settings = String::new();
    stream.read_to_string(&mut settings).expect("it answers and closes");
    assert!(settings.contains("STAT eviction probation\r\n"), "{settings}");
    for (arguments, mention) in [
        (["-o", "eviction=clock"], "--mode cache"),
        (["-o", "hashpower=20"], "hashpower"),
        (["-Z", "-X"], "ssl_chain_cert"),
        (["-Y", "/nonexistent"], "/nonexistent"),
    ] {
        let text = complaint(&[&dev[..], &arguments].concat());
        assert!(text.contains(mention), "{arguments:?}: {text}");
    }
    std::fs::remove_file(&users).expect("a file");
}

/// One of the node's certificates for tests.
fn certificate(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tls/tests/certificates");
    format!("{folder}/{name}.pem")
}

/// What a program says that ends with an error.
fn complaint(arguments: &[&str]) -> String {
    let output = command(arguments).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !text.contains("panicked"), "{arguments:?}: {text}");
    text
}

#[test]
fn a_cluster_speaks_tls_and_says_who_does_not() {
    let (own, ca) = (certificate("node"), certificate("authority"));
    let file = temporary("tls.toml");
    std::fs::write(&file, format!("tls-cert = \"{own}\"\ntls-ca = \"{ca}\"\n")).expect("a file");
    let config = file.to_str().expect("text");
    let dev = ["cluster", "dev", "--nodes", "3", "--port", "0", "-t", "1", "--config", config];
    let cluster = Running::start(&dev);
    for (number, (_, clients)) in cluster.nodes.iter().enumerate() {
        expect(clients, &format!("set k{number} 0 0 1\r\n{number}\r\n"), "STORED\r\n");
    }
    let all = "VALUE k0 0 1\r\n0\r\nVALUE k1 0 1\r\n1\r\nVALUE k2 0 1\r\n2\r\nEND\r\n";
    expect(&cluster.nodes[2].1, "get k0 k1 k2\r\n", all);
    let status = ["cluster", "status", "--node", &cluster.nodes[0].0];
    let with = |name: &str| -> Vec<String> {
        let more = ["--tls-cert", &certificate(name), "--tls-ca", &ca].map(str::to_owned);
        status.map(str::to_owned).into_iter().chain(more).collect()
    };
    for name in ["client", "node"] {
        let output = command(&with(name).iter().map(String::as_str).collect::<Vec<_>>()).output();
        let text = String::from_utf8(output.expect("runs").stdout).expect("text");
        assert!(text.lines().count() == 4 && !text.contains("does not answer"), "{text}");
    }
    let stranger = with("stranger");
    let stranger = complaint(&stranger.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(stranger.contains("refuses this side's certificate"), "{stranger}");
    let plain = complaint(&status);
    assert!(plain.contains("speaks TLS") && plain.contains("--tls-cert"), "{plain}");
    for (arguments, mention) in [
        (&["--tls-cert", &own[..]][..], "--tls-ca"),
        (&["--tls-ca", &ca], "--tls-cert"),
        (&["--tls-cert", &own, "--tls-ca", config], "tls.toml"),
        (&["--tls-cert", "/nonexistent", "--tls-ca", &ca], "/nonexistent"),
        (&["--tls-cert", &own, "--tls-key", &ca, "--tls-ca", &ca], "authority.pem"),
    ] {
        let text = complaint(&[&status[..], arguments].concat());
        assert!(text.contains(mention), "{arguments:?}: {text}");
        let text = complaint(&[&["cluster", "dev", "--port", "0"], arguments].concat());
        assert!(text.contains(mention), "{arguments:?}: {text}");
    }
    std::fs::remove_file(&file).expect("a file");
}

#[test]
fn a_node_whose_certificate_is_not_the_cluster_s_does_not_join() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let node = |cluster: &str, name: &str, certificate_of: Option<&str>| -> Vec<String> {
        let mut words = ["cluster", "node", "--etcd", &etcd.endpoint, "--cluster", cluster]
            .map(str::to_owned)
            .to_vec();
        let rest = ["--listen", "127.0.0.1:0", "--clients", "127.0.0.1:0", "-t", "1", "--name"];
        words.extend(rest.into_iter().chain([name]).map(str::to_owned));
        let tls = |of| ["--tls-cert".to_owned(), certificate(of)];
        words.extend(certificate_of.into_iter().flat_map(tls));
        if certificate_of.is_some() {
            words.extend(["--tls-ca".to_owned(), certificate("authority")]);
        }
        words
    };
    let run =
        |list: Vec<String>| Running::start(&list.iter().map(String::as_str).collect::<Vec<_>>());
    let refused = |list: Vec<String>, mention: &str| {
        let text = complaint(&list.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(text.contains(mention), "{text}");
    };
    let first = run(node("secured", "one", Some("node")));
    refused(node("secured", "two", None), "speaks TLS");
    refused(node("secured", "two", Some("stranger")), "refuses this side's certificate");
    let second = run(node("secured", "two", Some("renewed")));
    expect(&second.nodes[0].1, "set key 0 0 2\r\nhi\r\n", "STORED\r\n");
    expect(&first.nodes[0].1, "get key\r\n", "VALUE key 0 2\r\nhi\r\nEND\r\n");
    let plain = run(node("plain", "one", None));
    refused(node("plain", "two", Some("node")), "does not speak TLS");
    expect(&plain.nodes[0].1, "set key 0 0 2\r\nhi\r\n", "STORED\r\n");
}

/// Waits until each of some nodes says that all its chunks have their backups.
fn wait_for_copies(nodes: &[&Running]) {
    let begin = Instant::now();
    let is_whole = |node: &&Running| {
        let status = ClusterClient::connect(&[node.nodes[0].0.clone()], "", 0);
        let status = status.and_then(|mut client| client.status());
        status.is_ok_and(|status| status.reduced == (0, 0) && status.members.len() >= nodes.len())
    };
    while !nodes.iter().all(is_whole) {
        assert!(begin.elapsed() < 2 * PATIENCE, "copies are missing");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_a_killed_node_acknowledged_is_there() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("backups");
    let mut nodes = all_backed_up(PROGRAM, &etcd, &folder, &["one", "two", "three", "four"]);
    wait_for_copies(&nodes.iter().collect::<Vec<_>>());
    let status = command(&["cluster", "status", "--node", &nodes[1].nodes[0].0]).output();
    let status = String::from_utf8(status.expect("runs").stdout).expect("text");
    assert!(columns(&status).iter().all(|row| row["copies"] == "whole"), "{status}");
    let connect = |node: &Running| {
        ClusterClient::connect(&[node.nodes[0].0.clone()], "", 1 << 20).expect("it answers")
    };
    // Half of the chunks are the first victim's, half the second's; none of them is the home's.
    let mut home = connect(&nodes[0]);
    let mut written = Written::new("cluster-killed");
    written.create(&mut connect(&nodes[3]), 200);
    written.create(&mut connect(&nodes[2]), 200);
    for _ in 0..3 {
        written.write(&mut home);
    }
    nodes[3].kill();
    let killed = Instant::now();
    written.write(&mut home);
    written.check(&mut home);
    println!("all was read {} ms after the first was killed", killed.elapsed().as_millis());
    nodes[3] = backed_up(&etcd, &folder, "four");
    wait_for_copies(&nodes.iter().collect::<Vec<_>>());
    written.write(&mut home);
    nodes[2].kill();
    let killed = Instant::now();
    written.write(&mut home);
    written.check(&mut home);
    println!("all was read {} ms after the second was killed", killed.elapsed().as_millis());
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("it is there");
}

/// Whoever had the lock of a chunk before changes nothing, whichever node owns the chunk now.
#[test]
fn the_tokens_of_a_lock_ascend_though_its_owners_die() {
    const LEASE_MS: u64 = 600_000;
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("locks");
    let mut nodes = all_backed_up(PROGRAM, &etcd, &folder, &["one", "two", "three", "four"]);
    wait_for_copies(&nodes.iter().collect::<Vec<_>>());
    let connect = |nodes: &[Running]| {
        let all: Vec<String> = nodes.iter().map(|node| node.nodes[0].0.clone()).collect();
        ClusterClient::connect(&all, "", 1 << 20).expect("one answers")
    };
    let (mut first, mut second) = (connect(&nodes), connect(&nodes));
    let id = first.create(b"0").expect("there is room");
    let mut tokens = vec![first.lock(id, LEASE_MS).expect("it is free")];
    for value in [b"1", b"2"] {
        // The lock changes hands, and its owner dies.
        let former = *tokens.last().expect("one");
        first.put_fenced(id, value, former).expect("it holds the lock");
        assert_eq!(second.lock(id, LEASE_MS), Err(ChunkError::Locked));
        first.unlock(id).expect("it holds the lock");
        tokens.push(second.lock(id, LEASE_MS).expect("it is free"));
        let is_owner = |node: &Running| {
            let asked = ClusterClient::connect(&[node.nodes[0].0.clone()], "", 1 << 20);
            asked.and_then(|mut client| client.holding(id)).expect("it answers").is_some()
        };
        let owner = nodes.iter().position(is_owner).expect("one owns it");
        nodes.remove(owner).kill();
        // Until the next owner serves it, nothing is done.
        let begin = Instant::now();
        let until_served = |change: &mut dyn FnMut() -> Result<(), ChunkError>| loop {
            match change() {
                Err(ChunkError::Unavailable | ChunkError::Unknown) => {
                    assert!(begin.elapsed() < 2 * PATIENCE, "nobody takes over");
                }
                done => return done,
            }
        };
        let token = *tokens.last().expect("one");
        assert_eq!(until_served(&mut || second.put_fenced(id, b"held", token)), Ok(()));
        for stale in &tokens[..tokens.len() - 1] {
            let late = until_served(&mut || first.put_fenced(id, b"late", *stale));
            assert_eq!(late, Err(ChunkError::Fenced), "{tokens:?}");
            assert_eq!(first.delete_fenced(id, *stale), Err(ChunkError::Fenced));
        }
        assert_eq!(first.lock(id, LEASE_MS), Err(ChunkError::Locked), "it outlives its owner");
        assert_eq!(first.get(id).expect("it is there"), b"held");
        second.unlock(id).expect("it holds the lock");
        assert_eq!(second.put_fenced(id, b"late", token), Err(ChunkError::Fenced));
        tokens.push(first.lock(id, LEASE_MS).expect("it is free"));
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("it is there");
}

/// Damages what a node that is not running keeps, here and there.
fn damage(folder: &Path) {
    for file in std::fs::read_dir(folder).expect("it is there") {
        let path = file.expect("a file").path();
        let mut bytes = std::fs::read(&path).expect("its own");
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        bytes[used / 4..used * 3 / 4].iter_mut().step_by(500).for_each(|byte| *byte ^= 0x40);
        std::fs::write(&path, bytes).expect("its own");
    }
}

/// Starts nodes with backups at once, as some of them alone serve nothing.
fn all_backed_up(
    program: &str,
    etcd: &EtcdProcess,
    folder: &Path,
    names: &[&'static str],
) -> Vec<Running> {
    let ports = ("127.0.0.1:0", "127.0.0.1:0");
    std::thread::scope(|scope| {
        let start = |name: &&'static str| {
            let name = *name;
            scope.spawn(move || backed_up_at(program, etcd, folder, name, ports))
        };
        let starting: Vec<_> = names.iter().map(start).collect();
        starting.into_iter().map(|one| one.join().expect("it serves")).collect()
    })
}

/// Writes chunks again and again through whichever node answers.
struct Load {
    /// Where nodes are.
    homes: Mutex<Vec<String>>,
    /// Writes that were acknowledged.
    acknowledged: AtomicU64,
    /// Writes that failed.
    failed: AtomicU64,
    stops: AtomicBool,
}

impl Load {
    /// Returns what was written, and the longest time without an acknowledgement.
    fn run(&self, mut written: Written) -> (Written, Duration) {
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        while !self.stops.load(Ordering::Acquire) {
            let homes = self.homes.lock().expect("nobody panicked").clone();
            let Ok(mut client) = ClusterClient::connect(&homes, "", 1 << 20) else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            while !self.stops.load(Ordering::Acquire) {
                let succeeded = written.write(&mut client);
                self.acknowledged.fetch_add(succeeded, Ordering::AcqRel);
                self.failed.fetch_add(written.chunks.len() as u64 - succeeded, Ordering::AcqRel);
                if succeeded > 0 {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                // Its home may be the one that is gone: it would find nobody any more.
                if succeeded < written.chunks.len() as u64 {
                    break;
                }
            }
        }
        (written, longest)
    }

    /// Waits until each chunk was written `rounds` more times on average.
    fn wait_for(&self, rounds: u64, chunks: u64) {
        let begin = (Instant::now(), self.acknowledged.load(Ordering::Acquire));
        while self.acknowledged.load(Ordering::Acquire) < begin.1 + rounds * chunks {
            assert!(begin.0.elapsed() < 2 * PATIENCE, "nothing is written any more");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whose log is damaged while it is stopped.
const DAMAGED: usize = 3;

/// As for an upgrade: by turns a node is drained and told to stop, or killed, and starts again with
/// the same name and folder before the next one's turn. One finds its log damaged. It is an upgrade
/// where `AMALGAM_PREVIOUS` is the program of the previous release: all nodes begin as that.
#[test]
fn every_node_is_restarted_while_chunks_are_written() {
    if std::env::var_os("AMALGAM_FAULT_ROUNDS").is_none() {
        eprintln!("skipped, for it takes a minute: `make cluster-test` runs it");
        return;
    }
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("rolling");
    let names = ["one", "two", "three", "four"];
    let previous = std::env::var("AMALGAM_PREVIOUS").unwrap_or(PROGRAM.to_owned());
    let mut nodes = all_backed_up(&previous, &etcd, &folder, &names);
    wait_for_copies(&nodes.iter().collect::<Vec<_>>());
    let address = |node: &Running| node.nodes[0].0.clone();
    let mut written = Written::new("cluster-rolling");
    for node in &nodes {
        let mut client = ClusterClient::connect(&[address(node)], "", 1 << 20).expect("it serves");
        written.create(&mut client, 20);
    }
    let chunks = written.chunks.len() as u64;
    let load = Load {
        homes: Mutex::new(nodes.iter().map(address).collect()),
        acknowledged: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        stops: AtomicBool::new(false),
    };
    let (written, longest) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| load.run(written));
        // What fails here must not wait for a writer that nobody stops.
        let _stopped = StopsLoad(&load);
        load.wait_for(1, chunks);
        for (number, name) in names.iter().enumerate() {
            if number % 2 == 0 {
                let mut drain = command(&["cluster", "drain", "--node", &address(&nodes[number])]);
                let text = drain.output().expect("runs").stdout;
                assert!(String::from_utf8_lossy(&text).contains("can be stopped"), "{name}");
                let process = nodes[number].child.id().to_string();
                let told = Command::new("kill").args(["-TERM", &process]).status().expect("runs");
                assert!(told.success() && nodes[number].child.wait().expect("ends").success());
            } else {
                nodes[number].kill();
            }
            if number == DAMAGED {
                damage(&folder.join(name));
            }
            nodes[number] = backed_up(&etcd, &folder, name);
            *load.homes.lock().expect("nobody panicked") = nodes.iter().map(address).collect();
            wait_for_copies(&nodes.iter().collect::<Vec<_>>());
            load.wait_for(2, chunks);
        }
        // All are there: from now on nothing fails.
        let failed = load.failed.load(Ordering::Acquire);
        load.wait_for(3, chunks);
        assert_eq!(load.failed.load(Ordering::Acquire), failed, "errors go on");
        load.stops.store(true, Ordering::Release);
        writer.join().expect("it writes")
    });
    for node in &nodes {
        let mut client = ClusterClient::connect(&[address(node)], "", 1 << 20).expect("it serves");
        written.check(&mut client);
    }
    let complaints = |name: &str| {
        std::fs::read_to_string(folder.join(format!("{name}.log"))).expect("it complains there")
    };
    let damaged = complaints(names[DAMAGED]);
    for mention in ["the backup log is damaged", "the backup log is not authoritative"] {
        assert!(damaged.contains(mention), "{damaged}");
        assert!(!complaints(names[1]).contains(mention), "what was only killed is whole");
    }
    let (acknowledged, failed) = (load.acknowledged.into_inner(), load.failed.into_inner());
    println!(
        "{acknowledged} writes, {failed} failed, the longest time without one {:.1} s",
        longest.as_secs_f64()
    );
    assert!(longest < 2 * PATIENCE, "for {longest:?} nothing was written");
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("it is there");
}

/// Stops a [`Load`] when it goes out of scope.
struct StopsLoad<'l>(&'l Load);

impl Drop for StopsLoad<'_> {
    fn drop(&mut self) {
        self.0.stops.store(true, Ordering::Release);
    }
}

/// Restores a cluster, after attempts that must change nothing.
fn restore(etcd: &EtcdProcess, files: &[PathBuf]) {
    let attempt = |files: &[PathBuf]| {
        let mut restore = command(&["cluster", "restore", "--etcd", &etcd.endpoint]);
        let output = restore.args(files).output().expect("runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (does, error) = attempt(&files[1..]);
    assert!(!does && error.contains("--incomplete"), "{error}");
    let (does, error) = attempt(files);
    assert!(does, "{error}");
    let (does, error) = attempt(files);
    assert!(!does && error.contains("already holds a cluster"), "{error}");
}

#[test]
fn a_cluster_that_was_killed_whole_has_all_it_acknowledged() {
    let Some(mut etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("cold");
    let names = ["one", "two", "three", "four"];
    let start = |etcd: &EtcdProcess| all_backed_up(PROGRAM, etcd, &folder, &names);
    let connect = |node: &Running| {
        ClusterClient::connect(&[node.nodes[0].0.clone()], "", 1 << 20).expect("it answers")
    };
    let mut nodes = start(&etcd);
    wait_for_copies(&nodes.iter().collect::<Vec<_>>());
    let mut written = Written::new("cluster-cold");
    for node in &nodes {
        written.create(&mut connect(node), 60);
    }
    // Twice: the second incarnations have the logs of the first. Then etcd has lost its data too.
    for is_etcd_lost in [false, true] {
        let mut home = connect(&nodes[0]);
        for _ in 0..3 {
            written.write(&mut home);
        }
        nodes.iter_mut().for_each(|node| node.child.kill().expect("it runs"));
        drop(nodes);
        if is_etcd_lost {
            etcd = EtcdProcess::start().expect("it started before");
            restore(&etcd, &names.map(|name| folder.join(name).join(STATE_FILE)));
        }
        let killed = Instant::now();
        nodes = start(&etcd);
        written.check(&mut connect(&nodes[1]));
        println!("all was read {} ms after all were killed", killed.elapsed().as_millis());
        expect(&nodes[2].nodes[0].1, "set key 0 0 2\r\nhi\r\n", "STORED\r\n");
        wait_for_copies(&nodes.iter().collect::<Vec<_>>());
    }
    // A node that is drained has nothing that would be missed.
    let drained = command(&["cluster", "drain", "--node", &nodes[3].nodes[0].0]).output();
    let text = String::from_utf8(drained.expect("runs").stdout).expect("text");
    assert!(text.contains("can be stopped"), "{text}");
    let left = connect(&nodes[3]).status().expect("it serves on");
    assert_eq!((left.partitions, left.ids, left.reduced), (0, 0, (0, 0)));
    nodes[3].kill();
    written.check(&mut connect(&nodes[0]));
    // The log of another node is none for this one.
    drop(nodes);
    std::fs::rename(folder.join("one"), folder.join("five")).expect("it is there");
    std::fs::rename(folder.join("two"), folder.join("one")).expect("it is there");
    let foreign = folder.join("one");
    let foreign = foreign.to_str().expect("text");
    let text = complaint(&[
        "cluster",
        "node",
        "--etcd",
        &etcd.endpoint,
        "--name",
        "one",
        "--listen",
        "127.0.0.1:0",
        "--backups",
        "3",
        "--backup-dir",
        foreign,
        "--clients",
        "127.0.0.1:0",
    ]);
    assert!(text.contains("the log belongs to node"), "{text}");
    std::fs::remove_dir_all(&folder).expect("it is there");
}
