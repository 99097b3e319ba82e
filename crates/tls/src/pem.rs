//! Certificates and private keys in files. Every error names the file.

use std::fmt::Display;
use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::sign::CertifiedKey;
use rustls::{Error, RootCertStore};

// What the functions here return, for callers that must name it.
pub use rustls::pki_types::{CertificateDer, PrivateKeyDer};

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
/// If the file cannot be read or holds no key, or an encrypted one.
pub fn read_key(path: &Path, is_der: bool) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = explain("the key", path, std::fs::read(path))?;
    if is_der {
        return explain("the key", path, PrivateKeyDer::try_from(bytes));
    }
    let found = PrivateKeyDer::from_pem_slice(&bytes);
    let has = |mark: &[u8]| bytes.windows(mark.len()).any(|window| window == mark);
    // The first as PKCS#8 says it, the second as OpenSSL's older format does.
    let is_encrypted = has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED");
    let key = match found {
        Err(_) if is_encrypted => {
            let command = "openssl pkey -in FILE -out NEW";
            let reason = format!("the key is encrypted; write it without a password: {command}");
            explain("the key", path, Err(reason))
        }
        Err(pem::Error::NoItemsFound) => {
            explain("the key", path, Err("the file holds no private key"))
        }
        found => explain("the key", path, found),
    }?;
    // What it is counts, not what it is called: OpenSSL takes PKCS#8 that is labelled RSA.
    let bytes = key.secret_der().to_vec();
    Ok(PrivateKeyDer::try_from(bytes).unwrap_or(key))
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

/// Reads a certificate chain, own certificate first, and the private key of the first, which is
/// DER if `is_der`, else PEM.
///
/// # Errors
///
/// If a file cannot be read or does not hold what it should, or the key is of an unknown kind or
/// belongs to another certificate.
pub fn read_pair(
    chain_path: &Path,
    key_path: &Path,
    is_der: bool,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = read_certificates("the certificate chain", chain_path)?;
    let key = read_key(key_path, is_der)?;
    match CertifiedKey::from_der(chain.clone(), key.clone_key(), &crate::provider()) {
        Ok(_) => Ok((chain, key)),
        Err(Error::InconsistentKeys(_)) => {
            let chain = chain_path.display();
            explain("the key", key_path, Err(format!("it is not the key of {chain}")))
        }
        Err(Error::InvalidCertificate(error)) => {
            explain("the certificate chain", chain_path, Err(Error::InvalidCertificate(error)))
        }
        Err(_) => explain("the key", key_path, Err("it is no key of RSA, ECDSA or Ed25519")),
    }
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

    #[test]
    fn an_error_of_a_key_speaks_of_the_key() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates/node.pem");
        let other = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates/stranger.pem");
        let text = std::fs::read_to_string(file).unwrap();
        let (certificate, key) = text.split_at(text.find("-----BEGIN PRIVATE KEY").unwrap());
        let older = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                     DEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        let path = std::env::temp_dir().join(format!("amalgam-keys-{}", std::process::id()));
        for (content, reason) in [
            (certificate.to_owned(), "the file holds no private key"),
            (key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"), "the key is encrypted"),
            (older.to_owned(), "the key is encrypted"),
            (key.replacen("\nM", "\nN", 1), "it is no key of RSA, ECDSA or Ed25519"),
            (std::fs::read_to_string(other).unwrap(), "it is not the key of "),
        ] {
            std::fs::write(&path, &content).unwrap();
            let error = read_pair(Path::new(file), &path, false).unwrap_err();
            let start = format!("Error loading the key: {}: {reason}", path.display());
            assert!(error.starts_with(&start), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
