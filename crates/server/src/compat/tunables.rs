//! memcached's tunables that have no effect here. They are kept and shown in `stats settings`, so
//! that an operator reads what an operator set.

use std::collections::BTreeMap;
use std::sync::Mutex;

use amalgam_op::IgnorePoison;

/// The tunables by their names in `stats settings`, with memcached's defaults.
const DEFAULTS: &[(&str, &str)] = &[
    ("growth_factor", "1.25"),
    ("chunk_size", "48"),
    ("hashpower_init", "0"),
    ("slab_reassign", "yes"),
    ("slab_automove", "1"),
    ("slab_automove_ratio", "0.80"),
    ("slab_automove_window", "10"),
    ("slab_chunk_max", "524288"),
    ("lru_crawler", "yes"),
    ("lru_crawler_sleep", "100"),
    ("lru_crawler_tocrawl", "0"),
    ("tail_repair_time", "0"),
    ("lru_maintainer_thread", "yes"),
    ("lru_segmented", "yes"),
    ("hot_lru_pct", "20"),
    ("warm_lru_pct", "40"),
    ("hot_max_factor", "0.20"),
    ("warm_max_factor", "2.00"),
    ("temp_lru", "no"),
    ("temporary_ttl", "61"),
    ("watcher_logbuf_size", "262144"),
    ("worker_logbuf_size", "65536"),
    ("read_buf_mem_limit", "0"),
    ("track_sizes", "no"),
    ("inline_ascii_response", "no"),
];

/// Values of tunables by name, for `stats settings`. Shared by all threads.
pub struct CompatTunables(Mutex<BTreeMap<&'static str, String>>);

impl CompatTunables {
    /// The defaults, overridden by `given`; unknown names are ignored.
    pub fn new(given: &[(String, String)]) -> Self {
        let tunables = Self(Mutex::new(
            DEFAULTS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        ));
        given.iter().for_each(|(name, value)| tunables.set(name, value));
        tunables
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.0.lock().ignore_poison()
    }

    /// The value of a tunable; empty if the name is unknown.
    pub fn get(&self, name: &str) -> String {
        self.lock().get(name).cloned().unwrap_or_default()
    }

    /// Whether a tunable is set to `yes`.
    pub fn is_on(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|value| value == "yes")
    }

    /// The value of a tunable as a number; 0 if it is none.
    pub fn number(&self, name: &str) -> usize {
        self.get(name).parse().unwrap_or(0)
    }

    /// Sets a tunable; an unknown name is ignored.
    pub fn set(&self, name: &str, value: &str) {
        if let Some(known) = self.lock().get_mut(name) {
            value.clone_into(known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_shown_and_nothing_else_is_kept() {
        let tunables = CompatTunables::new(&[
            ("temporary_ttl".to_owned(), "240".to_owned()),
            ("no_such_thing".to_owned(), "1".to_owned()),
        ]);
        assert_eq!(tunables.number("temporary_ttl"), 240);
        assert_eq!(tunables.get("no_such_thing"), "");
        assert!(tunables.is_on("lru_crawler"));
        tunables.set("lru_crawler", "no");
        assert!(!tunables.is_on("lru_crawler"));
    }
}
