//! `stats items` and `stats slabs`, by memcached's class numbers.
//!
//! The arena's size classes are finer than memcached's. Each is reported as a part of the slab
//! class that memcached would put its items into, so that dashboards find their rows.

use std::collections::BTreeMap;

use amalgam_index::{ClassStatistics, Store};

use crate::report::general::StatSink;
use crate::state::server_state::ServerState;

/// The bytes by which memcached's items are larger than the arena's, roughly.
const LONGER_BYTES: usize = 40;

/// The statistics of the arena's classes, summed by memcached's class number.
fn grouped<S: Store>(state: &ServerState<S>) -> BTreeMap<u32, ClassStatistics> {
    let mut groups: BTreeMap<u32, ClassStatistics> = BTreeMap::new();
    for class in state.index_statistics().memory.classes {
        let number = state.slab_classes.class(class.slot_bytes as usize + LONGER_BYTES);
        let group = groups.entry(number).or_default();
        group.slot_bytes = group.slot_bytes.max(class.slot_bytes);
        group.pages += class.pages;
        group.slots += class.slots;
        group.used_slots += class.used_slots;
        group.evictions += class.evictions;
        group.mortal_evictions += class.mortal_evictions;
        group.swept += class.swept;
    }
    groups
}

/// Names that memcached reports for a class's LRU and that this server does not count by class.
const ITEM_ZEROS: [&str; 7] = [
    "evicted_time",
    "outofmemory",
    "tailrepairs",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
    "evicted_active",
];

/// The same, behind `crawler_reclaimed`.
const LATER_ITEM_ZEROS: [&str; 8] = [
    "crawler_items_checked",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "hits_to_hot",
    "hits_to_warm",
];

/// Reports `stats items`.
pub fn items<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    for (number, class) in grouped(state) {
        if class.used_slots + class.evictions + class.swept == 0 {
            continue;
        }
        let mut row = |name: &str, value: u64| stat(&format!("items:{number}:{name}"), &value);
        row("number", class.used_slots);
        // The engines have one CLOCK list instead of LRU segments: all items are in `cold`.
        row("number_hot", 0);
        row("number_warm", 0);
        row("number_cold", class.used_slots);
        row("age_hot", 0);
        row("age_warm", 0);
        row("age", 0);
        row("mem_requested", class.used_slots * class.slot_bytes);
        row("evicted", class.evictions);
        row("evicted_nonzero", class.mortal_evictions);
        ITEM_ZEROS.iter().for_each(|name| row(name, 0));
        row("crawler_reclaimed", state.crawler.reclaimed_of(number) + class.swept);
        LATER_ITEM_ZEROS.iter().for_each(|name| row(name, 0));
        row("hits_to_cold", 0);
        row("hits_to_temp", 0);
    }
}

/// Names that memcached counts by class, and this server only in total.
const SLAB_ZEROS: [&str; 8] = [
    "get_hits",
    "cmd_set",
    "delete_hits",
    "incr_hits",
    "decr_hits",
    "cas_hits",
    "cas_badval",
    "touch_hits",
];

/// Reports `stats slabs`.
pub fn slabs<S: Store>(state: &ServerState<S>, stat: &mut StatSink<'_>) {
    let groups = grouped(state);
    for (number, class) in &groups {
        let mut row = |name: &str, value: u64| stat(&format!("{number}:{name}"), &value);
        row("chunk_size", class.slot_bytes);
        row("chunks_per_page", class.slots.checked_div(class.pages).unwrap_or(0));
        row("total_pages", class.pages);
        row("total_chunks", class.slots);
        row("used_chunks", class.used_slots);
        row("free_chunks", class.slots.saturating_sub(class.used_slots));
        row("free_chunks_end", 0);
        SLAB_ZEROS.iter().for_each(|name| row(name, 0));
    }
    stat("active_slabs", &groups.len());
    stat("total_malloced", &state.index.statistics().memory.used);
}
