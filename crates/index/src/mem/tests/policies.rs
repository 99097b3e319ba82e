//! Policies of eviction, and changes between them.

use super::*;
use crate::Eviction;

/// The hits among reads of a set of keys that fit the memory, while a scan stores more than the
/// memory between two reads of a key.
fn hits_beside_a_scan(eviction: Eviction, value_bytes: usize, hot: usize, rounds: usize) -> usize {
    let (scanned, limit) = (4 * hot, if value_bytes < 1000 { 8 << 20 } else { 2 << 20 });
    let keys = hot + rounds * scanned;
    let configuration = Configuration { memory_bytes: limit, eviction, ..Configuration::default() };
    let max_item_bytes = 32 << 10;
    let toy = Toy::open(Configuration { max_item_bytes, ..configuration }, keys);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let read = |item: Item<'_>| item.mark_accessed(item.header(), NOW.seconds);
    for number in 0..hot {
        assert!(toy.set(&mut pool, &helper, number, value_bytes));
        toy.with(&pool, number, read);
    }
    let mut next = hot;
    let mut hits = 0;
    for _ in 0..rounds {
        for number in 0..hot {
            match toy.with(&pool, number, read) {
                Some(()) => hits += 1,
                None => assert!(toy.set(&mut pool, &helper, number, value_bytes)),
            }
            for _ in 0..scanned / hot {
                assert!(toy.set(&mut pool, &helper, next, value_bytes));
                next += 1;
            }
        }
        pool.step(&NOW, &mut |_, old, new| toy.swap(old, new, &helper));
    }
    hits
}

#[test]
fn a_scan_drives_out_what_clock_would_lose() {
    // The list of small items on probation is long: it needs memory that pages have taken.
    for (value_bytes, hot, rounds) in [(1000, 700, 20), (40, 40_000, 6)] {
        let [clock, probation] = [Eviction::Clock, Eviction::Probation]
            .map(|eviction| hits_beside_a_scan(eviction, value_bytes, hot, rounds));
        let is_better = probation > hot * rounds / 2 && probation > 3 * clock;
        assert!(is_better, "{value_bytes} bytes: {probation} hits; CLOCK {clock}");
    }
}

/// What was there before is on probation, too: it leaves if it was never read.
#[test]
fn probation_begins_with_the_items_that_are_there() {
    const KEYS: usize = 60_000;
    let toy = Toy::new(2 << 20, 32 << 10, true, 2 * KEYS);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let held = |from: usize, to: usize, is_read: bool| {
        let numbers = (from..to).filter(|number| (number % 4 == 0) == is_read);
        numbers.filter(|number| toy.words[*number].load(Ordering::Acquire) != 0).count()
    };
    toy.memory.set_eviction(Eviction::Clock);
    for number in 0..KEYS {
        assert!(toy.set(&mut pool, &helper, number, 40));
        if number % 4 == 0 {
            toy.with(&pool, number, |item| item.mark_accessed(item.header(), NOW.seconds));
        }
    }
    toy.memory.set_eviction(Eviction::Probation);
    let (read, unread) = (held(0, KEYS, true), held(0, KEYS, false));
    assert!(read > 1000 && unread > 3000, "{read}, {unread}");
    for number in KEYS..KEYS + unread / 2 {
        assert!(toy.set(&mut pool, &helper, number, 40));
    }
    assert_eq!(held(0, KEYS, true), read);
    let left = held(0, KEYS, false);
    assert!(left < unread * 6 / 10, "{left} of {unread}");
}

#[test]
fn a_change_of_the_policy_loses_no_item_and_gives_its_memory_back() {
    const KEYS: usize = 60_000;
    let toy = Toy::new(2 << 20, 32 << 10, true, 4 * KEYS);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    let held = || (0..4 * KEYS).filter(|number| toy.words[*number].load(Ordering::Acquire) != 0);
    for turn in 0..4 {
        let policy = [Eviction::Clock, Eviction::Probation][turn % 2];
        let before: Vec<_> = held().collect();
        let (used, probation_bytes) = (toy.memory.budget.used(), toy.memory.probation_bytes());
        assert_eq!(probation_bytes > 20_000, toy.memory.eviction() == Eviction::Probation);
        toy.memory.set_eviction(policy);
        assert_eq!((toy.memory.eviction(), toy.memory.probation_bytes()), (policy, 0));
        assert_eq!(toy.memory.budget.used(), used - probation_bytes);
        assert_eq!(held().collect::<Vec<_>>(), before);
        assert!(before.into_iter().all(|number| toy.check(&pool, number)));
        for number in turn * KEYS..(turn + 1) * KEYS {
            assert!(toy.set(&mut pool, &helper, number, 10));
            if number % 1000 == 0 {
                pool.step(&NOW, &mut |_, old, new| toy.swap(old, new, &helper));
            }
        }
        assert!(toy.memory.statistics().eviction == policy && held().count() < KEYS);
    }
}

/// Threads that evict while the policy changes leave nothing of the former one behind.
#[test]
fn evictions_that_a_change_of_the_policy_overtakes_leave_no_memory_charged() {
    const KEYS: usize = 30_000;
    let toy = Toy::new(2 << 20, 32 << 10, true, 2 * KEYS);
    let is_done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (toy, is_done) = (&toy, &is_done);
            scope.spawn(move || {
                let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
                for round in 0..5 * KEYS {
                    assert!(toy.set(&mut pool, &helper, part * KEYS + round % KEYS, 10));
                    if round % 1000 == 0 {
                        pool.step(&NOW, &mut |_, old, new| toy.swap(old, new, &helper));
                    }
                }
                is_done.fetch_add(1, Ordering::Release);
            });
        }
        while is_done.load(Ordering::Acquire) < 2 {
            toy.memory.set_eviction(Eviction::Probation);
            std::thread::yield_now();
            toy.memory.set_eviction(Eviction::Clock);
        }
    });
    assert_eq!(toy.memory.probation_bytes(), 0);
    let pages = toy.memory.budget.used() % toy.memory.page_bytes();
    assert_eq!(pages, 0, "only pages are charged");
}
