//! `/metrics`: a snapshot in Prometheus' text format. Names follow its conventions: base units,
//! `_total` for counters, one family for values that can be summed.

use std::fmt::{Display, Write};

use amalgam_index::{Eviction, Store};

use super::snapshot::Snapshot;
use crate::metrics::latency::{BOUNDS_NS, COMMANDS, Histogram};
use crate::metrics::miss_curve::{Curve, QUARTERS};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const NS_PER_SECOND: f64 = 1e9;

/// Renders a snapshot.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = MetricsText::default();
    process(&mut text, snapshot);
    commands(&mut text, snapshot);
    durations(&mut text, &snapshot.durations);
    connections(&mut text, snapshot);
    memory(&mut text, snapshot);
    classes(&mut text, snapshot);
    index(&mut text, snapshot);
    miss_curve(&mut text, snapshot);
    text.0
}

/// Renders what only this store shows.
pub fn of_store(store: &impl Store) -> String {
    let (mut text, mut last) = (MetricsText::default(), String::new());
    store.show_metrics(&mut |metric| {
        if last != metric.name {
            last = metric.name.to_owned();
            let kind = if metric.name.ends_with("_total") { "counter" } else { "gauge" };
            text.family(metric.name, kind, metric.help);
        }
        match &metric.label {
            Some((label, of)) => text.sample(metric.name, &[(*label, of)], metric.value),
            None => text.sample(metric.name, &[], metric.value),
        }
    });
    text.0
}

#[derive(Default)]
struct MetricsText(String);

type Labels<'l> = &'l [(&'l str, &'l dyn Display)];

impl MetricsText {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        self.0.push_str(name);
        for (place, (label, of)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escaped(&of.to_string()));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }
}

/// A label's value, escaped for its quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

fn process(text: &mut MetricsText, snapshot: &Snapshot) {
    text.family("amalgam_build_info", "gauge", "Always 1; the labels say what runs.");
    let version: &dyn Display = &env!("CARGO_PKG_VERSION");
    text.sample("amalgam_build_info", &[("version", version), ("engine", &snapshot.engine)], 1);
    let start = snapshot.start_unix_seconds;
    text.gauge("process_start_time_seconds", "Unix time of the start.", start);
    let uptime = snapshot.uptime_seconds;
    text.gauge("amalgam_uptime_seconds", "Seconds since the start.", uptime);
    let cpu = snapshot.cpu_seconds;
    text.counter("process_cpu_seconds_total", "CPU time of the process.", cpu);
    let resident = snapshot.resident_bytes;
    text.gauge("process_resident_memory_bytes", "Resident memory of the process.", resident);
    if let Some(open) = snapshot.open_files {
        text.gauge("process_open_fds", "Open file descriptors of the process.", open);
    }
    if let Some(most) = snapshot.max_files {
        text.gauge("process_max_fds", "Limit of open file descriptors of the process.", most);
    }
    text.gauge("amalgam_threads", "Worker threads.", snapshot.threads);
}

fn commands(text: &mut MetricsText, snapshot: &Snapshot) {
    let counts = &snapshot.counts;
    let name = "amalgam_commands_total";
    text.family(name, "counter", "Commands executed; each key of a get counts as one.");
    let rows = [
        ("get", counts.cmd_get),
        ("set", counts.cmd_set),
        ("delete", counts.delete_hits + counts.delete_misses),
        ("incr", counts.incr_hits + counts.incr_misses),
        ("decr", counts.decr_hits + counts.decr_misses),
        ("touch", counts.cmd_touch),
        ("flush", counts.cmd_flush),
    ];
    for (command, count) in rows {
        text.sample(name, &[("command", &command)], count);
    }
    let name = "amalgam_lookups_total";
    text.family(name, "counter", "Commands that look up an item, by result.");
    let rows = [
        ("get", "hit", counts.get_hits),
        ("get", "miss", counts.get_misses),
        ("delete", "hit", counts.delete_hits),
        ("delete", "miss", counts.delete_misses),
        ("incr", "hit", counts.incr_hits),
        ("incr", "miss", counts.incr_misses),
        ("decr", "hit", counts.decr_hits),
        ("decr", "miss", counts.decr_misses),
        ("touch", "hit", counts.touch_hits),
        ("touch", "miss", counts.touch_misses),
        ("cas", "hit", counts.cas_hits),
        ("cas", "miss", counts.cas_misses),
        ("cas", "other_id", counts.cas_badval),
    ];
    for (command, result, count) in rows {
        text.sample(name, &[("command", &command), ("result", &result)], count);
    }
    let name = "amalgam_stores_refused_total";
    text.family(name, "counter", "Stores refused, by reason.");
    text.sample(name, &[("reason", &"too_large")], counts.store_too_large);
    text.sample(name, &[("reason", &"no_memory")], counts.store_no_memory);
    let name = "amalgam_authentications_total";
    text.family(name, "counter", "Attempts to authenticate.");
    let accepted = counts.auth_cmds.saturating_sub(counts.auth_errors);
    text.sample(name, &[("result", &"accepted")], accepted);
    text.sample(name, &[("result", &"refused")], counts.auth_errors);
    text.counter("amalgam_received_bytes_total", "Bytes received.", counts.bytes_read);
    text.counter("amalgam_sent_bytes_total", "Bytes sent.", counts.bytes_written);
}

fn durations(text: &mut MetricsText, durations: &[Histogram]) {
    let name = "amalgam_command_duration_seconds";
    text.family(
        name,
        "histogram",
        "Time in the server until the answer was sent, from a sample of commands.",
    );
    let (bucket, sum, count) =
        (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
    for (command, histogram) in COMMANDS.iter().zip(durations) {
        let mut below = 0;
        for (bound_ns, commands) in BOUNDS_NS.iter().zip(&histogram.counts) {
            below += commands;
            let bound = *bound_ns as f64 / NS_PER_SECOND;
            text.sample(&bucket, &[("command", command), ("le", &bound)], below);
        }
        let all: u64 = histogram.counts.iter().sum();
        text.sample(&bucket, &[("command", command), ("le", &"+Inf")], all);
        let seconds = histogram.sum_ns as f64 / NS_PER_SECOND;
        text.sample(&sum, &[("command", command)], seconds);
        text.sample(&count, &[("command", command)], all);
    }
}

fn connections(text: &mut MetricsText, snapshot: &Snapshot) {
    let counts = &snapshot.counts;
    text.gauge("amalgam_connections", "Open connections.", snapshot.connections);
    let most = snapshot.max_connections;
    text.gauge("amalgam_connections_limit", "Limit of open connections.", most);
    let is_accepting = u8::from(snapshot.is_accepting);
    text.gauge("amalgam_accepting", "1 while connections are accepted.", is_accepting);
    let rows = [
        ("amalgam_connections_opened_total", "Connections opened.", counts.connections_opened),
        ("amalgam_connections_closed_total", "Connections closed.", counts.connections_closed),
        (
            "amalgam_connections_rejected_total",
            "Connections rejected because the limit was reached.",
            snapshot.rejected_connections,
        ),
        (
            "amalgam_connections_idle_closed_total",
            "Connections closed because of the idle timeout.",
            counts.idle_kicks,
        ),
        (
            "amalgam_connections_send_timeout_closed_total",
            "Connections closed because their answers stood still for longer than send_timeout.",
            counts.send_timeout_kicks,
        ),
        (
            "amalgam_connections_buffers_full_closed_total",
            "Connections closed because the buffers were full.",
            counts.buffers_full_kicks,
        ),
        ("amalgam_accept_pauses_total", "How often accepting was paused.", snapshot.accept_pauses),
        (
            "amalgam_connection_yields_total",
            "Batches in which a connection had more requests than -R allows.",
            counts.conn_yields,
        ),
        (
            "amalgam_buffer_refusals_total",
            "Requests refused because there was no buffer memory.",
            counts.read_buf_oom + counts.responses_refused,
        ),
    ];
    for (name, help, value) in rows {
        text.counter(name, help, value);
    }
}

fn memory(text: &mut MetricsText, snapshot: &Snapshot) {
    let memory = &snapshot.index.memory;
    let limit = snapshot.memory_limit_bytes;
    text.gauge(
        "amalgam_memory_limit_bytes",
        "Limit of the memory of items, index and buffers together.",
        limit,
    );
    let used = memory.used + snapshot.buffer_bytes as u64;
    text.gauge("amalgam_memory_used_bytes", "Memory used of the limit.", used);
    text.gauge(
        "amalgam_memory_fillable_bytes",
        "Part of the limit that items and index may take: less than what buffers leave on a node \
         that keeps room for what another one had.",
        memory.limit,
    );
    let name = "amalgam_memory_bytes";
    text.family(name, "gauge", "Memory by use; free space in partly used pages is in no row.");
    let rows = [
        ("items", memory.items),
        ("index", memory.index),
        ("waiting", memory.waiting),
        ("free_pages", memory.free_pages * memory.page_bytes),
        ("buffers", snapshot.buffer_bytes as u64),
    ];
    for (purpose, bytes) in rows {
        text.sample(name, &[("use", &purpose)], bytes);
    }
    let losses = memory.losses;
    let name = "amalgam_memory_lost_bytes";
    text.family(name, "gauge", "Memory of pages that holds no key and no value, by cause.");
    let rows = [
        ("headers", losses.headers),
        ("rounding", losses.rounding),
        ("page_tails", losses.page_tails),
        ("grace", losses.grace),
        ("free_slots", losses.free_slots),
    ];
    for (cause, bytes) in rows {
        text.sample(name, &[("cause", &cause)], bytes);
    }
    let moved = memory.pages_moved;
    text.counter("amalgam_pages_moved_total", "Pages moved between size classes.", moved);
}

fn classes(text: &mut MetricsText, snapshot: &Snapshot) {
    let classes = &snapshot.index.memory.classes;
    type Number = fn(&amalgam_index::ClassStatistics) -> u64;
    let families: [(&str, &str, &str, Number); 4] = [
        ("amalgam_class_pages", "gauge", "Pages of a size class.", |class| class.pages),
        ("amalgam_class_slots", "gauge", "Slots of a size class.", |class| class.slots),
        ("amalgam_class_used_slots", "gauge", "Slots of a size class in use.", |class| {
            class.used_slots
        }),
        ("amalgam_class_evictions_total", "counter", "Evictions from a size class.", |class| {
            class.evictions
        }),
    ];
    for (name, kind, help, number) in families {
        text.family(name, kind, help);
        for class in classes {
            text.sample(name, &[("slot_bytes", &class.slot_bytes)], number(class));
        }
    }
}

fn index(text: &mut MetricsText, snapshot: &Snapshot) {
    let index = &snapshot.index;
    text.gauge(
        "amalgam_items",
        "Items, including dead ones that are not reclaimed yet.",
        index.items,
    );
    let rows = [
        (
            "amalgam_items_linked_total",
            "Items linked into the index since the start.",
            index.items_total,
        ),
        ("amalgam_evictions_total", "Live items evicted to make room.", index.evictions),
        ("amalgam_reclaimed_total", "Dead items whose memory was reclaimed.", index.reclaimed),
        (
            "amalgam_expired_unfetched_total",
            "Of the reclaimed items, those that nobody had read.",
            index.expired_unfetched,
        ),
        ("amalgam_out_of_memory_total", "Stores that found no memory.", index.out_of_memory),
        ("amalgam_index_expansions_total", "Completed expansions of the table.", index.expansions),
    ];
    for (name, help, value) in rows {
        text.counter(name, help, value);
    }
    text.gauge(
        "amalgam_expiry_lag_seconds",
        "Time for which an expired item may have waited to be reclaimed.",
        index.memory.expiry_lag_seconds(snapshot.now_seconds),
    );
    text.gauge(
        "amalgam_reclaim_lag_seconds",
        "Time since the expiry of the oldest item of those reclaimed last.",
        index.memory.reclaim_lag_seconds,
    );
    text.gauge("amalgam_index_buckets", "Buckets of the table.", index.buckets);
    text.gauge("amalgam_index_slots", "Items that the table holds at load factor 1.", index.slots);
    text.gauge("amalgam_index_load_factor", "Items divided by slots.", snapshot.load_factor());
    let is_expanding = u8::from(index.is_expanding);
    text.gauge("amalgam_index_expanding", "1 while the table expands.", is_expanding);
    text.gauge(
        "amalgam_index_longest_pause_seconds",
        "The longest time that an expansion blocked all workers.",
        index.longest_pause_ns as f64 / NS_PER_SECOND,
    );
    let name = "amalgam_index_sampled_buckets";
    text.family(name, "gauge", "Sampled buckets by the number of items in them.");
    let last = index.length_histogram.len().saturating_sub(1);
    for (length, buckets) in index.length_histogram.iter().enumerate() {
        let and_more = if length == last && length > 0 { "+" } else { "" };
        text.sample(name, &[("length", &format_args!("{length}{and_more}"))], buckets);
    }
    let help = "Sampled buckets of at least two items whose head item is hot.";
    text.gauge("amalgam_index_sampled_hot_heads", help, index.hot_heads);
}

fn miss_curve(text: &mut MetricsText, snapshot: &Snapshot) {
    let Some(estimate) = &snapshot.miss_curve else { return };
    let name = "amalgam_eviction_policy";
    text.family(name, "gauge", "1 for the policy of eviction in force.");
    for policy in Eviction::ALL {
        let is_in_force = u8::from(policy == snapshot.index.memory.eviction);
        text.sample(name, &[("policy", &policy.name())], is_in_force);
    }
    let help = "Sampled reads that the miss ratios follow from; older ones count less.";
    text.gauge("amalgam_mrc_sampled_requests", help, estimate.sampled_reads.round());
    let Curve::Known(miss_ratios) = estimate.curve else { return };
    let name = "amalgam_mrc_miss_ratio";
    let help = "Estimated miss ratio of gets if the memory limit were multiplied by this.";
    text.family(name, "gauge", help);
    for (quarters, ratio) in QUARTERS.iter().zip(miss_ratios) {
        text.sample(name, &[("memory", &(f64::from(*quarters) / 4.0))], ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::counters::Counts;
    use amalgam_index::{ClassStatistics, Statistics};

    fn snapshot() -> Snapshot {
        let mut index = Statistics { items: 30, slots: 40, ..Statistics::default() };
        index.length_histogram = vec![5, 3, 1];
        index.hot_heads = 1;
        index.longest_pause_ns = 1_500_000;
        index.memory.classes.push(ClassStatistics { slot_bytes: 48, pages: 2, ..<_>::default() });
        let counts = Counts { get_hits: 7, get_misses: 2, cmd_get: 9, ..Counts::default() };
        let mut snapshot = Snapshot { engine: "mercury", counts, index, ..Snapshot::default() };
        snapshot.durations[0].counts[1] = 4;
        snapshot.durations[0].counts[17] = 1;
        snapshot.durations[0].sum_ns = 2_000_000_000;
        snapshot
    }

    #[test]
    fn values_appear_under_their_names() {
        let text = render(&snapshot());
        for line in [
            "amalgam_commands_total{command=\"get\"} 9",
            "amalgam_lookups_total{command=\"get\",result=\"hit\"} 7",
            "amalgam_command_duration_seconds_bucket{command=\"get\",le=\"0.000005\"} 0",
            "amalgam_command_duration_seconds_bucket{command=\"get\",le=\"1\"} 4",
            "amalgam_command_duration_seconds_bucket{command=\"get\",le=\"+Inf\"} 5",
            "amalgam_command_duration_seconds_sum{command=\"get\"} 2",
            "amalgam_command_duration_seconds_count{command=\"get\"} 5",
            "amalgam_index_load_factor 0.75",
            "amalgam_index_longest_pause_seconds 0.0015",
            "amalgam_index_sampled_buckets{length=\"2+\"} 1",
            "amalgam_index_sampled_hot_heads 1",
            "amalgam_class_pages{slot_bytes=\"48\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
    }

    /// The rules of Prometheus' parser, and its conventions for names.
    #[test]
    fn the_text_keeps_the_rules_of_its_format() {
        let text = render(&snapshot());
        assert!(text.ends_with('\n'));
        let mut kinds = std::collections::BTreeMap::new();
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(kinds.insert(name, kind).is_none(), "{name} twice");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
            assert!(seen.insert(series), "{series} twice");
            let name = series.split('{').next().unwrap();
            let suffixes = ["_bucket", "_sum", "_count"];
            let family = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            let is_known = |name| kinds.contains_key(name);
            assert!(is_known(name) || family.is_some_and(is_known), "{name} has no type");
            let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(name.bytes().all(is_name), "{name}");
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
