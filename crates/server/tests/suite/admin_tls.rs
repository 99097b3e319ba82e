//! The admin address over TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use amalgam_server::{Settings, TlsSettings, Verify};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls::{SupportedProtocolVersion, version};

use crate::support::{Running, settings};

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS12, &version::TLS13];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file(name)).expect("a certificate")
}

/// A server whose clients' port is plain, and whose admin address shows the certificate of `chain`.
fn start(chain: PathBuf, needs_tls13: bool) -> Running {
    let admin_tls = Some(TlsSettings {
        chain,
        key: None,
        has_der_key: false,
        authorities: Some(file("authority.pem")),
        // Not asked of the admin address's clients.
        verify: Verify::Always,
        ciphers: None,
        needs_tls13,
        resumes: false,
        send_bytes: 16 << 10,
        shown: Vec::new(),
    });
    let admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    Running::start(Settings { admin, admin_tls, ..settings(2) })
}

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.admin.expect("an admin address")).expect("accepts");
    stream.set_read_timeout(Some(crate::support::PATIENCE)).expect("a timeout");
    stream
}

/// Asks for a path; the answer, and the certificate that the server showed. An answer that ends
/// without TLS's close message is an error.
fn get(
    server: &Running,
    versions: &[&'static SupportedProtocolVersion],
    path: &str,
) -> std::io::Result<(String, CertificateDer<'static>)> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate("authority.pem")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut stream = StreamOwned::new(connection, connect(server));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let shown = stream.conn.peer_certificates().expect("a certificate")[0].clone().into_owned();
    Ok((answer, shown))
}

#[test]
fn answers_come_over_both_versions_of_tls_or_the_newer_alone() {
    let server = start(file("server.pem"), false);
    server.connect().talk("mn\r\n", "MN\r\n");
    for version in BOTH {
        let (answer, _) = get(&server, &[version], "/healthz").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("alive\n"));
        // More than one record.
        let (answer, _) = get(&server, &[version], "/page.js").expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    }
    let strict = start(file("server.pem"), true);
    assert!(get(&strict, &[&version::TLS13], "/healthz").is_ok());
    assert!(get(&strict, &[&version::TLS12], "/healthz").is_err());
}

#[test]
fn plaintext_is_never_answered() {
    let server = start(file("server.pem"), false);
    for request in [b"GET /healthz HTTP/1.1\r\n\r\n".as_slice(), b"GET / HTTP/1.0\r\n\r\n", b"\0"] {
        let mut stream = connect(&server);
        stream.write_all(request).expect("sends");
        stream.shutdown(Shutdown::Write).expect("it is open");
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        // The content type of an alert.
        assert!(matches!(answer.first(), None | Some(0x15)), "{request:?}: {answer:?}");
        assert!(!answer.windows(4).any(|window| window == b"HTTP"), "{answer:?}");
    }
    // Handshakes that fail are not those of memcached's clients.
    let mut client = server.connect();
    client.send("stats\r\n");
    let statistics = client.until("END\r\n");
    assert!(!statistics.contains("ssl_"), "{statistics}");
}

#[test]
fn certificates_are_reloaded_and_bad_ones_refused() {
    let path = std::env::temp_dir().join(format!("amalgam-admin-tls-{}", std::process::id()));
    std::fs::copy(file("server.pem"), &path).expect("copies");
    let server = start(path.clone(), false);
    let mut client = server.connect();
    let is_shown = |name: &str| {
        let (_, shown) = get(&server, BOTH, "/healthz").expect("an answer");
        assert!(shown == certificate(name), "not {name}");
    };
    std::fs::write(&path, "nonsense").expect("writes");
    client.send("refresh_certs\r\n");
    assert!(client.until("\r\n").starts_with("Error loading the certificate chain: "));
    is_shown("server.pem");
    std::fs::copy(file("renewed.pem"), &path).expect("copies");
    client.talk("refresh_certs\r\n", "OK\r\n");
    is_shown("renewed.pem");
    std::fs::remove_file(&path).expect("removes");
}

#[test]
fn trickling_handshakes_keep_nobody_out_and_do_not_delay_the_end() {
    /// More than are served at once.
    const TRICKLING: usize = 20;
    let server = start(file("server.pem"), false);
    let address = server.admin.expect("an admin address");
    // A client that asks before they are connected may be the oldest, and give way to them.
    let are_connected = &Barrier::new(TRICKLING + 1);
    let trickle = || {
        let mut stream = TcpStream::connect(address).expect("accepts");
        // The head of a record that announces 16 KiB of a handshake.
        let _ = stream.write(&[0x16, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb, 3, 3]);
        are_connected.wait();
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..TRICKLING {
            scope.spawn(trickle);
        }
        are_connected.wait();
        for _ in 0..20 {
            let (answer, _) = get(&server, BOTH, "/healthz").expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        }
        let (ended, end) = std::sync::mpsc::channel();
        scope.spawn(move || {
            drop(server);
            let _ = ended.send(());
        });
        end.recv_timeout(crate::support::PATIENCE).expect("the server ends while clients trickle");
    });
}

/// A handshake that trickles is ended by its deadline, not only to make room for others.
#[test]
fn a_trickling_handshake_comes_to_its_end() {
    let server = start(file("server.pem"), false);
    let mut stream = connect(&server);
    let _ = stream.write(&[0x16, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb, 3, 3]);
    let begin = Instant::now();
    // What arrives after the server has closed is answered by a reset.
    while stream.write_all(b"x").is_ok() {
        assert!(begin.elapsed() < crate::support::PATIENCE, "it trickles for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
}
