//! `stats` without arguments, `stats engine`, `stats hotkeys` and `stats mrc`.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use amalgam_index::{Eviction, Store};
use rustix::time::{ClockId, clock_gettime};

use crate::compat::MEMCACHED_VERSION;
use crate::metrics::miss_curve::{Curve, MissCurve, QUARTERS, state_name};
use crate::state::server_state::ServerState;
use crate::uri::uri_encoded;

/// File descriptors that the server needs apart from those of connections, roughly.
const RESERVED_FILES: u32 = 64;

/// Receives statistics, one call for each name and value.
pub type StatSink<'s> = dyn FnMut(&str, &dyn Display) + 's;

/// Reports `stats` without arguments.
pub fn general<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    process(state, stat);
    connections(state, stat);
    requests(state, stat);
    memory(state, stat);
}

fn process<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    stat("pid", &std::process::id());
    stat("uptime", &state.clock.uptime_seconds());
    stat("time", &state.clock.unix_seconds());
    stat("version", &MEMCACHED_VERSION);
    // The event loop is the server's own.
    stat("libevent", &"none");
    stat("pointer_size", &usize::BITS);
    let (user, system) = cpu_seconds();
    stat("rusage_user", &format_args!("{user:.6}"));
    stat("rusage_system", &format_args!("{system:.6}"));
}

/// CPU time of the process in user and in system mode.
pub fn cpu_seconds() -> (f64, f64) {
    let clock = clock_gettime(ClockId::ProcessCPUTime);
    let total = clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9;
    // The clock gives the exact sum; its split is only known in ticks.
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

/// Reports zero for each name.
fn zeros(stat: &mut StatSink<'_>, names: &[&str]) {
    names.iter().for_each(|name| stat(name, &0));
}

fn connections<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let counts = state.counters.sums();
    let open = state.counters.connections();
    stat("max_connections", &state.settings.max_connections);
    stat("curr_connections", &open);
    stat("total_connections", &counts.connections_opened);
    if state.settings.refuses_fast {
        stat("rejected_connections", &state.accept_gate.rejected.load(Ordering::Relaxed));
    }
    stat("connection_structures", &open);
    stat("response_obj_oom", &counts.responses_refused);
    zeros(stat, &["response_obj_count", "response_obj_bytes"]);
    stat("read_buf_count", &0);
    stat("read_buf_bytes", &state.buffers.total_bytes());
    stat("read_buf_bytes_free", &0);
    stat("read_buf_oom", &counts.read_buf_oom);
    stat("reserved_fds", &RESERVED_FILES);
}

fn requests<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let counts = state.counters.sums();
    let rows = [
        ("cmd_get", counts.cmd_get),
        ("cmd_set", counts.cmd_set),
        ("cmd_flush", counts.cmd_flush),
        ("cmd_touch", counts.cmd_touch),
        ("cmd_meta", counts.cmd_meta),
        ("get_hits", counts.get_hits),
        ("get_misses", counts.get_misses),
        ("get_expired", counts.get_expired),
        ("get_flushed", counts.get_flushed),
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
    ];
    for (name, value) in rows {
        stat(name, &value);
    }
    if state.settings.idle_timeout_seconds > 0 {
        stat("idle_kicks", &counts.idle_kicks);
    }
    stat("bytes_read", &counts.bytes_read);
    stat("bytes_written", &counts.bytes_written);
    stat("limit_maxbytes", &state.memory_limit());
    stat("accepting_conns", &u8::from(state.accept_gate.is_open()));
    stat("listen_disabled_num", &state.accept_gate.pauses.load(Ordering::Relaxed));
    let micros = state.accept_gate.paused_micros.load(Ordering::Relaxed);
    stat("time_in_listen_disabled_us", &micros);
    stat("threads", &state.settings.threads);
    stat("conn_yields", &counts.conn_yields);
}

fn memory<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let index = state.index_statistics();
    let has_maintainer = state.tunables.is_on("lru_maintainer_thread");
    // That of a memcached table that grows at the same number of items: 1.5 for each bucket.
    stat("hash_power_level", &(index.slots / 2).max(1).ilog2());
    stat("hash_bytes", &index.memory.index);
    stat("hash_is_expanding", &u8::from(index.is_expanding));
    if state.tunables.is_on("slab_reassign") {
        zeros(stat, &SLAB_REASSIGN_ZEROS);
        stat("slab_reassign_last_busy_status", &"none");
        stat("slab_reassign_running", &0);
        stat("slabs_moved", &index.memory.pages_moved);
    }
    if state.tunables.is_on("lru_crawler") {
        let crawler = &state.crawler;
        stat("lru_crawler_running", &u8::from(crawler.is_requested.load(Ordering::Relaxed)));
        stat("lru_crawler_starts", &crawler.starts.load(Ordering::Relaxed));
    }
    if has_maintainer {
        stat("lru_maintainer_juggles", &0);
    }
    stat("malloc_fails", &0);
    log(state, stat);
    tls(state, stat);
    zeros(stat, &["unexpected_napi_ids", "round_robin_fallback"]);
    stat("bytes", &index.memory.items);
    stat("curr_items", &index.items);
    stat("total_items", &index.items_total);
    stat("slab_global_page_pool", &index.memory.free_pages);
    stat("expired_unfetched", &index.expired_unfetched);
    stat("evicted_unfetched", &index.evicted_unfetched);
    if has_maintainer {
        stat("evicted_active", &0);
    }
    stat("evictions", &index.evictions);
    stat("reclaimed", &index.reclaimed);
    stat("crawler_reclaimed", &state.crawler.reclaimed());
    stat("crawler_items_checked", &state.crawler.checked.load(Ordering::Relaxed));
    stat("lrutail_reflocked", &0);
    if has_maintainer {
        zeros(stat, &["moves_to_cold", "moves_to_warm", "moves_within_lru", "direct_reclaims"]);
        stat("lru_bumps_dropped", &0);
    }
}

const SLAB_REASSIGN_ZEROS: [&str; 6] = [
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_busy_nomem",
];

fn log<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let counts = &state.log.counts;
    stat("log_worker_dropped", &counts.dropped.load(Ordering::Relaxed));
    stat("log_worker_written", &counts.written.load(Ordering::Relaxed));
    stat("log_watcher_skipped", &counts.skipped.load(Ordering::Relaxed));
    stat("log_watcher_sent", &counts.sent.load(Ordering::Relaxed));
    stat("log_watchers", &counts.watchers.load(Ordering::Relaxed));
}

fn tls<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let Some(tls) = &state.tls else { return };
    let counts = &tls.counters;
    if tls.resumes() {
        stat("ssl_new_sessions", &counts.new_sessions.load(Ordering::Relaxed));
    }
    stat("ssl_handshake_errors", &counts.handshake_errors.load(Ordering::Relaxed));
    stat("ssl_proto_errors", &counts.protocol_errors.load(Ordering::Relaxed));
    let age_seconds = state.clock.seconds().saturating_sub(tls.refreshed_seconds());
    stat("time_since_server_cert_refresh", &age_seconds);
}

/// Reports `stats engine`: the statistics that memcached has no name for.
pub fn engine<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let index = state.index.statistics();
    stat("engine", &S::NAME);
    stat("amalgam_version", &env!("CARGO_PKG_VERSION"));
    stat("buckets", &index.buckets);
    stat("slots", &index.slots);
    stat("hash_expansions", &index.expansions);
    stat("longest_pause_ns", &index.longest_pause_ns);
    stat("bytes_used", &index.memory.used);
    stat("bytes_waiting", &index.memory.waiting);
    stat("out_of_memory", &index.out_of_memory);
    stat("expiry_lag_seconds", &index.memory.expiry_lag_seconds(state.clock.seconds()));
    stat("reclaim_lag_seconds", &index.memory.reclaim_lag_seconds);
    let losses = index.memory.losses;
    stat("bytes_lost_headers", &losses.headers);
    stat("bytes_lost_rounding", &losses.rounding);
    stat("bytes_lost_page_tails", &losses.page_tails);
    stat("bytes_lost_grace", &losses.grace);
    stat("bytes_lost_free_slots", &losses.free_slots);
    stat("bytes_pinned", &state.index.pinned_bytes());
    let counts = state.counters.sums();
    stat("send_timeout_kicks", &counts.send_timeout_kicks);
    stat("buffers_full_kicks", &counts.buffers_full_kicks);
}

/// Reports `stats hotkeys`: each key with its share of the accesses of the last seconds, and the
/// error bound of the share.
pub fn hot_keys<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    for hot in state.hot_keys.hottest(state.clock.seconds()) {
        let value = format_args!("{:.6} {:.6}", hot.share, hot.error);
        stat(&uri_encoded(&hot.key), &value);
    }
}

/// Reports `stats mrc`: the miss ratio with a quarter to four times the memory.
pub fn miss_curve(curve: &MissCurve, stat: &mut StatSink<'_>) {
    /// As fractions of the present memory, in the order of [`QUARTERS`].
    const NAMES: [&str; QUARTERS.len()] = ["1/4", "1/2", "3/4", "1", "3/2", "2", "3", "4"];
    let estimate = curve.estimate();
    stat("mrc:state", &state_name(&estimate.curve));
    stat("mrc:rate", &format_args!("{:.6}", estimate.rate));
    stat("mrc:sampled_keys", &estimate.sampled_keys);
    stat("mrc:requests", &format_args!("{:.0}", estimate.sampled_reads));
    for policy in Eviction::ALL {
        let ratio = curve.policy_ratio(policy).filter(|_| policy != Eviction::Clock);
        if let Some(ratio) = ratio {
            stat(&format!("mrc:{}_over_clock", policy.name()), &format_args!("{ratio:.4}"));
        }
    }
    let Curve::Known(miss_ratios) = estimate.curve else { return };
    for (name, ratio) in NAMES.iter().zip(miss_ratios) {
        stat(&format!("mrc:{name}:miss_ratio"), &format_args!("{ratio:.4}"));
    }
}
