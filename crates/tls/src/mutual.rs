//! TLS of the port that a cluster's nodes listen on: connections between nodes, and connections of
//! chunk clients to nodes.
//!
//! Invariants of this module:
//! 1. Both sides show a certificate that the cluster's authority signed. A side that claims to be a
//!    node must show one that is valid for servers, so a client's certificate is not enough.
//! 2. Names in certificates are ignored, since nodes are dialed by address and addresses change. A
//!    certificate holder that relays between two others is detected nevertheless, because the proof
//!    of the join token is valid for one session only ([`MutualSession::binding`]).

use std::fmt;
use std::io::{self, IoSlice, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use amalgam_op::IgnorePoison;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::config::{OwnCertificate, Reloadable, accepting, unusable};
use crate::pem::read_authorities;
use crate::session::{ReceiveError, Session};

/// The exporter label of the value that the proof of the join token is bound to (RFC 5705).
const BINDING_LABEL: &[u8] = b"EXPORTER-amalgam-join-token";
const BINDING_BYTES: usize = 32;

/// The files with the certificates of a node or a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its own certificate, followed by the intermediate certificates (PEM).
    pub certificate: PathBuf,
    /// Its private key (PEM); None if the key is in the file of the certificate.
    pub key: Option<PathBuf>,
    /// The authorities that sign the certificates of the cluster (PEM).
    pub authorities: PathBuf,
}

impl TlsFiles {
    fn paths(&self) -> [&Path; 3] {
        let key = self.key.as_ref().unwrap_or(&self.certificate);
        [&self.certificate, key, &self.authorities]
    }

    /// When each file was last modified; None for a file that cannot be found.
    fn modified(&self) -> [Option<SystemTime>; 3] {
        self.paths().map(|path| std::fs::metadata(path).and_then(|about| about.modified()).ok())
    }
}

/// Why a connection cannot be secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// The other side sent something that is not TLS.
    Plain,
    /// The other side showed no certificate.
    NoCertificate,
    /// The other side's certificate was not signed by the cluster's authority.
    UnknownAuthority,
    /// The other side claims to be a node, but its certificate is not valid for servers.
    NotANode,
    /// The other side's certificate has expired, or is not valid yet.
    Expired,
    /// The other side refused this side's certificate with this alert.
    Refused(String),
    /// Any other failure.
    Other(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("the other side does not speak TLS"),
            Self::NoCertificate => f.write_str("the other side shows no certificate (--tls-cert)"),
            Self::UnknownAuthority => {
                f.write_str("the other side's certificate is signed by another CA (--tls-ca)")
            }
            Self::NotANode => f.write_str(
                "the other side's certificate is not valid for a server, so not for a node",
            ),
            Self::Expired => {
                f.write_str("the other side's certificate has expired or is not valid yet")
            }
            Self::Refused(alert) => {
                write!(f, "the other side refuses this side's certificate: {alert}")
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
                Certificate::UnknownIssuer | Certificate::BadSignature => Self::UnknownAuthority,
                Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => {
                    Self::NotANode
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

/// Verifies that the cluster's authority signed a certificate; ignores the names in it.
#[derive(Debug)]
struct Authority {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl Authority {
    /// Checks that a certificate is a node's: signed by the authority, within its validity period,
    /// and valid for servers.
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

/// The configurations that were built from the files.
#[derive(Debug)]
struct Configs {
    authority: Arc<Authority>,
    accepting: Arc<ServerConfig>,
    dialing: Arc<ClientConfig>,
}

/// The certificates of a node or of a client of nodes, and the sessions that use them. Shared by
/// all threads.
#[derive(Debug)]
pub struct MutualTls {
    files: TlsFiles,
    configs: Reloadable<Configs>,
    modified: Mutex<[Option<SystemTime>; 3]>,
}

impl MutualTls {
    /// Reads the certificates.
    ///
    /// # Errors
    ///
    /// If a file cannot be used; the text says which and why.
    pub fn open(files: TlsFiles) -> Result<Self, String> {
        let modified = Mutex::new(files.modified());
        let configs = Reloadable::new(load(&files)?);
        Ok(Self { files, configs, modified })
    }

    /// Reads the certificates again if a file was modified, and returns whether one was. Only later
    /// connections use the new certificates.
    ///
    /// # Errors
    ///
    /// As [`MutualTls::open`], once for each modification. After an error the previous certificates
    /// stay in use.
    pub fn refresh(&self) -> Result<bool, String> {
        let now = self.files.modified();
        let before = {
            let mut modified = self.modified.lock().ignore_poison();
            std::mem::replace(&mut *modified, now)
        };
        if before == now {
            return Ok(false);
        }
        self.configs.replace(load(&self.files)?);
        Ok(true)
    }

    /// Creates a session before its handshake. `is_dialer` says that this side opened the
    /// connection.
    ///
    /// # Errors
    ///
    /// [`TlsError::Other`].
    pub fn session(&self, is_dialer: bool) -> Result<MutualSession, TlsError> {
        let configs = self.configs.current();
        let connection = if is_dialer {
            // A placeholder: the name is neither sent nor verified.
            let name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            Connection::from(ClientConnection::new(Arc::clone(&configs.dialing), name)?)
        } else {
            Connection::from(ServerConnection::new(Arc::clone(&configs.accepting))?)
        };
        // The session has no bound of its own: the caller bounds what is encrypted at once.
        let session = Session::new(connection, None);
        Ok(MutualSession { session, authority: Arc::clone(&configs.authority) })
    }
}

fn load(files: &TlsFiles) -> Result<Configs, String> {
    let own = OwnCertificate::read(&files.certificate, files.key.as_deref(), false)?;
    let roots = Arc::new(read_authorities(&files.authorities)?);
    let provider = crate::provider();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| format!("Error loading the CA: {error}"))?;
    // Connections last long, and a resumed session would show no certificate.
    let accepting = accepting(&provider, &[&TLS13], Some(clients), &own)?;
    let authority = Arc::new(Authority { roots, provider: Arc::clone(&provider) });
    let verifier = Arc::clone(&authority) as Arc<dyn ServerCertVerifier>;
    let mut dialing = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(own.chain, own.key)
        .map_err(unusable)?;
    dialing.resumption = Resumption::disabled();
    dialing.enable_sni = false;
    Ok(Configs { authority, accepting: Arc::new(accepting), dialing: Arc::new(dialing) })
}

/// One side of a TLS connection of the nodes' port. It maps bytes to bytes; the caller owns the
/// socket.
#[derive(Debug)]
pub struct MutualSession {
    session: Session,
    authority: Arc<Authority>,
}

/// Received bytes. Their end is not the end of the stream, since more may arrive later.
struct Arrived<'b>(&'b [u8]);

impl Read for Arrived<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { self.0.read(buffer) }
    }
}

impl MutualSession {
    /// Decrypts the received `bytes` and appends the plaintext to `plain`. TLS's own replies, among
    /// them the alert after a failure, come out of [`Self::encrypt`].
    ///
    /// # Errors
    ///
    /// [`TlsError`] if the other side violated the protocol or was refused. The caller must then
    /// close the connection.
    pub fn receive(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), TlsError> {
        let take = |piece: &[u8]| plain.extend_from_slice(piece);
        match self.session.receive(&mut Arrived(bytes), usize::MAX, take) {
            Ok(_) => Ok(()),
            Err(ReceiveError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(ReceiveError::Io(error)) => Err(TlsError::Other(error.to_string())),
            Err(ReceiveError::Tls { error, .. }) => Err(error.into()),
        }
    }

    /// Appends the bytes to send to `out`: TLS's own messages, then `plain` encrypted. Before the
    /// handshake is complete the session keeps `plain`.
    pub fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        // Neither fails: the session has no bound and the target is memory.
        let _ = self.session.encrypt(&[IoSlice::new(plain)]);
        let _ = self.session.write_to(out);
    }

    /// Whether TLS messages of the session's own wait to be sent.
    pub fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// A value that only the two ends of this session know; None before the handshake is complete.
    pub fn binding(&self) -> Option<[u8; BINDING_BYTES]> {
        let connection = &self.session.connection;
        if connection.is_handshaking() {
            return None;
        }
        let bytes = [0; BINDING_BYTES];
        connection.export_keying_material(bytes, BINDING_LABEL, None).ok()
    }

    /// Checks that the other side's certificate is a node's.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if it is not.
    pub fn check_node(&self) -> Result<(), TlsError> {
        let shown = self.session.connection.peer_certificates().unwrap_or_default();
        let (own, others) = shown.split_first().ok_or(TlsError::NoCertificate)?;
        Ok(self.authority.check(own, others, UnixTime::now())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{OVERHEAD_BYTES, Received};

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates")
    }

    fn files(name: &str) -> TlsFiles {
        let (certificate, authorities) = (folder().join(name), folder().join("authority.pem"));
        TlsFiles { certificate, key: None, authorities }
    }

    fn session(name: &str, is_dialer: bool) -> MutualSession {
        let tls = MutualTls::open(files(name)).expect("they are good");
        tls.session(is_dialer).expect("it begins")
    }

    /// Exchanges bytes until both sides are silent, and returns the plaintext or error of each.
    fn meet(one: &mut MutualSession, other: &mut MutualSession) -> [Result<Vec<u8>, TlsError>; 2] {
        let mut results = [Ok(Vec::new()), Ok(Vec::new())];
        let (mut from_one, mut from_other) = (Vec::new(), Vec::new());
        one.encrypt(b"from one", &mut from_one);
        other.encrypt(b"from the other", &mut from_other);
        while !from_one.is_empty() || !from_other.is_empty() {
            let (to_other, to_one) =
                (std::mem::take(&mut from_one), std::mem::take(&mut from_other));
            let sides = [(&mut *one, to_one, &mut from_one), (other, to_other, &mut from_other)];
            for (result, (side, bytes, out)) in results.iter_mut().zip(sides) {
                // Deliver byte by byte: nothing must depend on where packets end.
                for byte in bytes.chunks(1) {
                    if let Ok(plain) = result
                        && let Err(error) = side.receive(byte, plain)
                    {
                        *result = Err(error);
                    }
                }
                side.encrypt(&[], out);
            }
        }
        results
    }

    #[test]
    fn two_sides_with_certificates_of_the_authority_talk() {
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

    /// Each record costs its decryption, however short it is.
    #[test]
    fn short_records_do_not_occupy_the_other_side() {
        const RECORDS: usize = 10_000;
        const LIMIT: usize = 16 << 10;
        let (mut one, mut other) = (session("node.pem", true), session("node.pem", false));
        assert!(meet(&mut one, &mut other).iter().all(Result::is_ok));
        let mut sent = Vec::new();
        (0..RECORDS).for_each(|_| one.encrypt(b"1", &mut sent));
        let mut arrived = Arrived(&sent);
        let (mut received, mut calls) = (0, 0);
        while received < RECORDS {
            let before = arrived.0.len();
            let result = other.session.receive(&mut arrived, LIMIT, |_| ());
            let Ok(Received { bytes, .. }) = result else { panic!("after {received} records") };
            let read = before - arrived.0.len();
            assert!(bytes > 0 && read < LIMIT + 2 * OVERHEAD_BYTES, "{bytes} of {read}");
            (received, calls) = (received + bytes, calls + 1);
        }
        assert!(calls > 3, "{calls}");
    }

    #[test]
    fn certificates_of_other_authorities_are_refused_on_both_sides() {
        let (mut one, mut other) = (session("stranger.pem", true), session("node.pem", false));
        let [said, heard] = meet(&mut one, &mut other);
        assert_eq!(heard, Err(TlsError::UnknownAuthority));
        assert!(matches!(said, Err(TlsError::Refused(_))), "{said:?}");
        let (mut one, mut other) = (session("node.pem", true), session("stranger.pem", false));
        let [said, heard] = meet(&mut one, &mut other);
        assert_eq!(said, Err(TlsError::UnknownAuthority));
        assert!(matches!(heard, Err(TlsError::Refused(_))), "{heard:?}");
        // A client's certificate is valid, but not a node's.
        let (mut one, mut other) = (session("client.pem", true), session("node.pem", false));
        assert!(meet(&mut one, &mut other).iter().all(Result::is_ok));
        assert_eq!(other.check_node(), Err(TlsError::NotANode));
        let (mut one, mut other) = (session("node.pem", true), session("client.pem", false));
        assert_eq!(meet(&mut one, &mut other)[0], Err(TlsError::NotANode));
        // The other side does not speak TLS.
        let mut plain = Vec::new();
        let refused = session("node.pem", false).receive(b"get key\r\n", &mut plain);
        assert_eq!((refused, plain), (Err(TlsError::Plain), Vec::new()));
    }

    #[test]
    fn modified_certificates_replace_the_previous_if_they_are_valid() {
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
        let tls = MutualTls::open(own.clone()).expect("they are certificates");
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
        let error = MutualTls::open(own).expect_err("it is none");
        assert!(error.contains("own.pem"), "{error}");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
