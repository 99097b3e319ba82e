//! `stats items` and `stats slabs`, by memcached's class numbers.
//!
//! The arena has size classes of its own, finer than memcached's. Each is shown as a part of the
//! class that memcached would put its items into, so numbers on dashboards stay where they were.

use std::collections::BTreeMap;

use amalgam_index::{ClassStatistics, Store};

use super::Stat;
use crate::server::Shared;

/// By how much memcached's items are longer than the arena's, about.
const LONGER_BYTES: usize = 40;

/// The bytes of memcached's item header, with which its smallest class begins.
const HEADER_BYTES: usize = 48;

/// The largest chunk of memcached; longer items are made of several.
const LARGEST_CHUNK_BYTES: usize = 512 << 10;

/// memcached has no class of this number or above.
pub const CLASSES: u32 = 64;

/// The sizes of memcached's classes.
pub struct Geometry(Vec<usize>);

impl Geometry {
    /// For memcached's options `-n` and `-f`.
    pub fn new(least_bytes: u32, growth: f64) -> Self {
        let mut sizes = Vec::new();
        let mut bytes = (least_bytes as usize + HEADER_BYTES) as f64;
        while sizes.len() + 2 < CLASSES as usize && bytes < LARGEST_CHUNK_BYTES as f64 / growth {
            let aligned = (bytes as usize).next_multiple_of(8);
            sizes.push(aligned);
            bytes = aligned as f64 * growth;
        }
        sizes.push(LARGEST_CHUNK_BYTES);
        Self(sizes)
    }

    /// The class of an item that memcached reckons at `bytes`, from 1 on.
    pub fn class(&self, bytes: usize) -> u32 {
        (self.0.partition_point(|size| *size < bytes).min(self.0.len() - 1) + 1) as u32
    }
}

/// The arena's classes under memcached's numbers.
fn grouped<I: Store>(shared: &Shared<I>) -> BTreeMap<u32, ClassStatistics> {
    let mut groups: BTreeMap<u32, ClassStatistics> = BTreeMap::new();
    for class in shared.index_statistics().memory.classes {
        let number = shared.geometry.class(class.slot_bytes as usize + LONGER_BYTES);
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

/// What memcached tells of a class's LRU, and this server has no counts of by class.
const ITEM_ZEROS: [&str; 7] = [
    "evicted_time",
    "outofmemory",
    "tailrepairs",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
    "evicted_active",
];

/// Likewise, behind the one count that is kept.
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

/// `stats items`.
pub fn items<I: Store>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    for (number, class) in grouped(shared) {
        if class.used_slots + class.evictions + class.swept == 0 {
            continue;
        }
        let mut row = |name: &str, value: u64| stat(&format!("items:{number}:{name}"), &value);
        row("number", class.used_slots);
        // One hand of a clock instead of segments: all are in one.
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
        row("crawler_reclaimed", shared.crawler.reclaimed_of(number) + class.swept);
        LATER_ITEM_ZEROS.iter().for_each(|name| row(name, 0));
        row("hits_to_cold", 0);
        row("hits_to_temp", 0);
    }
}

/// What memcached counts by class, and this server in one sum.
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

/// `stats slabs`.
pub fn slabs<I: Store>(shared: &Shared<I>, stat: &mut Stat<'_>) {
    let groups = grouped(shared);
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
    stat("total_malloced", &shared.index.statistics().memory.used);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_memcached() {
        let geometry = Geometry::new(48, 1.25);
        assert_eq!(&geometry.0[..6], [96, 120, 152, 192, 240, 304]);
        assert_eq!(geometry.0.len(), 39);
        for (bytes, class) in
            [(1, 1), (96, 1), (97, 2), (120, 2), (121, 3), (66_619, 31), (1 << 30, 39)]
        {
            assert_eq!(geometry.class(bytes), class, "{bytes}");
        }
        assert!(Geometry::new(48, 1.01).0.len() < CLASSES as usize);
    }
}
