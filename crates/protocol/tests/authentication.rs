//! Connections that must authenticate first.

use amalgam_protocol::{Authentication, Command, Limits, Problem, Protocol, Reply, Request, Step};

fn limits(authentication: Authentication) -> Limits {
    Limits { authentication, ..Limits::default() }
}

/// The content of the step, and the number of bytes that it used.
fn describe(protocol: Protocol, input: &[u8], authentication: Authentication) -> (String, usize) {
    match protocol.parse(input, &limits(authentication)) {
        Step::Incomplete { at_least } => (format!("incomplete {at_least}"), 0),
        Step::Request { request: Request::Command { command, .. }, used } => {
            (format!("{command:?}"), used)
        }
        Step::Request { used, .. } => ("request".to_owned(), used),
        Step::Refused { refusal, used } => {
            let mut out = Vec::new();
            refusal.write(&mut out);
            let closes = if refusal.closes { " closes" } else { "" };
            (format!("{}{closes}", out.escape_ascii()), used + refusal.swallow)
        }
    }
}

fn text(input: &[u8]) -> (String, usize) {
    describe(Protocol::Text, input, Authentication::Missing)
}

#[test]
fn text_takes_nothing_but_credentials() {
    let input = b"set x 0 0 9\r\nuser pass\r\n";
    let Step::Request { request: Request::Command { command, reply }, used } =
        Protocol::Text.parse(input, &limits(Authentication::Missing))
    else {
        panic!("no command")
    };
    assert_eq!(used, input.len());
    assert!(matches!(command, Command::LogIn { user: b"user", password: b"pass" }), "{command:?}");
    let mut out = Vec::new();
    reply.authenticated(&mut out);
    reply.problem(&mut out, Problem::WRONG_CREDENTIALS);
    assert_eq!(out, b"STORED\r\nCLIENT_ERROR authentication failure\r\n");
}

#[test]
fn text_refuses_in_memcacheds_words() {
    let unauthenticated = "CLIENT_ERROR unauthenticated\\r\\n".to_owned();
    assert_eq!(text(b"get foo\r\n"), (unauthenticated.clone(), 9));
    assert_eq!(text(b"set foo 0 0\r\n"), (unauthenticated.clone(), 13));
    assert_eq!(text(b"set foo 0 0 x\r\n"), (unauthenticated.clone(), 15));
    assert_eq!(text(b" set foo 0 0 3\r\n"), (unauthenticated, 16));
    assert_eq!(text(b"mn\r\n"), (" closes".to_owned(), 4));
    assert_eq!(
        text(b"set foo 0 0 16385\r\n"),
        ("CLIENT_ERROR auth token too long\\r\\n".to_owned(), 19)
    );
    assert_eq!(text(b"set foo 0 0 3\r\n"), ("incomplete 20".to_owned(), 0));
    assert_eq!(
        text(b"set foo 0 0 3\r\nabcde"),
        ("CLIENT_ERROR bad command line termination\\r\\n".to_owned(), 20)
    );
    assert_eq!(
        text(b"set foo 0 0 3\r\nabc\r\n"),
        ("CLIENT_ERROR bad authentication token format\\r\\n".to_owned(), 20)
    );
    assert_eq!(text(&[b'x'; 2049]), (" closes".to_owned(), 2049));
    let mut long_get = b"get ".to_vec();
    long_get.resize(2049, b'k');
    assert_eq!(text(&long_get), (" closes".to_owned(), 2049));
}

/// A binary request without a compare.
fn packet(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 24];
    packet[0] = 0x80;
    packet[1] = opcode;
    packet[3] = key.len() as u8;
    packet[8..12].copy_from_slice(&((key.len() + value.len()) as u32).to_be_bytes());
    [&packet, key, value].concat()
}

/// Status and body of the answer that `write` appends.
fn answer(write: impl FnOnce(&mut Vec<u8>)) -> (u16, Vec<u8>) {
    let mut out = Vec::new();
    write(&mut out);
    (u16::from_be_bytes([out[6], out[7]]), out[24..].to_vec())
}

#[test]
fn sasl_is_offered_only_where_there_are_users() {
    let plain = packet(0x21, b"PLAIN", b"\0user\0pass");
    let binary = |input: &[u8], authentication| {
        let (said, used) = describe(Protocol::Binary, input, authentication);
        (said.contains("Unknown command"), said.contains("Authenticate"), used)
    };
    assert_eq!(binary(&plain, Authentication::NotOffered), (true, false, plain.len()));
    for known in [Authentication::Missing, Authentication::Given] {
        assert_eq!(binary(&plain, known), (false, true, plain.len()));
        let half = &plain[..plain.len() - 1];
        let Step::Incomplete { at_least } = Protocol::Binary.parse(half, &limits(known)) else {
            panic!("complete")
        };
        assert_eq!(at_least, plain.len());
    }
}

fn parse_command<'a>(input: &'a [u8], limits: &Limits) -> (Command<'a>, Reply<'a>) {
    match Protocol::Binary.parse(input, limits) {
        Step::Request { request: Request::Command { command, reply }, .. } => (command, reply),
        step => panic!("{step:?}"),
    }
}

#[test]
fn sasl_messages_reach_the_server_whole() {
    let limits = limits(Authentication::Missing);
    let input = packet(0x21, b"PLAIN", b"\0user\0pass");
    let (command, reply) = parse_command(&input, &limits);
    let Command::Authenticate { is_step: false, mechanism: b"PLAIN", message } = command else {
        panic!("{command:?}")
    };
    assert_eq!(message, b"\0user\0pass");
    assert_eq!(answer(|out| reply.authenticated(out)), (0, b"Authenticated".to_vec()));
    assert_eq!(answer(|out| reply.challenge(out, b"more")), (0x21, b"more".to_vec()));
    assert_eq!(
        answer(|out| reply.problem(out, Problem::NOT_AUTHENTICATED)),
        (0x20, b"Auth failure.".to_vec())
    );
    let input = packet(0x22, b"X", b"");
    let (command, _) = parse_command(&input, &limits);
    assert!(matches!(command, Command::Authenticate { is_step: true, mechanism: b"X", .. }));
    let input = packet(0x20, b"", b"");
    let (command, reply) = parse_command(&input, &limits);
    assert!(matches!(command, Command::ListMechanisms));
    assert_eq!(answer(|out| reply.body(out, b"PLAIN")), (0, b"PLAIN".to_vec()));
}

#[test]
fn sasl_comes_before_anything_but_version() {
    for opcode in 0..=0x24 {
        let input = packet(opcode, b"", b"");
        let step = Protocol::Binary.parse(&input, &limits(Authentication::Missing));
        match (opcode, step) {
            (0x0b | 0x20, Step::Request { .. }) => {}
            (0x21 | 0x22, Step::Refused { refusal, .. }) => {
                // The request names no mechanism.
                assert_eq!(answer(|out| refusal.write(out)).0, 4);
                assert!(refusal.closes);
            }
            (_, Step::Refused { refusal, .. }) => {
                assert_eq!(answer(|out| refusal.write(out)).0, 0x20, "{opcode:#x}");
                assert!(refusal.closes);
            }
            (_, step) => panic!("{opcode:#x} {step:?}"),
        }
    }
    let long = packet(0x21, &[b'M'; 33], b"message");
    let Step::Refused { refusal, used } =
        Protocol::Binary.parse(&long, &limits(Authentication::Missing))
    else {
        panic!("taken")
    };
    assert_eq!((used + refusal.swallow, refusal.closes), (long.len(), false));
}
