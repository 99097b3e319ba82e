//! Requests to etcd's JSON gateway: endpoints, TLS, users and time limits.
//!
//! Connections are kept open between requests, by [`ureq`].
//!
//! Invariants of this module:
//! 1. A request to one endpoint ends within the time limit of [`EtcdClient::new`], whatever it
//!    waits for: a name, a connection, a handshake or an answer.
//! 2. One silent endpoint of several does not end a lease: it is given a part of the lease at most,
//!    and the endpoint that answered last is asked first.
//! 3. A password is sent to etcd alone, and is in no error text or line of the log.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use amalgam_op::IgnorePoison;
use amalgam_protocol::append_base64;
use amalgam_tls::pem::{self, PrivateKeyDer};
use serde_json::{Value, json};
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// The time limit of a request to one endpoint.
const TIMEOUT: Duration = Duration::from_secs(2);
/// If there are other endpoints, the limit is also 1/N of the lease: a keep-alive that is due waits
/// for at most one other request to the silent endpoint.
const TIMEOUT_PARTS: u32 = 3;
/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
const DEFAULT_PORT: u16 = 2379;

/// How to reach a cluster's state in etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfiguration {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT` of each member of etcd.
    pub endpoints: Vec<String>,
    /// Name of the cluster, in the names of its keys.
    pub cluster: String,
    /// Time without a keep-alive after which a node is not a member, in seconds.
    pub lease_seconds: u64,
    /// The authorities that sign etcd's certificates (PEM); needed for https.
    pub authorities: Option<PathBuf>,
    /// The certificate that this process shows to etcd (PEM); None if etcd asks for none.
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM); None if the key is in the file of the certificate.
    pub key: Option<PathBuf>,
    /// Whom requests are made as; None if etcd authenticates nobody.
    pub user: Option<EtcdUser>,
}

impl Default for EtcdConfiguration {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            cluster: "default".to_owned(),
            lease_seconds: 3,
            authorities: None,
            certificate: None,
            key: None,
            user: None,
        }
    }
}

/// A user of etcd.
#[derive(Clone)]
pub struct EtcdUser {
    /// The user's name.
    pub name: String,
    /// The user's password.
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUser({})", self.name)
    }
}

/// Why one endpoint did not answer as it should.
enum RequestError {
    /// The token of the user has expired, or etcd was restarted since.
    Unauthenticated(String),
    Other(String),
}

/// A client of the members of one etcd. Shared by all threads.
pub struct EtcdClient {
    agent: Agent,
    /// `scheme://host:port` of each.
    endpoints: Vec<String>,
    /// Index of the endpoint that answered last. Relaxed: which one is asked first is a hint.
    first: AtomicUsize,
    user: Option<EtcdUser>,
    /// What etcd issued for the user's password; None before the first request, and once it is
    /// refused.
    token: Mutex<Option<String>>,
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.endpoints)
    }
}

impl EtcdClient {
    /// A client that has not connected yet.
    ///
    /// # Errors
    ///
    /// If an endpoint cannot be one, or a certificate cannot be used; the text says which and why.
    pub fn new(configuration: &EtcdConfiguration, lease_seconds: u64) -> Result<Self, String> {
        let endpoints = configuration.endpoints.iter().map(|text| endpoint(text));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        let timeout = match endpoints.len() {
            0 => return Err("no endpoint of etcd is given: name one with --etcd".to_owned()),
            1 => TIMEOUT,
            _ => TIMEOUT.min(Duration::from_secs(lease_seconds) / TIMEOUT_PARTS),
        };
        let tls = tls(configuration)?;
        if let Some(secured) = endpoints.iter().find(|one| one.starts_with("https:"))
            && configuration.authorities.is_none()
        {
            return Err(format!(
                "'{secured}': name the CA that signed etcd's certificate with --etcd-ca FILE"
            ));
        }
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            // etcd is reached directly, whatever proxy the environment names.
            .proxy(None)
            .tls_config(tls)
            .build();
        Ok(Self {
            agent: config.new_agent(),
            endpoints,
            first: AtomicUsize::new(0),
            user: configuration.user.clone(),
            token: Mutex::default(),
        })
    }

    /// Sends a request to the endpoints in turn, from the one that answered last, until one
    /// answers.
    ///
    /// # Errors
    ///
    /// If none does; the text says why each did not.
    pub fn call(&self, path: &str, request: &Value) -> Result<Value, String> {
        let mut errors = Vec::new();
        let first = self.first.load(Ordering::Relaxed);
        let (before, from) = self.endpoints.split_at(first);
        for (number, endpoint) in from.iter().chain(before).enumerate() {
            match self.call_as_user(endpoint, path, request) {
                Ok(answer) => {
                    let index = (first + number) % self.endpoints.len();
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => errors.push(format!("{endpoint}: {error}")),
            }
        }
        Err(errors.join("; "))
    }

    /// Sends a request to one endpoint, with a new token if etcd refuses the present one.
    fn call_as_user(&self, endpoint: &str, path: &str, request: &Value) -> Result<Value, String> {
        let Some(user) = &self.user else {
            return self.post(endpoint, path, request, None).map_err(RequestError::into_text);
        };
        let known = self.token().clone();
        if let Some(token) = &known {
            match self.post(endpoint, path, request, Some(token)) {
                Err(RequestError::Unauthenticated(_)) => *self.token() = None,
                answer => return answer.map_err(RequestError::into_text),
            }
        }
        let token = self.authenticate(endpoint, user)?;
        *self.token() = Some(token.clone());
        self.post(endpoint, path, request, Some(&token)).map_err(RequestError::into_text)
    }

    fn authenticate(&self, endpoint: &str, user: &EtcdUser) -> Result<String, String> {
        let request = json!({ "name": user.name, "password": user.password });
        let answer = self.post(endpoint, "/v3/auth/authenticate", &request, None);
        let refused = |error: RequestError| {
            format!(
                "user '{}' is not authenticated (--etcd-user): {}",
                user.name,
                error.into_text()
            )
        };
        let answer = answer.map_err(refused)?;
        let token = answer["token"].as_str().ok_or("the answer to a password has no token")?;
        Ok(token.to_owned())
    }

    fn token(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.token.lock().ignore_poison()
    }

    fn post(
        &self,
        endpoint: &str,
        path: &str,
        request: &Value,
        token: Option<&str>,
    ) -> Result<Value, RequestError> {
        let other = |error: ureq::Error| RequestError::Other(error.to_string());
        let mut post = self.agent.post(format!("{endpoint}{path}"));
        post = post.header("Content-Type", "application/json");
        if let Some(token) = token {
            post = post.header("Authorization", token);
        }
        let mut response = post.send(request.to_string()).map_err(other)?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        understand(status, &body.map_err(other)?)
    }
}

impl RequestError {
    fn into_text(self) -> String {
        match self {
            Self::Unauthenticated(text) | Self::Other(text) => text,
        }
    }
}

/// `scheme://host:port` of an endpoint as it was given.
fn endpoint(given: &str) -> Result<String, String> {
    let (scheme, rest) = given.split_once("://").unwrap_or(("http", given));
    if !["http", "https"].contains(&scheme) {
        return Err(format!("'{given}': an endpoint of etcd begins with http:// or https://"));
    }
    let host = rest.trim_end_matches('/');
    if host.is_empty() || host.contains(['/', '@', ' ']) {
        return Err(format!("'{given}': an endpoint of etcd is http://HOST:PORT"));
    }
    // The colons of an address of IPv6 stand in brackets.
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let port = if has_port { String::new() } else { format!(":{DEFAULT_PORT}") };
    Ok(format!("{scheme}://{host}{port}"))
}

fn tls(configuration: &EtcdConfiguration) -> Result<TlsConfig, String> {
    let mut builder =
        TlsConfig::builder().unversioned_rustls_crypto_provider(amalgam_tls::provider());
    let authorities = match &configuration.authorities {
        None => Vec::new(),
        Some(path) => {
            pem::read_authorities(path)?;
            pem::read_certificates("etcd's CA certificate", path)?
        }
    };
    let der =
        |certificate: &_| Certificate::from_der(AsRef::<[u8]>::as_ref(certificate)).to_owned();
    let authorities = authorities.iter().map(der).collect();
    builder = builder.root_certs(RootCerts::Specific(Arc::new(authorities)));
    match (&configuration.certificate, &configuration.key) {
        (None, None) => {}
        (None, Some(_)) => return Err("--etcd-key needs a certificate: --etcd-cert".to_owned()),
        (Some(certificate), key) => {
            let key = key.as_ref().unwrap_or(certificate);
            let (chain, key) = pem::read_pair(certificate, key, false)?;
            let chain: Vec<_> = chain.iter().map(der).collect();
            // Written anew, as the label in the file need not name the key's real format.
            let label = match &key {
                PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
                PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
                _ => "PRIVATE KEY",
            };
            let mut text = format!("-----BEGIN {label}-----\n").into_bytes();
            append_base64(&mut text, key.secret_der());
            text.extend(format!("\n-----END {label}-----\n").into_bytes());
            let key = PrivateKey::from_pem(&text).map_err(|error| error.to_string())?;
            builder = builder.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
    }
    Ok(builder.build())
}

/// The JSON of an answer, or why it is none.
///
/// # Errors
///
/// If it is not JSON or reports an error; the text says which.
#[cfg(fuzzing)]
pub fn answer(status: u16, body: &[u8]) -> Result<Value, String> {
    understand(status, body).map_err(RequestError::into_text)
}

/// The JSON of an answer.
fn understand(status: u16, body: &[u8]) -> Result<Value, RequestError> {
    // A stream has one answer a line; only the first is of interest.
    let line = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let json: Result<Value, _> = serde_json::from_slice(line);
    let error = json.as_ref().ok().and_then(|json| json["error"].as_str());
    match (status, error, json.as_ref()) {
        (200, None, Ok(_)) => json.map_err(|error| RequestError::Other(error.to_string())),
        (200, None, Err(error)) => Err(RequestError::Other(format!("not JSON: {error}"))),
        (401, error, _) => Err(RequestError::Unauthenticated(format!(
            "401 {}",
            error.unwrap_or("unauthenticated")
        ))),
        (_, Some(error), _) if error.contains("invalid auth token") => {
            Err(RequestError::Unauthenticated(error.to_owned()))
        }
        (_, error, _) => {
            Err(RequestError::Other(format!("{status} {}", error.unwrap_or("without a reason"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::time::Instant;

    use amalgam_tls::{Security, ServerTls, TlsSettings, Verify};

    use super::*;

    fn client(endpoints: &[String], lease_seconds: u64) -> Result<EtcdClient, String> {
        let endpoints = endpoints.to_vec();
        let configuration = EtcdConfiguration { endpoints, ..EtcdConfiguration::default() };
        EtcdClient::new(&configuration, lease_seconds)
    }

    #[test]
    fn endpoints_are_checked() {
        let good = |text: &str| endpoint(text).expect("it is one");
        assert_eq!(good("http://a:1/"), "http://a:1");
        assert_eq!(
            (good("a"), good("[::1]")),
            ("http://a:2379".into(), "http://[::1]:2379".into())
        );
        assert_eq!(good("https://[::1]:7"), "https://[::1]:7");
        for bad in ["", "http://", "ftp://a:1", "http://a/b", "http://u@a"] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
        assert!(client(&[], 3).is_err());
        let error = client(&["https://a".to_owned()], 3).expect_err("there is no authority");
        assert!(error.contains("--etcd-ca"), "{error}");
    }

    /// An endpoint that answers each request of a connection with the next of `answers`, and then
    /// closes it. It keeps what it was asked, a connection after the other.
    fn serve(mut stream: impl Read + Write, answers: &[&str]) -> Vec<String> {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut request, mut buffer) = (Vec::new(), [0; 1 << 10]);
            // No request of these tests has a brace but at the ends of its body.
            while !request.ends_with(b"}") {
                match stream.read(&mut buffer) {
                    Ok(count) if count > 0 => request.extend_from_slice(&buffer[..count]),
                    _ => return requests,
                }
            }
            requests.push(String::from_utf8(request).expect("text"));
            if stream.write_all(answer.as_bytes()).is_err() {
                break;
            }
        }
        requests
    }

    fn answer(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        (listener, address)
    }

    /// As where packets to a machine vanish: nothing is refused there.
    #[test]
    fn a_silent_endpoint_is_asked_once_and_for_a_part_of_the_lease() {
        const LEASE_SECONDS: u64 = 2;
        let ((mute, silent), (listener, address)) = (listen(), listen());
        // It ends with the test's process.
        std::thread::spawn(move || {
            let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
            for stream in listener.incoming().map_while(Result::ok) {
                serve(stream, &[answer]);
            }
        });
        let client = client(&[silent, address], LEASE_SECONDS).expect("endpoints");
        let timeout = Duration::from_secs(LEASE_SECONDS) / TIMEOUT_PARTS;
        let begin = Instant::now();
        client.call("/", &json!({})).expect("the other answers");
        let first = begin.elapsed();
        // That, and the pause before the next keep-alive, leave a third of the lease.
        assert!(first >= timeout && first < TIMEOUT, "{first:?}");
        // Each on a new connection, since this endpoint announces that it closes the one before.
        // Without that, a request may go out on it just before it is closed, and fail.
        for _ in 0..20 {
            client.call("/", &json!({})).expect("the other answers");
        }
        mute.set_nonblocking(true).expect("an option");
        let asked = mute.incoming().map_while(Result::ok).count();
        assert_eq!(asked, 1, "it was asked again");
    }

    #[test]
    fn a_user_is_authenticated_again_once_the_token_has_expired() {
        let (listener, address) = listen();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            let token = |number| answer("200 OK", &format!(r#"{{"token":"t{number}"}}"#));
            let gone = answer("401 Unauthorized", r#"{"error":"invalid auth token"}"#);
            let good = answer("200 OK", r#"{"a":"b"}"#);
            serve(stream, &[&token(1), &good, &good, &gone, &token(2), &good])
        });
        let user = Some(EtcdUser { name: "me".to_owned(), password: "secret".to_owned() });
        let endpoints = vec![address];
        let configuration = EtcdConfiguration { endpoints, user, ..EtcdConfiguration::default() };
        let client = EtcdClient::new(&configuration, 3).expect("an endpoint");
        for _ in 0..3 {
            assert_eq!(client.call("/v3/kv/range", &json!({})), Ok(json!({ "a": "b" })));
        }
        let refused = client.call("/", &json!({})).expect_err("nobody listens there any more");
        assert!(!refused.contains("secret") && !format!("{configuration:?}").contains("secret"));
        let requests = server.join().expect("they were sent on one connection");
        let with = |request: &String| -> String {
            let token = request.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("authorization").then_some(value)
            });
            token.unwrap_or("-").to_owned()
        };
        assert_eq!(
            requests.iter().map(with).collect::<Vec<_>>(),
            ["-", "t1", "t1", "t1", "-", "t2"]
        );
        assert!(requests[0].contains(r#""password":"secret""#), "{}", requests[0]);
    }

    /// TLS over a blocking socket.
    struct Secured {
        session: Box<amalgam_tls::ServerSession>,
        stream: TcpStream,
    }

    impl Read for Secured {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let mut plain = Vec::new();
            loop {
                let (limit, take) = (buffer.len(), |piece: &[u8]| plain.extend_from_slice(piece));
                match self.session.receive(&mut self.stream, limit, take) {
                    Ok(_) => break,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            buffer[..plain.len()].copy_from_slice(&plain);
            Ok(plain.len())
        }
    }

    impl Write for Secured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.session.transmit(&mut self.stream, &[std::io::IoSlice::new(bytes)])
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn https_shows_and_verifies_certificates() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/certificates");
        let file = |name: &str| folder.join(format!("{name}.pem"));
        let tls = TlsSettings {
            chain: file("server"),
            key: None,
            has_der_key: false,
            authorities: Some(file("authority")),
            verify: Verify::Always,
            ciphers: None,
            needs_tls13: false,
            resumes: false,
            send_bytes: 1 << 14,
            shown: Vec::new(),
        };
        let (listener, address) = listen();
        let endpoint = address.replace("127.0.0.1", "https://localhost");
        let tls = ServerTls::open(tls, 1).expect("certificates");
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let session = tls.session(Security::AsServer).expect("certificates");
                let session = session.expect("it is secured");
                serve(Secured { session, stream }, &[&answer("200 OK", "{}")]);
            }
        });
        let call = |authority: &str, certificate: Option<&str>| {
            let configuration = EtcdConfiguration {
                endpoints: vec![endpoint.clone()],
                authorities: Some(file(authority)),
                certificate: certificate.map(file),
                ..EtcdConfiguration::default()
            };
            EtcdClient::new(&configuration, 3).expect("certificates").call("/", &json!({}))
        };
        assert_eq!(call("authority", Some("client")), Ok(json!({})));
        assert!(call("authority", None).is_err(), "etcd asks for a certificate");
        assert!(call("authority", Some("stranger")).is_err(), "of another authority");
        let error = call("stranger", Some("client")).expect_err("etcd is not known");
        assert!(error.contains("UnknownIssuer"), "{error}");
    }

    #[test]
    fn certificates_that_cannot_be_used_are_named() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/certificates");
        let file = |name: &str| Some(folder.join(format!("{name}.pem")));
        let refused = |authorities, certificate, key| {
            let endpoints = vec!["https://localhost".to_owned()];
            let configuration = EtcdConfiguration {
                endpoints,
                authorities,
                certificate,
                key,
                ..EtcdConfiguration::default()
            };
            EtcdClient::new(&configuration, 3).expect_err("it cannot be used")
        };
        let error = refused(file("missing"), None, None);
        assert!(error.contains("missing.pem"), "{error}");
        let error = refused(file("authority"), None, file("client"));
        assert!(error.contains("--etcd-cert"), "{error}");
        let error = refused(file("authority"), file("client"), file("server"));
        assert!(error.contains("server.pem"), "not its key: {error}");
    }

    #[test]
    fn answers_are_understood() {
        let text = |status, body: &str| {
            understand(status, body.as_bytes()).map_err(RequestError::into_text)
        };
        assert_eq!(text(200, "{\"a\":\"b\"}\n{\"a\":\"c\"}\n"), Ok(json!({ "a": "b" })));
        assert_eq!(text(404, "{\"error\":\"no lease\"}"), Err("404 no lease".to_owned()));
        assert_eq!(text(502, "<html>"), Err("502 without a reason".to_owned()));
        assert!(text(200, "{\"a\":").is_err() && text(200, "{\"error\":\"x\"}").is_err());
        let expired = understand(401, b"{\"error\":\"etcdserver: invalid auth token\"}");
        assert!(matches!(expired, Err(RequestError::Unauthenticated(_))));
    }
}
