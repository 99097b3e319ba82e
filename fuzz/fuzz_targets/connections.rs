//! A worker and its connections with hardly any memory for buffers. Clients connect, send pieces of
//! requests, read slowly or not at all, and leave. After each turn of the worker every byte that a
//! connection keeps is charged, and what is allocated is what is charged and a bounded rest; at the
//! end everything is given back, and the worker rests.
#![no_main]

use std::os::fd::OwnedFd;

use amalgam_fuzz::memory;
use amalgam_fuzz::script::Script;
use amalgam_index::mercury::Mercury;
use amalgam_server::Settings;
use amalgam_server::fuzzing::{Clients, Playground};
use libfuzzer_sys::fuzz_target;

const CLIENTS_MAX: usize = 12;

/// Bytes that may be allocated apart from what connections are charged and the worker keeps to
/// reuse: the connections themselves, and lists of them.
const REST_BYTES: usize = 512 << 10;

/// Sends what the socket takes.
fn send(client: Option<&OwnedFd>, bytes: &[u8]) {
    if let Some(client) = client {
        // A full socket, or one that the server has closed, is what happens to clients too.
        let flags = rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(client, bytes, flags);
    }
}

/// Reads up to this many bytes; whether there were any.
fn receive(client: Option<&OwnedFd>, most: usize) -> bool {
    let mut buffer = vec![0; most.max(1)];
    client.is_some_and(|client| rustix::io::read(client, &mut buffer).is_ok_and(|bytes| bytes > 0))
}

fn act(
    script: &mut Script<'_>,
    clients: &mut Clients<'_, Mercury>,
    ends: &mut Vec<Option<OwnedFd>>,
) -> Option<()> {
    let action = script.byte()?;
    let number = usize::from(action >> 4) % CLIENTS_MAX;
    let end = ends.get(number).and_then(Option::as_ref);
    match action % 16 {
        0 if ends.len() < CLIENTS_MAX => ends.push(Some(clients.connect())),
        1 | 2 => send(end, script.bytes()),
        // A request whose end may never come.
        3 => send(
            end,
            &b"get ".iter().copied().chain(b"k ".repeat(script.number() / 2)).collect::<Vec<_>>(),
        ),
        4 => send(end, &b"k ".repeat(script.number())),
        5 => {
            let (announced, sent) = (script.number() * 8, script.number());
            let head = format!("set k{} 0 0 {announced}\r\n", script.byte().unwrap_or(0) % 4);
            send(end, head.as_bytes());
            send(end, &b"v".repeat(sent.min(announced)));
        }
        6 => send(end, &b"v".repeat(script.number())),
        7 => send(end, b"\r\n"),
        // Answers that are longer than their requests.
        8 => {
            let keys = b" k0 k1 k2 k3".repeat(1 + script.number() % 512);
            send(end, &[b"get", &keys[..], b"\r\n"].concat());
        }
        9 => send(end, &b"mg k0 v\r\nmn\r\n".repeat(1 + script.number() % 1024)),
        10 => send(end, &b"get k0\r\nset k5 0 0 1\r\nx\r\n".repeat(1 + script.number() % 512)),
        11 => drop(receive(end, script.number())),
        12 => {
            if let Some(end) = end {
                let _ = rustix::net::shutdown(end, rustix::net::Shutdown::Write);
            }
        }
        13 => {
            if let Some(end) = ends.get_mut(number) {
                *end = None;
            }
        }
        _ => drop(clients.turn()),
    }
    Some(())
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let buffer_bytes = 16 << (10 + script.byte().unwrap_or(0) % 6);
    let settings = Settings { memory_bytes: 16 << 20, allows_watch: false, ..Settings::default() };
    let playground = Playground::<Mercury>::open(settings, buffer_bytes);
    let mut clients = playground.clients();
    let mut ends = Vec::new();
    let before = memory::allocated();
    while act(&mut script, &mut clients, &mut ends).is_some() {
        let taken = memory::allocated() - before;
        let expected = clients.charged_bytes() + clients.spare_bytes();
        assert!(
            taken <= expected + REST_BYTES,
            "{taken} bytes are allocated, of which {expected} are accounted for"
        );
    }
    // Everything that can be read is read, and nothing more comes: no worker may go on for ever.
    for _ in 0..1000 {
        clients.rest();
        let mut received = false;
        for end in &ends {
            received |= receive(end.as_ref(), 1 << 16);
        }
        if !received {
            break;
        }
    }
    drop(ends);
    clients.end();
});
