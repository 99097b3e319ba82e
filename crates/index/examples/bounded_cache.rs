//! A cache before something slow: it takes 8 MiB, forgets what is not asked for, and what is older
//! than a minute.

use std::time::Duration;

use amalgam_index::{Handle, Map, MapBuilder, Memc3};

const TTL: Duration = Duration::from_secs(60);

/// The page with this number, out of the cache or made anew.
fn page(cache: &mut Handle<'_, Memc3>, number: u32, made: &mut u32) -> Vec<u8> {
    let key = number.to_le_bytes();
    if let Some(page) = cache.get(&key) {
        return page;
    }
    *made += 1;
    let page = format!("<h1>Page {number}</h1>").repeat(50).into_bytes();
    // A cache that cannot take an item is no error to those who read.
    let _ = cache.insert_for(&key, &page, TTL);
    page
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let map: Map<Memc3> =
        MapBuilder::new().memory_bytes(8 << 20).max_item_bytes(64 << 10).open()?;
    let mut cache = map.handle();
    let mut made = 0;
    for round in 0..20_000 {
        // Half of the requests ask for one of ten pages, the others for one of 20,000.
        let number = if round % 2 == 0 { round % 20 / 2 } else { round };
        assert!(page(&mut cache, number, &mut made).starts_with(b"<h1>Page "));
    }
    assert_eq!(page(&mut cache, 3, &mut made).len(), 50 * "<h1>Page 3</h1>".len());
    let statistics = map.statistics();
    assert!(statistics.memory.used <= 8 << 20, "the bound holds");
    assert!(made < 12_000, "the ten pages stayed");
    println!(
        "20,001 requests, {made} pages made, {} kept, {} evicted, {} of {} KiB",
        statistics.items,
        statistics.evictions,
        statistics.memory.used >> 10,
        statistics.memory.limit >> 10
    );
    Ok(())
}
