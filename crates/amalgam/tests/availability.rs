//! A cluster of processes of which one is stopped, or whose etcd is: what clients see.

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use amalgam_node::ClusterClient;
use support::etcd::EtcdProcess;
use support::{
    PATIENCE, PROGRAM, Running, backed_up_at, command, expect, talk, temporary, try_talk,
};

const REFUSED: &str = "SERVER_ERROR the key's owner is unavailable; nothing was done";
const UNKNOWN: &str = "SERVER_ERROR unknown outcome: the key's owner did not answer in time";
const KEYS: usize = 300;
/// How many of them one of three nodes may own: about a third.
const SHARE: std::ops::Range<usize> = KEYS / 10..KEYS * 6 / 10;
/// Longer than a request may take effect after it was sent.
const DEADLINE: Duration = Duration::from_millis(1_100);

/// Nodes that start together, with a lease that outlasts the test.
fn start(etcd: &EtcdProcess, more: &[&str]) -> Vec<Running> {
    let more = more.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>();
    start_with(etcd, "120", |_| more.clone())
}

/// Nodes that start together, with a lease of `lease_seconds` and these arguments by name.
fn start_with(
    etcd: &EtcdProcess,
    lease_seconds: &str,
    more: impl Fn(&str) -> Vec<String> + Sync,
) -> Vec<Running> {
    let node = |name: &str| {
        let more = more(name);
        let mut arguments = vec!["cluster", "node", "--etcd", &etcd.endpoint, "--name", name];
        // One worker each, which knows all owners once it was asked for all keys.
        arguments.extend(["--listen", "127.0.0.1:0", "--clients", "127.0.0.1:0", "-t", "1"]);
        arguments.extend(["--lease-seconds", lease_seconds, "--log-level", "error"]);
        arguments.extend(more.iter().map(String::as_str));
        Running::start_with(&mut command(&arguments))
    };
    let nodes: Vec<Running> = std::thread::scope(|scope| {
        let node = &node;
        let starting = ["one", "two", "three"].map(|name| scope.spawn(move || node(name)));
        starting.map(|one| one.join().expect("it serves")).into_iter().collect()
    });
    let begin = Instant::now();
    while !nodes.iter().all(has_its_share) {
        assert!(begin.elapsed() < PATIENCE, "keys move for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
    nodes
}

/// Whether a node owns about a third of the keys, and none are moving.
fn has_its_share(node: &Running) -> bool {
    let status = ClusterClient::connect(&[node.nodes[0].0.clone()], "", 0);
    let status = status.and_then(|mut client| client.status());
    status.is_ok_and(|own| (900..2_000).contains(&own.partitions) && own.moves == (0, 0))
}

fn signal(node: &Running, name: &str) {
    let told = Command::new("kill").args([name, &node.child.id().to_string()]).status();
    assert!(told.expect("runs").success());
}

/// Stops a node, and waits until all of its threads stand still: on a busy machine the others go on
/// until one has taken the signal.
fn stop(node: &Running) {
    signal(node, "-STOP");
    let tasks = format!("/proc/{}/task", node.child.id());
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let state = std::fs::read_to_string(task.expect("a thread").path().join("stat"));
        // The state follows the name, which stands in brackets.
        state.expect("a state").rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    let begin = Instant::now();
    while !std::fs::read_dir(&tasks).expect("a process").all(is_stopped) {
        assert!(begin.elapsed() < PATIENCE, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn clients(node: &Running) -> &str {
    &node.nodes[0].1
}

/// A connection that is read line by line.
struct Lines(BufReader<TcpStream>);

impl Lines {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        Self(BufReader::new(stream))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("sends");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, text: &str) -> String {
        self.send(text);
        self.line()
    }

    /// The answer to a get of a key whose value is two bytes: whether it was answered.
    fn value_of(&mut self, key: &str, expected: &str) -> bool {
        let line = self.line();
        if line == REFUSED {
            return false;
        }
        assert_eq!(line, format!("VALUE {key} 0 2"), "an error or a value, no miss");
        let mut rest = [0; 9];
        self.0.read_exact(&mut rest).expect("a value");
        assert_eq!(rest, format!("{expected}\r\nEND\r\n").as_bytes(), "{key}");
        true
    }
}

/// Until the third node, which is stopped, is found silent, a client that asks for its keys waits;
/// others on the same worker do not. Where the machine is so busy that they are slower than the one
/// gives up, this is tried again.
fn nobody_waits_for_another(nodes: &[Running], keys: &[String], lost: &BTreeSet<&String>) {
    let sound: Vec<&String> = keys.iter().filter(|key| !lost.contains(key)).collect();
    let all: String = sound.iter().map(|key| format!("get {key}\r\n")).collect();
    let one = lost.first().expect("some").as_str();
    for _ in 0..10 {
        signal(&nodes[2], "-CONT");
        answers_again(&nodes[..1], lost);
        stop(&nodes[2]);
        let mut patient = Lines::connect(clients(&nodes[0]));
        patient.send(&format!("get {one}\r\n"));
        let mut client = Lines::connect(clients(&nodes[0]));
        client.send(&all);
        assert!(sound.iter().all(|key| client.value_of(key, "hi")));
        let stream = patient.0.get_ref();
        stream.set_nonblocking(true).expect("an option");
        let is_unanswered = stream.peek(&mut [0]).is_err();
        stream.set_nonblocking(false).expect("an option");
        assert!(!patient.value_of(one, "hi"), "its owner is stopped");
        if is_unanswered {
            return;
        }
    }
    panic!("clients wait for another client's key");
}

/// Waits until these nodes find the keys of one that was stopped.
fn answers_again(nodes: &[Running], keys: &BTreeSet<&String>) {
    for node in nodes {
        let begin = Instant::now();
        let mut client = Lines::connect(clients(node));
        for key in keys {
            loop {
                client.send(&format!("get {key}\r\n"));
                if client.value_of(key, "hi") {
                    break;
                }
                assert!(begin.elapsed() < PATIENCE, "{key} stays away");
            }
        }
    }
}

#[test]
fn a_stopped_node_costs_only_its_own_keys_and_nothing_takes_effect_late() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let nodes = start(&etcd, &[]);
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key{number}")).collect();
    for key in &keys {
        expect(clients(&nodes[0]), &format!("set {key} 0 0 2\r\nhi\r\n"), "STORED\r\n");
    }
    let all: String = keys.iter().map(|key| format!("get {key}\r\n")).collect();
    // Both others have asked the third something.
    for node in &nodes[..2] {
        let mut client = Lines::connect(clients(node));
        client.send(&all);
        assert!(keys.iter().all(|key| client.value_of(key, "hi")));
    }
    stop(&nodes[2]);
    // The keys of the others are answered, and the rest are errors.
    let mut lost: BTreeSet<&String> = BTreeSet::new();
    let mut client = Lines::connect(clients(&nodes[0]));
    for _ in 0..3 {
        client.send(&all);
        let failed = keys.iter().filter(|key| !client.value_of(key, "hi")).collect();
        assert!(lost.is_empty() || lost == failed, "always the same keys");
        lost = failed;
    }
    assert!(SHARE.contains(&lost.len()), "{} of the stopped one", lost.len());
    let one = lost.first().expect("some").as_str();
    nobody_waits_for_another(&nodes, &keys, &lost);
    // A get of several keys ends in the error.
    let other = keys.iter().find(|key| !lost.contains(key)).expect("some");
    assert_eq!(client.ask(&format!("get {other} {one}\r\n")), format!("VALUE {other} 0 2"));
    assert_eq!((client.line(), client.line()), ("hi".to_owned(), REFUSED.to_owned()));
    // Changes are refused, or what came of them is unknown: they never were executed.
    let mut second = Lines::connect(clients(&nodes[1]));
    for client in [&mut client, &mut second] {
        for change in ["set K 0 0 2\r\nno\r\n", "delete K\r\n", "append K 0 0 1\r\n!\r\n"] {
            let answer = client.ask(&change.replace('K', one));
            assert!([REFUSED, UNKNOWN].contains(&answer.as_str()), "{change}: {answer}");
        }
    }
    std::thread::sleep(DEADLINE);
    signal(&nodes[2], "-CONT");
    answers_again(&nodes, &lost);
}

#[test]
fn a_cache_may_answer_misses_instead() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let nodes = start(&etcd, &["--unavailable", "miss"]);
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key{number}")).collect();
    for key in &keys {
        expect(clients(&nodes[0]), &format!("set {key} 0 0 2\r\nhi\r\n"), "STORED\r\n");
    }
    stop(&nodes[2]);
    let mut client = Lines::connect(clients(&nodes[0]));
    client.send(&format!("get {}\r\n", keys.join(" ")));
    let mut values = 0;
    loop {
        match client.line().as_str() {
            "END" => break,
            "hi" => values += 1,
            line => assert!(line.starts_with("VALUE key"), "{line}"),
        }
    }
    assert!(SHARE.contains(&(KEYS - values)), "{values} found");
}

/// Nodes of 16 MiB with one backup each in this folder.
fn start_small(etcd: &EtcdProcess, folder: &Path, mode: &str) -> Vec<Running> {
    start_with(etcd, "3", |name| {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let folder = folder.to_str().expect("text").to_owned();
        let memory = ["-m", "16", "--chunk-memory", "16M", "--mode", mode];
        let backups = ["--backups", "1", "--backup-dir", &folder];
        memory.into_iter().chain(backups).map(str::to_owned).collect()
    })
}

/// Clients of a cache store more than fits, and delete some of it; one node dies. What was deleted
/// stays so, also if the owner had evicted it, and the rest is as it was, or gone.
#[test]
fn a_cache_evicts_and_shows_nothing_that_was_deleted() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("cache");
    let mut nodes = start_small(&etcd, &folder, "cache");
    let mut client = Lines::connect(clients(&nodes[0]));
    let value = |number: usize| format!("{number:08000}");
    let ask = |client: &mut Lines, request: &str| {
        let begin = Instant::now();
        loop {
            let answer = client.ask(request);
            if ![REFUSED, UNKNOWN].contains(&answer.as_str()) {
                return answer;
            }
            assert!(begin.elapsed() < PATIENCE, "{request:.20} stays away");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    const STORED: usize = 9_000;
    for number in 0..STORED {
        let value = value(number);
        let answer = ask(&mut client, &format!("set key{number} 0 0 8000\r\n{value}\r\n"));
        assert_eq!(answer, "STORED", "{number}: there is always room");
    }
    let is_deleted = |number: usize| number.is_multiple_of(3);
    let mut evicted = 0;
    for number in (0..STORED).filter(|number| is_deleted(*number)) {
        let answer = ask(&mut client, &format!("delete key{number}\r\n"));
        assert!(["DELETED", "NOT_FOUND"].contains(&answer.as_str()), "{number}: {answer}");
        evicted += usize::from(answer == "NOT_FOUND");
    }
    assert!(evicted > 500, "{evicted} of the deleted keys had been evicted");
    nodes[2].child.kill().expect("runs");
    let mut found = 0;
    for number in 0..STORED {
        let line = ask(&mut client, &format!("get key{number}\r\n"));
        if line == "END" {
            continue;
        }
        assert_eq!(line, format!("VALUE key{number} 0 8000"));
        let mut rest = [0; 8_007];
        client.0.read_exact(&mut rest).expect("a value");
        assert!(rest.starts_with(value(number).as_bytes()), "{number}");
        assert!(!is_deleted(number), "{number} was deleted");
        found += 1;
    }
    assert!(found > 1_500, "{found} are left");
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("a folder");
}

/// Clients fill the nodes until they are refused; one node dies, and the others have room for what
/// it had.
#[test]
fn a_full_cluster_takes_over_what_a_dead_node_had() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("full");
    let mut nodes = start_small(&etcd, &folder, "store");
    let value = "x".repeat(8_000);
    let (mut stored, mut refused) = (Vec::new(), 0);
    let mut client = Lines::connect(clients(&nodes[0]));
    for number in 0..6_000 {
        let key = format!("key{number}");
        match client.ask(&format!("set {key} 0 0 8000\r\n{value}\r\n")).as_str() {
            "STORED" => stored.push(key),
            "SERVER_ERROR out of memory storing object" => refused += 1,
            // Its owner looks for a backup.
            answer => assert!([REFUSED, UNKNOWN].contains(&answer), "{key}: {answer}"),
        }
        if refused == 100 {
            break;
        }
    }
    assert!(refused == 100 && stored.len() > 2_200, "{} stored", stored.len());
    nodes[2].child.kill().expect("runs");
    let begin = Instant::now();
    for key in &stored {
        loop {
            let line = client.ask(&format!("get {key}\r\n"));
            if line == format!("VALUE {key} 0 8000") {
                let mut rest = [0; 8_007];
                client.0.read_exact(&mut rest).expect("a value");
                break;
            }
            assert!([REFUSED, UNKNOWN].contains(&line.as_str()), "{key}: {line}");
            assert!(begin.elapsed() < PATIENCE, "{key} stays away");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("a folder");
}

/// etcd stands still for longer than the lease: reads are errors meanwhile, never misses, and then
/// the same processes serve everything again.
#[test]
fn nodes_join_again_when_etcd_is_back() {
    let Some(etcd) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let folder = temporary("again");
    let ports = [(); 6].map(|()| support::etcd::free_port());
    let mut nodes: Vec<Running> = std::thread::scope(|scope| {
        let (etcd, folder) = (&etcd, &folder);
        let start = |number: usize| {
            scope.spawn(move || {
                let at = |port: u16| format!("127.0.0.1:{port}");
                let places = (at(ports[number]), at(ports[3 + number]));
                backed_up_at(
                    PROGRAM,
                    etcd,
                    folder,
                    ["one", "two", "three"][number],
                    (&places.0, &places.1),
                )
            })
        };
        let starting: Vec<_> = (0..3).map(start).collect();
        starting.into_iter().map(|one| one.join().expect("it serves")).collect()
    });
    let began = Instant::now();
    let clients: Vec<String> = nodes.iter().map(|node| node.nodes[0].1.clone()).collect();
    let keys: Vec<String> = (0..30).map(|number| format!("key{number}")).collect();
    for key in &keys {
        let request = format!("set {key} 0 0 2\r\nhi\r\n");
        // Owners still look for backups on a busy machine.
        while talk(&clients[0], &request, "STORED\r\n") != "STORED\r\n" {
            assert!(began.elapsed() < PATIENCE, "{key} is not stored");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // A node that loses its lease within ten seconds of its start ends.
    std::thread::sleep(Duration::from_secs(11).saturating_sub(began.elapsed()));
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &etcd.child.id().to_string()]).status();
        assert!(sent.expect("runs").success());
    };
    assert!(nodes[0].page("/readyz").starts_with("HTTP/1.1 200"));
    let metrics = nodes[0].page("/metrics");
    for family in [
        "members 3",
        "partitions ",
        "failovers{stage=\"loading\"} 0",
        "lease_left_seconds ",
        "unacknowledged_entries{backup=",
        "peer_round_trip_seconds{peer=",
        "forwarded_total{result=\"answered\"} ",
    ] {
        assert!(metrics.contains(&format!("\namalgam_cluster_{family}")), "{family}: {metrics}");
    }
    signal("-STOP");
    std::thread::sleep(Duration::from_secs(5));
    for key in &keys {
        let answer = talk(&clients[1], &format!("get {key}\r\n"), "SERVER_ERROR");
        assert_eq!(answer, "SERVER_ERROR", "the lease is over, but {key} exists");
    }
    for (path, status) in [("/readyz", "HTTP/1.1 503"), ("/healthz", "HTTP/1.1 200")] {
        let answer = nodes[0].page(path);
        assert!(answer.starts_with(status), "{path}: {answer}");
    }
    signal("-CONT");
    let begin = Instant::now();
    let mut missing: Vec<&String> = keys.iter().collect();
    while !missing.is_empty() {
        assert!(begin.elapsed() < PATIENCE, "not served again: {missing:?}");
        std::thread::sleep(Duration::from_millis(100));
        missing.retain(|key| {
            let expected = format!("VALUE {key} 0 2\r\nhi\r\nEND\r\n");
            // While a node starts anew, nobody listens.
            let answer = try_talk(&clients[2], &format!("get {key}\r\n"), &expected);
            !answer.is_ok_and(|answer| answer == expected)
        });
    }
    println!("served again {:?} after etcd's return", begin.elapsed());
    let has_ended = |node: &mut Running| node.child.try_wait().expect("runs").is_some();
    assert!(!nodes.iter_mut().any(has_ended), "the same processes go on");
    drop(nodes);
    std::fs::remove_dir_all(&folder).expect("a folder");
}
