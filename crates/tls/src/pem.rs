//! Certificates and private keys in files. Every error names the file.

use std::fmt::Display;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

fn explain<T>(what: &str, path: &Path, result: Result<T, impl Display>) -> Result<T, String> {
    result.map_err(|error| format!("Error loading {what}: {}: {error}", path.display()))
}

/// Reads all certificates of a PEM file. `what` says in error texts what they are for.
///
/// # Errors
///
/// If the file cannot be read or holds no certificate.
pub fn read_certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = explain(what, path, found)?;
    match certificates.is_empty() {
        true => explain(what, path, Err("the file holds no certificate")),
        false => Ok(certificates),
    }
}

/// Reads the private key of a file, which is DER if `is_der`, else PEM. The label in a PEM file
/// need not name the key's real format.
///
/// # Errors
///
/// If the file cannot be read or holds no key.
pub fn read_key(path: &Path, is_der: bool) -> Result<PrivateKeyDer<'static>, String> {
    match is_der {
        false => {
            let key = explain("the key", path, PrivateKeyDer::from_pem_file(path))?;
            // What it is counts, not what it is called: OpenSSL takes PKCS#8 that is labelled RSA.
            let bytes = key.secret_der().to_vec();
            Ok(PrivateKeyDer::try_from(bytes).unwrap_or(key))
        }
        true => {
            let bytes = explain("the key", path, std::fs::read(path))?;
            explain("the key", path, PrivateKeyDer::try_from(bytes))
        }
    }
}

/// Reads the certificates of the authorities (CAs) in a PEM file.
///
/// # Errors
///
/// As [`read_certificates`], and if a certificate is not one of an authority.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("the CA certificate", path)? {
        explain("the CA certificate", path, roots.add(certificate))?;
    }
    Ok(roots)
}

/// Reads a certificate chain and checks that the private key (PEM) is the one of its first
/// certificate.
///
/// # Errors
///
/// If a file cannot be read, or the key belongs to another certificate.
pub fn read_matching(chain: &Path, key: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = read_certificates("the certificate chain", chain)?;
    let pair = CertifiedKey::from_der(certificates, read_key(key, false)?, &crate::provider());
    explain("the key", key, pair).map(|pair| pair.cert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_it_is_and_not_what_its_label_says() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates/node.pem");
        let key = read_key(Path::new(file), false).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        let start = text.find("-----BEGIN PRIVATE KEY").expect("a key in PKCS#8");
        let relabelled = text[start..].replace("PRIVATE KEY", "RSA PRIVATE KEY");
        let path = std::env::temp_dir().join(format!("amalgam-label-{}", std::process::id()));
        std::fs::write(&path, relabelled).unwrap();
        let same = read_key(&path, false).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(same, PrivateKeyDer::Pkcs8(_)) && same == key);
    }
}
