//! Heads of requests to the admin address: however they arrive, the answer is the same, and only
//! this machine's names are local.
#![no_main]

use amalgam_fuzz::memory;
use amalgam_server::fuzzing::{is_local_host, parse_http};
use libfuzzer_sys::fuzz_target;

/// Lines that the bytes 0 to 7 stand for.
const LINES: [&str; 8] = [
    "GET / HTTP/1.1\r\n",
    "HEAD /metrics?a=b#c HTTP/1.0\r\n",
    "POST ",
    "Host: ",
    "localhost:1",
    "[::1]:80",
    "127.0.0.1",
    "\r\n",
];

fn is_local(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let is_name = host.rsplit('.').next() == Some("localhost");
    is_name
        || host.parse::<std::net::Ipv4Addr>().is_ok()
        || host.parse::<std::net::Ipv6Addr>().is_ok()
}

fuzz_target!(|data: &[u8]| {
    let mut head = Vec::new();
    for byte in data {
        match LINES.get(usize::from(*byte)) {
            Some(line) => head.extend_from_slice(line.as_bytes()),
            None => head.push(*byte),
        }
    }
    // A status with its reason, and the path and the host, which may triple when they are not text.
    let whole = memory::within(4 * head.len() + 4096, || parse_http(&head));
    for length in 0..head.len() {
        if let Some(early) = parse_http(&head[..length]) {
            let whole = whole.expect("more bytes do not make it incomplete");
            assert_eq!(early, whole, "what follows the head changes nothing");
            break;
        }
    }
    if let Some(Ok(request)) = parse_http(&head) {
        assert!(!request.path.contains(['?', '#', ' ', '\r', '\n']));
        let host = request.host.unwrap_or_default();
        assert_eq!(is_local_host(&host), is_local(&host), "{host:?}");
    }
});
