//! Tests of the memory module as a whole, under a toy index: an array with one word per key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use amalgam_op::{Expiry, ItemWrite, MetaFlags, Now, Part};

use super::{Item, ItemLayout, ItemRef, Memory, Pool, SlotLayout};
use crate::Configuration;

#[cfg(asan)]
mod forbidden;
#[cfg(not(miri))] // they wait for seconds of an interpreter
mod large_items;
#[cfg(not(miri))] // too many items for an interpreter
mod policies;

const NOW: Now = Now::at(10);

/// Key `k` has word `k`; hashes are ignored, keys are decimal.
struct Toy {
    memory: Arc<Memory>,
    words: Vec<AtomicU64>,
}

fn key(number: usize) -> String {
    format!("{number:08}")
}

/// A value that key and length determine.
fn value(number: usize, length: usize) -> Vec<u8> {
    // Repeated as a whole, which an interpreter does at once.
    let mut bytes = [0; 256];
    (0..256).for_each(|at| bytes[at] = (number * 31 + at) as u8);
    let mut bytes = bytes.repeat(length.div_ceil(256));
    bytes.truncate(length);
    bytes
}

fn item_write(value: &[u8]) -> ItemWrite<'_> {
    let parts = [Part::Bytes(value), Part::Empty];
    ItemWrite {
        parts,
        flags: 0,
        expiry: Expiry::NEVER,
        cas: None,
        meta_flags: MetaFlags::default(),
    }
}

impl Toy {
    fn new(memory_bytes: usize, max_item_bytes: usize, evicts: bool, keys: usize) -> Self {
        let configuration =
            Configuration { memory_bytes, max_item_bytes, evicts, ..Configuration::default() };
        Self::open(Configuration { workers: 8, ..configuration }, keys)
    }

    fn open(configuration: Configuration, keys: usize) -> Self {
        let memory =
            Memory::new(&configuration, SlotLayout::Linked).expect("a valid configuration");
        Self { memory, words: (0..keys).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The toy index's `swap`: a compare and exchange of the reference, which is its linearization
    /// point.
    fn swap(&self, old: ItemRef, new: Option<ItemRef>, pool: &Pool<'_>) -> bool {
        let guard = pool.pin();
        // SAFETY: the caller holds a guard under which it found the item live.
        let item = unsafe { self.memory.item(old, &guard) };
        let number: usize = std::str::from_utf8(item.key()).expect("text").parse().expect("digits");
        let new = new.map_or(0, ItemRef::to_bits);
        let word = &self.words[number];
        word.compare_exchange(old.to_bits(), new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns false where there is no memory.
    fn set(&self, pool: &mut Pool<'_>, helper: &Pool<'_>, number: usize, length: usize) -> bool {
        self.set_until(pool, helper, number, length, Expiry::NEVER)
    }

    /// As `set`, with an expiry.
    fn set_until(
        &self,
        pool: &mut Pool<'_>,
        helper: &Pool<'_>,
        number: usize,
        length: usize,
        expiry: Expiry,
    ) -> bool {
        let (key, value) = (key(number), value(number, length));
        let item_write = ItemWrite { expiry, ..item_write(&value) };
        let layout = ItemLayout::new(key.len(), &item_write, 0, &NOW).expect("it fits a header");
        let slot = loop {
            match pool.reserve(layout) {
                Ok(slot) => break slot,
                Err(shortage) => {
                    let mut swap = |_, old, new| self.swap(old, new, helper);
                    if !pool.make_room(shortage, None, &NOW, &mut swap) {
                        return false;
                    }
                }
            }
        };
        let item = pool.fill(slot, key.as_bytes(), &item_write, &[]);
        let old = self.words[number].swap(item.to_bits(), Ordering::AcqRel);
        if let Some(old) = ItemRef::from_bits(old) {
            // SAFETY: we took it out of its only word.
            unsafe { pool.retire(old) };
        }
        true
    }

    fn delete(&self, pool: &mut Pool<'_>, number: usize) -> bool {
        let old = ItemRef::from_bits(self.words[number].swap(0, Ordering::AcqRel));
        // SAFETY: we took it out of its only word.
        old.map(|old| unsafe { pool.retire(old) }).is_some()
    }

    fn with<R>(&self, pool: &Pool<'_>, number: usize, use_it: impl Fn(Item<'_>) -> R) -> Option<R> {
        let guard = pool.pin();
        let found = ItemRef::from_bits(self.words[number].load(Ordering::Acquire))?;
        // SAFETY: read from an index word under the guard.
        Some(use_it(unsafe { self.memory.item(found, &guard) }))
    }

    /// Panics if a key has another value than its own.
    fn check(&self, pool: &Pool<'_>, number: usize) -> bool {
        self.with(pool, number, |item| {
            let view = item.view();
            assert!(item.has_key(key(number).as_bytes()));
            assert_eq!(view.key, key(number).as_bytes());
            assert_eq!(view.value.as_bytes(), value(number, view.value.len()));
        })
        .is_some()
    }
}

#[test]
fn items_come_back_as_they_were_written() {
    let toy = Toy::new(1 << 20, 200 << 10, true, 64);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let lengths = [0, 1, 7, 8, 9, 31, 100, 1000, 5000, 17_000, 150_000];
    for (number, length) in lengths.into_iter().enumerate() {
        assert!(toy.set(&mut pool, &helper, number, length));
        assert!(toy.check(&pool, number));
    }
    assert_eq!(toy.memory.items(), lengths.len() as u64);
    for number in 0..lengths.len() {
        assert!(toy.delete(&mut pool, number));
    }
    pool.flush();
    let statistics = toy.memory.statistics();
    assert_eq!((toy.memory.items(), statistics.items, statistics.waiting), (0, 0, 0));
}

#[test]
fn the_slot_that_was_in_use_last_is_taken_first() {
    let toy = Toy::new(1 << 20, 32 << 10, false, 1);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let place = |pool: &mut Pool<'_>| {
        assert!(toy.set(pool, &helper, 0, 100));
        toy.words[0].load(Ordering::Relaxed)
    };
    let places = [place(&mut pool), place(&mut pool), place(&mut pool)];
    // The first two were replaced.
    assert!(pool.flush());
    assert_eq!([place(&mut pool), place(&mut pool)], [places[1], places[0]]);
    assert!(toy.delete(&mut pool, 0));
    drop(pool);
    let mut pool = Pool::new(&toy.memory);
    assert!(pool.scavenge(), "what was kept at hand was given back: the page is empty");
}

/// A worker replaces one item by longer and longer ones, and so holds pages without items in each
/// class: these are taken, and the other item stays.
#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn no_item_makes_way_while_pages_hold_none() {
    let toy = Toy::new(1 << 20, 32 << 10, true, 2);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    assert!(toy.set(&mut pool, &helper, 0, 100));
    for length in (8..16_000).step_by(8) {
        assert!(toy.set(&mut pool, &helper, 1, length));
        assert_eq!(toy.memory.index_statistics().evictions, 0, "at length {length}");
    }
}

#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn a_full_memory_evicts_and_stays_within_its_limit() {
    let (keys, limit) = (60_000, 2 << 20);
    let toy = Toy::new(limit, 32 << 10, true, keys);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for number in 0..keys {
        assert!(toy.set(&mut pool, &helper, number, 100 + number % 100));
        assert!(toy.check(&pool, number), "the newest item is there");
    }
    let present = (0..keys).filter(|number| toy.check(&pool, *number)).count();
    let held = present * 190;
    assert!(held > limit / 2, "{present} items only");
    assert!(toy.memory.statistics().used as usize <= limit);
    assert_eq!(toy.memory.items(), present as u64);
}

#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn a_memory_that_may_not_evict_refuses_and_recovers() {
    let toy = Toy::new(1 << 20, 32 << 10, false, 20_000);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let stored = (0..20_000).take_while(|n| toy.set(&mut pool, &helper, *n, 100)).count();
    assert!((6000..9000).contains(&stored), "{stored} items of 128 bytes in 1 MiB");
    (0..stored).for_each(|number| assert!(toy.check(&pool, number), "nothing was lost"));
    (0..stored).for_each(|number| assert!(toy.delete(&mut pool, number)));
    // Another size: the pages have to change class.
    let again = (0..20_000).take_while(|n| toy.set(&mut pool, &helper, *n, 400)).count();
    assert!(again > 1800, "{again} items of 432 bytes in 1 MiB");
}

/// One free slot is not worth a scan of its page, unless there is no other.
#[cfg(not(miri))] // the same
#[test]
fn the_last_free_slot_is_found() {
    let toy = Toy::new(1 << 20, 100 << 10, false, 50_000);
    let (mut pool, mut helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let stored = (0..).find(|number| !toy.set(&mut pool, &helper, *number, 20)).expect("a limit");
    pool.rest();
    assert!(toy.delete(&mut helper, stored / 2));
    helper.rest();
    let mut other = Pool::new(&toy.memory);
    assert!(toy.set(&mut other, &helper, stored, 20));
    assert!(!toy.set(&mut other, &helper, stored + 1, 20));
}

#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn what_was_evicted_is_at_hand() {
    let toy = Toy::new(4 << 20, 64 << 10, true, 20_000);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let mut set = |number: usize| {
        assert!(toy.set(&mut pool, &helper, number, 500 + number * 7919 % 1000));
        if number.is_multiple_of(64) {
            pool.quiesce();
        }
        toy.memory.epochs.last_ended()
    };
    let [before, after] = [0..10_000, 10_000..20_000].map(|sets| sets.map(&mut set).max());
    let grace_periods = after.expect("sets") - before.expect("sets");
    assert!(grace_periods < 2500, "{grace_periods} grace periods of 10000 sets");
}

#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn no_size_class_starves() {
    let toy = Toy::new(2 << 20, 64 << 10, true, 40_000);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for number in 0..30_000 {
        assert!(toy.set(&mut pool, &helper, number, 100));
    }
    for (number, length) in (30_000..).zip([0, 300, 1000, 3000, 10_000, 15_000, 30_000, 60_000]) {
        assert!(toy.set(&mut pool, &helper, number, length), "{length} bytes");
        assert!(toy.check(&pool, number));
    }
    assert!(toy.memory.statistics().used <= 2 << 20);
}

#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn pages_follow_the_demand() {
    let toy = Toy::new(4 << 20, 64 << 10, true, 100_000);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for number in 0..40_000 {
        assert!(toy.set(&mut pool, &helper, number, 100));
    }
    let mut maintainer = Pool::new(&toy.memory);
    for second in 0..200_u32 {
        let now = Now::at(20 + second);
        for number in 0..500 {
            let number = 50_000 + (second as usize * 500 + number) % 20_000;
            assert!(toy.set(&mut pool, &helper, number, 1000));
        }
        maintainer.step(&now, &mut |_, old, new| toy.swap(old, new, &helper));
    }
    let classes = toy.memory.statistics().classes;
    let big = classes.iter().find(|class| class.slot_bytes > 1000).expect("it has pages");
    assert!(big.pages > 30, "{classes:?}");
}

#[cfg(not(miri))] // too many bytes for an interpreter
#[test]
fn short_items_stay_beside_a_stream_of_large_ones() {
    let (short, requests) = (60_000, 400_000);
    let toy = Toy::new(8 << 20, 256 << 10, true, short + requests);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let mut maintainer = Pool::new(&toy.memory);
    let mut random = Random(7);
    let mut hits = 0;
    for request in 0..requests {
        let number = random.below(short);
        match toy.with(&pool, number, |item| item.mark_accessed(item.header(), NOW.seconds)) {
            Some(()) => hits += usize::from(request >= requests / 2),
            None => assert!(toy.set(&mut pool, &helper, number, 30)),
        }
        if request % 50 == 0 {
            let length = 20_000 + random.below(130_000);
            assert!(toy.set(&mut pool, &helper, short + request, length));
        }
        pool.quiesce();
        if request % 2000 == 0 {
            let now = Now::at(20 + (request / 50_000) as u32);
            while maintainer.step(&now, &mut |_, old, new| toy.swap(old, new, &helper)) {}
        }
    }
    // All short items together take half of the memory.
    assert!(hits > requests * 4 / 10, "{hits} hits of {}", requests / 2);
    assert!(toy.memory.statistics().used <= 8 << 20);
}

#[cfg(not(miri))] // too many bytes for an interpreter
#[test]
fn one_item_of_a_large_slot_leaves_for_each_that_comes() {
    let toy = Toy::new(8 << 20, 200 << 10, true, 3100);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let evicted = || toy.memory.statistics().classes.iter().map(|class| class.evictions).sum();
    let mut before: u64 = 0;
    for number in 0..3000 {
        assert!(toy.set(&mut pool, &helper, number, 11_000));
        let now: u64 = evicted();
        // The first shortage takes some ahead.
        assert!(number < 1000 || now == before + 1, "{} by item {number}", now - before);
        before = now;
    }
    // Room that comes otherwise ends it: a higher limit,
    toy.memory.set_limit(16 << 20);
    for number in 3000..3100 {
        assert!(toy.set(&mut pool, &helper, number, 11_000));
    }
    assert_eq!(evicted(), before);
    // or deletes.
    for number in 0..3000 {
        toy.delete(&mut pool, number);
    }
    pool.flush();
    for number in 0..100 {
        assert!(toy.set(&mut pool, &helper, number, 11_000));
    }
    assert_eq!(evicted(), before);
}

#[cfg(not(miri))] // too many bytes for an interpreter
#[test]
fn a_small_class_loses_a_few_items_at_a_time() {
    let lengths: [usize; 12] = std::array::from_fn(|class| 400 + 60 * class);
    let keys = 24_000;
    let toy = Toy::new(2 << 20, 32 << 10, true, keys);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for number in 0..keys {
        assert!(toy.set(&mut pool, &helper, number, lengths[number % lengths.len()]));
        pool.quiesce();
        if number < keys / 2 {
            continue;
        }
        for class in toy.memory.statistics().classes.iter().filter(|class| class.evictions > 0) {
            // A 64th and two are on their way, and twice as many at the most.
            let kept = class.used_slots + 2 * (class.slots / 64 + 3);
            assert!(kept >= class.slots, "by item {number}: {class:?}");
        }
    }
}

/// How often the thread has slept.
#[cfg(all(target_os = "linux", not(miri)))]
fn voluntary_switches() -> i64 {
    // SAFETY: a plain structure, which the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_nvcsw
}

/// All free slots of a class wait in the bag of a worker that does not run: a set takes a slot of a
/// larger class instead of sleeping until that worker runs again.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn slots_that_an_idle_worker_holds_are_not_waited_for() {
    const SETS: usize = 400;
    let toy = Toy::new(4 << 20, 64 << 10, true, 1 << 16);
    let (mut pool, mut idle) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let helper = Pool::new(&toy.memory);
    let evictions = || toy.memory.index_statistics().evictions;
    let mut keys = 0;
    while evictions() == 0 {
        assert!(toy.set(&mut pool, &helper, keys, 100));
        assert!(toy.set(&mut pool, &helper, keys + 1, 400));
        keys += 2;
    }
    for number in (0..keys).step_by(2) {
        toy.delete(&mut idle, number);
    }
    for number in (1..keys).step_by(4) {
        toy.delete(&mut pool, number);
    }
    let before = (voluntary_switches(), evictions());
    assert!((0..SETS).all(|number| toy.set(&mut pool, &helper, keys + number, 100)));
    let waits = voluntary_switches() - before.0;
    assert!(waits < 20, "{waits} waits");
    assert_eq!(evictions(), before.1, "free slots suffice");
}

/// As above, where the only other slots are far longer: they stay for the items that need them.
#[test]
#[cfg(not(miri))] // too many bytes for an interpreter
fn short_items_do_not_take_slots_of_long_ones() {
    const LONG: usize = 16 << 10;
    const SETS: usize = 8;
    let toy = Toy::new(4 << 20, 64 << 10, true, 1 << 16);
    let (mut pool, mut idle) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let helper = Pool::new(&toy.memory);
    let evictions = || toy.memory.index_statistics().evictions;
    let mut keys = 0;
    while evictions() == 0 {
        for number in keys..keys + 100 {
            let length = if number % 100 == 0 { LONG } else { 100 };
            assert!(toy.set(&mut pool, &helper, number, length));
        }
        keys += 100;
    }
    for number in (0..keys).filter(|number| number % 100 != 0) {
        toy.delete(&mut idle, number);
    }
    let long = || (0..keys).step_by(100);
    let removed: Vec<_> = long().take(SETS).filter(|one| toy.delete(&mut pool, *one)).collect();
    assert!(removed.len() > SETS / 2, "{} of {keys} keys", removed.len());
    let before = evictions();
    assert!((0..SETS).all(|number| toy.set(&mut pool, &helper, keys + number, 100)));
    let left = long().filter(|one| toy.with(&pool, *one, |_| ()).is_some()).count();
    assert!(removed.iter().all(|number| toy.set(&mut pool, &helper, *number, LONG)));
    let are = long().filter(|one| toy.with(&pool, *one, |_| ()).is_some()).count();
    assert_eq!(are, left + removed.len(), "{} evictions", evictions() - before);
}

#[cfg(not(miri))] // too many bytes for an interpreter
#[test]
fn large_items_leave_oldest_first() {
    let toy = Toy::new(8 << 20, 200 << 10, true, 400);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for newest in 0..400 {
        assert!(toy.set(&mut pool, &helper, newest, 150_000));
        // Nothing was read: what is left is what came last, without a gap.
        let oldest = (0..=newest).find(|number| toy.check(&pool, *number)).expect("the newest");
        assert!((oldest..newest).all(|number| toy.check(&pool, number)), "{oldest} to {newest}");
    }
}

#[test]
fn the_dead_are_swept() {
    let keys = if cfg!(miri) { 30 } else { 1000 };
    let toy = Toy::new(1 << 20, 64 << 10, true, keys);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for number in 0..keys {
        assert!(toy.set(&mut pool, &helper, number, 2000));
    }
    let flushed = Now { generation: 1, ..NOW };
    while pool.step(&flushed, &mut |_, old, new| toy.swap(old, new, &helper)) {}
    assert_eq!(toy.memory.items(), 0);
    assert!((0..keys).all(|number| !toy.check(&pool, number)));
}

/// Random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % bound
    }
}

/// Items of changing sizes are set, replaced and deleted, so that slots are reused and pages change
/// their class. At every second, exactly the items that have expired are reclaimed.
#[test]
fn each_second_reclaims_what_has_expired_and_nothing_else() {
    let (keys, seconds, writes) = if cfg!(miri) { (24, 8, 12) } else { (2000, 120, 1500) };
    let toy = Toy::new(if cfg!(miri) { 2 << 20 } else { 16 << 20 }, 64 << 10, true, keys);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let mut maintainer = Pool::new(&toy.memory);
    let mut random = Random(88_172_645_463_325_252);
    // For each key that is set: the expiry; 0 is never.
    let mut expiries = std::collections::HashMap::new();
    for second in 10..10 + seconds {
        // The sizes drift, so that pages of some classes become empty.
        let quarter = second as usize * 4 / seconds as usize;
        let longest = if quarter.is_multiple_of(2) { 300 } else { 3000 };
        for _ in 0..writes {
            let number = random.below(keys);
            match random.below(8) {
                0 => {
                    assert_eq!(toy.delete(&mut pool, number), expiries.remove(&number).is_some());
                    continue;
                }
                choice => {
                    let length = match random.below(400) {
                        0 => 30_000,
                        _ => random.below(longest),
                    };
                    let until = if choice == 1 { 0 } else { second + 1 + random.below(20) as u32 };
                    let expiry = Expiry(until);
                    assert!(toy.set_until(&mut pool, &helper, number, length, expiry));
                    expiries.insert(number, until);
                }
            }
        }
        pool.give_up_all();
        pool.flush();
        let now = Now::at(second + 1);
        while maintainer.step(&now, &mut |_, old, new| toy.swap(old, new, &helper)) {}
        expiries.retain(|_, until| !Expiry(*until).has_passed(&now));
        assert_eq!(toy.memory.items(), expiries.len() as u64, "second {second}");
        (0..keys).for_each(|number| {
            assert_eq!(toy.check(&pool, number), expiries.contains_key(&number));
        });
        let statistics = toy.memory.statistics();
        assert!(statistics.first_expiry_seconds.is_none_or(|first| first > second + 1));
        assert_eq!(statistics.reclaim_lag_seconds, 0);
    }
    assert_eq!(toy.memory.index_statistics().evictions, 0, "there was room for all");
}

/// In the worst case each expired item lies in a group of its own.
#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn the_work_for_ten_thousand_expiries_is_bounded() {
    let (keys, stride) = (320_000, 32);
    let toy = Toy::new(64 << 20, 32 << 10, true, keys);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for number in 0..keys {
        let expiry = Expiry(if number % stride == 0 { 20 } else { 30 });
        assert!(toy.set_until(&mut pool, &helper, number, 50, expiry));
    }
    let mut swaps = 0;
    let mut steps = 0;
    loop {
        let before = swaps;
        let more = pool.step(&Now::at(20), &mut |_, old, new| {
            swaps += 1;
            toy.swap(old, new, &helper)
        });
        steps += 1;
        assert!(swaps - before <= 4096, "one step unlinked {}", swaps - before);
        if !more {
            break;
        }
    }
    assert_eq!((swaps, toy.memory.items()), (keys / stride, (keys - keys / stride) as u64));
    assert!(steps < 200, "{steps} steps");
}

#[test]
fn a_pinned_value_outlives_its_item() {
    let toy = Toy::new(1 << 20, 200 << 10, true, 4);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    for length in [5000, 150_000] {
        assert!(toy.set(&mut pool, &helper, 1, length));
        let pin = toy
            .with(&pool, 1, |item| match item.view().value {
                amalgam_op::Value::Bytes(bytes) => toy.memory.pin_value(item.reference(), bytes),
                amalgam_op::Value::Word(..) => unreachable!("a long value"),
            })
            .expect("it is there");
        assert!(toy.delete(&mut pool, 1));
        pool.flush();
        for number in [2, 3] {
            assert!(toy.set(&mut pool, &helper, number, length));
        }
        assert_eq!(pin.as_bytes(), value(1, length));
        drop(pin);
        assert!(pool.flush(), "the last reader left the item behind");
    }
}

/// Counts a thread as finished, also when it panics.
struct Finished<'c>(&'c AtomicU64);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn pinned_items_do_not_stop_shrinking() {
    let toy = Toy::new(8 << 20, 200 << 10, true, 3000);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    (0..3000).for_each(|number| assert!(toy.set(&mut pool, &helper, number, 2000)));
    let pinned: Vec<_> = (2900..3000)
        .step_by(20)
        .filter_map(|number| {
            toy.with(&pool, number, |item| {
                toy.memory.pin_value(item.reference(), item.view().value.as_bytes())
            })
        })
        .collect();
    assert_eq!(pinned.len(), 5);
    toy.memory.set_limit(4 << 20);
    let mut maintainer = Pool::new(&toy.memory);
    for second in 11..411 {
        maintainer.step(&Now::at(second), &mut |_, old, new| toy.swap(old, new, &helper));
        pool.quiesce();
    }
    let used = toy.memory.statistics().used;
    assert!(used <= 4 << 20, "{used} bytes used");
    drop(pinned);
}

/// As many steps as it takes while workers go on in between.
#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn a_lowered_limit_takes_hold_within_a_few_steps() {
    let toy = Toy::new(32 << 20, 200 << 10, true, 16_000);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    (0..16_000).for_each(|number| assert!(toy.set(&mut pool, &helper, number, 2000)));
    toy.memory.set_limit(16 << 20);
    let mut maintainer = Pool::new(&toy.memory);
    for _ in 0..60 {
        maintainer.step(&NOW, &mut |_, old, new| toy.swap(old, new, &helper));
        pool.quiesce();
    }
    let used = toy.memory.statistics().used;
    assert!(used <= 16 << 20, "{used} bytes used");
}

/// All pages that become free meanwhile go to the limit, apart from one.
#[cfg(not(miri))] // too many items for an interpreter
#[test]
fn a_class_without_pages_gets_one_while_the_limit_takes_hold() {
    let toy = Toy::new(8 << 20, 200 << 10, true, 5000);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    (0..4000).for_each(|number| assert!(toy.set(&mut pool, &helper, number, 2000)));
    toy.memory.set_limit(4 << 20);
    for (number, length) in (4000..5000).zip([10, 100, 400].into_iter().cycle()) {
        assert!(toy.set(&mut pool, &helper, number, length), "{number}");
    }
    let used = toy.memory.statistics().used;
    assert!(used > 4 << 20, "no maintenance has run: {used} bytes used");
}

#[test]
fn readers_never_see_memory_that_was_reused() {
    let (keys, rounds, longest) = if cfg!(miri) { (8, 40, 60) } else { (512, 60_000, 6000) };
    let limit = if cfg!(miri) { 2 << 20 } else { 1 << 20 };
    let toy = Toy::new(limit, 16 << 10, true, keys);
    let second = &std::sync::atomic::AtomicU32::new(20);
    let running = AtomicU64::new(2);
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (toy, start, running) = (&toy, &start, &running);
            scope.spawn(move || {
                let _finished = Finished(running);
                let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
                start.wait();
                let mut random = 88_172_645_463_325_252_u64 + thread;
                for _ in 0..rounds {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let number = random as usize % keys;
                    if random >> 40 & 7 == 0 {
                        toy.delete(&mut pool, number);
                    } else {
                        let length = (random >> 20) as usize % longest;
                        let ttl = (random >> 50) as u32 % 3;
                        let expiry = Expiry(second.load(Ordering::Relaxed) + ttl);
                        assert!(
                            toy.set_until(&mut pool, &helper, number, length, expiry),
                            "{:?}",
                            toy.memory.statistics()
                        );
                    }
                    pool.quiesce();
                }
            });
        }
        let (toy, running, start) = (&toy, &running, &start);
        let reader = scope.spawn(move || {
            let pool = Pool::new(&toy.memory);
            start.wait();
            let mut found = 0_u64;
            while running.load(Ordering::Relaxed) > 0 {
                (0..keys).for_each(|number| found += u64::from(toy.check(&pool, number)));
                std::thread::yield_now();
            }
            found
        });
        let (mut maintainer, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
        start.wait();
        while running.load(Ordering::Relaxed) > 0 {
            let second = second.fetch_add(1, Ordering::Relaxed) + 1;
            let mut swap = |_, old, new| toy.swap(old, new, &helper);
            // A few steps are enough for an interpreter.
            if !cfg!(miri) || second < 24 {
                maintainer.step(&Now::at(second), &mut swap);
            }
            std::thread::yield_now();
        }
        assert!(reader.join().expect("the reader ends") > 0);
        // No race has hidden an item from the map of expiries.
        let now = Now::at(second.load(Ordering::Relaxed) + 3);
        while maintainer.step(&now, &mut |_, old, new| toy.swap(old, new, &helper)) {}
        assert_eq!(toy.memory.items(), 0);
    });
}

#[test]
fn a_sum_that_is_read_amid_changes_is_never_below_zero() {
    let toy = Toy::new(8 << 20, 16 << 10, true, 1);
    // What a reader sees of an item that one worker stores and another deletes meanwhile.
    super::counters::subtract(&toy.memory.counters[1].items, 1);
    super::counters::subtract(&toy.memory.counters[1].class_items[0], 1);
    assert_eq!(toy.memory.items(), 0);
    assert_eq!(toy.memory.items_of(0), 0);
    super::counters::add(&toy.memory.counters[0].items, 3);
    assert_eq!(toy.memory.items(), 2);
}
