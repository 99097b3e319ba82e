//! The engine by itself: what the suite of all engines cannot see.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_op::{Delete, Key, Now, Op, Outcome, Store, StoreMode, Verb};

use super::items::reference_of;
use super::space::Space;
use super::walk::tour;
use super::word::Node;
use super::{HotRing, HotRingR, HotRingS, HotRingWorker, Strategy};
use crate::mem::ItemRef;
use crate::{Configuration, Cursor, Engine, Found, Sink, Store as _, Tuning, Worker};

const NOW: Now = Now::at(10);

/// Takes the first bytes of the last hit.
#[derive(Default)]
struct Last(Option<Vec<u8>>);

impl Sink for Last {
    fn hit(&mut self, _position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.0 = Some(found.item.value.as_bytes().to_vec());
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _position: usize) -> ControlFlow<()> {
        self.0 = None;
        ControlFlow::Continue(())
    }
}

fn open<S: Strategy>(buckets: usize, grows: bool) -> HotRing<S> {
    let memory_bytes = if cfg!(miri) { 1 << 20 } else { 32 << 20 };
    open_bounded(buckets, grows, memory_bytes, false)
}

fn open_bounded<S: Strategy>(
    buckets: usize,
    grows: bool,
    memory_bytes: usize,
    evicts: bool,
) -> HotRing<S> {
    let configuration = Configuration {
        memory_bytes,
        max_item_bytes: 1 << 10,
        evicts,
        workers: 8,
        tuning: Tuning { buckets: Some(buckets), grows, ..Tuning::default() },
        ..Configuration::default()
    };
    HotRing::open(&configuration).expect("a valid configuration")
}

fn set<S: Strategy>(worker: &mut HotRingWorker<'_, S>, name: &str, value: &[u8]) {
    let key = Key::new(name.as_bytes(), worker.index.seed());
    let verb = Verb::Store(Store::new(StoreMode::Set, value, 0, 0));
    let outcome = worker.apply(&Op { key, verb }, &NOW, &mut Last::default());
    assert!(matches!(outcome, Outcome::Stored(_)), "{name}: {outcome:?}");
}

fn get<S: Strategy>(worker: &mut HotRingWorker<'_, S>, name: &str) -> Option<Vec<u8>> {
    let key = Key::new(name.as_bytes(), worker.index.seed());
    let mut last = Last::default();
    worker.get_batch(&[key], &NOW, &mut last);
    last.0
}

fn delete<S: Strategy>(worker: &mut HotRingWorker<'_, S>, name: &str) -> bool {
    let key = Key::new(name.as_bytes(), worker.index.seed());
    let verb = Verb::Delete(Delete::default());
    worker.apply(&Op { key, verb }, &NOW, &mut Last::default()) == Outcome::Deleted
}

/// The node that the head of `name`'s ring leads to, and the nodes of the ring from there on.
fn ring<S: Strategy>(worker: &HotRingWorker<'_, S>, name: &str) -> Vec<Node> {
    let guard = worker.pool.pin();
    let items = worker.items(&guard);
    let mut nodes = Vec::new();
    tour(&items, worker.index.seed().hash(name.as_bytes()), |loaded| nodes.push(loaded.node));
    nodes
}

/// The node of `name`.
fn node<S: Strategy>(worker: &HotRingWorker<'_, S>, name: &str) -> Option<Node> {
    let guard = worker.pool.pin();
    let items = worker.items(&guard);
    ring(worker, name).into_iter().find(|node| items.has_key(*node, name.as_bytes()))
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key {number}")).collect()
}

#[test]
fn a_read_of_a_cold_item_moves_the_head() {
    let index = open::<super::RandomMovement>(2, false);
    let mut worker = index.worker();
    let names = names(16);
    names.iter().for_each(|name| set(&mut worker, name, b"a value"));
    for name in &names {
        for _ in 0..super::engine::REQUESTS_PER_LOOK {
            assert_eq!(get(&mut worker, name).as_deref(), Some(&b"a value"[..]));
        }
        assert_eq!(ring(&worker, name).first().copied(), node(&worker, name));
    }
}

/// Requests for one item of a ring, and for no other, after which any head leads to it.
const LONGEST_DOUBT: u32 = (super::movement::TRUST as u32 + 1) * super::engine::REQUESTS_PER_LOOK;

#[test]
fn a_head_that_was_right_outlasts_a_look_at_another_item() {
    let index = open::<super::RandomMovement>(2, false);
    let mut worker = index.worker();
    let names = names(16);
    names.iter().for_each(|name| set(&mut worker, name, b"a value"));
    let [hot, cold] = two_of_a_ring(&worker, &names);
    let reads = |worker: &mut _, name: &str, count| (0..count).for_each(|_| _ = get(worker, name));
    reads(&mut worker, hot, LONGEST_DOUBT + super::engine::REQUESTS_PER_LOOK);
    reads(&mut worker, cold, super::engine::REQUESTS_PER_LOOK);
    assert_eq!(ring(&worker, hot).first().copied(), node(&worker, hot));
    reads(&mut worker, cold, LONGEST_DOUBT);
    assert_eq!(ring(&worker, cold).first().copied(), node(&worker, cold));
}

#[test]
fn a_miss_leads_the_head_to_the_item_before() {
    let index = open::<super::RandomMovement>(2, false);
    let mut worker = index.worker();
    let names = names(16);
    names[1..].iter().for_each(|name| set(&mut worker, name, b"a value"));
    for _ in 0..LONGEST_DOUBT {
        assert_eq!(get(&mut worker, &names[0]), None);
    }
    let before = ring(&worker, &names[0]).first().copied();
    // An insert leads the head to what is new; so the ring ends with the item before that.
    set(&mut worker, &names[0], b"a value");
    assert_eq!(ring(&worker, &names[0]).last().copied(), before);
}

/// Two of the names that share a ring.
fn two_of_a_ring<'n, S: Strategy>(
    worker: &HotRingWorker<'_, S>,
    names: &'n [String],
) -> [&'n str; 2] {
    let own = ring(worker, &names[0]);
    let is_other = |name: &&String| node(worker, name).is_some_and(|node| own.contains(&node));
    [&names[0], names[1..].iter().find(is_other).expect("two rings have three items")]
}

fn updates_lead_the_head_to_the_item_before<S: Strategy>() {
    let index = open::<S>(2, false);
    let mut worker = index.worker();
    let names = names(16);
    names.iter().for_each(|name| set(&mut worker, name, &[1; 100]));
    index.growth.note_items(names.len() as u64);
    let [hot, _] = two_of_a_ring(&worker, &names);
    for _ in 0..2000 {
        set(&mut worker, hot, &[2; 100]);
    }
    assert_eq!(ring(&worker, hot).get(1).copied(), node(&worker, hot));
}

#[test]
fn updates_lead_the_head_to_the_item_before_by_either_strategy() {
    updates_lead_the_head_to_the_item_before::<super::RandomMovement>();
    updates_lead_the_head_to_the_item_before::<super::StatisticalSampling>();
}

#[test]
fn an_insert_leads_the_head() {
    let index = open::<super::StatisticalSampling>(2, false);
    let mut worker = index.worker();
    let names = names(16);
    for (count, name) in names.iter().enumerate() {
        set(&mut worker, name, b"a value");
        assert_eq!(ring(&worker, name).first().copied(), node(&worker, name));
        // Rounds begin, and end with the next insert.
        names[..count].iter().for_each(|name| _ = get(&mut worker, name));
    }
}

#[test]
fn sampling_moves_the_head_to_the_hot_item() {
    let index = open::<super::StatisticalSampling>(2, false);
    let mut worker = index.worker();
    let names = names(20);
    names.iter().for_each(|name| set(&mut worker, name, b"a value"));
    for hot in ["key 3", "key 11", "key 17"] {
        for turn in 0..400 {
            get(&mut worker, if turn % 8 == 0 { &names[turn % 20] } else { hot });
        }
        assert_eq!(ring(&worker, hot).first().copied(), node(&worker, hot), "{hot}");
    }
}

#[test]
fn updates_of_a_hot_item_move_the_head_before_it() {
    let index = open::<super::StatisticalSampling>(2, false);
    let mut worker = index.worker();
    let names = names(20);
    let value = [7; 100];
    names.iter().for_each(|name| set(&mut worker, name, &value));
    for _ in 0..400 {
        set(&mut worker, "key 5", &value);
    }
    assert_eq!(ring(&worker, "key 5").get(1).copied(), node(&worker, "key 5"));
}

#[test]
fn a_replaced_head_hands_its_place_on() {
    let index = open::<super::RandomMovement>(2, false);
    let mut worker = index.worker();
    let names = names(12);
    names.iter().for_each(|name| set(&mut worker, name, &[1; 50]));
    for name in &names {
        let head = ring(&worker, name)[0];
        if node(&worker, name) != Some(head) || ring(&worker, name).len() == 1 {
            continue;
        }
        let next = ring(&worker, name)[1];
        worker.requests = 1;
        set(&mut worker, name, &[2; 50]);
        assert_ne!(ring(&worker, name)[0], head, "the old version is gone");
        assert_eq!(node(&worker, name), Some(ring(&worker, name)[0]), "the new one is head");
        assert!(delete(&mut worker, name));
        assert_eq!(ring(&worker, name)[0], next, "the next item is head");
    }
}

#[test]
fn expensive_accesses_make_the_table_grow_twice() {
    fn grow<S: Strategy>() {
        let index = open::<S>(2, true);
        let mut worker = index.worker();
        let names = names(if cfg!(miri) { 24 } else { 3000 });
        names.iter().for_each(|name| set(&mut worker, name, name.as_bytes()));
        let rounds = if cfg!(miri) { 1 } else { 40 };
        for _ in 0..rounds {
            for name in &names {
                assert_eq!(get(&mut worker, name).as_deref(), Some(name.as_bytes()));
            }
            if cfg!(miri) {
                index.wants_growth.store(true, Ordering::Relaxed);
            }
            let bound = 100_000;
            assert!(
                (0..bound).any(|_| !HotRing::maintain(&mut worker, &NOW)),
                "background work ends"
            );
        }
        let statistics = index.statistics();
        assert!(statistics.expansions >= if cfg!(miri) { 1 } else { 4 }, "{statistics:?}");
        assert!(cfg!(miri) || statistics.items_passed > 0.0, "{statistics:?}");
        assert_eq!(statistics.items, names.len() as u64);
        for name in &names {
            assert_eq!(get(&mut worker, name).as_deref(), Some(name.as_bytes()));
        }
        let mut visited = 0;
        let end = worker.scan(Cursor::START, usize::MAX, &mut |_| {
            visited += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((end, visited), (None, names.len()));
        for name in &names {
            assert!(delete(&mut worker, name));
        }
        worker.pool.flush();
        let statistics = index.statistics();
        assert_eq!((statistics.items, statistics.memory.items), (0, 0));
    }
    grow::<super::RandomMovement>();
    grow::<super::StatisticalSampling>();
}

/// Readers, writers and a thread that rehashes, all on the same few keys; heads move all the time.
/// Each value vouches for its key; what is not deleted is found.
fn race<I: Strategy>() {
    let (keys, turns) = if cfg!(miri) { (6, 60) } else { (24, 40_000) };
    let index = open::<I>(2, true);
    let names = names(keys);
    // Keys that are only ever replaced: they must be found at all times.
    let stays = |number: usize| number.is_multiple_of(3);
    {
        let mut worker = index.worker();
        names.iter().for_each(|name| set(&mut worker, name, name.as_bytes()));
    }
    let running = AtomicU64::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (index, names, running) = (&index, &names, &running);
            scope.spawn(move || {
                let _done = Done(running);
                let mut worker = index.worker();
                let mut random = thread + 1;
                for turn in 0..turns {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let number = (random >> 33) as usize % keys;
                    let name = &names[number];
                    match random >> 60 {
                        0..6 => {
                            let found = get(&mut worker, name);
                            assert!(found.is_some() || !stays(number), "{name} was missed");
                            let is_own = |value: Vec<u8>| value.starts_with(name.as_bytes());
                            assert!(found.is_none_or(is_own), "{name} has another's value");
                        }
                        6..12 => {
                            let length = (random >> 40) as usize % 30;
                            let tail = "x".repeat(length);
                            set(&mut worker, name, format!("{name}{tail}").as_bytes());
                        }
                        _ if !stays(number) => _ = delete(&mut worker, name),
                        _ => {}
                    }
                    if turn % 8 == 0 {
                        worker.quiesce();
                    }
                }
            });
        }
        let (index, running) = (&index, &running);
        scope.spawn(move || {
            let mut worker = index.worker();
            while running.load(Ordering::Relaxed) > 0 {
                if index.statistics().expansions < 4 {
                    index.wants_growth.store(true, Ordering::Relaxed);
                }
                HotRing::maintain(&mut worker, &NOW);
                worker.quiesce();
                std::thread::yield_now();
            }
        });
    });
    let mut worker = index.worker();
    assert!((0..100_000).any(|_| !HotRing::maintain(&mut worker, &NOW)), "background work ends");
    names.iter().for_each(|name| _ = delete(&mut worker, name));
    for _ in 0..4 {
        worker.pool.flush();
    }
    let statistics = index.statistics();
    assert_eq!((statistics.items, statistics.memory.items), (0, 0), "all memory came back");
    assert_eq!(statistics.memory.waiting, 0);
}

/// Counts down when a thread ends, also by a panic.
struct Done<'d>(&'d AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn few_keys_under_all_operations_with_random_movement() {
    race::<super::RandomMovement>();
}

#[test]
fn few_keys_under_all_operations_with_sampling() {
    race::<super::StatisticalSampling>();
}

/// Asks for an item's memory, as the CLOCK hand does. Returns whether it went.
fn evict<S: Strategy>(worker: &mut HotRingWorker<'_, S>, names: &[&String]) -> Vec<bool> {
    let index = worker.index;
    let found = |name: &&String| node(worker, name).expect("it is there");
    let items: Vec<ItemRef> = names.iter().map(found).map(reference_of).collect();
    worker.with_swap(&NOW, |pool, swap| {
        let mut is_out = |(name, item): (&&String, ItemRef)| {
            let is_out = swap(index.seed().hash(name.as_bytes()), item, None);
            if is_out {
                // SAFETY: we unlinked it.
                unsafe { pool.retire(item) };
            }
            is_out
        };
        names.iter().zip(items).map(&mut is_out).collect()
    })
}

#[test]
fn a_hot_head_is_spared_once() {
    let index = open::<super::RandomMovement>(2, false);
    let mut worker = index.worker();
    let names = names(12);
    names.iter().for_each(|name| set(&mut worker, name, b"a value"));
    for name in &names {
        for _ in 0..LONGEST_DOUBT {
            get(&mut worker, name);
        }
        assert_eq!(ring(&worker, name).first().copied(), node(&worker, name));
        if ring(&worker, name).len() == 1 {
            continue;
        }
        assert_eq!(evict(&mut worker, &[name]), [false], "{name} is hot");
        assert!(node(&worker, name).is_some());
        assert_eq!(evict(&mut worker, &[name]), [true], "nobody read it since");
        assert_eq!(get(&mut worker, name), None);
    }
    let left = names.iter().filter(|name| node(&worker, name).is_some()).count();
    assert!(left <= 2, "each ring keeps its last item");
}

#[test]
fn where_all_items_are_hot_heads_some_go() {
    let index = open::<super::RandomMovement>(1 << 12, false);
    let mut worker = index.worker();
    let names = names(100);
    for name in &names {
        set(&mut worker, name, b"a value");
        get(&mut worker, name);
    }
    let is_alone = |name: &&String| ring(&worker, name).len() == 1;
    let alone: Vec<&String> = names.iter().filter(is_alone).collect();
    assert!(alone.len() > 80, "most rings have one item");
    let spared = evict(&mut worker, &alone).iter().filter(|is_out| !**is_out).count();
    assert_eq!(spared as u32, super::engine::MOST_SPARED, "then it takes what there is");
}

/// Every item is read, so every head is hot, and most rings are of one: stores go on all the same.
#[test]
fn a_full_memory_of_hot_heads_takes_new_items() {
    let bytes = 8 << 20;
    let index = open_bounded::<super::StatisticalSampling>(1 << 16, false, bytes, true);
    let mut worker = index.worker();
    let value = [5; 400];
    let count = if cfg!(miri) { 40 } else { 2 * bytes / value.len() };
    for name in &names(count) {
        set(&mut worker, name, &value);
        assert_eq!(get(&mut worker, name).as_deref(), Some(&value[..]), "{name}");
        worker.quiesce();
    }
    let statistics = index.statistics();
    assert!(cfg!(miri) || statistics.evictions as usize > count / 4, "{statistics:?}");
    assert_eq!(statistics.out_of_memory, 0);
}

#[test]
fn a_full_memory_stalls_no_rehash() {
    let bytes = 4 << 20;
    let index = open_bounded::<super::RandomMovement>(1 << 8, true, bytes, true);
    let mut worker = index.worker();
    let value = [5; 100];
    let names = names(if cfg!(miri) { 40 } else { 2 * bytes / value.len() });
    for (number, name) in names.iter().enumerate() {
        set(&mut worker, name, &value);
        if number % 16 == 0 && index.statistics().expansions < 6 {
            index.wants_growth.store(true, Ordering::Relaxed);
            HotRing::maintain(&mut worker, &NOW);
            assert!(index.statistics().memory.used <= bytes as u64);
        }
        worker.quiesce();
    }
    assert!((0..100_000).any(|_| !HotRing::maintain(&mut worker, &NOW)), "background work ends");
    let statistics = index.statistics();
    assert!(cfg!(miri) || statistics.expansions > 0 && statistics.evictions > 0, "{statistics:?}");
    names.iter().for_each(|name| _ = delete(&mut worker, name));
    (0..4).for_each(|_| _ = worker.pool.flush());
    let statistics = index.statistics();
    assert_eq!((statistics.items, statistics.memory.items), (0, 0), "all memory came back");
}

#[test]
fn statistics_show_lengths_and_hot_heads() {
    let index = open::<super::RandomMovement>(4, false);
    let mut worker = index.worker();
    let names = names(40);
    names.iter().for_each(|name| set(&mut worker, name, b"a value"));
    HotRing::maintain(&mut worker, &NOW);
    let mut statistics = index.statistics();
    index.sample_buckets(&mut statistics);
    assert_eq!(statistics.length_histogram.iter().sum::<u64>(), 4, "{statistics:?}");
    assert_eq!(statistics.hot_heads, 0, "nothing was read");
    // Two reads mark what was read: the first may still guess how items look.
    for _ in 0..super::engine::REQUESTS_PER_LOOK {
        get(&mut worker, "key 7");
    }
    HotRing::maintain(&mut worker, &NOW);
    index.sample_buckets(&mut statistics);
    assert_eq!(statistics.hot_heads, 1);
}

#[test]
fn rounds_that_move_nothing_become_rare() {
    let index = open::<super::StatisticalSampling>(2, false);
    let mut worker = index.worker();
    let names = names(8);
    names.iter().for_each(|name| set(&mut worker, name, b"a value"));
    index.growth.note_items(names.len() as u64);
    let patience = |worker: &HotRingWorker<'_, super::StatisticalSampling>| {
        let guard = worker.pool.pin();
        let items = worker.items(&guard);
        items.head(index.seed().hash(b"key 3")).1.patience()
    };
    for turn in 0..20_000 {
        get(&mut worker, if turn % 7 == 0 { &names[turn % 8] } else { "key 3" });
    }
    assert_eq!(ring(&worker, "key 3").first().copied(), node(&worker, "key 3"));
    assert!(patience(&worker) > 0, "rounds moved nothing");
    // It is no obstacle to another hot item.
    let own = node(&worker, "key 3").expect("it is there");
    let is_other = |name: &&String| *name != "key 3" && ring(&worker, name).contains(&own);
    let other = names.iter().find(is_other).expect("another of the ring");
    for turn in 0..20_000 {
        get(&mut worker, if turn % 7 == 0 { &names[turn % 8] } else { other });
    }
    assert_eq!(ring(&worker, other).first().copied(), node(&worker, other));
}

#[test]
fn the_names_are_those_of_the_contract() {
    assert_eq!((HotRingR::NAME, HotRingS::NAME), ("hotring-r", "hotring-s"));
}
