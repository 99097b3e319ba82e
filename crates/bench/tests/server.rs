//! `bench server` at toy size, against the null server and against a real one in this process.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use amalgam_bench::client::{ServerArguments, ServerResult, StubServer, StubServerArguments, run};
use amalgam_index::Configuration;
use amalgam_index::model::Model;
use amalgam_server::{Server, ServerError, Settings, Stopper};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    arguments: ServerArguments,
}

#[derive(Parser)]
struct NullLine {
    #[command(flatten)]
    arguments: StubServerArguments,
}

/// Runs a command line with a short round.
fn bench(line: &str) -> anyhow::Result<Vec<ServerResult>> {
    let short = "bench --keys 500 --seconds 0.2 --connections 4 --requests 4k";
    run(&Line::try_parse_from(short.split(' ').chain(line.split(' ')))?.arguments)
}

/// A server that ends with the test.
struct Running {
    port: u16,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Running {
    fn start() -> Self {
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
        let settings = Settings { listen, threads: 2, ..Settings::default() };
        let server = Server::<Model>::open(settings, Configuration::default()).expect("starts");
        let stopper = server.stopper().expect("a descriptor");
        let port = server.tcp_port().expect("it listens");
        Self { port, stopper, thread: Some(std::thread::spawn(|| server.run())) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || matches!(ended, Ok(Ok(()))));
        }
    }
}

/// What the measurement contract promises for every line.
const FIELDS: [&str; 8] = [
    "requests_per_second",
    "keys_per_second",
    "p50_us",
    "p99_us",
    "p999_us",
    "server_cpu_ns_per_key",
    "hit_ratio",
    "client_limited",
];

fn check_line(result: &ServerResult) -> Value {
    let line = serde_json::to_value(result).expect("a result serializes");
    for field in FIELDS.iter().chain(&["commit", "machine", "protocol", "target", "depth"]) {
        assert!(line.get(field).is_some(), "{field} is missing from {line}");
    }
    assert!(result.requests_per_second > 0.0, "{line}");
    assert!(result.p50_us <= result.p99_us && result.p99_us <= result.p999_us, "{line}");
    assert_eq!((result.errors, result.refused_at_load), (0, 0), "{line}");
    line
}

#[test]
fn every_stream_protocol_finds_what_was_stored() {
    let server = Running::start();
    let pid = std::process::id();
    for protocol in ["text", "meta", "binary"] {
        for (depth, multi) in [(1, 1), (8, 1), (1, 20), (4, 20)] {
            let line = format!(
                "--target 127.0.0.1:{} --protocol {protocol} --depth {depth} --multi {multi} \
                 --server-pid {pid} --idle 3 --threads 2",
                server.port
            );
            let result = &bench(&line).expect("a result")[0];
            check_line(result);
            assert_eq!(result.hit_ratio, Some(1.0), "{line}");
            // Whose threads come and go with the other tests: a figure, but of no use.
            assert!(result.server_cpu_ns_per_key.is_some(), "{line}");
            assert!(result.keys_per_second >= result.requests_per_second, "{line}");
        }
    }
}

#[test]
fn values_are_those_that_were_stored() {
    let server = Running::start();
    for value_bytes in [1, 32, 100_000] {
        let line = format!(
            "--target 127.0.0.1:{} --verify --multi 5 --set 0.5 --keys 50 --value-bytes \
             {value_bytes}",
            server.port
        );
        let result = &bench(&line).expect("a result")[0];
        check_line(result);
        assert_eq!(result.hit_ratio, Some(1.0), "{line}");
    }
}

#[test]
fn misses_are_misses() {
    let server = Running::start();
    let line = format!("--target 127.0.0.1:{} --no-load --set 0 --multi 3", server.port);
    assert_eq!(bench(&line).expect("a result")[0].hit_ratio, Some(0.0));
}

#[test]
fn targets_are_compared_in_turns_beside_a_null_server() {
    let server = Running::start();
    let null = NullLine::parse_from("null --port 0 --multi 10".split(' ')).arguments;
    let null = StubServer::open(&null).expect("a free port");
    let (port, stopper) = (null.port().expect("it listens"), null.stopper());
    let thread = std::thread::spawn(|| null.run());
    let (one, two) = (format!("127.0.0.1:{}", server.port), format!("127.0.0.1:{port}"));
    let pid = std::process::id();
    let line = format!(
        "--target {one},{two} --ratio-to {two} --multi 10 --depth 4 --rounds 2 --server-pid \
         {pid},{pid}"
    );
    let results = bench(&line);
    stopper.store(true, Ordering::Relaxed);
    thread.join().expect("no panic").expect("a clean end");
    let results = results.expect("two results");
    results.iter().for_each(|result| drop(check_line(result)));
    assert!(results[0].ratio.is_some_and(|ratio| ratio > 0.0));
    assert_eq!((results[1].ratio, results[1].hit_ratio), (Some(1.0), Some(1.0)));
}

#[test]
fn nobody_there_is_an_error() {
    assert!(bench("--target nowhere").is_err());
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
    assert!(bench(&format!("--target {}", port.expect("an address"))).is_err());
}

#[test]
fn nonsense_is_refused() {
    let is_accepted = |line: &str| {
        let words = "bench --target 127.0.0.1:1".split(' ').chain(line.split(' '));
        Line::try_parse_from(words).is_ok_and(|line| line.arguments.check().is_ok())
    };
    assert!(is_accepted("--depth 4 --multi 4 --set 0.5"));
    assert!(is_accepted("--protocol udp --value-bytes 100"));
    for line in [
        "--depth 0",
        "--multi 0",
        "--connections 0",
        "--threads 33",
        "--set 2",
        "--set NaN",
        "--seconds NaN",
        "--keys 0",
        "--key-bytes 3",
        "--value-bytes 0",
        "--rounds 0",
        "--protocol udp --multi 2",
        "--protocol udp --value-bytes 5000",
        "--protocol meta --verify",
        "--server-pid 1,2",
        "--ratio-to 127.0.0.1:2",
    ] {
        assert!(!is_accepted(line), "{line}");
    }
}
