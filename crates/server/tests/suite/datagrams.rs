//! Requests over UDP.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use amalgam_server::Settings;

use crate::support::{Running, settings};

fn with_udp(threads: usize) -> Running {
    let listen_udp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    Running::start(Settings { listen_udp, ..settings(threads) })
}

fn client(server: &Running) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", server.udp_port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    socket
}

fn frame(id: u16, request: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0], request].concat()
}

/// The answer to request `id`, reassembled from its datagrams in any order.
fn answer(socket: &UdpSocket, id: u16) -> Vec<u8> {
    let mut parts = Vec::new();
    loop {
        let mut datagram = [0; 2000];
        let length = socket.recv(&mut datagram).expect("an answer");
        assert!(length <= 1400);
        let field = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        assert_eq!(field(0), id);
        parts.push((field(2), datagram[8..length].to_vec()));
        if parts.len() == usize::from(field(4)) {
            parts.sort();
            return parts.into_iter().flat_map(|(_, part)| part).collect();
        }
    }
}

#[test]
fn datagrams_are_answered() {
    for threads in [1, 4] {
        let server = with_udp(threads);
        let socket = client(&server);
        let talk = |id: u16, request: &[u8], expected: &[u8]| {
            socket.send(&frame(id, request)).unwrap();
            assert_eq!(answer(&socket, id), expected);
        };
        talk(1, b"set a 5 0 5\r\nhello\r\n", b"STORED\r\n");
        talk(2, b"get a\r\n", b"VALUE a 5 5\r\nhello\r\nEND\r\n");
        talk(
            65535,
            b"get a b\r\nget a\r\n",
            b"VALUE a 5 5\r\nhello\r\nEND\r\nVALUE a 5 5\r\nhello\r\nEND\r\n",
        );
        talk(3, b"nonsense\r\n", b"ERROR\r\n");
        let mut over_tcp = server.connect();
        over_tcp.talk("get a\r\n", "VALUE a 5 5\r\nhello\r\nEND\r\n");
        // An incomplete request, a request of two datagrams, and an invalid one get no answer.
        socket.send(&frame(4, b"set a 0 0 100\r\nhalf")).unwrap();
        socket.send(&[0, 5, 0, 0, 0, 2, 0, 0, b'g', b'e', b't']).unwrap();
        socket.send(&frame(6, b"")).unwrap();
        socket.send(b"x").unwrap();
        talk(7, b"get a\r\n", b"VALUE a 5 5\r\nhello\r\nEND\r\n");
    }
}

#[test]
fn what_follows_a_flush_or_statistics_is_answered() {
    let listen_udp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    for requests_per_batch in [None, Some(1)] {
        let listen_udp = listen_udp.clone();
        let server = Running::start(Settings { listen_udp, requests_per_batch, ..settings(1) });
        let socket = client(&server);
        let ask = |id: u16, requests: &str| {
            socket.send(&frame(id, requests.as_bytes())).unwrap();
            String::from_utf8(answer(&socket, id)).unwrap()
        };
        let set = "set a 0 0 1\r\n1\r\n";
        let found = "VALUE a 0 1\r\n1\r\nEND\r\n";
        assert_eq!(ask(1, &format!("{set}flush_all\r\nget a\r\n")), "STORED\r\nOK\r\nEND\r\n");
        let requests = format!("flush_all noreply\r\n{}{set}get a\r\n", "flush_all\r\n".repeat(20));
        assert_eq!(ask(2, &requests), format!("{}STORED\r\n{found}", "OK\r\n".repeat(20)));
        let statistics = ask(3, "get a\r\nstats\r\nget a\r\n");
        assert!(statistics.starts_with(&format!("{found}STAT ")), "{statistics}");
        assert!(statistics.ends_with(&format!("\r\nEND\r\n{found}")), "{statistics}");
        assert_eq!(ask(4, "get a\r\nquit\r\nget a\r\n"), found);
        // Half a request is left, for ever.
        assert_eq!(ask(5, "stats reset\r\nget a\r\nget"), format!("RESET\r\n{found}"));
    }
}

#[test]
fn long_answers_take_several_datagrams() {
    let server = with_udp(1);
    let value: Vec<u8> = (0..30_000_u32).map(|number| (number % 251) as u8).collect();
    let mut over_tcp = server.connect();
    over_tcp.send("set big 0 0 30000\r\n");
    over_tcp.send(&value);
    over_tcp.talk("\r\n", "STORED\r\n");
    let socket = client(&server);
    socket.send(&frame(9, b"get big\r\n")).unwrap();
    let expected = [b"VALUE big 0 30000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    assert_eq!(answer(&socket, 9), expected);
}

#[test]
fn an_answer_is_at_most_as_long_as_a_request_may_be() {
    let server = with_udp(1);
    let mut over_tcp = server.connect();
    for bytes in [60_000, 1_000_000] {
        over_tcp.send(format!("set k{bytes} 0 0 {bytes}\r\n"));
        over_tcp.send(vec![b'v'; bytes]);
        over_tcp.talk("\r\n", "STORED\r\n");
    }
    over_tcp.talk("set small 0 0 10\r\n0123456789\r\n", "STORED\r\n");
    let socket = client(&server);
    let length = |id: u16, request: &str| {
        socket.send(&frame(id, request.as_bytes())).unwrap();
        answer(&socket, id).len()
    };
    let refusal = "SERVER_ERROR answer too long for UDP, use TCP\r\n".len();
    assert!(length(1, "get k60000\r\n") > 60_000);
    assert_eq!(length(2, "get k1000000\r\n"), refusal);
    assert_eq!(length(3, "get k60000 k60000\r\n"), refusal);
    assert_eq!(length(4, &"get small\r\n".repeat(4000)), refusal);
    assert!(length(5, "get small\r\n") > 10);
}

#[test]
fn many_clients_get_their_own_answers() {
    let server = with_udp(2);
    let sockets: Vec<_> = (0..100).map(|_| client(&server)).collect();
    for round in 0..5_u16 {
        for (number, socket) in sockets.iter().enumerate() {
            let request = format!("set k{number} 0 0 1\r\n{round}\r\nget k{number}\r\n");
            socket.send(&frame(round, request.as_bytes())).unwrap();
        }
        for (number, socket) in sockets.iter().enumerate() {
            let expected = format!("STORED\r\nVALUE k{number} 0 1\r\n{round}\r\nEND\r\n");
            assert_eq!(answer(socket, round), expected.as_bytes());
        }
    }
}
