//! TLS of a program that asks a server, as `amalgam top` asks an admin address.
//!
//! Invariant: a server is trusted if an authority of the file signed its certificate for the name
//! that was asked for, or if its certificate stands in the file itself. A certificate that stands
//! there is trusted whatever its names and dates are: it was chosen by hand.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    StreamOwned,
};

use crate::config::unusable;
use crate::pem::read_certificates;

/// The certificates that a program trusts.
#[derive(Clone, Debug)]
pub struct ClientTls(Arc<ClientConfig>);

/// Trusts the listed certificates themselves, and what they signed.
#[derive(Debug)]
struct Listed {
    certificates: Vec<CertificateDer<'static>>,
    authorities: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Listed {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.certificates.contains(certificate) {
            return Ok(ServerCertVerified::assertion());
        }
        self.authorities.verify_server_cert(certificate, others, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

impl ClientTls {
    /// Reads the certificates to trust: authorities, or servers' own (PEM).
    ///
    /// # Errors
    ///
    /// If the file cannot be used; the text says why.
    pub fn open(trusted: &Path) -> Result<Self, String> {
        let certificates = read_certificates("the CA certificate", trusted)?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let provider = crate::provider();
        let authorities =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| format!("Error loading the CA: {error}"))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Listed { certificates, authorities }))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// A stream through `transport` to the server of this name or IP address. The handshake happens
    /// in its first read or write.
    ///
    /// # Errors
    ///
    /// If `server` is neither a name nor an IP address.
    pub fn stream<T: Read + Write>(
        &self,
        server: &str,
        transport: T,
    ) -> Result<impl Read + Write + use<T>, String> {
        let name = ServerName::try_from(server.to_owned())
            .map_err(|_| format!("'{server}' is neither a name nor an IP address"))?;
        let connection =
            ClientConnection::new(Arc::clone(&self.0), name).map_err(|error| error.to_string())?;
        Ok(StreamOwned::new(connection, transport))
    }
}
