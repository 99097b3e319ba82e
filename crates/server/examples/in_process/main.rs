//! Serves fixed byte scripts without sockets, in a given number of batches. An instruction counter
//! around it measures the cost of a request (`tests/instructions.rs`).
//!
//! Usage: `in_process SCRIPT BATCHES`, or `in_process serve PORT` for a server with the same store.

mod fixed;

use std::net::SocketAddr;

use amalgam_index::Configuration;
use amalgam_server::{InProcessServer, Server, Settings};
use fixed::Fixed;

fn key(number: usize) -> String {
    format!("k{number:015}")
}

/// What each connection sends in a batch.
fn script(name: &str) -> Vec<String> {
    let gets = |keys: usize, depth: usize| -> String {
        let line = |request: usize| {
            let keys: Vec<_> = (0..keys).map(|place| key(request * keys + place)).collect();
            format!("get {}\r\n", keys.join(" "))
        };
        (0..depth).map(line).collect()
    };
    let set = |request: usize| format!("set {} 0 0 32\r\n{}\r\n", key(request), "v".repeat(32));
    let mixed = |request: usize| {
        if request % 20 == 10 { set(request) } else { format!("get {}\r\n", key(request)) }
    };
    match name {
        "get-1x1" => vec![gets(1, 1); 32],
        "get-1x32" => vec![gets(1, 32); 32],
        "get-100x1" => vec![gets(100, 1); 50],
        "get-100x8" => vec![gets(100, 8); 8],
        "mixed-1x32" => vec![(0..32).map(mixed).collect(); 32],
        "set-1x32" => vec![(0..32).map(set).collect(); 32],
        _ => panic!("there is no script {name}"),
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, name, number] = &arguments[..] else { panic!("usage: in_process SCRIPT BATCHES") };
    if name == "serve" {
        let port: u16 = number.parse().expect("a port");
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], port)).into()];
        let settings = Settings { listen, threads: 1, ..Settings::default() };
        let server = Server::<Fixed>::open(settings, Configuration::default()).expect("starts");
        server.run().expect("serves");
        return;
    }
    let batches = number.parse().expect("a number of batches");
    let inputs = script(name);
    let inputs: Vec<_> = inputs.iter().map(String::as_bytes).collect();
    let server = InProcessServer::<Fixed>::open(Configuration::default()).expect("opens");
    let outputs = server.run(batches, &inputs);
    let bytes: usize = outputs.iter().map(Vec::len).sum();
    println!("{bytes} bytes answered in the last batch");
}
