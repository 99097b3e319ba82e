//! Tests of `amalgam advise` at toy size: with a generated trace, and with a watched server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use amalgam_advise::trace::{Request, RequestKind, capture, read};
use amalgam_advise::{Advice, AdviseArguments, Row, Source, advise, draw, table};
use amalgam_bench::trace::{TraceArguments, write};
use amalgam_index::Configuration;
use amalgam_index::mercury::Mercury;
use amalgam_server::{Server, Settings};
use clap::Parser;

#[derive(Parser)]
#[command(args_override_self = true)]
struct AdviseLine {
    #[command(flatten)]
    arguments: AdviseArguments,
}

#[derive(Parser)]
struct TraceLine {
    #[command(flatten)]
    arguments: TraceArguments,
}

fn arguments(line: &str) -> AdviseArguments {
    let short = "advise none --rounds 2 --seconds 0.02 --timed 2k";
    let words = short.split(' ').chain(line.split_whitespace());
    AdviseLine::try_parse_from(words).expect("options").arguments
}

fn made_up(line: &str) -> Vec<u8> {
    let words = ["trace"].into_iter().chain(line.split_whitespace());
    let arguments = TraceLine::try_parse_from(words).expect("options").arguments;
    let mut lines = Vec::new();
    write(&arguments, &mut lines).expect("writes");
    lines
}

fn run(trace: &[u8], threads: usize, line: &str) -> (Vec<Row>, Advice) {
    let trace = read(trace, 1_000_000).expect("a trace").trace;
    let source = Source { trace, memory_bytes: 32 << 20, threads };
    advise(&arguments(line), &source).expect("advice")
}

#[test]
fn every_engine_is_measured_and_one_is_recommended() {
    let trace = made_up("--workload a --keys 2000 --requests 20k");
    let (rows, advice) = run(&trace, 2, "");
    let names: Vec<_> = rows.iter().map(|row| row.engine).collect();
    assert_eq!(names, ["mercury", "memc3", "hotring-r", "hotring-s", "pipeline"]);
    assert_eq!(rows.iter().filter(|row| row.recommended).count(), 1);
    for row in &rows {
        assert!(row.requests_per_second > Some(0.0), "{row:?}");
        assert_eq!(row.hit_ratio, Some(1.0), "everything fits after the first pass: {row:?}");
        assert!(row.p50_ns <= row.p99_ns && row.p99_ns <= row.p999_ns, "{row:?}");
        assert!(row.items > 1500 && row.bytes_per_item > Some(100.0), "{row:?}");
        assert_eq!((row.refused_share, row.problem.as_deref()), (0.0, None));
    }
    let text = format!("{}\n{advice}", table(&rows));
    assert!(text.contains(&format!("--engine {}", advice.engine)) && text.contains("because"));
    let picture = draw(&rows, &advice);
    assert!(picture.starts_with("<svg ") && names.iter().all(|name| picture.contains(name)));
}

#[test]
fn what_is_missed_is_stored_again_and_expires_by_the_clock_of_the_trace() {
    // 60,000 values of 1 kB do not fit: a uniform read hits as often as its item is still there.
    let trace = made_up("--workload get --keys 60k --value-bytes 1000 --requests 120k");
    let (rows, _) = run(&trace, 2, "--engine mercury,memc3");
    for row in &rows {
        let hits = row.hit_ratio.expect("reads");
        assert!((0.1..0.8).contains(&hits) && row.evictions > 0, "{row:?}");
    }
    // Stored once, read a second later and after it has ended.
    let line = |ts: u32, rest: &str| format!("ts={ts}.0 gid=1 type={rest}\n");
    let store = "item_store key=k status=stored cmd=set ttl=10 clsid=1 cfd=1 size=5";
    let get = "item_get key=k status=not_found clsid=0 cfd=1 size=0";
    let text = line(1, store) + &line(2, get) + &line(30, get);
    let (rows, _) = run(text.as_bytes(), 1, "--engine mercury --batch 1");
    let hits = rows[0].hit_ratio.expect("reads");
    assert!((0.3..0.7).contains(&hits), "one of two: {hits}");
}

#[test]
fn a_running_server_is_watched() {
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
    let settings = Settings { listen, threads: 1, ..Settings::default() };
    let server = Server::<Mercury>::open(settings, Configuration::default()).expect("starts");
    let address = format!("127.0.0.1:{}", server.tcp_port().expect("a port"));
    let stopper = server.stopper().expect("a stopper");
    let running = std::thread::spawn(move || server.run());
    let (sender, receiver) = std::sync::mpsc::channel();
    let client = std::thread::spawn({
        let address = address.clone();
        move || {
            let mut stream = TcpStream::connect(address).expect("connects");
            let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
            // The client goes on until the watcher has seen enough requests.
            while receiver.try_recv().is_err() {
                stream.write_all(b"set a%20b 0 60 3\r\nabc\r\nget a%20b\r\n").expect("sends");
                assert!(lines.by_ref().take(4).all(|line| line.is_ok()));
            }
        }
    });
    let mut copy = Vec::new();
    let seen = capture(&address, 20, 100, &mut copy).expect("a capture");
    sender.send(()).expect("the client runs");
    client.join().expect("the client ends");
    stopper.stop();
    running.join().expect("the server ends").expect("cleanly");
    assert_eq!((seen.threads, seen.memory_bytes), (1, Settings::default().memory_bytes as u64));
    let trace = seen.reading.trace;
    assert_eq!(trace.requests(), 100);
    assert!(trace.iter().all(|request| request.key == b"a%20b" && request.value_bytes == 3));
    let ends = |request: &Request<'_>| request.ttl_seconds > 0 && request.ttl_seconds <= 61;
    let stores: Vec<_> =
        trace.iter().filter(|request| request.kind == RequestKind::Store).collect();
    // Half of the lines: the lookup that is part of a store is not a read.
    assert!(stores.len() >= 45 && stores.iter().all(ends), "{:?}", trace.iter().nth(50));
    let again = read(&copy[..], 1000).expect("what was kept can be read again").trace;
    assert_eq!(again.requests(), 100);
}

#[test]
fn what_cannot_run_is_refused_with_a_reason() {
    let trace = made_up("--keys 100 --requests 1k");
    let source = |memory_bytes, threads| {
        let trace = read(&trace[..], 1000).expect("a trace").trace;
        Source { trace, memory_bytes, threads }
    };
    for (line, memory, threads, words) in [
        ("--engine model", 64 << 20, 1, "no engine 'model'"),
        ("--batch 0", 64 << 20, 1, "--batch"),
        ("--rounds 0", 64 << 20, 1, "--rounds"),
        ("--hit-ratio-tolerance 2", 64 << 20, 1, "--hit-ratio-tolerance"),
        ("", 1 << 20, 1, "--memory must be at least"),
        ("", 64 << 20, 0, "threads"),
    ] {
        let error = advise(&arguments(line), &source(memory, threads)).expect_err(line);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(capture("127.0.0.1:1", 1, 10, &mut Vec::new()).is_err());
}
