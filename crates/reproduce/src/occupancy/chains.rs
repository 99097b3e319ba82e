//! The bare table of chains that MemC3's table 2 compares with: a head for each bucket and a link
//! for each item, as in memcached. Filled in the way of `memc3::occupancy`: random items, whose
//! buckets are asked for ahead, by one thread, without a look at what is there already.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use amalgam_index::mem::{Memory, SlotLayout, Table};
use amalgam_index::{Configuration, OpenError};
use amalgam_op::HashSeed;

/// The number of inserts by which an item's bucket is prefetched ahead of its own insert.
const AHEAD: usize = 8;

/// Memcached grows its table when there are more than 3 items to 2 buckets.
const ITEMS: usize = 3;
const BUCKETS: usize = 2;

/// A table of chains that was filled.
pub struct Chains {
    /// The bytes of heads and links.
    pub bytes: usize,
    pub items: usize,
    heads: Table<AtomicU64>,
    links: Table<AtomicU64>,
}

impl Chains {
    /// The number of items in the longest chain.
    pub fn largest_bucket(&self) -> usize {
        let length = |head: &AtomicU64| {
            let (mut length, mut next) = (0, head.load(Relaxed));
            while next != 0 {
                length += 1;
                next = self.links[next as usize - 1].load(Relaxed);
            }
            length
        };
        self.heads.iter().map(length).max().unwrap_or(0)
    }
}

/// Inserts as many items into `buckets` chains as memcached does before it grows.
///
/// # Errors
///
/// If the system refuses the memory.
///
/// # Panics
///
/// If `buckets` is not a power of two.
pub fn fill(buckets: usize, seed: u64) -> Result<Chains, OpenError> {
    assert!(buckets.is_power_of_two(), "{buckets} buckets");
    let items = buckets * ITEMS / BUCKETS;
    let memory_bytes = (buckets + items) * size_of::<u64>() + (64 << 20);
    let memory = Memory::new(
        &Configuration { memory_bytes, ..Configuration::default() },
        SlotLayout::Plain,
    )?;
    let (heads, links) = (memory.table(buckets)?, memory.table(items)?);
    let bytes = heads.bytes() + links.bytes();
    let chains = Chains { bytes, items, heads, links };
    let hashes = HashSeed::new(seed);
    let bucket = |item: usize| hashes.hash(&item.to_le_bytes()) as usize & (buckets - 1);
    for item in 0..items {
        // Prefetches the bucket of a later item.
        chains.heads.prefetch(bucket(item + AHEAD));
        let head = &chains.heads[bucket(item)];
        chains.links[item].store(head.load(Relaxed), Relaxed);
        // 0 stands for no item, as in memory that was never written.
        head.store(item as u64 + 1, Relaxed);
    }
    Ok(chains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_in_a_chain_and_takes_what_the_paper_prints() {
        let chains = fill(1 << 18, 1).expect("memory");
        assert_eq!(chains.items, 393_216);
        let each = chains.bytes as f64 / chains.items as f64;
        assert!((each - 40.0 / 3.0).abs() < 1e-9, "{each} bytes an item");
        let linked = chains.links.iter().filter(|link| link.load(Relaxed) != 0).count();
        let begun = chains.heads.iter().filter(|head| head.load(Relaxed) != 0).count();
        assert_eq!(linked + begun, chains.items, "an item is a head's, or another item's");
        // 1.5 items a bucket in the mean: of a quarter of a million one has about ten.
        assert!((8..16).contains(&chains.largest_bucket()), "{}", chains.largest_bucket());
    }

    #[test]
    fn two_buckets_have_three_items() {
        let chains = fill(2, 7).expect("memory");
        assert_eq!(chains.items, 3);
        assert!((2..=3).contains(&chains.largest_bucket()));
    }
}
