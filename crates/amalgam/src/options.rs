//! The server's options: one struct for the command line, the configuration file and the table of
//! effective settings that is printed at start.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use amalgam_index::{DEFAULT_ENGINE, ENGINES, EngineInfo};
use amalgam_server::Settings;
use anyhow::{Context, anyhow, ensure};
use clap::{ArgAction, Args};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::extended::{self, Extended};
use crate::logs::{self, Format, Threshold};
use crate::size::Size;

/// The options that a server and a node of a cluster have in common.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct SharedOptions {
    /// Index engine; see the list below
    #[arg(long, value_name = "ENGINE", num_args = 0..=1, default_missing_value = "")]
    pub engine: Option<String>,
    /// Number of threads that serve memcached clients
    #[arg(short = 't', long, value_name = "NUM")]
    pub threads: Option<usize>,
    /// Maximum number of simultaneous connections
    #[arg(short = 'c', long, value_name = "NUM")]
    pub conn_limit: Option<usize>,
    /// Maximum number of connections that wait to be accepted
    #[arg(short = 'b', long, value_name = "NUM")]
    pub listen_backlog: Option<u32>,
    /// Maximum number of requests of one connection that run before other connections have their
    /// turn [default: all that one read brings]
    #[arg(short = 'R', long, value_name = "NUM")]
    pub max_reqs_per_event: Option<usize>,
    /// Protocol: ascii, binary or auto
    #[arg(short = 'B', long, value_name = "PROTOCOL")]
    pub protocol: Option<String>,
    /// Require SASL authentication (CRAM-MD5 or PLAIN, binary protocol); users are in the file that
    /// the environment variable MEMCACHED_SASL_PWDB names
    #[arg(short = 'S', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_sasl: bool,
    /// Require authentication in the text protocol; the file has lines of the form user:password
    /// and is read again on SIGHUP
    #[arg(short = 'Y', long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Refuse the "flush_all" command
    #[arg(short = 'F', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_flush_all: bool,
    /// Refuse commands that list keys
    #[arg(short = 'X', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_dumping: bool,
    /// Refuse the "watch" command
    #[arg(short = 'W', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_watch: bool,
    /// Secure connections of memcached's clients over TCP with TLS; requires -o ssl_chain_cert and
    /// ssl_key. The files are read again on SIGHUP and by the command "refresh_certs"
    #[arg(short = 'Z', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_ssl: bool,
    /// Extended options, separated by commas: those listed below; memcached's others are ignored
    #[arg(short = 'o', long, value_name = "LIST")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extended: Vec<String>,
    /// Serve the live page, /metrics (for Prometheus), /healthz and /readyz over HTTP at this
    /// address
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// Allow an --admin address that other machines can reach without a password
    #[arg(long)]
    #[serde(skip_serializing_if = "is_off")]
    pub admin_public: bool,
    /// Ask for a user and password at the --admin address, except for /healthz and /readyz: a file
    /// of user:password lines, read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub admin_auth_file: Option<PathBuf>,
    /// Serve the --admin address over HTTPS only, with the certificate of -o ssl_chain_cert and
    /// ssl_key; does not need -Z
    #[arg(long)]
    #[serde(skip_serializing_if = "is_off")]
    pub admin_tls: bool,
    /// Lowest severity of the lines to log
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub log_level: Option<Threshold>,
    /// Format of the log
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<Format>,
}

impl SharedOptions {
    /// The defaults of both commands.
    pub fn defaults() -> Self {
        let settings = Settings::default();
        Self {
            engine: Some(DEFAULT_ENGINE.to_owned()),
            threads: Some(settings.threads),
            conn_limit: Some(settings.max_connections),
            listen_backlog: Some(settings.backlog),
            log_format: Some(Format::Text),
            ..Self::default()
        }
    }

    /// Reads the options of `-o`.
    ///
    /// # Errors
    ///
    /// If one is unknown or its value is invalid.
    pub fn parse_extended(&self) -> anyhow::Result<Extended> {
        extended::parse(&self.extended.join(","))
    }

    /// Adds the defaults that are no values to those of `--help`.
    pub fn add_default_texts(table: &mut toml::Table) {
        table.insert("protocol".to_owned(), "auto, or binary with -S".into());
    }

    /// Checks that there is an engine of the chosen name.
    ///
    /// # Errors
    ///
    /// If there is none; the text lists the engines.
    pub fn known_engine(&self) -> anyhow::Result<&str> {
        let name = self.engine.as_deref().unwrap_or(DEFAULT_ENGINE);
        if ENGINES.iter().any(|engine| engine.name == name) {
            return Ok(name);
        }
        let problem = match name {
            "" => "--engine needs a name".to_owned(),
            name => format!("there is no engine '{name}'"),
        };
        Err(anyhow!("{problem}: choose among\n{}", engine_list()))
    }

    /// Starts the log. `threshold` is the lowest severity where none is given.
    pub fn start_log(&self, threshold: Threshold) {
        let format = self.log_format.unwrap_or(Format::Text);
        logs::start(self.log_level.unwrap_or(threshold), format);
    }

    /// The address of `--admin`, if it is given. Without users, everybody who can reach it can read
    /// keys and statistics, so an address that other machines can reach then needs
    /// `--admin-public`.
    ///
    /// # Errors
    ///
    /// If it is no address, or one that other machines can reach with neither users nor
    /// `--admin-public`; or if there are users or TLS without an address.
    pub fn admin_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        let has_users = self.admin_auth_file.is_some();
        ensure!(self.admin.is_some() || !has_users, "--admin-auth-file needs --admin HOST:PORT");
        ensure!(self.admin.is_some() || !self.admin_tls, "--admin-tls needs --admin HOST:PORT");
        let Some(name) = &self.admin else { return Ok(None) };
        let mut found = amalgam_bench::resolve(name).with_context(|| format!("--admin {name}"))?;
        let address = found.next().with_context(|| format!("--admin {name}: no such address"))?;
        ensure!(
            address.ip().is_loopback() || self.admin_public || has_users,
            "--admin {name} would show keys and statistics to everybody who can reach it: use a \
             loopback address, ask for a password with --admin-auth-file, or say that it may with \
             --admin-public"
        );
        Ok(Some(address))
    }

    /// The number of worker threads.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn thread_count(&self) -> anyhow::Result<usize> {
        let threads = self.threads.unwrap_or(Settings::default().threads);
        ensure!((1..=256).contains(&threads), "-t must be 1 to 256, not {threads}");
        Ok(threads)
    }
}

/// The table of engines for `--help` and error texts, one line an engine.
pub fn engine_list() -> String {
    let line = |engine: &EngineInfo| format!("  {:<9}  {}\n", engine.name, engine.choose_for);
    ENGINES.iter().map(line).collect::<String>().trim_end().to_owned()
}

/// Options of `amalgam serve`. An option that was not given is `None`; [`Options::effective`] lays
/// the given ones over the configuration file and the defaults.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    pub shared: SharedOptions,
    /// Read options from a TOML file; its keys are the long names below, the command line overrides
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// TCP port to listen on; 0 or -1 lets the system choose (with -U, 0 turns TCP off)
    #[arg(short = 'p', long, value_name = "NUM", allow_negative_numbers = true)]
    pub port: Option<i32>,
    /// UDP port to listen on; 0 is off
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
    /// Address to listen on, with or without a port; may be repeated or hold a comma-separated
    /// list. Prefixes apply to that address, in this order: with -Z, notls: (no TLS), btls: (no
    /// client certificates) or mtls: (client certificates required); proto[NAME]: (ascii, binary or
    /// negotiating); tag[NAME]: or tag_NAME_: (ignored) [default: all addresses]
    #[arg(short = 'l', long, value_name = "ADDR")]
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "the text is help, where brackets are brackets"
    )]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<String>,
    /// Run as a daemon
    #[arg(short = 'd', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub daemon: bool,
    /// Raise the limit on the size of core files
    #[arg(short = 'r', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_coredumps: bool,
    /// Assume the identity of this user; required when run as root (-u root stays root)
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,
    /// Memory for items, index and buffers; a bare number is megabytes
    #[arg(short = 'm', long, alias = "memory-limit", value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Refuse new items when memory is full instead of evicting old ones
    #[arg(short = 'M', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_evictions: bool,
    /// Touch all memory at start, so that no request waits for the system to provide pages
    #[arg(short = 'k', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub lock_memory: bool,
    /// Log more; may be repeated
    #[arg(short = 'v', long, action = ArgAction::Count)]
    #[serde(skip_serializing_if = "is_zero")]
    pub verbose: u8,
    /// Save the process id in this file
    #[arg(short = 'P', long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,
    /// Ignored, but must be greater than 1: the server chooses the sizes of memory classes
    #[arg(short = 'f', long, value_name = "FACTOR")]
    pub slab_growth_factor: Option<f64>,
    /// Ignored, but must be greater than 0: the server chooses the sizes of memory classes
    #[arg(short = 'n', long, value_name = "BYTES")]
    pub slab_min_size: Option<u32>,
    /// Ignored: the server uses large pages wherever the system provides them
    #[arg(short = 'L', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub enable_largepages: bool,
    /// Count requests by the prefix of their keys from the start, for "stats detail"; this
    /// character ends the prefix [default: counted from "stats detail on", with ':']
    #[arg(short = 'D', value_name = "CHAR")]
    pub stats_delimiter: Option<char>,
    /// Pin each worker thread to one of the allowed processors, in round-robin order
    #[arg(long)]
    #[serde(skip_serializing_if = "is_off")]
    pub pin_threads: bool,
    /// Do not keep CAS ids for items
    #[arg(short = 'C', long)]
    #[serde(skip_serializing_if = "is_off")]
    pub disable_cas: bool,
    /// Size of the largest item; a bare number is bytes
    #[arg(short = 'I', long, value_name = "SIZE")]
    pub max_item_size: Option<Size>,
    /// Keep the items across a restart in this file: SIGUSR1 or "shutdown graceful" writes them,
    /// and the next start with the same file reads them
    #[arg(short = 'e', long, value_name = "FILE")]
    pub memory_file: Option<PathBuf>,
    /// Ignored: accepted for compatibility with memcached
    #[arg(short = 'N', long, value_name = "NUM")]
    pub napi_ids: Option<u32>,
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
            shared: SharedOptions::defaults(),
            udp_port: Some(0),
            unix_mask: Some(format!("{:o}", settings.unix_mode)),
            memory: Some(Size::whole_mebibytes(settings.memory_bytes)),
            max_item_size: Some(Size::whole_mebibytes(settings.max_item_bytes)),
            ..Self::default()
        }
    }

    /// The value of each option that has a default, by its long name, for `--help`.
    pub fn default_texts() -> toml::Table {
        let mut table = toml::Table::try_from(Self::defaults()).unwrap_or_default();
        table.insert("port".to_owned(), default_port().into());
        table.insert("log-level".to_owned(), "info, or debug with -v".into());
        SharedOptions::add_default_texts(&mut table);
        table
    }

    /// These options over those of the configuration file, over the defaults.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not a valid configuration.
    pub fn effective(&self) -> anyhow::Result<Self> {
        let mut options = layered(&Self::defaults(), self, self.config.as_deref())?;
        let protocol = if options.shared.enable_sasl { "binary" } else { "auto" };
        options.shared.protocol.get_or_insert_with(|| protocol.to_owned());
        Ok(options)
    }
}

/// The TCP port where none is given. It is not among [`Options::defaults`], because it depends on
/// the UDP port.
pub fn default_port() -> i32 {
    let listen = Settings::default().listen;
    listen.first().map_or(0, |listening| listening.address.port().into())
}

/// Merges three layers of options: `given` overrides the configuration file, which overrides
/// `defaults`.
///
/// # Errors
///
/// If the file cannot be read, or contains something that is not an option.
pub fn layered<T: Serialize + DeserializeOwned>(
    defaults: &T,
    given: &T,
    file: Option<&Path>,
) -> anyhow::Result<T> {
    let mut table = toml::Table::try_from(defaults)?;
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let lines: BTreeMap<String, Spanned<toml::Value>> =
            toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        // Each option is parsed alone first, so that an error names it and its line.
        for (name, value) in lines {
            let line = 1 + text[..value.span().start].matches('\n').count();
            let option = toml::Table::from_iter([(name.clone(), value.into_inner())]);
            T::deserialize(option.clone())
                .with_context(|| format!("{}, line {line}: option '{name}'", path.display()))?;
            table.extend(option);
        }
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
        let shared = SharedOptions { threads: Some(3), ..SharedOptions::default() };
        let options = Options { config: Some(path.clone()), shared, ..Options::default() };
        let effective = options.effective().unwrap();
        assert_eq!(effective.shared.threads, Some(3));
        assert_eq!(effective.memory.unwrap().to_string(), "2GiB");
        assert!(effective.enable_shutdown);
        assert_eq!(effective.shared.conn_limit, Some(1024));
        for (text, expected) in [
            ("port = 1\nthread = 7\n", "line 2: option 'thread': unknown field `thread`"),
            ("# one\n\nthreads = \"7\"\n", "line 3: option 'threads': invalid type"),
            ("listen = 5\n", "line 1: option 'listen': invalid type"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", options.effective().unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// The options of the packaged configuration repeat defaults, so that an operator sees them;
    /// only the addresses are its own.
    #[test]
    fn the_packaged_configuration_repeats_the_defaults() {
        let packaged = include_str!("../../../packaging/amalgam.toml");
        let mut packaged: toml::Table = toml::from_str(packaged).unwrap();
        assert!(packaged.remove("listen").is_some() && packaged.remove("admin").is_some());
        let mut defaults = toml::Table::try_from(Options::defaults()).unwrap();
        defaults.insert("port".to_owned(), default_port().into());
        for (name, value) in &packaged {
            assert_eq!(defaults.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn sasl_speaks_binary_unless_something_else_is_asked_for() {
        let protocol = |enable_sasl, given: Option<&str>| {
            let protocol = given.map(str::to_owned);
            let shared = SharedOptions { enable_sasl, protocol, ..SharedOptions::default() };
            let options = Options { shared, ..Options::default() };
            options.effective().unwrap().shared.protocol.unwrap()
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
