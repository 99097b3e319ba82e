//! memcached's `-o ssl_*` options: reads them and builds the server's TLS settings.

use std::path::PathBuf;

use amalgam_server::{TlsSettings, Verify};
use anyhow::{Context, bail, ensure};

/// The options in the order of `stats settings`, with the values shown for those not given.
const SHOWN: &[(&str, &str)] = &[
    ("ssl_chain_cert", "(null)"),
    ("ssl_key", "(null)"),
    ("ssl_verify_mode", "0"),
    ("ssl_keyformat", "1"),
    ("ssl_ciphers", "NULL"),
    ("ssl_ca_cert", "NULL"),
    ("ssl_wbuf_size", "16384"),
    ("ssl_session_cache", "no"),
    ("ssl_kernel_tls", "no"),
    ("ssl_min_version", "tlsv1.2"),
];

/// The default number of bytes that are encrypted at once: the replies of a batch to a connection.
const SEND_BYTES: usize = 64 << 10;

/// The largest value of `ssl_wbuf_size`, in kilobytes.
const MOST_SEND_KILOBYTES: usize = 16 << 10;

/// The `ssl_*` options that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    chain: Option<PathBuf>,
    key: Option<PathBuf>,
    has_der_key: bool,
    authorities: Option<PathBuf>,
    verify: Verify,
    ciphers: Option<String>,
    needs_tls13: bool,
    resumes: bool,
    send_bytes: Option<usize>,
    shown: Vec<(String, String)>,
}

impl TlsOptions {
    /// Sets the option `name` to `value`.
    ///
    /// # Errors
    ///
    /// If the option is unknown or its value is invalid.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> anyhow::Result<()> {
        let text = || value.with_context(|| format!("-o {name} needs a value: {name}=..."));
        let number = || -> anyhow::Result<usize> {
            let value = text()?;
            value.parse().with_context(|| format!("-o {name}: '{value}' is not a number"))
        };
        let mut shown = value.unwrap_or("yes").to_owned();
        match name {
            "ssl_chain_cert" => self.chain = Some(text()?.into()),
            "ssl_key" => self.key = Some(text()?.into()),
            "ssl_ca_cert" => self.authorities = Some(text()?.into()),
            "ssl_ciphers" => self.ciphers = Some(text()?.to_owned()),
            "ssl_verify_mode" => {
                self.verify = match number()? {
                    0 => Verify::Not,
                    1 => Verify::IfShown,
                    2 | 3 => Verify::Always,
                    _ => bail!("-o ssl_verify_mode must be 0 (none), 1 (request) or 2 (require)"),
                }
            }
            "ssl_keyformat" => {
                self.has_der_key = match number()? {
                    1 => false,
                    2 => true,
                    _ => bail!("-o ssl_keyformat must be 1 (PEM) or 2 (DER)"),
                }
            }
            "ssl_min_version" => {
                let version = number()?;
                ensure!(version <= 3, "-o ssl_min_version must be 2 (TLS 1.2) or 3 (TLS 1.3)");
                self.needs_tls13 = version == 3;
                // Versions before 1.2 are not supported, whatever the option asks for.
                shown = format!("tlsv1.{}", version.max(2));
            }
            "ssl_session_cache" => self.resumes = true,
            "ssl_wbuf_size" => {
                let kilobytes = number()?;
                ensure!(
                    (1..=MOST_SEND_KILOBYTES).contains(&kilobytes),
                    "-o ssl_wbuf_size must be 1 to {MOST_SEND_KILOBYTES} (kilobytes)"
                );
                self.send_bytes = Some(kilobytes << 10);
                shown = (kilobytes << 10).to_string();
            }
            "ssl_kernel_tls" => {
                bail!("-o ssl_kernel_tls: TLS in the kernel is not supported; leave the option out")
            }
            _ => bail!("unknown extended option '{name}'; see amalgam serve --help"),
        }
        self.shown.push((name.to_owned(), shown));
        Ok(())
    }

    /// The TLS settings that `option` turns on.
    ///
    /// # Errors
    ///
    /// If no certificate is given.
    pub fn settings(&self, option: &str) -> anyhow::Result<TlsSettings> {
        let given = |name: &str| self.shown.iter().rev().find(|(known, _)| known == name);
        let shown = |(name, default): &(&str, &str)| {
            let value =
                given(name).map_or_else(|| (*default).to_owned(), |(_, value)| value.clone());
            ((*name).to_owned(), value)
        };
        let needed = || format!("{option} needs -o ssl_chain_cert=FILE");
        Ok(TlsSettings {
            chain: self.chain.clone().with_context(needed)?,
            key: self.key.clone(),
            has_der_key: self.has_der_key,
            authorities: self.authorities.clone(),
            verify: self.verify,
            ciphers: self.ciphers.clone(),
            needs_tls13: self.needs_tls13,
            resumes: self.resumes,
            send_bytes: self.send_bytes.unwrap_or(SEND_BYTES),
            shown: SHOWN.iter().map(shown).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_memcached_reads_them() {
        let mut options = TlsOptions::default();
        assert!(options.settings("-Z").is_err());
        options.set("ssl_chain_cert", Some("chain.pem")).unwrap();
        options.set("ssl_wbuf_size", Some("64")).unwrap();
        options.set("ssl_verify_mode", Some("2")).unwrap();
        options.set("ssl_min_version", Some("3")).unwrap();
        let settings = options.settings("-Z").unwrap();
        assert_eq!((settings.send_bytes, settings.verify), (64 << 10, Verify::Always));
        assert!(settings.needs_tls13 && !settings.resumes);
        let shown: Vec<_> = settings.shown.iter().map(|(_, value)| value.as_str()).collect();
        let expected = ["chain.pem", "(null)", "2", "1", "NULL", "NULL", "65536", "no", "no"];
        assert_eq!(shown[..9], expected);
        assert_eq!(shown[9], "tlsv1.3");
        for (name, value) in [
            ("ssl_key", None),
            ("ssl_verify_mode", Some("4")),
            ("ssl_keyformat", Some("PEM")),
            ("ssl_wbuf_size", Some("0")),
            ("ssl_min_version", Some("4")),
            ("ssl_nothing", Some("1")),
        ] {
            assert!(options.set(name, value).is_err(), "{name} {value:?}");
        }
    }
}
