//! Tests of the slot memory's words against its specification (`docs/pipeline.md`). The hardware
//! model passes the same vectors.

use amalgam_op::lookup3;

use super::layout::{KEYS, LINES, LOCATORS, TERMS};
use super::twin::{SLOTS, Twin};

/// The words of a slot of bucket 0, line by line.
fn column(twin: &Twin, slot: usize) -> [u64; LINES] {
    std::array::from_fn(|line| twin.word(0, line, slot))
}

/// The words that a set writes, from bytes.
fn words(locator: u64, terms: u64, key: &[u8; 16]) -> [u64; LINES] {
    let (low, high) = key.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    [locator, word(low), word(high), terms]
}

fn check(key: &[u8]) -> u64 {
    lookup3(key, 0, 0) >> 56
}

#[test]
fn set_writes_the_words_of_the_specification() {
    let mut twin = Twin::new(1);
    twin.set(b"abc", 0x1238, 0, 5);
    let locator = 3 << 56 | check(b"abc") << 48 | 0x1238;
    assert_eq!(column(&twin, 0), words(locator, 5 << 32, b"abc\0\0\0\0\0\0\0\0\0\0\0\0\0"));
    twin.set(b"0123456789", 0xffff_ffff_fff8, 7000, 1000);
    let locator = 10 << 56 | check(b"0123456789") << 48 | 0xffff_ffff_fff8;
    assert_eq!(column(&twin, 1), words(locator, 1000 << 32 | 7000, b"0123456789\0\0\0\0\0\0"));
    assert_eq!(lookup3(b"0123456789", 0, 0), 0xf900_28bd_f1ac_04dc, "as the twin computes it");
    assert_eq!((twin.get(b"abc"), twin.get(b"0123456789")), (Some(0), Some(1)));
}

#[test]
fn overwriting_keeps_the_slot_and_returns_the_pointer() {
    let mut twin = Twin::new(1);
    twin.set(b"key", 8, 0, 1);
    twin.set(b"key", 16, 500, 2);
    let locator = 3 << 56 | check(b"key") << 48 | 16;
    assert_eq!(column(&twin, 0), words(locator, 2 << 32 | 500, b"key\0\0\0\0\0\0\0\0\0\0\0\0\0"));
    assert_eq!(twin.returned, [8]);
}

#[test]
fn delete_clears_the_header_and_leaves_the_stripes() {
    let mut twin = Twin::new(1);
    twin.set(b"a key of 15 byt", 8, 9, 1);
    twin.delete(b"a key of 15 byt");
    assert_eq!(column(&twin, 0), words(0, 0, b"a key of 15 byt\0"));
    assert_eq!(twin.get(b"a key of 15 byt"), None);
    // A shorter key does not touch the second stripe.
    twin.set(b"b", 16, 0, 0);
    assert_eq!(
        column(&twin, 0)[KEYS..TERMS],
        words(0, 0, b"b\0\0\0\0\0\0\0 15 byt\0")[KEYS..TERMS]
    );
    // And the stale stripe does not make a longer key of it.
    assert_eq!(twin.get(b"b\0\0\0\0\0\0\0 15 byt"), None);
}

#[test]
fn the_lowest_free_slot_is_taken() {
    let mut twin = Twin::new(1);
    for number in 0..SLOTS as u64 {
        twin.set(&[b'0' + number as u8], 8 + 8 * number, 0, 0);
    }
    twin.delete(b"5");
    twin.delete(b"2");
    twin.set(b"x", 800, 0, 0);
    assert_eq!(twin.get(b"x"), Some(2));
    twin.set(b"y", 808, 0, 0);
    assert_eq!(twin.get(b"y"), Some(5));
    assert_eq!(twin.returned, [48, 24]);
}

#[test]
fn writes_reclaim_what_expired_and_a_match_outranks_a_free_slot() {
    let mut twin = Twin::new(1);
    for (number, expiry) in [150, 0, 101, 150].into_iter().enumerate() {
        twin.set(&[b'0' + number as u8], 8 + 8 * number as u64, expiry, 0);
    }
    twin.now = 150;
    twin.set(b"3", 800, 0, 0);
    assert_eq!(twin.returned, [8, 24, 32], "slots 0 and 2 expired, 3 was overwritten");
    assert_eq!(twin.get(b"3"), Some(3), "its own slot, though lower ones are free");
    assert_eq!([LOCATORS, TERMS].map(|line| column(&twin, 0)[line]), [0, 0]);
    assert_eq!([LOCATORS, TERMS].map(|line| column(&twin, 2)[line]), [0, 0]);
    assert_eq!(twin.get(b"1"), Some(1));
}

#[test]
fn a_full_bucket_gives_the_slot_that_the_check_points_at() {
    let mut twin = Twin::new(1);
    for number in 0..SLOTS as u64 {
        twin.set(&[b'0' + number as u8], 8 + 8 * number, 0, 0);
    }
    let victim = (check(b"new") % SLOTS as u64) as usize;
    twin.set(b"new", 800, 0, 0);
    assert_eq!(twin.get(b"new"), Some(victim));
    assert_eq!(twin.returned, [8 + 8 * victim as u64]);
}

#[test]
fn buckets_are_the_top_bits_of_the_primary_hash() {
    let twin = Twin::new(1 << 10);
    for hash in [0, 0xffff_ffff, 0x8000_0000, 0x003f_ffff, 0x0040_0000, 0xdead_beef] {
        assert_eq!(twin.bucket_of(hash | 0xffff << 32), (hash >> 22) as usize);
    }
}

/// Keys lost by the time a table of real hashes is half full, against the paper's figure 6 (well
/// below 1 % with 8 slots) and an independent count of 0.85 %.
#[test]
fn half_fill_loses_less_than_one_percent() {
    let buckets = 1 << 15;
    let mut twin = Twin::new(buckets);
    let keys = buckets * SLOTS / 2;
    for number in 0..keys {
        twin.set(format!("user:{number}").as_bytes(), 8, 0, 0);
    }
    let lost = twin.returned.len() as f64 / keys as f64;
    assert!((0.0075..0.01).contains(&lost), "{lost} of all keys are lost");
}
