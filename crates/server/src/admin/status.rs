//! The status of the server in JSON, for programs and for the live page.

use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

use amalgam_index::{Found, Sink, Store, Worker};
use amalgam_op::{Get, IgnorePoison, Key, Op, Verb};
use serde_json::{Map, Value, json};

use super::history::History;
use super::snapshot::Snapshot;
use crate::metrics::hot_keys::HotKey;
use crate::metrics::miss_curve::{Curve, QUARTERS, state_name};
use crate::state::server_state::ServerState;
use crate::uri::uri_encoded;

/// The hot keys, hottest first; null if keys may not be listed. Keys are arbitrary bytes, so they
/// are percent-encoded. The requests a second follow from the share, so its error is theirs too.
pub fn hot_keys<S: Store>(state: &ServerState<S>, history: &History) -> Value {
    if !state.settings.allows_dump {
        return Value::Null;
    }
    let hottest = state.hot_keys.hottest(state.clock.seconds());
    let rate = history.recent_rate();
    let sizes = value_bytes(state, &hottest);
    let rows = hottest.iter().zip(sizes).map(|(hot, size)| {
        json!({
            "key": uri_encoded(&hot.key),
            "share": hot.share,
            "error": hot.error,
            "requests_per_second": rate.map(|rate| (rate * hot.share).round()),
            "value_bytes": size,
        })
    });
    rows.collect()
}

/// The length of the value of each key; None if it has none, or one on another machine. The reads
/// count nowhere: no statistics, and no use of the item.
fn value_bytes<S: Store>(state: &ServerState<S>, keys: &[HotKey]) -> Vec<Option<usize>> {
    // A store that is maintained elsewhere asks other machines, and would keep the page waiting.
    if state.engine_controls.is_none() {
        return vec![None; keys.len()];
    }
    let _only_one = state.operator_reads.lock().ignore_poison();
    let mut worker = state.index.worker();
    let now = state.clock.now();
    let verb = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
    let read = |hot: &HotKey| {
        let mut length = Length(None);
        let key = Key::new(&hot.key, state.index.seed());
        worker.apply(&Op { key, verb }, &now, &mut length);
        worker.quiesce();
        length.0
    };
    keys.iter().map(read).collect()
}

/// A sink that keeps the length of the value of a hit.
struct Length(Option<usize>);

impl Sink for Length {
    fn hit(&mut self, _position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.0 = Some(found.item.value.len());
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// All data of the live page.
pub fn all<S: Store>(state: &ServerState<S>, history: &History) -> Value {
    let mut status = of_snapshot(&Snapshot::take(state));
    status.insert("is_stopping".into(), state.is_stopping().into());
    status.insert("hot_keys".into(), hot_keys(state, history));
    status.insert("history".into(), history.minutes());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |past| past.as_millis());
    status.insert("unix_ms".into(), json!(now as u64));
    status.into()
}

fn of_snapshot(snapshot: &Snapshot) -> Map<String, Value> {
    let (counts, index) = (&snapshot.counts, &snapshot.index);
    let memory = &index.memory;
    let classes = memory.classes.iter().map(|class| {
        json!({
            "slot_bytes": class.slot_bytes,
            "pages": class.pages,
            "slots": class.slots,
            "used_slots": class.used_slots,
            "evictions": class.evictions,
        })
    });
    let mut status = Map::new();
    let mut put = |name: &str, value: Value| status.insert(name.to_owned(), value);
    put("engine", snapshot.engine.into());
    put("version", env!("CARGO_PKG_VERSION").into());
    put("uptime_seconds", snapshot.uptime_seconds.into());
    put("threads", snapshot.threads.into());
    put("cpu_seconds", snapshot.cpu_seconds.into());
    put("resident_bytes", snapshot.resident_bytes.into());
    put(
        "commands",
        json!({
            "all": counts.commands(),
            "get": counts.cmd_get,
            "set": counts.cmd_set,
            "get_hits": counts.get_hits,
            "get_misses": counts.get_misses,
        }),
    );
    if let Some(estimate) = &snapshot.miss_curve {
        let miss_ratios = match estimate.curve {
            Curve::Known(ratios) => json!(ratios),
            _ => Value::Null,
        };
        put(
            "mrc",
            json!({
                "state": state_name(&estimate.curve),
                "memory": QUARTERS.map(|quarters| f64::from(quarters) / 4.0),
                "miss_ratios": miss_ratios,
            }),
        );
    }
    put(
        "connections",
        json!({
            "open": snapshot.connections,
            "limit": snapshot.max_connections,
            "opened": counts.connections_opened,
            "rejected": snapshot.rejected_connections,
            "is_accepting": snapshot.is_accepting,
        }),
    );
    put(
        "memory",
        json!({
            "limit": snapshot.memory_limit_bytes,
            "used": memory.used + snapshot.buffer_bytes as u64,
            "items": memory.items,
            "index": memory.index,
            "waiting": memory.waiting,
            "buffers": snapshot.buffer_bytes,
            "free_pages": memory.free_pages * memory.page_bytes,
            "pages_moved": memory.pages_moved,
        }),
    );
    put("classes", classes.collect());
    put(
        "index",
        json!({
            "items": index.items,
            "buckets": index.buckets,
            "slots": index.slots,
            "load_factor": snapshot.load_factor(),
            "expansions": index.expansions,
            "is_expanding": index.is_expanding,
            "longest_pause_ns": index.longest_pause_ns,
            "lengths": index.length_histogram,
            "hot_heads": index.hot_heads,
            "evictions": index.evictions,
            "reclaimed": index.reclaimed,
            "out_of_memory": index.out_of_memory,
        }),
    );
    status
}
