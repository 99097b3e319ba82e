//! `stats`, under memcached's names.
//!
//! What memcached counts about mechanisms that this server does not have (LRU segments, its
//! crawler, its slab rebalancer) is left out, but for names that monitoring tools insist on.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use amalgam_index::Index;
use rustix::time::{ClockId, clock_gettime};

use crate::hot_keys::uri_encoded;
use crate::server::Shared;
use crate::{MEMCACHED_VERSION, WireProtocol};

/// Takes one statistic: its name and value.
pub type Stat<'s> = dyn FnMut(&str, &dyn Display) + 's;

/// `stats`.
pub fn general<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    process(shared, stat);
    connections(shared, stat);
    requests(shared, stat);
    memory(shared, stat);
}

fn process<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    stat("pid", &std::process::id());
    stat("uptime", &shared.clock.uptime_seconds());
    stat("time", &shared.clock.unix_seconds());
    stat("version", &MEMCACHED_VERSION);
    stat("amalgam_version", &env!("CARGO_PKG_VERSION"));
    stat("engine", &I::NAME);
    stat("pointer_size", &usize::BITS);
    let (user, system) = cpu_seconds();
    stat("rusage_user", &format_args!("{user:.6}"));
    stat("rusage_system", &format_args!("{system:.6}"));
}

/// CPU time of the process in user and in system mode.
pub fn cpu_seconds() -> (f64, f64) {
    let clock = clock_gettime(ClockId::ProcessCPUTime);
    let total = clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9;
    // The shares are counted in ticks, the sum exactly.
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks = |field: usize| -> f64 {
        fields.split(' ').nth(field).and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0)
    };
    let (user, system) = (ticks(11), ticks(12));
    if user + system == 0.0 {
        return (total, 0.0);
    }
    (total * user / (user + system), total * system / (user + system))
}

fn connections<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    let counts = shared.counters.sums();
    let open = shared.counters.connections();
    stat("max_connections", &shared.settings.max_connections);
    stat("curr_connections", &open);
    stat("total_connections", &counts.connections_opened);
    if shared.settings.refuses_fast {
        stat("rejected_connections", &shared.gate.rejected.load(Ordering::Relaxed));
    }
    stat("connection_structures", &open);
    stat("read_buf_bytes", &shared.buffers.used_bytes());
    stat("read_buf_oom", &counts.read_buf_oom);
}

fn requests<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    let counts = shared.counters.sums();
    let rows = [
        ("cmd_get", counts.cmd_get),
        ("cmd_set", counts.cmd_set),
        ("cmd_flush", counts.cmd_flush),
        ("cmd_touch", counts.cmd_touch),
        ("cmd_meta", counts.cmd_meta),
        ("get_hits", counts.get_hits),
        ("get_misses", counts.get_misses),
        ("delete_misses", counts.delete_misses),
        ("delete_hits", counts.delete_hits),
        ("incr_misses", counts.incr_misses),
        ("incr_hits", counts.incr_hits),
        ("decr_misses", counts.decr_misses),
        ("decr_hits", counts.decr_hits),
        ("cas_misses", counts.cas_misses),
        ("cas_hits", counts.cas_hits),
        ("cas_badval", counts.cas_badval),
        ("touch_hits", counts.touch_hits),
        ("touch_misses", counts.touch_misses),
        ("store_too_large", counts.store_too_large),
        ("store_no_memory", counts.store_no_memory),
        ("auth_cmds", counts.auth_cmds),
        ("auth_errors", counts.auth_errors),
        ("idle_kicks", counts.idle_kicks),
        ("bytes_read", counts.bytes_read),
        ("bytes_written", counts.bytes_written),
    ];
    for (name, value) in rows {
        stat(name, &value);
    }
    stat("limit_maxbytes", &shared.memory_limit());
    stat("accepting_conns", &u8::from(shared.gate.is_open.load(Ordering::Relaxed)));
    stat("listen_disabled_num", &shared.gate.closed_count.load(Ordering::Relaxed));
    stat("threads", &shared.settings.threads);
    stat("conn_yields", &counts.conn_yields);
}

fn memory<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    let index = shared.index.statistics();
    let power = index.buckets.max(1).ilog2();
    stat("hash_power_level", &power);
    stat("hash_bytes", &index.memory.index);
    stat("hash_is_expanding", &u8::from(index.is_expanding));
    stat("hash_expansions", &index.expansions);
    stat("slab_reassign_running", &0);
    stat("slabs_moved", &index.memory.pages_moved);
    stat("lru_crawler_running", &0);
    stat("malloc_fails", &0);
    stat("bytes", &index.memory.items);
    stat("bytes_used", &index.memory.used);
    stat("bytes_waiting", &index.memory.waiting);
    stat("curr_items", &index.items);
    stat("total_items", &index.items_total);
    stat("slab_global_page_pool", &index.memory.free_pages);
    stat("evictions", &index.evictions);
    stat("reclaimed", &index.reclaimed);
}

/// `stats settings`.
pub fn settings<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    let settings = &shared.settings;
    let yes = |is: bool| if is { "yes" } else { "no" };
    let port = settings.listen.first().map_or(0, |address| address.port());
    let udp_port = settings.listen_udp.first().map_or(0, |address| address.port());
    stat("maxbytes", &shared.memory_limit());
    stat("maxconns", &settings.max_connections);
    stat("tcpport", &shared.tcp_port.get().copied().unwrap_or(port));
    stat("udpport", &udp_port);
    match settings.listen.first() {
        Some(address) if !address.ip().is_unspecified() => stat("inter", &address.ip()),
        _ => stat("inter", &"NULL"),
    }
    stat("verbosity", &shared.verbosity.load(Ordering::Relaxed));
    stat("oldest", &0);
    stat("evictions", &if settings.evicts { "on" } else { "off" });
    match &settings.unix_socket {
        Some(path) => stat("domain_socket", &path.display()),
        None => stat("domain_socket", &"NULL"),
    }
    stat("umask", &format_args!("{:o}", settings.unix_mode));
    stat("shutdown_command", &yes(settings.allows_shutdown));
    stat("num_threads", &settings.threads);
    stat("stat_key_prefix", &':');
    stat("detail_enabled", &"no");
    stat("reqs_per_event", &settings.requests_per_turn.unwrap_or(20));
    stat("cas_enabled", &yes(shared.limits.hands_out_cas));
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
    stat("flush_enabled", &yes(settings.allows_flush));
    stat("dump_enabled", &yes(settings.allows_dump));
    stat("hash_algorithm", &"rapidhash");
    stat("idle_timeout", &settings.idle_timeout_seconds);
    stat("client_flags_size", &4);
    stat("engine", &I::NAME);
}

/// `stats hotkeys`: each key, its share of the accesses of the last seconds, and the bound of the
/// share's error.
pub fn hot_keys<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    for hot in shared.hot_keys.hottest(shared.clock.seconds()) {
        let value = format_args!("{:.6} {:.6}", hot.share, hot.error);
        stat(&uri_encoded(&hot.key), &value);
    }
}

/// `stats items`.
pub fn items<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    for class in &shared.index.statistics().memory.classes {
        let number = class.class;
        stat(&format!("items:{number}:number"), &class.used_slots);
        stat(&format!("items:{number}:evicted"), &class.evictions);
    }
}

/// `stats slabs`.
pub fn slabs<I: Index>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    let memory = shared.index.statistics().memory;
    for class in &memory.classes {
        let number = class.class;
        let per_page = class.slots.checked_div(class.pages).unwrap_or(0);
        stat(&format!("{number}:chunk_size"), &class.slot_bytes);
        stat(&format!("{number}:chunks_per_page"), &per_page);
        stat(&format!("{number}:total_pages"), &class.pages);
        stat(&format!("{number}:total_chunks"), &class.slots);
        stat(&format!("{number}:used_chunks"), &class.used_slots);
        let free = class.slots.saturating_sub(class.used_slots);
        stat(&format!("{number}:free_chunks"), &free);
        stat(&format!("{number}:free_chunks_end"), &0);
    }
    stat("active_slabs", &memory.classes.len());
    stat("total_malloced", &memory.used);
}
