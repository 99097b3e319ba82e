//! The part of HTTP/1.1 that the admin address needs: one GET or HEAD for each connection.
//!
//! Invariants:
//! 1. A request's head has at most [`MAX_HEAD_BYTES`] and [`TIMEOUT`] to arrive, the handshake of
//!    TLS included; nothing else of the request is kept. The response has [`TIMEOUT`] to be
//!    received, and what the client sends behind its request is read for [`DRAIN_TIMEOUT`]. These
//!    hold for the whole, however slowly the bytes trickle.
//! 2. Every response states its length, closes the connection, and forbids loading content from
//!    elsewhere.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use amalgam_protocol::decode_base64;

use super::stream::Stream;

/// The longest head of a request.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Header fields of a request, at most.
const MAX_FIELDS: usize = 64;

/// How long a request may take to arrive, and a response to be received.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long the bytes behind a request are read and discarded, at most.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The scheme of an Authorization header with a user and a password.
const BASIC: &[u8] = b"Basic ";

/// The status of the response that asks for a user and a password.
pub const UNAUTHORIZED: &str = "401 Unauthorized";

/// Bytes of a request that are read and discarded before the connection is closed, at most.
const DRAIN_BYTES: usize = 64 << 10;

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whether the method is HEAD.
    pub is_head: bool,
    /// The path, without query and fragment.
    pub path: String,
    /// The Host header without its port; None if there is none.
    pub host: Option<String>,
    /// The user and the password of a Basic Authorization header; None if there is none, or
    /// another.
    pub credentials: Option<(Vec<u8>, Vec<u8>)>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code and its reason phrase.
    pub status: &'static str,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// A response with status 200.
    pub fn ok(content_type: &'static str, body: impl Into<String>) -> Self {
        Self { status: "200 OK", content_type, body: body.into() }
    }

    /// A response with a JSON document.
    pub fn json(value: &serde_json::Value) -> Self {
        Self::ok("application/json", format!("{value}\n"))
    }

    /// A response with a line of plain text.
    pub fn line(status: &'static str, line: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }
}

/// Completes the handshake, if there is one, and reads the head of a request. The inner error is
/// the response to an invalid one.
///
/// # Errors
///
/// If the client has gone, sends nothing in time or no TLS where it must, or `is_ending`: then
/// nothing can be answered.
pub fn read_request(
    stream: &mut Stream,
    is_ending: impl Fn() -> bool,
) -> io::Result<Result<Request, Response>> {
    let deadline = Instant::now() + TIMEOUT;
    stream.set_deadline(deadline);
    let mut head = Vec::with_capacity(1024);
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) if is_fatal_or_late(&error, deadline) || is_ending() => return Err(error),
            Err(_) => continue,
        }
        match parse(&head) {
            Some(result) => return Ok(result),
            None if head.len() >= MAX_HEAD_BYTES => {
                let status = "431 Request Header Fields Too Large";
                return Ok(Err(Response::line(status, "the head of the request is too long")));
            }
            None if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            None => {}
        }
    }
}

/// Whether a read failed for good, or the deadline has passed.
fn is_fatal_or_late(error: &io::Error, deadline: Instant) -> bool {
    let is_wait = matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    );
    !is_wait || Instant::now() > deadline
}

/// Parses a head; None while it is incomplete. The inner error is the response to an invalid one.
pub fn parse(head: &[u8]) -> Option<Result<Request, Response>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(error) => return Some(Err(Response::line("400 Bad Request", &error.to_string()))),
    }
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => {
            let line = "only GET and HEAD are allowed";
            return Some(Err(Response::line("405 Method Not Allowed", line)));
        }
    };
    let target = request.path.unwrap_or("/");
    let path = target.split(['?', '#']).next().unwrap_or("/").to_owned();
    let host = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case("host"));
    let host = host.map(|field| without_port(&String::from_utf8_lossy(field.value)).to_owned());
    let is_authorization = |name: &str| name.eq_ignore_ascii_case("authorization");
    let authorization = request.headers.iter().find(|field| is_authorization(field.name));
    let credentials = authorization.and_then(|field| basic_credentials(field.value));
    Some(Ok(Request { is_head, path, host, credentials }))
}

/// The user and the password in the value of an Authorization header (RFC 7617).
fn basic_credentials(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, rest) = value.split_at_checked(BASIC.len())?;
    if !scheme.eq_ignore_ascii_case(BASIC) {
        return None;
    }
    let mut decoded = vec![0; rest.len()];
    let length = decode_base64(rest.trim_ascii(), &mut decoded)?;
    let colon = decoded[..length].iter().position(|byte| *byte == b':')?;
    Some((decoded[..colon].to_vec(), decoded[colon + 1..length].to_vec()))
}

fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.split(':').next().unwrap_or(host)
}

/// Whether a host is an IP address or a name under `localhost`. A foreign page that makes a browser
/// resolve the page's name to this machine (DNS rebinding) has neither.
pub fn is_local_host(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let is_localhost =
        host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost");
    is_localhost || host.parse::<IpAddr>().is_ok()
}

/// Sends a response, and ends the sending direction of the connection.
///
/// # Errors
///
/// If the client does not receive it in time, or would have to be waited for while `is_ending`.
pub fn respond(
    stream: &mut Stream,
    response: &Response,
    is_head: bool,
    is_ending: impl Fn() -> bool,
) -> io::Result<()> {
    let Response { status, content_type, body } = response;
    let challenge = match *status {
        UNAUTHORIZED => "WWW-Authenticate: Basic realm=\"amalgam\", charset=\"UTF-8\"\r\n",
        _ => "",
    };
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\n{challenge}\
         Content-Type: {content_type}\r\n\
         Content-Length: {}\r\n\
         Connection: close\r\n\
         Cache-Control: no-store\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
         img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'\r\n\
         X-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\n\r\n",
        body.len()
    );
    if !is_head {
        bytes.push_str(body);
    }
    let deadline = Instant::now() + TIMEOUT;
    stream.set_deadline(deadline);
    let mut rest = bytes.as_bytes();
    let in_time = |result: io::Result<usize>| match result {
        Err(error) if is_fatal_or_late(&error, deadline) || is_ending() => Err(error),
        Ok(_) if Instant::now() > deadline => Err(io::ErrorKind::TimedOut.into()),
        Ok(count) => Ok(Some(count)),
        Err(_) => Ok(None),
    };
    while !rest.is_empty() {
        match in_time(stream.write(rest))? {
            Some(0) => return Err(io::ErrorKind::WriteZero.into()),
            Some(count) => rest = &rest[count..],
            None => {}
        }
    }
    stream.close();
    while in_time(stream.flush().map(|()| 0))?.is_none() {}
    stream.shutdown()
}

/// Reads and discards what the client still sends: closing a socket with unread input resets the
/// connection, which would discard the response.
pub fn drain(stream: &mut Stream, is_ending: impl Fn() -> bool) {
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    stream.set_deadline(deadline);
    let mut rest = [0; 4096];
    let mut drained = 0;
    while drained < DRAIN_BYTES && Instant::now() < deadline && !is_ending() {
        match stream.discard(&mut rest) {
            Ok(0) | Err(_) => break,
            Ok(count) => drained += count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(head: &str) -> Request {
        parse(head.as_bytes()).expect("complete").expect("accepted")
    }

    fn status(head: &[u8]) -> &'static str {
        parse(head).expect("complete").expect_err("refused").status
    }

    #[test]
    fn heads_are_parsed() {
        let asked = request("GET /metrics?x=1 HTTP/1.1\r\nHOST: [::1]:8080\r\n\r\n");
        assert_eq!((asked.is_head, asked.path.as_str()), (false, "/metrics"));
        assert_eq!(asked.host.as_deref(), Some("::1"));
        assert!(request("HEAD / HTTP/1.0\r\n\r\n").is_head);
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost: a"), None);
    }

    #[test]
    fn users_and_passwords_are_read() {
        let credentials = |value: &str| {
            request(&format!("GET / HTTP/1.1\r\nauthorization: {value}\r\n\r\n")).credentials
        };
        let ann = Some((b"ann".to_vec(), b"a:b".to_vec()));
        assert_eq!(credentials("Basic YW5uOmE6Yg=="), ann);
        assert_eq!(credentials("basic   YW5uOmE6Yg=="), ann);
        for value in ["Bearer YW5uOmE6Yg==", "Basic", "Basic YW5u", "Basic !", "Basic YW5uOm"] {
            assert_eq!(credentials(value), None, "{value}");
        }
    }

    #[test]
    fn bad_heads_are_refused() {
        assert_eq!(status(b"POST / HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(status(b"\x00\xff\r\n\r\n"), "400 Bad Request");
        assert_eq!(status(b"GET / HTTP/9.9\r\n\r\n"), "400 Bad Request");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(status(many.as_bytes()), "400 Bad Request");
    }

    #[test]
    fn only_this_machine_is_local() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "::1", "a.localhost", "192.0.2.7"] {
            assert!(is_local_host(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", ""] {
            assert!(!is_local_host(host), "{host}");
        }
    }
}
