//! The parts that the configurations of both ports are built from.

use std::path::Path;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use amalgam_op::IgnorePoison;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::{Error, ServerConfig, SupportedProtocolVersion};

use crate::pem::read_pair;

/// A certificate chain, own certificate first, and the private key of the first.
pub struct OwnCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl OwnCertificate {
    /// Reads the chain and the key. The key is in the chain's file unless `key` names another file.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or does not hold what it should; see [`crate::pem`].
    pub fn read(chain: &Path, key: Option<&Path>, has_der_key: bool) -> Result<Self, String> {
        let (chain, key) = read_pair(chain, key.unwrap_or(chain), has_der_key)?;
        Ok(Self { chain, key })
    }
}

/// The error text for a certificate that was read but that TLS does not accept.
pub fn unusable(error: Error) -> String {
    format!("Error validating the certificate: {error}")
}

/// The configuration of the accepting side. It stores no sessions, so no client can resume one.
///
/// # Errors
///
/// If the key does not belong to the certificate, or the provider has no cipher suite for one of
/// the versions.
pub fn accepting(
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    own: &OwnCertificate,
) -> Result<ServerConfig, String> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(versions)
        .map_err(|error| format!("Error setting the protocol versions: {error}"))?;
    let builder = match verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let mut config =
        builder.with_single_cert(own.chain.clone(), own.key.clone_key()).map_err(unusable)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Configurations that are replaced as a whole when the files behind them change. Shared by all
/// threads; readers take the lock only to clone what they need.
#[derive(Debug)]
pub struct Reloadable<T>(RwLock<T>);

impl<T> Reloadable<T> {
    pub fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    pub fn current(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().ignore_poison()
    }

    pub fn replace(&self, value: T) {
        *self.0.write().ignore_poison() = value;
    }
}
