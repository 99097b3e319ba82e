//! `amalgam serve`: checks the options, turns them into the server's settings and runs the server
//! with the chosen engine.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use amalgam_bench::Usage;
use amalgam_index::op::HashSeed;
use amalgam_index::{Configuration, Engine, EngineVisitor, with_engine};
use amalgam_server::{
    ALL_ADDRESSES, ListenAddress, MEMCACHED_VERSION, Security, Server, Settings, Verify,
    WireProtocol, port_file,
};
use anyhow::{Context, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::extended::Extended;
use crate::logs::Threshold;
use crate::options::{Options, default_port};
use crate::size::Size;
use crate::{clients, daemon, user};

/// The numbers of SIGINT and SIGTERM, which stop the server.
pub const STOP_SIGNALS: &[i32] = &[2, 15];

/// The number of SIGUSR1, which stops the server and saves its items.
const GRACEFUL_SIGNAL: i32 = 10;

/// The number of SIGHUP, which reloads the files of users and certificates.
pub const RELOAD_SIGNAL: i32 = 1;

/// File descriptors reserved for uses other than client connections.
const OTHER_FILES: u64 = 64;

/// The part of the minimum of `-m` that is not for items of the largest size: the table and the
/// pages of other items.
const REST_OF_MEMORY_BYTES: usize = 1 << 20;

/// The bounds of `-I`, as in memcached; one more bound depends on `-m`.
const LEAST_ITEM_BYTES: usize = 1 << 10;
const LARGEST_ITEM_BYTES: usize = 1 << 30;

/// The names under which the program accepts memcached's options, as leniently.
pub const MEMCACHED_NAMES: &[&str] = &["memcached", "memcached-debug"];

/// The version of memcached that this server is compatible with, and its own.
pub fn version() -> String {
    format!("memcached {MEMCACHED_VERSION} (amalgam {})", env!("CARGO_PKG_VERSION"))
}

/// Runs the server until it is told to stop.
///
/// # Errors
///
/// An [`amalgam_bench::UsageError`] if an option is invalid, another error if the server cannot
/// start; the text says what to do.
pub fn serve(given: &Options) -> anyhow::Result<()> {
    let mut output = std::io::stdout();
    if given.version {
        writeln!(output, "{}", version())?;
        return Ok(());
    }
    if given.license {
        writeln!(output, "Amalgam, licensed under the Apache License, Version 2.0")?;
        return Ok(());
    }
    let options = given.effective().usage()?;
    let threshold = if options.verbose > 0 { Threshold::Debug } else { Threshold::Info };
    options.shared.start_log(threshold);
    let is_daemon = options.daemon && daemon::is_daemon();
    let name = options.shared.known_engine().usage()?;
    let extended = options.shared.parse_extended().usage()?;
    let settings = settings(&options, &extended).usage()?;
    let user = user::look_up(options.user.as_deref()).usage()?;
    if options.daemon && !is_daemon {
        return daemon::start();
    }
    let defaults = Configuration::default();
    let configuration = Configuration {
        prefault: options.lock_memory,
        pins_execute_fence: true,
        expected_items: extended.hash_power.map_or(defaults.expected_items, |power| 1 << power),
        seed: HashSeed::new(random_seed()),
        ..defaults
    };
    mention_ignored(&options, &extended);
    if !settings.listen_udp.is_empty() {
        log::warn!(
            "UDP is on (-U): a forged request of some bytes makes the server send up to \
            64 KiB to a victim; let only trusted networks reach the port"
        );
    }
    log_configuration(&options);
    raise_file_limit(settings.max_connections as u64 + OTHER_FILES);
    if options.enable_coredumps {
        raise_to_maximum(Resource::Core);
    }
    if let Some(user) = user {
        user.assume()?;
    }
    let serve = Serve { settings, configuration, pidfile: options.pidfile.as_deref() };
    with_engine(name, serve).context("the table of engines lacks a name that it had")?
}

/// Runs the server with the engine that the table of engines passes to it.
struct Serve<'o> {
    settings: Settings,
    configuration: Configuration,
    pidfile: Option<&'o Path>,
}

impl EngineVisitor for Serve<'_> {
    type Output = anyhow::Result<()>;

    fn visit<E: Engine>(self) -> anyhow::Result<()> {
        serve_with::<E>(self.settings, self.configuration, self.pidfile)
    }
}

fn serve_with<E: Engine>(
    settings: Settings,
    configuration: Configuration,
    pidfile: Option<&Path>,
) -> anyhow::Result<()> {
    let server = Server::<E>::open(settings, configuration)?;
    server.stop_on_signals(STOP_SIGNALS)?;
    server.save_on_signal(GRACEFUL_SIGNAL)?;
    server.reload_on_signal(RELOAD_SIGNAL)?;
    if let Some(path) = port_file() {
        server
            .write_port_file(&path)
            .with_context(|| format!("cannot write the ports to {}", path.display()))?;
    }
    if let Some(path) = pidfile {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .with_context(|| format!("cannot write the process id to {}", path.display()))?;
    }
    announce(&server, E::NAME);
    let result = server.run();
    if let Some(path) = pidfile {
        let _ = std::fs::remove_file(path);
    }
    Ok(result?)
}

/// Says where the server listens: in the log, and on standard output for scripts, unless the log
/// has it in the same place.
fn announce<E: Engine>(server: &Server<E>, engine: &str) {
    let addresses = server.addresses().join(",");
    match server.admin_url() {
        // Where the program is called memcached, `-p 0` turns TCP off.
        _ if addresses.is_empty() => {
            log::warn!(engine; "no port is open for clients: give -p, -U or -s");
        }
        Some(admin) => log::info!(engine, admin = admin.as_str(); "listening on {addresses}"),
        None => log::info!(engine; "listening on {addresses}"),
    }
    let is_logged = log::log_enabled!(log::Level::Info);
    if is_logged && is_one_file(std::io::stdout(), std::io::stderr()) {
        return;
    }
    let mut output = std::io::stdout();
    for address in server.addresses() {
        // Standard output may be closed.
        let _ = writeln!(output, "listening on {address}");
    }
    if let Some(url) = server.admin_url() {
        let _ = writeln!(output, "admin on {url}");
    }
    let _ = output.flush();
}

/// Whether two descriptors are of the same file, terminal or pipe.
fn is_one_file(one: impl AsFd, other: impl AsFd) -> bool {
    let [one, other] = [rustix::fs::fstat(one), rustix::fs::fstat(other)];
    matches!((one, other), (Ok(one), Ok(other))
        if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// A seed for hashing keys that clients cannot guess. The standard library's hasher takes its
/// randomness from the system.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |past| past.as_nanos());
    RandomState::new().hash_one((time, std::process::id()))
}

fn settings(options: &Options, extended: &Extended) -> anyhow::Result<Settings> {
    let defaults = Settings::default();
    let (memory_bytes, max_item_bytes) = sizes(options)?;
    check_ignored(options)?;
    let shared = clients::settings(&options.shared, extended)?;
    let needs_certificate = shared.tls.as_ref().is_some_and(|tls| tls.verify == Verify::Always);
    ensure!(
        shared.users_file.is_none() && !needs_certificate || options.udp_port.unwrap_or(0) == 0,
        "UDP (-U) has no authentication: leave out -U, or what asks for it (-S, -Y, or -o \
         ssl_verify_mode=2)"
    );
    let (listen, listen_udp) = listen(options)?;
    let estimates_misses = extended.estimates_misses.unwrap_or(defaults.estimates_misses);
    Ok(Settings {
        listen,
        listen_udp,
        unix_socket: options.unix_socket.clone(),
        unix_mode: match options.unix_mask.as_deref() {
            Some(mask) => u32::from_str_radix(mask, 8).context("-a must be an octal number")?,
            None => defaults.unix_mode,
        },
        memory_bytes,
        evicts: !options.disable_evictions,
        eviction: extended.eviction.unwrap_or(defaults.eviction),
        chooses_eviction: extended.chooses_eviction.unwrap_or(estimates_misses),
        estimates_misses,
        max_item_bytes,
        hands_out_cas: !options.disable_cas,
        allows_shutdown: options.enable_shutdown,
        verbosity: options.verbose,
        pins_threads: options.pin_threads,
        prefix_delimiter: options
            .stats_delimiter
            .map_or(defaults.prefix_delimiter, |delimiter| delimiter as u8),
        counts_prefixes: options.stats_delimiter.is_some(),
        tunables: tunables(options, extended),
        memory_file: options.memory_file.clone(),
        is_under_test: called_as(&["memcached-debug"]),
        ..shared
    })
}

/// Refuses the values that memcached refuses of options that have no effect here: a typing error
/// is one here, too.
fn check_ignored(options: &Options) -> anyhow::Result<()> {
    if let Some(factor) = options.slab_growth_factor {
        ensure!(
            factor > 1.0,
            "-f (the factor of slab classes) must be greater than 1, not {factor}"
        );
    }
    ensure!(options.slab_min_size != Some(0), "-n must be greater than 0");
    ensure!(options.napi_ids != Some(0), "-N must be greater than 0");
    Ok(())
}

/// The memory limit (`-m`) and the largest item (`-I`) in bytes. An error names the option that has
/// to change.
fn sizes(options: &Options) -> anyhow::Result<(usize, usize)> {
    let defaults = Settings::default();
    let default_item_bytes = defaults.max_item_bytes;
    let memory = options.memory.unwrap_or(Size::whole_mebibytes(defaults.memory_bytes));
    let item = options.max_item_size.unwrap_or(Size::whole_mebibytes(default_item_bytes));
    let memory_bytes = memory.in_bytes(1 << 20).context("-m")?;
    let item_bytes = item.in_bytes(1).context("-I")?;
    ensure!(
        (LEAST_ITEM_BYTES..=LARGEST_ITEM_BYTES).contains(&item_bytes),
        "-I must be 1k to 1024m, not {item}"
    );
    let least = 2 * item_bytes + REST_OF_MEMORY_BYTES;
    if memory_bytes < least {
        if called_as(MEMCACHED_NAMES) && item_bytes <= default_item_bytes {
            log::warn!(bytes = least; "-m is below the minimum, so the minimum is used");
            return Ok((least, item_bytes));
        }
        let least = least.div_ceil(1 << 20);
        ensure!(
            item_bytes > default_item_bytes,
            "-m must be at least {least} (megabytes), not {memory}"
        );
        bail!(
            "-I {item} takes a memory of at least {least} megabytes: raise --memory (-m) or lower \
             --max-item-size (-I)"
        );
    }
    Ok((memory_bytes, item_bytes))
}

/// The values that `stats settings` shows for options that have no effect here.
fn tunables(options: &Options, extended: &Extended) -> Vec<(String, String)> {
    let mut tunables = extended.tunables.clone();
    let growth = options.slab_growth_factor.map(|factor| format!("{factor:.2}"));
    let least = options.slab_min_size.map(|bytes| bytes.to_string());
    let hash_power = extended.hash_power.map(|power| power.to_string());
    let given = [("growth_factor", growth), ("chunk_size", least), ("hashpower_init", hash_power)];
    let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    tunables.extend(given);
    tunables
}

/// Whether the program was started under one of these names.
fn called_as(names: &[&str]) -> bool {
    let name = std::env::args_os().next();
    let name = name.as_deref().map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| names.iter().any(|known| name == *known))
}

/// The addresses to listen on for TCP and for UDP.
fn listen(options: &Options) -> anyhow::Result<(Vec<ListenAddress>, Vec<SocketAddr>)> {
    let udp = options.udp_port.unwrap_or(0);
    // A port that is given for UDP alone is also the TCP port, as in memcached.
    let tcp = options.port.unwrap_or(if udp == 0 { default_port() } else { udp });
    // For a program that is called memcached, port 0 turns TCP off; otherwise it is any free port.
    let is_off = tcp == 0 && (udp != 0 || called_as(MEMCACHED_NAMES));
    let over_tcp = if is_off { Vec::new() } else { addresses(options, tcp)? };
    let over_udp = if udp == 0 { Vec::new() } else { addresses(options, udp)? };
    let mut over_udp: Vec<_> = over_udp.iter().map(|listening| listening.address).collect();
    // A port in -l is for TCP, so addresses that differ in it alone are one UDP address.
    if udp > 0 {
        over_udp.iter_mut().for_each(|address| address.set_port(udp as u16));
        over_udp.sort_unstable();
        over_udp.dedup();
    }
    Ok((over_tcp, over_udp))
}

/// The address of each `-l`, with its own port or `port` (-1 and 0: any free port).
fn addresses(options: &Options, port: i32) -> anyhow::Result<Vec<ListenAddress>> {
    let port = match port {
        -1 => 0,
        port => u16::try_from(port)
            .ok()
            .with_context(|| format!("a port must be -1 to 65535, not {port}"))?,
    };
    let mut addresses = Vec::new();
    for name in options.listen.iter().flat_map(|list| list.split([',', ';'])) {
        let (security, name) = security(name.trim());
        let is_prefixed = security != Security::AsServer;
        ensure!(options.shared.enable_ssl || !is_prefixed, "-l: notls:, btls: and mtls: need -Z");
        let (protocol, name) = listener_protocol(name, options)?;
        let name = without_tag(name)?;
        let found = resolve(name, port)?;
        let listening = |address| ListenAddress { address, security, protocol };
        addresses.extend(found.into_iter().map(listening));
    }
    if options.listen.is_empty() {
        addresses.extend(ALL_ADDRESSES.map(|ip| ListenAddress::from(SocketAddr::new(ip, port))));
    }
    Ok(addresses)
}

/// Splits the TLS prefix off an address: how its connections are secured, and the address.
fn security(name: &str) -> (Security, &str) {
    const PREFIXES: [(&str, Security); 3] =
        [("notls:", Security::Plain), ("btls:", Security::ServerOnly), ("mtls:", Security::Mutual)];
    let stripped = |(prefix, security)| Some((security, name.strip_prefix(prefix)?));
    PREFIXES.into_iter().find_map(stripped).unwrap_or((Security::AsServer, name))
}

/// Splits `proto[NAME]:` off an address: the protocol of its connections, and the rest.
fn listener_protocol<'n>(
    name: &'n str,
    options: &Options,
) -> anyhow::Result<(Option<WireProtocol>, &'n str)> {
    let Some(rest) = name.strip_prefix("proto[") else { return Ok((None, name)) };
    let (named, rest) =
        rest.split_once(']').with_context(|| format!("-l {name}: ']' is missing"))?;
    let protocol = match named {
        "ascii" => WireProtocol::Text,
        "binary" => WireProtocol::Binary,
        // As in memcached: only the text protocol asks for users of -Y.
        "negotiating" if options.shared.auth_file.is_some() => WireProtocol::Text,
        "negotiating" => WireProtocol::Negotiated,
        "proxy" => bail!("-l {name}: there is no proxy in this server"),
        _ => bail!("-l {name}: there is no protocol '{named}'; use ascii, binary or negotiating"),
    };
    let is_text = protocol == WireProtocol::Text;
    ensure!(options.shared.auth_file.is_none() || is_text, "-l {name}: -Y needs the text protocol");
    let is_binary = protocol == WireProtocol::Binary;
    ensure!(!options.shared.enable_sasl || is_binary, "-l {name}: -S needs the binary protocol");
    Ok((Some(protocol), rest.strip_prefix(':').unwrap_or(rest)))
}

/// The address behind `tag[NAME]:` or `tag_NAME_:`, of one to eight characters. Tags are for
/// memcached's proxy and mean nothing here.
fn without_tag(name: &str) -> anyhow::Result<&str> {
    let Some((open, rest)) = name.strip_prefix("tag").and_then(|rest| rest.split_at_checked(1))
    else {
        return Ok(name);
    };
    let end = match open {
        "[" => ']',
        "_" => '_',
        // A host whose name begins so.
        _ => return Ok(name),
    };
    let (tag, rest) =
        rest.split_once(end).with_context(|| format!("-l {name}: '{end}' is missing"))?;
    ensure!((1..=8).contains(&tag.len()), "-l {name}: a tag has 1 to 8 characters");
    Ok(rest.strip_prefix(':').unwrap_or(rest))
}

fn resolve(name: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let (host, port) = match name.rsplit_once(':') {
        Some((host, text)) => {
            (host, text.parse().with_context(|| format!("-l {name}: '{text}' is no port"))?)
        }
        None => (name, port),
    };
    let found = amalgam_bench::resolve((host, port)).with_context(|| format!("-l {name}"))?;
    Ok(found.collect())
}

/// Logs the effective configuration, one field an option. No option holds a secret, because users
/// and keys are in files.
fn log_configuration(options: &Options) {
    let table = toml::Table::try_from(options).unwrap_or_default();
    let plain = |value: &toml::Value| match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) => {
            let texts = values.iter().map(|value| value.as_str().unwrap_or_default());
            texts.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    };
    let texts: Vec<(&str, String)> =
        table.iter().map(|(name, value)| (name.as_str(), plain(value))).collect();
    let pairs: Vec<_> = texts.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let pairs = pairs.as_slice();
    let level = log::Level::Info;
    let arguments = format_args!("effective configuration");
    // Without a target of Amalgam's own, the record would be taken for a library's.
    let mut record = log::Record::builder();
    record.target(env!("CARGO_CRATE_NAME")).level(level).args(arguments);
    log::logger().log(&record.key_values(&pairs).build());
}

fn mention_ignored(options: &Options, extended: &Extended) {
    let given = [
        ("-f", options.slab_growth_factor.is_some()),
        ("-n", options.slab_min_size.is_some()),
        ("-L", options.enable_largepages),
        ("-N", options.napi_ids.is_some()),
    ];
    let ignored = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    let ignored: Vec<_> = ignored.chain(extended.ignored.iter().map(String::as_str)).collect();
    if !ignored.is_empty() {
        let options = ignored.join(",");
        log::warn!(options; "these options have no effect");
    }
}

/// Raises a limit as far as this process may.
pub fn raise_to_maximum(resource: Resource) {
    let maximum = getrlimit(resource).maximum;
    if setrlimit(resource, Rlimit { current: maximum, maximum }).is_err() {
        log::warn!("a resource limit could not be raised to its hard limit");
    }
}

/// Raises the limit of open files to `files`, as far as the system allows.
fn raise_file_limit(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        let maximum = limit.maximum.map_or(files, |maximum| maximum.max(files));
        let wanted = Rlimit { current: Some(files), maximum: Some(maximum) };
        if setrlimit(Resource::Nofile, wanted).is_err() {
            raise_to_maximum(Resource::Nofile);
            log::warn!(files; "the limit of open files is too low for -c and could not be raised");
        }
    }
}
