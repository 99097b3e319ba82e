//! The server's options: one struct for the command line, the configuration file and the table of
//! effective settings that is printed at start.

use std::path::{Path, PathBuf};

use amalgam_server::Settings;
use anyhow::Context;
use clap::{ArgAction, Args};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::logs::{Format, Threshold};
use crate::size::Size;

/// Options of `amalgam serve`. Those that were not given are none; [`Options::effective`] lays them
/// over the configuration file and the defaults.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Index engine; see the list below
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    pub engine: Option<String>,
    /// Read options from a TOML file; its keys are the long names below, the command line overrides
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// TCP port to listen on; 0 or -1 lets the system choose (with -U, 0 turns TCP off)
    #[arg(short = 'p', long, value_name = "NUM", allow_negative_numbers = true)]
    pub port: Option<i32>,
    /// UDP port to listen on; 0 is off, the default
    #[arg(short = 'U', long, value_name = "NUM", allow_negative_numbers = true)]
    pub udp_port: Option<i32>,
    /// UNIX socket to listen on (turns the network off)
    #[arg(short = 's', long, value_name = "FILE")]
    pub unix_socket: Option<PathBuf>,
    /// Access mask of the UNIX socket, in octal
    #[arg(short = 'a', long, value_name = "MASK")]
    pub unix_mask: Option<String>,
    /// Enable the "shutdown" command
    #[arg(short = 'A', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_shutdown: bool,
    /// Address to listen on, with or without a port; may be given several times or hold commas;
    /// with -Z, a prefix notls: (no TLS), btls: (no client certificates) or mtls: (client
    /// certificates required) holds for that address
    #[arg(short = 'l', long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<String>,
    /// Run as a daemon
    #[arg(short = 'd', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub daemon: bool,
    /// Raise the limit of core files
    #[arg(short = 'r', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_coredumps: bool,
    /// Assume the identity of this user (when run as root)
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,
    /// Memory for items, index and buffers; a bare number is megabytes
    #[arg(short = 'm', long, alias = "memory-limit", value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Refuse new items when memory is full instead of evicting old ones
    #[arg(short = 'M', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_evictions: bool,
    /// Connections at once
    #[arg(short = 'c', long, value_name = "NUM")]
    pub conn_limit: Option<usize>,
    /// Touch all memory at start, so that no request has to wait for the system to supply it
    #[arg(short = 'k', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub lock_memory: bool,
    /// Log more; may be repeated
    #[arg(short = 'v', long, action = ArgAction::Count)]
    #[serde(skip_serializing_if = "is_zero")]
    pub verbose: u8,
    /// Log what is at least so grave [default: info, or debug with -v]
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub log_level: Option<Threshold>,
    /// How lines of the log are written [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<Format>,
    /// Save the process id in this file
    #[arg(short = 'P', long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,
    /// Ignored: sizes of memory classes are chosen by the server
    #[arg(short = 'f', long, value_name = "FACTOR")]
    pub slab_growth_factor: Option<f64>,
    /// Ignored, for the same reason
    #[arg(short = 'n', long, value_name = "BYTES")]
    pub slab_min_size: Option<u32>,
    /// Ignored: large pages are used where there are any
    #[arg(short = 'L', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_largepages: bool,
    /// Separates the prefix of a key from the rest, for "stats detail"
    #[arg(short = 'D', value_name = "CHAR")]
    pub stats_delimiter: Option<char>,
    /// Answer the operator over HTTP at HOST:PORT: /metrics for Prometheus, /healthz, /readyz
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Let --admin be an address that others can reach; nobody is asked for a password there
    #[arg(long)]
    #[serde(skip_serializing_if = "is_off")]
    pub admin_public: bool,
    /// Worker threads
    #[arg(short = 't', long, value_name = "NUM")]
    pub threads: Option<usize>,
    /// Keep each worker thread on one processor: worker i on the i-th of those allowed, in a circle
    #[arg(long)]
    #[serde(skip_serializing_if = "is_off")]
    pub pin_threads: bool,
    /// Requests of one connection that run before others have their turn (by default as many as one
    /// read brings)
    #[arg(short = 'R', long, value_name = "NUM")]
    pub max_reqs_per_event: Option<usize>,
    /// Give items no CAS ids
    #[arg(short = 'C', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_cas: bool,
    /// Connections that may wait to be accepted
    #[arg(short = 'b', long, value_name = "NUM")]
    pub listen_backlog: Option<u32>,
    /// Protocol: ascii, binary or auto
    #[arg(short = 'B', long, value_name = "NAME")]
    pub protocol: Option<String>,
    /// Largest item; a bare number is bytes
    #[arg(short = 'I', long, value_name = "SIZE")]
    pub max_item_size: Option<Size>,
    /// Keep the items in this file over a restart: SIGUSR1 or "shutdown graceful" writes them, the
    /// next start with the same file reads them
    #[arg(short = 'e', long, value_name = "FILE")]
    pub memory_file: Option<PathBuf>,
    /// Require SASL authentication (CRAM-MD5 or PLAIN, binary protocol); users are in the file that
    /// the environment variable MEMCACHED_SASL_PWDB names
    #[arg(short = 'S', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_sasl: bool,
    /// Require authentication of the text protocol; the file has lines user:password and is read
    /// again on SIGHUP
    #[arg(short = 'Y', long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Refuse the "flush_all" command
    #[arg(short = 'F', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_flush_all: bool,
    /// Refuse to list keys
    #[arg(short = 'X', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_dumping: bool,
    /// Refuse the "watch" command
    #[arg(short = 'W', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_watch: bool,
    /// Ignored
    #[arg(short = 'N', long, value_name = "NUM")]
    pub napi_ids: Option<u32>,
    /// Secure connections over TCP with TLS; takes -o ssl_chain_cert and ssl_key. The files are
    /// read again on SIGHUP and by the command "refresh_certs"
    #[arg(short = 'Z', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_ssl: bool,
    /// Comma separated extended options: idle_timeout=SECONDS (0, never), maxconns_fast (default)
    /// or no_maxconns_fast, hashpower=NUM, no_drop_privileges; for -Z ssl_chain_cert=FILE,
    /// ssl_key=FILE, ssl_keyformat (1 PEM, 2 DER), ssl_ca_cert=FILE of authorities of clients,
    /// ssl_verify_mode (0 none, 1 request, 2 require), ssl_ciphers=LIST, ssl_min_version (2 for TLS
    /// 1.2, 3 for TLS 1.3), ssl_session_cache, ssl_wbuf_size=KILOBYTES; others of memcached's are
    /// ignored
    #[arg(short = 'o', long, value_name = "LIST")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extended: Vec<String>,
    /// Print the licence
    #[arg(short = 'i', long)]
    #[serde(skip)]
    pub license: bool,
    /// Print this help
    #[arg(short = 'h', long, action = ArgAction::Help)]
    #[serde(skip)]
    pub help: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long)]
    #[serde(skip)]
    pub version: bool,
}

pub fn is_off(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u8) -> bool {
    *value == 0
}

impl Options {
    /// The server's own defaults, as options.
    fn defaults() -> Self {
        let settings = Settings::default();
        Self {
            engine: Some(amalgam_index::DEFAULT_ENGINE.to_owned()),
            udp_port: Some(0),
            unix_mask: Some(format!("{:o}", settings.unix_mode)),
            memory: Some(Size::whole_mebibytes(settings.memory_bytes)),
            conn_limit: Some(settings.max_connections),
            threads: Some(settings.threads),
            listen_backlog: Some(settings.backlog),
            max_item_size: Some(Size::whole_mebibytes(settings.max_item_bytes)),
            ..Self::default()
        }
    }

    /// These options over those of the configuration file, over the defaults.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or holds something else.
    pub fn effective(&self) -> anyhow::Result<Self> {
        let mut options = layered(&Self::defaults(), self, self.config.as_deref())?;
        let protocol = if options.enable_sasl { "binary" } else { "auto" };
        options.protocol.get_or_insert_with(|| protocol.to_owned());
        Ok(options)
    }
}

/// What was given over what a configuration file says over the defaults.
///
/// # Errors
///
/// If the file cannot be read, or says what no option is.
pub fn layered<T: Serialize + DeserializeOwned>(
    defaults: &T,
    given: &T,
    file: Option<&Path>,
) -> anyhow::Result<T> {
    let mut table = toml::Table::try_from(defaults)?;
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        // Read as options first: the message then names the line.
        let options: T = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        table.extend(toml::Table::try_from(options)?);
    }
    table.extend(toml::Table::try_from(given)?);
    Ok(table.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_overrides_the_file_and_the_file_the_defaults() {
        let path = std::env::temp_dir().join(format!("amalgam-options-{}", std::process::id()));
        std::fs::write(&path, "threads = 7\nmemory = \"2GiB\"\nenable-shutdown = true\n").unwrap();
        let options =
            Options { config: Some(path.clone()), threads: Some(3), ..Options::default() };
        let effective = options.effective().unwrap();
        assert_eq!(effective.threads, Some(3));
        assert_eq!(effective.memory.unwrap().to_string(), "2GiB");
        assert!(effective.enable_shutdown);
        assert_eq!(effective.conn_limit, Some(1024));
        std::fs::write(&path, "thread = 7\n").unwrap();
        let error = format!("{:#}", options.effective().unwrap_err());
        assert!(error.contains("unknown field `thread`"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn sasl_speaks_binary_unless_something_else_is_asked_for() {
        let protocol = |enable_sasl, given: Option<&str>| {
            let protocol = given.map(str::to_owned);
            let options = Options { enable_sasl, protocol, ..Options::default() };
            options.effective().unwrap().protocol.unwrap()
        };
        assert_eq!(protocol(true, None), "binary");
        assert_eq!(protocol(true, Some("auto")), "auto", "which is refused");
        assert_eq!(protocol(false, None), "auto");
    }

    #[test]
    fn effective_options_are_a_configuration_file() {
        let effective = toml::to_string(&Options::default().effective().unwrap()).unwrap();
        let again: Options = toml::from_str(&effective).unwrap();
        assert_eq!(toml::to_string(&again).unwrap(), effective);
    }
}
