//! The settings of a port for memcached's clients: of a server, or of a node of a cluster.

use std::path::PathBuf;

use amalgam_server::{Settings, WireProtocol};
use anyhow::{Context, bail, ensure};

use crate::extended::Extended;
use crate::options::SharedOptions;

/// The settings that `options` and their extended ones tell; the others are the defaults.
///
/// # Errors
///
/// If an option is invalid, or excludes another.
pub fn settings(options: &SharedOptions, extended: &Extended) -> anyhow::Result<Settings> {
    let defaults = Settings::default();
    let max_connections = options.conn_limit.unwrap_or(defaults.max_connections);
    ensure!(max_connections > 0, "-c must be more than 0");
    ensure!(options.max_reqs_per_event != Some(0), "-R must be more than 0");
    let (protocol, users_file) = protocol_and_users(options)?;
    Ok(Settings {
        tls: options.enable_ssl.then(|| extended.tls.settings("-Z")).transpose()?,
        admin: options.admin_address()?,
        admin_users_file: options.admin_auth_file.clone(),
        admin_tls: options.admin_tls.then(|| extended.tls.settings("--admin-tls")).transpose()?,
        threads: options.thread_count()?,
        max_connections,
        refuses_fast: extended.refuses_fast.unwrap_or(defaults.refuses_fast),
        requests_per_batch: options.max_reqs_per_event,
        buffer_bytes: extended.buffer_bytes,
        backlog: options.listen_backlog.unwrap_or(defaults.backlog),
        idle_timeout_seconds: extended
            .idle_timeout_seconds
            .unwrap_or(defaults.idle_timeout_seconds),
        send_timeout_seconds: extended
            .send_timeout_seconds
            .unwrap_or(defaults.send_timeout_seconds),
        protocol,
        socket_mark: extended.socket_mark,
        users_file,
        allows_flush: !options.disable_flush_all,
        allows_dump: !options.disable_dumping,
        allows_watch: !options.disable_watch,
        ..defaults
    })
}

/// The protocol of connections, and the file of users if clients must authenticate. Each way to
/// authenticate belongs to one protocol, so the other protocol is refused then.
fn protocol_and_users(options: &SharedOptions) -> anyhow::Result<(WireProtocol, Option<PathBuf>)> {
    let protocol = match options.protocol.as_deref() {
        None | Some("auto") => WireProtocol::Negotiated,
        Some("ascii") => WireProtocol::Text,
        Some("binary") => WireProtocol::Binary,
        Some(other) => bail!("-B: there is no protocol '{other}'; use auto, ascii or binary"),
    };
    match (options.enable_sasl, &options.auth_file) {
        (false, None) => Ok((protocol, None)),
        (true, Some(_)) => bail!("-S and -Y cannot be combined: use one of them"),
        (true, None) => {
            let named = options.protocol.as_deref().unwrap_or("binary");
            ensure!(named == "binary", "-S needs the binary protocol, not -B {named}");
            let path = std::env::var_os("MEMCACHED_SASL_PWDB")
                .context("-S: MEMCACHED_SASL_PWDB must name a file of user:password lines")?;
            Ok((WireProtocol::Binary, Some(path.into())))
        }
        (false, Some(path)) => {
            ensure!(protocol != WireProtocol::Binary, "-Y needs the text protocol, not -B binary");
            Ok((WireProtocol::Text, Some(path.clone())))
        }
    }
}
