//! Runs one scenario of parsing or answering over and over, for counting instructions:
//! `valgrind --tool=callgrind instructions SCENARIO COUNT`, with two counts, and the difference
//! divided by theirs is what one request costs.

use std::hint::black_box;

use amalgam_op::{Expiry, Hit, ItemView, Now, Outcome, Value, Written};
use amalgam_protocol::{Limits, Protocol, Reply, Request, Step};

/// Consecutive requests of one kind, as a pipelining client sends them.
fn requests(scenario: &str) -> Vec<u8> {
    let key = |number: usize| format!("key:{number:012}");
    let one = match scenario {
        "get" | "get-hit" => format!("get {}\r\n", key(1)),
        "gets" => format!("gets {}\r\n", key(1)),
        "get-100" => {
            let keys: Vec<_> = (0..100).map(key).collect();
            format!("get {}\r\n", keys.join(" "))
        }
        "set" | "set-stored" => format!("set {} 0 0 32\r\n{}\r\n", key(1), "v".repeat(32)),
        "mg" | "mg-hit" => format!("mg {} v\r\n", key(1)),
        "ms" => format!("ms {} 32\r\n{}\r\n", key(1), "v".repeat(32)),
        "binary-get" | "binary-hit" => {
            let mut packet = vec![0_u8; 24];
            packet[0] = 0x80;
            packet[3] = 16;
            packet[11] = 16;
            packet.extend_from_slice(key(1).as_bytes());
            return packet.repeat(32);
        }
        other => panic!("no scenario {other}"),
    };
    one.repeat(32).into_bytes()
}

fn item() -> ItemView<'static> {
    ItemView {
        key: b"key:000000000001",
        value: Value::Bytes(&[b'v'; 32]),
        flags: 0,
        expiry: Expiry::NEVER,
        cas: Some(12_345_678),
        generation: 0,
        fetched: true,
        stale: false,
        won: false,
        last_access_seconds: None,
    }
}

/// Parses the first request of `input`, walks over its keys, and answers it if asked to. Returns
/// the request's length in bytes.
#[inline(never)]
fn run_one(protocol: Protocol, input: &[u8], limits: &Limits, out: Option<&mut Vec<u8>>) -> usize {
    let Step::Request { request, used } = protocol.parse(input, limits) else {
        panic!("no request")
    };
    let mut answer: Option<(Reply<'_>, Option<Outcome>)> = None;
    match request {
        Request::Read(read) => {
            for key in read.keys {
                black_box(key);
            }
            answer = Some((read.answer.reply, None));
        }
        Request::Apply(apply) => {
            black_box(apply.verb);
            answer = Some((apply.reply, Some(Outcome::Stored(Written::default()))));
        }
        _ => {}
    }
    if let (Some(out), Some((reply, outcome))) = (out, answer) {
        match outcome {
            Some(outcome) => reply.outcome(out, &outcome, &Now::at(1)),
            None => {
                reply.hit(out, black_box(&item()), Hit::default(), &Now::at(1));
                reply.end(out);
            }
        }
    }
    used
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().expect("a scenario");
    let count: usize = arguments.next().and_then(|count| count.parse().ok()).expect("a count");
    let input = requests(&scenario);
    let protocol = Protocol::detect(input[0]);
    let answers = scenario.ends_with("-hit") || scenario.ends_with("-stored");
    let limits = Limits::default();
    let mut out = Vec::with_capacity(1 << 16);
    let mut at = 0;
    for _ in 0..count {
        if at == input.len() {
            at = 0;
            out.clear();
        }
        at += run_one(protocol, &input[at..], &limits, answers.then_some(&mut out));
    }
    println!("{} bytes answered", out.len());
}
