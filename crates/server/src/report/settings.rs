//! `stats settings`: memcached's names in memcached's order.

use std::sync::atomic::Ordering;

use amalgam_index::Store;

use crate::report::general::StatSink;
use crate::settings::{ListenAddress, WireProtocol};
use crate::state::server_state::ServerState;

/// memcached's words for a boolean.
fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Reports `stats settings`.
pub fn settings<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    network(state, stat);
    clients(state, stat);
    let tunables = &state.tunables;
    let mut show = |names: &[&str]| names.iter().for_each(|name| stat(name, &tunables.get(name)));
    show(&[
        "hashpower_init",
        "slab_reassign",
        "slab_automove",
        "slab_automove_ratio",
        "slab_automove_window",
        "slab_chunk_max",
        "lru_crawler",
        "lru_crawler_sleep",
        "lru_crawler_tocrawl",
        "tail_repair_time",
    ]);
    stat("flush_enabled", &yes(state.settings.allows_flush));
    stat("dump_enabled", &yes(state.settings.allows_dump));
    stat("hash_algorithm", &"rapidhash");
    let mut show = |names: &[&str]| names.iter().for_each(|name| stat(name, &tunables.get(name)));
    show(&[
        "lru_maintainer_thread",
        "lru_segmented",
        "hot_lru_pct",
        "warm_lru_pct",
        "hot_max_factor",
        "warm_max_factor",
        "temp_lru",
        "temporary_ttl",
    ]);
    stat("idle_timeout", &state.settings.idle_timeout_seconds);
    let mut show = |names: &[&str]| names.iter().for_each(|name| stat(name, &tunables.get(name)));
    show(&[
        "watcher_logbuf_size",
        "worker_logbuf_size",
        "read_buf_mem_limit",
        "track_sizes",
        "inline_ascii_response",
    ]);
    stat("num_napi_ids", &0);
    match &state.settings.memory_file {
        Some(path) => stat("memory_file", &path.display()),
        None => stat("memory_file", &"(null)"),
    }
    stat("client_flags_size", &4);
    if let Some(tls) = &state.settings.tls {
        stat("ssl_enabled", &"yes");
        tls.shown.iter().for_each(|(name, value)| stat(name, value));
    } else {
        stat("ssl_enabled", &"no");
    }
    stat("send_timeout", &state.settings.send_timeout_seconds);
    stat("engine", &S::NAME);
    if state.settings.chooses_eviction {
        stat("eviction", &"auto");
        stat("eviction_policy", &state.index.statistics().memory.eviction.name());
    } else {
        stat("eviction", &state.settings.eviction.name());
    }
    stat("mrc", &yes(state.miss_curve.is_some()));
    stat("amalgam_version", &env!("CARGO_PKG_VERSION"));
}

fn network<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let settings = &state.settings;
    let port = settings.listen.first().map_or(0, |listen| listen.address.port());
    let udp_port = settings.listen_udp.first().map_or(0, |address| address.port());
    stat("maxbytes", &state.memory_limit());
    stat("maxconns", &settings.max_connections);
    stat("tcpport", &state.tcp_port.get().copied().unwrap_or(port));
    stat("udpport", &udp_port);
    match settings.listen.first() {
        Some(ListenAddress { address, .. }) if !address.ip().is_unspecified() => {
            stat("inter", &address.ip());
        }
        _ => stat("inter", &"NULL"),
    }
    stat("verbosity", &state.verbosity.load(Ordering::Relaxed));
    stat("oldest", &0);
    stat("evictions", &if settings.evicts { "on" } else { "off" });
    match &settings.unix_socket {
        Some(path) => stat("domain_socket", &path.display()),
        None => stat("domain_socket", &"NULL"),
    }
    stat("umask", &format_args!("{:o}", settings.unix_mode));
    stat("shutdown_command", &yes(settings.allows_shutdown));
    stat("growth_factor", &state.tunables.get("growth_factor"));
    stat("chunk_size", &state.tunables.get("chunk_size"));
}

fn clients<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let settings = &state.settings;
    stat("num_threads", &settings.threads);
    stat("num_threads_per_udp", &settings.threads);
    stat("stat_key_prefix", &char::from(settings.prefix_delimiter));
    stat("detail_enabled", &yes(state.prefixes.is_on()));
    stat("reqs_per_event", &settings.requests_per_batch.unwrap_or(20));
    stat("cas_enabled", &yes(state.limits.hands_out_cas));
    stat("tcp_backlog", &settings.backlog);
    let protocol = match settings.protocol {
        WireProtocol::Negotiated => "auto-negotiate",
        WireProtocol::Text => "ascii",
        WireProtocol::Binary => "binary",
    };
    stat("binding_protocol", &protocol);
    let is_sasl = settings.users_file.is_some() && settings.protocol == WireProtocol::Binary;
    stat("auth_enabled_sasl", &yes(is_sasl));
    match &settings.users_file {
        Some(path) if !is_sasl => stat("auth_enabled_ascii", &path.display()),
        _ => stat("auth_enabled_ascii", &"no"),
    }
    stat("item_size_max", &settings.max_item_bytes);
    stat("maxconns_fast", &yes(settings.refuses_fast));
}
