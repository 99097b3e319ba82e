//! Many keys in one call: their accesses to memory overlap. Prints what it saves here.

use std::time::Instant;

use amalgam_index::{HotRingR, Map, MapBuilder};

const USERS: u32 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = MapBuilder::new().memory_bytes(64 << 20).expected_items(USERS as usize);
    let map: Map<HotRingR> = builder.open()?;
    let mut handle = map.handle();
    for user in 0..USERS {
        handle.insert(&user.to_le_bytes(), format!("name of {user}").as_bytes())?;
    }
    // Spread over the table, and each 100th is nobody's.
    let wanted: Vec<[u8; 4]> = (0..USERS)
        .map(|number| if number % 100 == 0 { u32::MAX } else { number * 7919 % USERS })
        .map(u32::to_le_bytes)
        .collect();
    let keys: Vec<&[u8]> = wanted.iter().map(|key| &key[..]).collect();

    let begin = Instant::now();
    let mut bytes_one_by_one = 0;
    for key in &keys {
        bytes_one_by_one += handle.get_with(key, <[u8]>::len).unwrap_or(0);
    }
    let one_by_one = begin.elapsed();

    let begin = Instant::now();
    let mut bytes = 0;
    let mut found = 0;
    for keys in keys.chunks(100) {
        // The position tells which key a value belongs to; keys that are not there are passed over.
        found += handle.get_many(keys, |position, value| {
            debug_assert!(keys[position] != u32::MAX.to_le_bytes());
            bytes += value.len();
        });
    }
    let batched = begin.elapsed();

    assert_eq!((found, bytes), ((USERS - USERS / 100) as usize, bytes_one_by_one));
    println!("{found} values: {one_by_one:.1?} one by one, {batched:.1?} in batches of 100");
    Ok(())
}
