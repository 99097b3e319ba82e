//! Connections over TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amalgam_index::Configuration;
use amalgam_index::model::Model;
use amalgam_server::{ListenAddress, Security, Server, Settings, TlsSettings, Verify};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls::{SupportedProtocolVersion, version};

use crate::support::{Client, Running};

type Stream = StreamOwned<ClientConnection, TcpStream>;

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS12, &version::TLS13];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file(name)).expect("a certificate")
}

fn tls() -> TlsSettings {
    TlsSettings {
        chain: file("server.pem"),
        key: None,
        has_der_key: false,
        authorities: Some(file("authority.pem")),
        verify: Verify::Not,
        ciphers: None,
        needs_tls13: false,
        resumes: false,
        send_bytes: 16 << 10,
        shown: Vec::new(),
    }
}

/// A server that listens on one address for each of these security settings.
fn start(tls: TlsSettings, ways: &[Security]) -> Running {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen = ways
        .iter()
        .map(|security| ListenAddress { security: *security, ..address.into() })
        .collect();
    Running::start(Settings { listen, tls: Some(tls), ..crate::support::settings(2) })
}

fn client(versions: &[&'static SupportedProtocolVersion], shown: Option<&str>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate("authority.pem")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots);
    match shown {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(file(name)).expect("a key");
            builder.with_client_auth_cert(vec![certificate(name)], key).expect("a pair")
        }
    }
}

fn connect(server: &Running, place: usize, config: &Arc<ClientConfig>) -> Client<Stream> {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("a client");
    Client(StreamOwned::new(connection, server.stream(place)))
}

/// Whether the server answers this client.
fn is_served(mut client: Client<Stream>) -> bool {
    let mut answer = [0; 5];
    let sent = client.0.write_all(b"mn\r\n");
    sent.and_then(|()| client.0.read_exact(&mut answer[..4])).is_ok()
}

#[test]
fn what_is_stored_through_tls_is_read_with_and_without_it() {
    let server = start(tls(), &[Security::AsServer, Security::Plain]);
    for version in BOTH {
        let config = Arc::new(client(&[version], None));
        let mut secured = connect(&server, 0, &config);
        secured.talk("set greeting 0 0 5\r\nhello\r\n", "STORED\r\n");
        let mut plain = Client(server.stream(1));
        plain.talk("get greeting\r\n", "VALUE greeting 0 5\r\nhello\r\nEND\r\n");
        // Many records each way, values sent from where they lie, and a buffer of the connection's
        // own.
        let value = "v".repeat(700_000);
        secured.talk(format!("set large 0 0 700000\r\n{value}\r\n"), "STORED\r\n");
        let answer = format!("VALUE large 0 700000\r\n{value}\r\n");
        secured.talk(
            "get large greeting large\r\n",
            format!("{answer}VALUE greeting 0 5\r\nhello\r\n{answer}END\r\n"),
        );
        let requests = "get greeting\r\n".repeat(5000);
        let answers = "VALUE greeting 0 5\r\nhello\r\nEND\r\n".repeat(5000);
        secured.talk(requests, answers);
        secured.send("quit\r\n");
        // The server closes TLS properly; this client reports anything else as an error.
        assert_eq!(secured.0.read(&mut [0]).expect("a proper end"), 0);
    }
}

#[test]
fn a_client_that_reads_late_delays_nobody_and_gets_everything() {
    let server = start(tls(), &[Security::AsServer]);
    let config = Arc::new(client(BOTH, None));
    let mut slow = connect(&server, 0, &config);
    let value = "v".repeat(1 << 19);
    slow.talk(format!("set large 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    let gets = 40;
    slow.send("get large\r\n".repeat(gets));
    for _ in 0..20 {
        connect(&server, 0, &config).talk("mn\r\n", "MN\r\n");
    }
    for _ in 0..gets {
        slow.expect(format!("VALUE large 0 {}\r\n{value}\r\nEND\r\n", value.len()));
    }
}

#[test]
fn watchers_receive_lines_over_tls() {
    let server = start(tls(), &[Security::AsServer]);
    let config = Arc::new(client(BOTH, None));
    let mut watcher = connect(&server, 0, &config);
    watcher.talk("watch mutations\r\n", "OK\r\n");
    connect(&server, 0, &config).talk("set seen 0 0 1\r\nx\r\n", "STORED\r\n");
    assert!(watcher.until("\n").contains("key=seen"));
}

#[test]
fn certificates_are_reloaded_and_bad_ones_refused() {
    let path = std::env::temp_dir().join(format!("amalgam-tls-{}", std::process::id()));
    std::fs::copy(file("server.pem"), &path).expect("copies");
    let server = start(TlsSettings { chain: path.clone(), ..tls() }, &[Security::AsServer]);
    let config = Arc::new(client(BOTH, None));
    let shown = |client: &Client<Stream>| {
        client.0.conn.peer_certificates().expect("a certificate")[0].clone().into_owned()
    };
    let mut first = connect(&server, 0, &config);
    first.talk("mn\r\n", "MN\r\n");
    std::fs::write(&path, "nonsense").expect("writes");
    first.send("refresh_certs\r\n");
    assert!(first.until("\r\n").starts_with("Error loading the certificate chain: "));
    std::fs::copy(file("renewed.pem"), &path).expect("copies");
    for (answer, name) in [("MN\r\n", "server.pem"), ("OK\r\n", "renewed.pem")] {
        first.talk(if answer == "OK\r\n" { "refresh_certs\r\n" } else { "mn\r\n" }, answer);
        let mut other = connect(&server, 0, &config);
        other.talk("mn\r\n", "MN\r\n");
        assert!(shown(&other) == certificate(name), "not {name}");
    }
    assert!(shown(&first) == certificate("server.pem"), "an old connection keeps its certificate");
    std::fs::remove_file(&path).expect("removes");
}

/// What a server without TLS would answer; this one may send an alert of TLS, and closes.
fn expect_no_plaintext(server: &Running) {
    let no_op = [b"\x80\x0a".as_slice(), &[0; 22]].concat();
    for request in [b"mn\r\n", &b"version\r\n"[..], b"get a\r\n", &no_op] {
        let mut stream = server.stream(0);
        stream.write_all(request).expect("sends");
        // Not every request is as long as the head of a record, whose rest does not come.
        stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        // The content type of an alert.
        assert!(matches!(answer.first(), None | Some(0x15)), "{request:?}: {answer:?}");
    }
}

#[test]
fn a_server_without_its_certificate_does_not_start_and_one_that_loses_it_stays_with_tls() {
    let path = std::env::temp_dir().join(format!("amalgam-tls-lost-{}", std::process::id()));
    let settings = || {
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
        let tls = Some(TlsSettings { chain: path.clone(), ..tls() });
        Settings { listen, tls, ..crate::support::settings(1) }
    };
    let open = || Server::<Model>::open(settings(), Configuration::default());
    // Not there, empty, no certificate, and a certificate without its key.
    assert!(open().is_err(), "it starts without a file");
    let chain = std::fs::read_to_string(file("server.pem")).expect("text");
    let (without_key, _) = chain.split_once("-----BEGIN PRIVATE KEY").expect("a key");
    assert!(without_key.contains("CERTIFICATE"));
    for content in ["", "nonsense", without_key] {
        std::fs::write(&path, content).expect("writes");
        assert!(open().is_err(), "it starts with {content:?}");
    }
    std::fs::write(&path, &chain).expect("writes");
    let server = Running::of(open().expect("starts"));
    let config = Arc::new(client(BOTH, None));
    let mut first = connect(&server, 0, &config);
    first.talk("mn\r\n", "MN\r\n");
    expect_no_plaintext(&server);
    for content in [None, Some(""), Some("nonsense"), Some(without_key)] {
        match content {
            None => std::fs::remove_file(&path).expect("removes"),
            Some(content) => std::fs::write(&path, content).expect("writes"),
        }
        first.send("refresh_certs\r\n");
        let answer = first.until("\r\n");
        assert!(answer.starts_with("Error loading the"), "{content:?}: {answer}");
        expect_no_plaintext(&server);
        connect(&server, 0, &config).talk("mn\r\n", "MN\r\n");
    }
    std::fs::remove_file(&path).expect("removes");
}

#[test]
fn client_certificates_are_verified_as_configured() {
    use Security::{AsServer, Mutual, ServerOnly};
    let server =
        start(TlsSettings { verify: Verify::IfShown, ..tls() }, &[AsServer, ServerOnly, Mutual]);
    let without_authority = start(TlsSettings { authorities: None, ..tls() }, &[Mutual]);
    for version in BOTH {
        let [nobody, known, stranger] = [None, Some("client.pem"), Some("stranger.pem")]
            .map(|shown| Arc::new(client(&[version], shown)));
        for (place, config, expected) in [
            (0, &nobody, true),
            (0, &known, true),
            (0, &stranger, false),
            (1, &nobody, true),
            (1, &stranger, true),
            (2, &nobody, false),
            (2, &known, true),
            (2, &stranger, false),
        ] {
            let served = is_served(connect(&server, place, config));
            assert_eq!(served, expected, "address {place}, {version:?}");
        }
        for config in [&nobody, &known] {
            assert!(!is_served(connect(&without_authority, 0, config)));
        }
    }
    let errors = connect(&server, 0, &Arc::new(client(BOTH, None))).stat("ssl_handshake_errors");
    assert_eq!(errors, "6");
}

#[test]
fn sessions_are_resumed_only_where_allowed() {
    use Security::{AsServer, Mutual};
    for resumes in [false, true] {
        let server = start(TlsSettings { resumes, ..tls() }, &[AsServer, Mutual]);
        // One session cache for the client, so that it tries to resume everywhere.
        let config = Arc::new(client(&[&version::TLS12], None));
        connect(&server, 0, &config).talk("mn\r\n", "MN\r\n");
        let mut again = connect(&server, 0, &config);
        again.talk("mn\r\n", "MN\r\n");
        let kind = again.0.conn.handshake_kind();
        assert_eq!(kind == Some(rustls::HandshakeKind::Resumed), resumes);
        assert!(!is_served(connect(&server, 1, &config)), "a certificate is required");
        if resumes {
            assert_eq!(again.stat("ssl_new_sessions"), "1");
        }
    }
}

#[test]
fn bytes_that_are_not_tls_close_the_connection() {
    let server = start(TlsSettings { needs_tls13: true, ..tls() }, &[Security::AsServer]);
    for bytes in [&b"get a\r\n"[..], b"\x16\x03\x01\xff\xff", b"\x80\x01\0\0", &[0xff; 20_000]] {
        let mut stream = server.stream(0);
        // The server may have closed the connection before everything was sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        match stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    assert!(!is_served(connect(&server, 0, &Arc::new(client(&[&version::TLS12], None)))));
    // An incomplete ClientHello and then silence: other clients are served.
    let mut half = server.stream(0);
    half.write_all(b"\x16\x03\x01\x01\0\x01").expect("sends");
    half.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    assert!(half.read(&mut [0]).is_err(), "the server waits for the rest");
    assert!(is_served(connect(&server, 0, &Arc::new(client(BOTH, None)))));
}

/// The end comes right behind what it cuts off, so that the server is told of both at once.
#[test]
fn a_client_that_goes_in_the_middle_of_a_record_leaves_no_connection() {
    let server = start(tls(), &[Security::AsServer]);
    for _ in 0..100 {
        let mut stream = server.stream(0);
        stream.write_all(b"\x16\x03\x01\x01\0\x01").expect("sends");
        stream.shutdown(std::net::Shutdown::Write).expect("is open");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let rest = stream.read_to_end(&mut Vec::new());
        assert!(rest.is_ok(), "the server waits for a client that has gone");
    }
}
