//! TLS of a server's port for clients, as memcached's `ssl_*` options describe it.

use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{Der, TrustAnchor};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion, version};

use crate::config::{OwnCertificate, Reloadable, accepting};
use crate::pem::read_authorities;
use crate::session::{ReceiveError, Received, Session};

/// Number of sessions that the server stores for clients that reconnect; OpenSSL's default.
const SESSIONS: usize = 20 << 10;
/// Number of session tickets that a TLS 1.3 client is sent; the default of rustls.
const TICKETS: usize = 2;
/// Estimated memory of an idle session, in bytes: keys, the state of both directions, and a buffer
/// for the beginning of a record.
const IDLE_BYTES: usize = 8 << 10;

/// How connections to one address are secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// TLS if the server has certificates, otherwise plaintext.
    #[default]
    AsServer,
    /// No TLS, even if the server has certificates (`notls:`).
    Plain,
    /// TLS; clients are not asked for certificates (`btls:`).
    ServerOnly,
    /// TLS; clients must show certificates (`mtls:`).
    Mutual,
}

/// Whether clients are asked for certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Clients are not asked for a certificate.
    #[default]
    Not,
    /// Clients are asked; a certificate that is shown must be valid.
    IfShown,
    /// Clients are asked, and a client without a valid certificate is refused.
    Always,
}

/// The settings of TLS.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// File with the server's certificate, followed by the intermediate certificates (PEM).
    pub chain: PathBuf,
    /// File with the certificate's private key; None if the key is in the chain's file.
    pub key: Option<PathBuf>,
    /// Whether the key's file is DER rather than PEM.
    pub has_der_key: bool,
    /// File with the authorities that sign clients' certificates (PEM). None: no client has a
    /// valid certificate.
    pub authorities: Option<PathBuf>,
    /// Whether clients are asked for certificates where [`Security::AsServer`] applies.
    pub verify: Verify,
    /// OpenSSL's names of the cipher suites of TLS 1.2 to offer, separated by colons; None for all.
    pub ciphers: Option<String>,
    /// Whether TLS 1.2 is refused.
    pub needs_tls13: bool,
    /// Whether sessions can be resumed.
    pub resumes: bool,
    /// Upper bound, in bytes, of the plaintext that is encrypted ahead of what the socket took.
    pub send_bytes: usize,
    /// memcached's `-o ssl_*` options that `stats settings` shows: names and values.
    pub shown: Vec<(String, String)>,
}

/// The configurations that were built from the files, one for each kind of address.
struct Configs {
    as_server: Arc<ServerConfig>,
    server_only: Arc<ServerConfig>,
    mutual: Arc<ServerConfig>,
}

/// Counters that `stats` shows. Each is only ever incremented, relaxed: no other memory depends on
/// them.
#[derive(Debug, Default)]
pub struct TlsCounters {
    /// Handshakes that failed.
    pub handshake_errors: AtomicU64,
    /// Connections that violated the TLS protocol after the handshake.
    pub protocol_errors: AtomicU64,
    /// Sessions that clients may resume.
    pub new_sessions: AtomicU64,
}

/// The certificates of a server's port for clients, and the factory of sessions that use them.
/// Shared by all threads.
pub struct ServerTls {
    settings: TlsSettings,
    configs: Reloadable<Configs>,
    /// The counters of handshakes; see [`TlsCounters`].
    pub counters: Arc<TlsCounters>,
    refreshed_seconds: AtomicU32,
}

/// A cache of resumable sessions that counts them.
#[derive(Debug)]
struct CountedSessions {
    memory: Arc<ServerSessionMemoryCache>,
    counters: Arc<TlsCounters>,
}

impl StoresServerSessions for CountedSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.counters.new_sessions.fetch_add(1, Ordering::Relaxed);
        self.memory.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.memory.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.memory.take(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl ServerTls {
    /// Reads the certificates. `seconds` is the present second of the server's clock.
    ///
    /// # Errors
    ///
    /// If a file cannot be used; the text says which and why.
    pub fn open(settings: TlsSettings, seconds: u32) -> Result<Self, String> {
        let counters = Arc::new(TlsCounters::default());
        let configs = Reloadable::new(load(&settings, &counters)?);
        Ok(Self { settings, configs, counters, refreshed_seconds: AtomicU32::new(seconds) })
    }

    /// Reads the certificates again; connections from now on use the new ones.
    ///
    /// # Errors
    ///
    /// As [`ServerTls::open`]. After an error the previous certificates stay in use.
    pub fn refresh(&self, seconds: u32) -> Result<(), String> {
        self.configs.replace(load(&self.settings, &self.counters)?);
        self.refreshed_seconds.store(seconds, Ordering::Relaxed);
        Ok(())
    }

    /// The second at which the certificates were last read.
    pub fn refreshed_seconds(&self) -> u32 {
        self.refreshed_seconds.load(Ordering::Relaxed)
    }

    /// Whether clients can resume sessions.
    pub fn resumes(&self) -> bool {
        self.settings.resumes
    }

    /// Creates a session for a connection to an address with this security; None if the address is
    /// not secured.
    ///
    /// # Errors
    ///
    /// If the address is secured and there can be no session: the connection must be closed then,
    /// as it may not be served in plaintext.
    pub fn session(&self, security: Security) -> Result<Option<Box<ServerSession>>, rustls::Error> {
        let configs = self.configs.current();
        let config = match security {
            Security::Plain => return Ok(None),
            Security::AsServer => &configs.as_server,
            Security::ServerOnly => &configs.server_only,
            Security::Mutual => &configs.mutual,
        };
        let connection = ServerConnection::new(Arc::clone(config))?;
        let session = Session::new(connection.into(), Some(self.settings.send_bytes));
        Ok(Some(Box::new(ServerSession { session, counters: Arc::clone(&self.counters) })))
    }
}

/// The TLS session of one client connection.
pub struct ServerSession {
    session: Session,
    counters: Arc<TlsCounters>,
}

impl ServerSession {
    /// Passes at most `limit` bytes of the client's data to `take`, in pieces, and sends TLS's own
    /// replies. Returns the number of bytes, 0 at the end of the stream, and whether more may wait.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if no data is available; otherwise the socket's error, or `InvalidData` if the
    /// client violated the TLS protocol.
    pub fn receive(
        &mut self,
        socket: &mut (impl Read + Write),
        limit: usize,
        take: impl FnMut(&[u8]),
    ) -> io::Result<(usize, bool)> {
        let received = self.session.receive(socket, limit, take);
        // Before the flush, which sends the alert: a client that has seen it finds itself counted.
        if let Err(ReceiveError::Tls { was_handshaking, .. }) = &received {
            let counter = match was_handshaking {
                true => &self.counters.handshake_errors,
                false => &self.counters.protocol_errors,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let flushed = self.session.write_to(socket);
        match received {
            Ok(Received { bytes, may_have_more }) => flushed.map(|_| (bytes, may_have_more)),
            // Whether the alert was sent does not matter: the connection ends anyway.
            Err(ReceiveError::Tls { error, .. }) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
            Err(ReceiveError::Io(error)) => flushed.and(Err(error)),
        }
    }

    /// Encrypts and sends the pieces, or the first of them, and returns the number of plaintext
    /// bytes taken. Ciphertext that the socket does not take waits in the session.
    ///
    /// # Errors
    ///
    /// `WouldBlock` while earlier ciphertext is still unsent; otherwise the socket's error.
    pub fn transmit(
        &mut self,
        socket: &mut impl Write,
        pieces: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        if !self.session.write_to(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.session.encrypt(pieces)?;
        self.session.write_to(socket)?;
        Ok(taken)
    }

    /// Sends pending ciphertext and returns whether all of it was sent.
    ///
    /// # Errors
    ///
    /// Errors of the socket, apart from `WouldBlock`.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        self.session.write_to(socket)
    }

    /// Whether the handshake is not complete.
    pub fn is_handshaking(&self) -> bool {
        self.session.connection.is_handshaking()
    }

    /// Whether ciphertext waits to be sent.
    #[inline]
    pub fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Bytes that were taken to be sent and still wait in the session.
    pub fn unsent_bytes(&self) -> usize {
        self.session.unsent_bytes()
    }

    /// Bytes that wait in the session: to be sent, or for the rest of their message.
    #[inline]
    pub fn waiting_bytes(&self) -> usize {
        self.session.unsent_bytes() + self.session.undelivered_bytes()
    }

    /// Estimated memory of the session, in bytes, without what waits in it.
    pub fn kept_bytes(&self) -> usize {
        IDLE_BYTES
    }

    /// Sends the close message, unless the socket does not take it now.
    pub fn close(&mut self, socket: &mut impl Write) {
        self.session.close();
        let _ = self.session.write_to(socket);
    }
}

fn load(settings: &TlsSettings, counters: &Arc<TlsCounters>) -> Result<Configs, String> {
    let own = OwnCertificate::read(&settings.chain, settings.key.as_deref(), settings.has_der_key)?;
    let provider = Arc::new(provider(settings.ciphers.as_deref())?);
    let roots = Arc::new(roots(settings.authorities.as_deref())?);
    let versions: &[&'static SupportedProtocolVersion] = match settings.needs_tls13 {
        true => &[&version::TLS13],
        false => &[&version::TLS13, &version::TLS12],
    };
    let config = |verify: Verify| -> Result<Arc<ServerConfig>, String> {
        let verifier = verifier(&roots, &provider, verify)?;
        let mut config = accepting(&provider, versions, verifier, &own)?;
        if settings.resumes {
            // Each configuration has its own session cache: a session that began without a client's
            // certificate must not be resumed where one is required.
            let memory = ServerSessionMemoryCache::new(SESSIONS);
            let counters = Arc::clone(counters);
            config.session_storage = Arc::new(CountedSessions { memory, counters });
            config.send_tls13_tickets = TICKETS;
        }
        Ok(Arc::new(config))
    };
    Ok(Configs {
        as_server: config(settings.verify)?,
        server_only: config(Verify::Not)?,
        mutual: config(Verify::Always)?,
    })
}

/// The cryptography, with the cipher suites of TLS 1.2 that `ciphers` names. As in OpenSSL, the
/// list does not choose among those of TLS 1.3.
fn provider(ciphers: Option<&str>) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    let Some(ciphers) = ciphers else { return Ok(provider) };
    let names: Vec<_> = ciphers.split([':', ',', ' ']).map(suite_name).collect();
    let is_all = ciphers.split(':').any(|name| ["ALL", "DEFAULT", "HIGH"].contains(&name));
    provider.cipher_suites.retain(|suite| {
        let is_new = suite.tls13().is_some();
        is_new || is_all || names.iter().any(|name| suite.suite().as_str() == Some(name))
    });
    match provider.cipher_suites.iter().any(|suite| suite.tls13().is_none()) {
        true => Ok(provider),
        false => Err(format!("Error setting the provided cipher(s): {ciphers}")),
    }
}

/// The IANA name of a cipher suite, from OpenSSL's, as `ECDHE-RSA-AES128-GCM-SHA256`.
fn suite_name(openssl: &str) -> String {
    let name = openssl.replace("AES128", "AES_128").replace("AES256", "AES_256");
    let name = match name.strip_suffix("CHACHA20-POLY1305") {
        Some(start) => format!("{start}CHACHA20-POLY1305-SHA256"),
        None => name,
    };
    let name = name.replacen("RSA-", "RSA-WITH-", 1).replacen("ECDSA-", "ECDSA-WITH-", 1);
    format!("TLS_{}", name.replace('-', "_"))
}

fn roots(path: Option<&Path>) -> Result<RootCertStore, String> {
    let Some(path) = path else {
        let mut roots = RootCertStore::empty();
        // rustls does not verify clients without any authority. This one signs nothing, since no
        // key fits its empty name.
        roots.roots.push(TrustAnchor {
            subject: Der::from_slice(&[]),
            subject_public_key_info: Der::from_slice(&[]),
            name_constraints: None,
        });
        return Ok(roots);
    };
    read_authorities(path)
}

fn verifier(
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    verify: Verify,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
    let builder = match verify {
        Verify::Not => return Ok(None),
        Verify::IfShown => builder.allow_unauthenticated(),
        Verify::Always => builder,
    };
    let verifier = builder.build().map_err(|error| format!("Error loading the CA: {error}"))?;
    Ok(Some(verifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_handshake_are_counted() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates/node.pem");
        let tls = ServerTls::open(settings(file), 1).unwrap();
        let mut session = tls.session(Security::AsServer).unwrap().expect("it is secured");
        // A hello of 60,000 bytes comes a kibibyte at a time, each in a record of its own.
        let mut record = vec![22, 3, 1, 4, 0];
        record.extend([1, 0, 234, 96, 3, 3]);
        for part in 1..20 {
            record.resize(5 + 1024, 0);
            let mut socket = Pipe(std::mem::take(&mut record));
            let received = session.receive(&mut socket, 1 << 14, |_| panic!("there are no data"));
            assert_eq!(received.unwrap_err().kind(), io::ErrorKind::WouldBlock);
            assert_eq!(session.waiting_bytes(), part * (5 + 1024));
            record.extend([22, 3, 1, 4, 0]);
        }
    }

    /// A socket that a few bytes have come to.
    struct Pipe(Vec<u8>);

    impl Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.len() {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                length => {
                    let count = length.min(buffer.len());
                    buffer[..count].copy_from_slice(&self.0[..count]);
                    self.0.drain(..count);
                    Ok(count)
                }
            }
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn settings(chain: PathBuf) -> TlsSettings {
        TlsSettings {
            chain,
            key: None,
            has_der_key: false,
            authorities: None,
            verify: Verify::Not,
            ciphers: None,
            needs_tls13: false,
            resumes: false,
            send_bytes: 1 << 14,
            shown: Vec::new(),
        }
    }

    #[test]
    fn what_cannot_be_encrypted_is_refused() {
        let file = |name: &str| {
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
        };
        let tls = ServerTls::open(settings(file("node.pem")), 1).unwrap();
        assert!(tls.session(Security::AsServer).unwrap().is_some());
        assert!(tls.session(Security::Plain).unwrap().is_none());
        let mut unusable = ServerConfig::clone(&tls.configs.current().as_server);
        unusable.max_fragment_size = Some(1);
        let unusable = Arc::new(unusable);
        let (as_server, server_only) = (Arc::clone(&unusable), Arc::clone(&unusable));
        tls.configs.replace(Configs { as_server, server_only, mutual: unusable });
        assert!(tls.session(Security::AsServer).is_err());
    }

    #[test]
    fn suites_are_chosen_by_the_names_of_openssl() {
        let count = |ciphers| provider(ciphers).map(|provider| provider.cipher_suites.len());
        let all = count(None).unwrap();
        assert_eq!(count(Some("HIGH:!aNULL")), Ok(all));
        let new = all - 6;
        assert_eq!(count(Some("ECDHE-RSA-AES128-GCM-SHA256")), Ok(new + 1));
        let two = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-CHACHA20-POLY1305:AES128-SHA";
        assert_eq!(count(Some(two)), Ok(new + 2));
        assert!(count(Some("NULL-MD5")).is_err());
    }
}
