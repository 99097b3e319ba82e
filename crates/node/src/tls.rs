//! TLS between nodes, and between them and clients of chunks.
//!
//! Invariants of this room:
//! 1. Both sides show a certificate that the cluster's authority signed; nothing is read before.
//!    Who says to be a node must have one that is good for servers, so a client's is not enough.
//! 2. Names in certificates count for nothing: nodes are dialed by addresses, and move. That nobody
//!    with a certificate stands between two others is sure all the same, since the proof of the
//!    join token holds for one session only ([`Session::binding`]).
//! 3. New certificates are read whole and checked before they replace the old ones; connections
//!    keep what they began with.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::SystemTime;

use amalgam_server::{read_authorities, read_certificates, read_key};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};

/// What the proof of the token is bound to is derived under this name.
const BINDING_LABEL: &[u8] = b"EXPORTER-amalgam-join-token";
const BINDING_BYTES: usize = 32;

/// Where a node's or a client's certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate and those that lead from it to the authority (PEM).
    pub certificate: PathBuf,
    /// Its private key (PEM); none if it is in the same file.
    pub key: Option<PathBuf>,
    /// The authorities that signed those of everybody in the cluster (PEM).
    pub authorities: PathBuf,
}

impl TlsFiles {
    fn paths(&self) -> [&Path; 3] {
        let key = self.key.as_ref().unwrap_or(&self.certificate);
        [&self.certificate, key, &self.authorities]
    }

    /// When each was changed; none for one that is not there.
    fn changed(&self) -> [Option<SystemTime>; 3] {
        self.paths().map(|path| std::fs::metadata(path).and_then(|about| about.modified()).ok())
    }
}

/// Why a connection is not secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// The other side sent something else.
    Plain,
    /// The other side has no certificate.
    NoCertificate,
    /// The other side's certificate was not signed by the cluster's authority.
    Stranger,
    /// The other side says to be a node, and its certificate is none of a server.
    NoNode,
    /// The other side's certificate is over, or not yet good.
    Expired,
    /// The other side does not take this one's certificate, and says so.
    Refused(String),
    /// Something else.
    Other(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("the other side does not speak TLS"),
            Self::NoCertificate => f.write_str("the other side shows no certificate"),
            Self::Stranger => {
                f.write_str("the other side's certificate is of another authority (--tls-ca)")
            }
            Self::NoNode => f.write_str("the other side's certificate is not one of a node"),
            Self::Expired => f.write_str("the other side's certificate is over, or not yet good"),
            Self::Refused(alert) => {
                write!(f, "the other side refuses this one's certificate: {alert}")
            }
            Self::Other(error) => write!(f, "TLS: {error}"),
        }
    }
}

impl std::error::Error for TlsError {}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        use CertificateError as Certificate;
        match error {
            Error::InvalidMessage(_) => Self::Plain,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(reason) => match reason {
                Certificate::UnknownIssuer | Certificate::BadSignature => Self::Stranger,
                Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => {
                    Self::NoNode
                }
                Certificate::Expired
                | Certificate::ExpiredContext { .. }
                | Certificate::NotValidYet
                | Certificate::NotValidYetContext { .. } => Self::Expired,
                other => Self::Other(Error::InvalidCertificate(other).to_string()),
            },
            Error::AlertReceived(alert) => Self::Refused(format!("{alert:?}")),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Whose certificates are good, whatever the names in them.
#[derive(Debug)]
struct Authority {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl Authority {
    /// Whether a certificate is one of a node.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            others,
            now,
            algorithms,
        )
    }
}

impl ServerCertVerifier for Authority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate, others, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken between nodes".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// What was read from the files.
#[derive(Debug)]
struct Configs {
    authority: Arc<Authority>,
    accepting: Arc<ServerConfig>,
    dialing: Arc<ClientConfig>,
}

/// See the head of this module. Shared by all threads.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    configs: RwLock<Configs>,
    changed: Mutex<[Option<SystemTime>; 3]>,
}

impl Tls {
    /// Reads the certificates.
    ///
    /// # Errors
    ///
    /// If a file cannot be used; the text says which and why.
    pub fn open(files: TlsFiles) -> Result<Self, String> {
        let changed = Mutex::new(files.changed());
        let configs = RwLock::new(load(&files)?);
        Ok(Self { files, configs, changed })
    }

    /// Reads the certificates again if a file was changed, for connections from now on; whether it
    /// did.
    ///
    /// # Errors
    ///
    /// As [`Tls::open`], once a change; the old certificates stay in use then.
    pub fn refresh(&self) -> Result<bool, String> {
        let now = self.files.changed();
        let before = {
            let mut changed = self.changed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            std::mem::replace(&mut *changed, now)
        };
        if before == now {
            return Ok(false);
        }
        let configs = load(&self.files)?;
        *self.configs.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = configs;
        Ok(true)
    }

    /// A session in which nothing was said.
    ///
    /// # Errors
    ///
    /// [`TlsError::Other`].
    pub fn session(&self, is_dialer: bool) -> Result<Session, TlsError> {
        let configs = self.configs.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut connection = if is_dialer {
            // No name is asked for or looked at.
            let name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            Connection::from(ClientConnection::new(Arc::clone(&configs.dialing), name)?)
        } else {
            Connection::from(ServerConnection::new(Arc::clone(&configs.accepting))?)
        };
        // What is sealed at once is bounded by who calls.
        connection.set_buffer_limit(None);
        Ok(Session { connection, authority: Arc::clone(&configs.authority) })
    }
}

fn load(files: &TlsFiles) -> Result<Configs, String> {
    let chain = read_certificates("the certificate chain", &files.certificate)?;
    let key = read_key(files.key.as_ref().unwrap_or(&files.certificate), false)?;
    let roots = Arc::new(read_authorities(&files.authorities)?);
    let provider = Arc::new(ring::default_provider());
    let unusable = |error: Error| format!("the certificate cannot be used: {error}");
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| format!("the CA certificate cannot be used: {error}"))?;
    let mut accepting = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(unusable)?;
    // Connections last; a session that is resumed would show no certificate.
    accepting.session_storage = Arc::new(NoServerSessionStorage {});
    accepting.send_tls13_tickets = 0;
    let authority = Arc::new(Authority { roots, provider: Arc::clone(&provider) });
    let verifier = Arc::clone(&authority) as Arc<dyn ServerCertVerifier>;
    let mut dialing = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)
        .map_err(unusable)?;
    dialing.resumption = Resumption::disabled();
    dialing.enable_sni = false;
    Ok(Configs { authority, accepting: Arc::new(accepting), dialing: Arc::new(dialing) })
}

/// One side of a secured connection. Bytes go in and come out.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    authority: Arc<Authority>,
}

impl Session {
    /// Takes bytes that arrived and appends what they say to `plain`. What the other side is to
    /// hear of it, the reason for an error too, comes out of [`Self::seal`].
    ///
    /// # Errors
    ///
    /// [`TlsError`]; the connection is to be closed then.
    pub fn receive(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), TlsError> {
        while !bytes.is_empty() {
            // Fails only when it has too much already, and it is emptied below.
            let broken = |error: io::Error| TlsError::Other(error.to_string());
            if self.connection.read_tls(&mut bytes).map_err(broken)? == 0 {
                return Ok(());
            }
            self.connection.process_new_packets()?;
            let mut reader = self.connection.reader();
            while let Ok(said) = reader.fill_buf()
                && !said.is_empty()
            {
                let count = said.len();
                plain.extend_from_slice(said);
                reader.consume(count);
            }
        }
        Ok(())
    }

    /// Appends to `out` what is to be sent: what TLS itself has to say, and `plain`. Before the
    /// session is open that waits in it.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        // Writing into memory does not fail.
        let _ = self.connection.writer().write_all(plain);
        while self.connection.wants_write() {
            if self.connection.write_tls(out).is_err() {
                break;
            }
        }
    }

    /// Whether TLS itself has something to say.
    pub fn owes(&self) -> bool {
        self.connection.wants_write()
    }

    /// What only the two ends of this session know; none before it is open.
    pub fn binding(&self) -> Option<[u8; BINDING_BYTES]> {
        if self.connection.is_handshaking() {
            return None;
        }
        let bytes = [0; BINDING_BYTES];
        self.connection.export_keying_material(bytes, BINDING_LABEL, None).ok()
    }

    /// Whether the other side's certificate is one of a node.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if not.
    pub fn check_node(&self) -> Result<(), TlsError> {
        let shown = self.connection.peer_certificates().unwrap_or_default();
        let (own, others) = shown.split_first().ok_or(TlsError::NoCertificate)?;
        Ok(self.authority.check(own, others, UnixTime::now())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates")
    }

    fn files(name: &str) -> TlsFiles {
        let (certificate, authorities) = (folder().join(name), folder().join("authority.pem"));
        TlsFiles { certificate, key: None, authorities }
    }

    fn session(name: &str, is_dialer: bool) -> Session {
        let tls = Tls::open(files(name)).expect("they are good");
        tls.session(is_dialer).expect("it begins")
    }

    /// Hands bytes to and fro until both are silent or one breaks; what each came to.
    fn meet(one: &mut Session, other: &mut Session) -> [Result<Vec<u8>, TlsError>; 2] {
        let mut results = [Ok(Vec::new()), Ok(Vec::new())];
        let (mut from_one, mut from_other) = (Vec::new(), Vec::new());
        one.seal(b"from one", &mut from_one);
        other.seal(b"from the other", &mut from_other);
        while !from_one.is_empty() || !from_other.is_empty() {
            let (to_other, to_one) =
                (std::mem::take(&mut from_one), std::mem::take(&mut from_other));
            let sides = [(&mut *one, to_one, &mut from_one), (other, to_other, &mut from_other)];
            for (result, (side, bytes, out)) in results.iter_mut().zip(sides) {
                // Byte by byte: nothing depends on where packets end.
                for byte in bytes.chunks(1) {
                    if let Ok(plain) = result
                        && let Err(error) = side.receive(byte, plain)
                    {
                        *result = Err(error);
                    }
                }
                side.seal(&[], out);
            }
        }
        results
    }

    #[test]
    fn who_has_the_authority_s_certificate_is_heard() {
        let (mut one, mut other) = (session("node.pem", true), session("renewed.pem", false));
        assert_eq!(one.binding(), None);
        let said = meet(&mut one, &mut other);
        assert_eq!(said, [Ok(b"from the other".to_vec()), Ok(b"from one".to_vec())]);
        assert!(one.binding().is_some() && one.binding() == other.binding());
        assert_eq!((one.check_node(), other.check_node()), (Ok(()), Ok(())));
        let (mut again, mut with) = (session("node.pem", true), session("renewed.pem", false));
        let _ = meet(&mut again, &mut with);
        assert_ne!(one.binding(), again.binding(), "a proof holds for one session");
    }

    #[test]
    fn strangers_are_refused_on_both_sides() {
        let (mut one, mut other) = (session("stranger.pem", true), session("node.pem", false));
        let [said, heard] = meet(&mut one, &mut other);
        assert_eq!(heard, Err(TlsError::Stranger));
        assert!(matches!(said, Err(TlsError::Refused(_))), "{said:?}");
        let (mut one, mut other) = (session("node.pem", true), session("stranger.pem", false));
        let [said, heard] = meet(&mut one, &mut other);
        assert_eq!(said, Err(TlsError::Stranger));
        assert!(matches!(heard, Err(TlsError::Refused(_))), "{heard:?}");
        // A client's certificate is one, but of no node.
        let (mut one, mut other) = (session("client.pem", true), session("node.pem", false));
        assert!(meet(&mut one, &mut other).iter().all(Result::is_ok));
        assert_eq!(other.check_node(), Err(TlsError::NoNode));
        let (mut one, mut other) = (session("node.pem", true), session("client.pem", false));
        assert_eq!(meet(&mut one, &mut other)[0], Err(TlsError::NoNode));
        // Something else than TLS.
        let mut plain = Vec::new();
        let refused = session("node.pem", false).receive(b"get key\r\n", &mut plain);
        assert_eq!((refused, plain), (Err(TlsError::Plain), Vec::new()));
    }

    #[test]
    fn new_certificates_are_taken_if_they_are_good() {
        let folder = std::env::temp_dir().join(format!("amalgam-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let certificate = folder.join("own.pem");
        let put = |name: &str, seconds: u64| {
            std::fs::copy(files(name).certificate, &certificate).expect("a file");
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            let file = std::fs::File::options().write(true).open(&certificate).expect("a file");
            file.set_modified(at).expect("a time");
        };
        put("stranger.pem", 1);
        let own = TlsFiles { certificate: certificate.clone(), ..files("") };
        let tls = Tls::open(own.clone()).expect("they are certificates");
        let is_taken = || {
            let mut one = tls.session(true).expect("it begins");
            meet(&mut one, &mut session("node.pem", false))[1].is_ok()
        };
        assert!(!is_taken());
        assert_eq!(tls.refresh(), Ok(false));
        put("renewed.pem", 2);
        assert_eq!(tls.refresh(), Ok(true));
        assert!(is_taken());
        std::fs::write(&certificate, "nothing").expect("a file");
        let error = tls.refresh().expect_err("it is none");
        assert!(error.contains("own.pem"), "{error}");
        assert!(is_taken(), "the old one stays in use");
        assert_eq!(tls.refresh(), Ok(false), "it is said once");
        let error = Tls::open(own).expect_err("it is none");
        assert!(error.contains("own.pem"), "{error}");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
