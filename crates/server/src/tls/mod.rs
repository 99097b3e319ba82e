//! TLS: certificates, who is asked for one, and the sessions of connections.
//!
//! Invariants of this room:
//! 1. New certificates are read whole and checked before they replace the old ones; connections
//!    keep what they began with.
//! 2. Where a client's certificate is required, no request is read before it was verified.

mod session;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, Der, PrivateKeyDer, TrustAnchor};
use rustls::server::{
    ClientCertVerifierBuilder, NoServerSessionStorage, ServerSessionMemoryCache,
    StoresServerSessions, WebPkiClientVerifier,
};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};

pub use session::{Counts, Session};

/// Sessions that the server remembers for clients that come back, as OpenSSL does.
const SESSIONS: usize = 20 << 10;

/// How connections to an address are secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// As the server is told: TLS where it has certificates, none where not.
    #[default]
    AsServer,
    /// Not at all, even where the server has certificates (`notls:`).
    Plain,
    /// By TLS, and clients are not asked for certificates (`btls:`).
    ServerOnly,
    /// By TLS, and clients must show certificates (`mtls:`).
    Mutual,
}

/// Whether clients are asked for certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// They are not.
    #[default]
    Not,
    /// They are, and one that is shown must be right.
    IfShown,
    /// They must show one.
    Always,
}

/// The settings of TLS.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The server's certificate and those that lead from it to a known authority (PEM).
    pub chain: PathBuf,
    /// Its private key; by default in the file of the chain.
    pub key: Option<PathBuf>,
    /// Whether the key's file is DER, not PEM.
    pub has_der_key: bool,
    /// The authorities whose certificates clients may show (PEM).
    pub authorities: Option<PathBuf>,
    /// Whether they are asked for any.
    pub verify: Verify,
    /// OpenSSL's names of the cipher suites of TLS 1.2 to offer, with colons between; none for all.
    pub ciphers: Option<String>,
    /// Whether TLS 1.2 is refused.
    pub needs_tls13: bool,
    /// Whether sessions can be resumed.
    pub resumes: bool,
    /// Bytes encrypted at once.
    pub send_bytes: usize,
    /// memcached's `-o ssl_*` options that `stats settings` shows: names and values.
    pub shown: Vec<(String, String)>,
}

/// What was read from the files.
struct Configs {
    as_server: Arc<ServerConfig>,
    server_only: Arc<ServerConfig>,
    mutual: Arc<ServerConfig>,
}

/// See the head of this module. Shared by all threads.
pub struct Tls {
    settings: TlsSettings,
    configs: RwLock<Configs>,
    /// See [`Counts`].
    pub counts: Arc<Counts>,
    refreshed_seconds: AtomicU32,
}

/// Remembers sessions, and counts them.
#[derive(Debug)]
struct CountedSessions {
    memory: Arc<ServerSessionMemoryCache>,
    counts: Arc<Counts>,
}

impl StoresServerSessions for CountedSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.counts.new_sessions.fetch_add(1, Ordering::Relaxed);
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

fn explain<T>(what: &str, path: &Path, result: Result<T, impl Display>) -> Result<T, String> {
    result.map_err(|error| format!("Error loading {what}: {}: {error}", path.display()))
}

/// The certificates in a file (PEM). `what` they are is for the message.
///
/// # Errors
///
/// If there is none, or the file cannot be read; the text names it.
pub fn read_certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = explain(what, path, found)?;
    match certificates.is_empty() {
        true => explain(what, path, Err("there is no certificate in it")),
        false => Ok(certificates),
    }
}

/// The private key in a file, PEM or DER.
///
/// # Errors
///
/// If it holds none; the text names the file.
pub fn read_key(path: &Path, is_der: bool) -> Result<PrivateKeyDer<'static>, String> {
    match is_der {
        false => explain("the key", path, PrivateKeyDer::from_pem_file(path)),
        true => {
            let bytes = explain("the key", path, std::fs::read(path))?;
            explain("the key", path, PrivateKeyDer::try_from(bytes))
        }
    }
}

/// The authorities in a file (PEM).
///
/// # Errors
///
/// As [`read_certificates`], and if a certificate is none of an authority.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("the CA certificate", path)? {
        explain("the CA certificate", path, roots.add(certificate))?;
    }
    Ok(roots)
}

impl Tls {
    /// Reads the certificates. `seconds` is the time now.
    ///
    /// # Errors
    ///
    /// If a file cannot be used; the text says which and why.
    pub fn open(settings: TlsSettings, seconds: u32) -> Result<Self, String> {
        let counts = Arc::new(Counts::default());
        let configs = RwLock::new(load(&settings, &counts)?);
        Ok(Self { settings, configs, counts, refreshed_seconds: AtomicU32::new(seconds) })
    }

    /// Reads the certificates again, for connections from now on.
    ///
    /// # Errors
    ///
    /// As [`Tls::open`]; the old certificates stay in use then.
    pub fn refresh(&self, seconds: u32) -> Result<(), String> {
        let configs = load(&self.settings, &self.counts)?;
        *self.configs.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = configs;
        self.refreshed_seconds.store(seconds, Ordering::Relaxed);
        Ok(())
    }

    /// When the certificates were read.
    pub fn refreshed_seconds(&self) -> u32 {
        self.refreshed_seconds.load(Ordering::Relaxed)
    }

    /// Whether sessions can be resumed.
    pub fn resumes(&self) -> bool {
        self.settings.resumes
    }

    /// A session for a connection that came through an address with this security.
    pub fn session(&self, security: Security) -> Option<Box<Session>> {
        let configs = self.configs.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let config = match security {
            Security::Plain => return None,
            Security::AsServer => &configs.as_server,
            Security::ServerOnly => &configs.server_only,
            Security::Mutual => &configs.mutual,
        };
        let (config, counts) = (Arc::clone(config), Arc::clone(&self.counts));
        Session::new(config, counts, self.settings.send_bytes).ok().map(Box::new)
    }
}

fn load(settings: &TlsSettings, counts: &Arc<Counts>) -> Result<Configs, String> {
    let chain = read_certificates("the certificate chain", &settings.chain)?;
    let key_path = settings.key.as_ref().unwrap_or(&settings.chain);
    let key = read_key(key_path, settings.has_der_key)?;
    let provider = Arc::new(provider(settings.ciphers.as_deref())?);
    let roots = Arc::new(roots(settings.authorities.as_deref())?);
    let config = |verify: Verify| -> Result<Arc<ServerConfig>, String> {
        let versions: &[&'static SupportedProtocolVersion] = match settings.needs_tls13 {
            true => &[&version::TLS13],
            false => &[&version::TLS13, &version::TLS12],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| format!("Error setting the protocol versions: {error}"))?;
        let builder = match verifier(&roots, &provider, verify) {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(
                verifier.build().map_err(|error| format!("Error loading the CA: {error}"))?,
            ),
        };
        let mut config = builder
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| format!("Error validating the certificate: {error}"))?;
        if settings.resumes {
            // Each has its own memory: what began without a client's certificate must not be
            // resumed where one is required.
            let memory = ServerSessionMemoryCache::new(SESSIONS);
            let counts = Arc::clone(counts);
            config.session_storage = Arc::new(CountedSessions { memory, counts });
        } else {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    };
    Ok(Configs {
        as_server: config(settings.verify)?,
        server_only: config(Verify::Not)?,
        mutual: config(Verify::Always)?,
    })
}

/// The cryptography, with the cipher suites of TLS 1.2 that `ciphers` names. Those of TLS 1.3 are
/// not chosen so, as in OpenSSL.
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

/// The name that standards give to what OpenSSL calls `ECDHE-RSA-AES128-GCM-SHA256`.
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
        // Nobody's certificate is right: no key fits this name.
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
) -> Option<ClientCertVerifierBuilder> {
    let (roots, provider) = (Arc::clone(roots), Arc::clone(provider));
    let verifier = || WebPkiClientVerifier::builder_with_provider(roots, provider);
    match verify {
        Verify::Not => None,
        Verify::IfShown => Some(verifier().allow_unauthenticated()),
        Verify::Always => Some(verifier()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
