//! The protocols themselves, on a handful of words, in every interleaving that loom explores; under
//! `--cfg shuttle` in random ones, and those of more threads, too.
//!
//! Items are numbers: item `n` has key and order `n`, and odd places hold what replaces them. Each
//! test ends with a look at the ring that is left; every owner checks, at the moment at which it
//! would retire its item, that the item cannot be reached.

use std::collections::BTreeSet;

use super::change::{Position, insert, insert_first, locate, move_head, occupy, replace, unlink};
use super::space::{Order, Space, Target, load};
use super::split::{Buckets, part, split};
use super::walk::{Event, Walk};
use super::word::{Bits, Head, Link, Node};
use super::{movement, sample};
use crate::sync::{Arc, AtomicU64, Ordering::SeqCst, thread};

/// Keys are single digits; their hashes spread them over two rings of a split table.
const KEYS: [&[u8]; 10] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"];
/// Places per key: as many versions of it as a test can make.
const VERSIONS: u64 = 3;
/// The place of the pair of rehash items.
const PAIR: Node = Node(61);

/// The words that the threads share.
struct Words {
    heads: [AtomicU64; 3],
    links: Vec<AtomicU64>,
    bits: Bits,
}

/// One thread's view of them.
#[derive(Clone)]
struct Rings {
    words: Arc<Words>,
    number: u64,
}

fn hash_of(key: u64) -> u64 {
    // Two to a tag, so that whole orders are compared as well.
    (key / 2) << 60
}

fn place_of(key: u64, version: u64) -> Node {
    Node(1 + key * VERSIONS + version)
}

impl Space for Rings {
    fn bits(&self) -> &Bits {
        &self.words.bits
    }

    fn head(&self, hash: u64) -> (&AtomicU64, Head) {
        let [old, new @ ..] = &self.words.heads;
        match Head(load(old)) {
            Head::MOVED => {
                let word = &new[(hash >= self.division(PAIR)) as usize];
                (word, Head(load(word)))
            }
            head => (old, head),
        }
    }

    fn link(&self, node: Node) -> &AtomicU64 {
        &self.words.links[node.0 as usize]
    }

    fn order(&self, node: Node) -> Order<'_> {
        let key = (node.0 - 1) / VERSIONS;
        Order { hash: hash_of(key), key: KEYS[key as usize] }
    }

    fn has_key(&self, node: Node, key: &[u8]) -> bool {
        self.order(node).key == key
    }

    fn division(&self, lower: Node) -> u64 {
        assert_eq!(lower, PAIR);
        hash_of(4)
    }

    fn number(&self) -> u64 {
        self.number
    }
}

fn order(key: u64) -> Order<'static> {
    Order { hash: hash_of(key), key: KEYS[key as usize] }
}

impl Rings {
    /// A ring of `keys`, whose head leads to the last of them.
    fn new(keys: &[u64]) -> Self {
        let words = Words {
            heads: std::array::from_fn(|_| AtomicU64::new(0)),
            links: (0..64).map(|_| AtomicU64::new(0)).collect(),
            bits: Bits::new(6, 1),
        };
        let rings = Self { words: Arc::new(words), number: 0 };
        keys.iter().for_each(|key| assert!(rings.insert(*key, 0)));
        if let Some(last) = keys.last() {
            let (word, head) = rings.head(hash_of(*last));
            let target = rings.address(place_of(*last, 0), hash_of(*last));
            move_head(&rings, word, head, Head::to(target));
        }
        rings
    }

    /// Runs `work` as worker `number` in a thread.
    fn spawn<R: Send + 'static>(
        &self,
        number: u64,
        work: impl FnOnce(Rings) -> R + Send + 'static,
    ) -> thread::JoinHandle<R> {
        let rings = Self { words: self.words.clone(), number };
        thread::spawn(move || work(rings))
    }

    fn find(&self, key: u64) -> Option<Node> {
        let (_, head) = self.head(hash_of(key));
        let target = Target::new(&self.words.bits, order(key));
        match Walk::new(self, target, head.address()).finish() {
            Event::Hit(loaded) => Some(loaded.node),
            _ => None,
        }
    }

    /// Returns false if the key is there.
    fn insert(&self, key: u64, version: u64) -> bool {
        let node = place_of(key, version);
        let address = self.address(node, hash_of(key));
        let link = Link::to(Head::EMPTY.address());
        loop {
            let is_in = match locate(self, order(key)) {
                Position::Present { .. } => return false,
                Position::Absent { before } => insert(self, before, node, address, link),
                Position::Vacant => {
                    let (word, head) = self.head(hash_of(key));
                    head == Head::EMPTY && insert_first(self, word, node, address, link)
                }
            };
            if is_in {
                return true;
            }
        }
    }

    /// Returns false if the key is not there.
    fn delete(&self, key: u64) -> bool {
        while let Some(node) = self.find(key) {
            if occupy(self, node).is_some() {
                self.let_go(key, node);
                return true;
            }
        }
        false
    }

    /// Returns false if the key is not there.
    fn update(&self, key: u64, version: u64) -> bool {
        let copy = place_of(key, version);
        while let Some(node) = self.find(key) {
            if replace(self, node, copy, self.address(copy, hash_of(key))) {
                self.let_go(key, node);
                return true;
            }
        }
        false
    }

    fn let_go(&self, key: u64, node: Node) {
        unlink(self, order(key), node, None);
        assert!(!self.reachable().contains(&node.0), "retired while it can be reached");
    }

    fn move_to(&self, key: u64, version: u64) {
        let (word, head) = self.head(hash_of(key));
        if !head.is_moving() && head != Head::EMPTY {
            let target = self.address(place_of(key, version), hash_of(key));
            move_head(self, word, head, Head::to(target));
        }
    }

    /// Everything that somebody who comes now can meet.
    fn reachable(&self) -> BTreeSet<u64> {
        let [old, new @ ..] = &self.words.heads;
        // As in the engine, the new heads are read only once the old one says so. (A load is an
        // exchange that changes nothing here, and must not race with the first store.)
        let heads = match Head(load(old)) {
            Head::MOVED => new.iter().map(|head| Head(load(head))).collect(),
            head => vec![head],
        };
        let mut seen = BTreeSet::new();
        for head in heads {
            let mut at = head.address();
            while let Some(node) = self.words.bits.node_of(at) {
                if !seen.insert(node.0) {
                    break;
                }
                at = self.load_link(node).address();
            }
        }
        seen
    }

    /// The keys that are there, at rest; checks the ring's order.
    fn keys(&self) -> Vec<u64> {
        let places: Vec<u64> = self.reachable().into_iter().collect();
        let is_item = |place: &&u64| **place < PAIR.0;
        let occupied = |place: &u64| self.load_link(Node(*place)).is_occupied();
        assert!(!places.iter().any(occupied), "all that was deleted is unlinked");
        let keys: Vec<u64> =
            places.iter().filter(is_item).map(|place| (place - 1) / VERSIONS).collect();
        keys.iter().for_each(|key| assert!(self.find(*key).is_some(), "{key} is in its place"));
        keys
    }
}

#[cfg(shuttle)]
fn model(work: impl Fn() + Sync + Send + 'static) {
    shuttle::check_random(work, 2_000);
}

#[cfg(not(shuttle))]
fn model(work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bounded: two or three preemptions find what two or three threads can do to each other.
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 20_000;
    builder.check(work);
}

#[test]
fn insert_beside_a_delete_of_its_neighbour() {
    for deleted in [0, 4] {
        model(move || {
            let rings = Rings::new(&[0, 4]);
            let other = rings.spawn(1, move |rings| assert!(rings.delete(deleted)));
            assert!(rings.insert(2, 0));
            other.join().expect("it ends");
            assert_eq!(
                rings.keys(),
                [2, 4 - deleted]
                    .iter()
                    .copied()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect::<Vec<_>>()
            );
        });
    }
}

#[test]
fn deletes_side_by_side() {
    for keys in [&[0, 2, 4][..], &[0, 2]] {
        model(move || {
            let rings = Rings::new(keys);
            let other = rings.spawn(1, |rings| assert!(rings.delete(0)));
            assert!(rings.delete(2));
            other.join().expect("it ends");
            assert_eq!(rings.keys(), keys[2..]);
        });
    }
}

#[test]
fn a_ring_is_emptied_and_filled_at_once() {
    model(|| {
        let rings = Rings::new(&[2]);
        let other = rings.spawn(1, |rings| assert!(rings.delete(2)));
        assert!(rings.insert(3, 0));
        other.join().expect("it ends");
        assert_eq!(rings.keys(), [3]);
    });
}

#[test]
fn one_of_two_deletes_of_a_key_succeeds() {
    model(|| {
        let rings = Rings::new(&[2, 4]);
        let other = rings.spawn(1, |rings| rings.delete(2));
        let own = rings.delete(2);
        assert_ne!(own, other.join().expect("it ends"));
        assert_eq!(rings.keys(), [4]);
    });
}

#[test]
fn the_head_moves_to_an_item_that_is_deleted() {
    for keys in [&[2][..], &[2, 4]] {
        model(move || {
            let rings = Rings::new(keys);
            let other = rings.spawn(1, |rings| rings.move_to(2, 0));
            assert!(rings.delete(2));
            other.join().expect("it ends");
            assert_eq!(rings.keys(), keys[1..]);
        });
    }
}

#[test]
fn movers_and_a_deleter() {
    model(|| {
        let rings = Rings::new(&[0, 2, 4]);
        let mover = rings.spawn(1, |rings| rings.move_to(0, 0));
        let other = rings.spawn(2, |rings| rings.move_to(2, 0));
        assert!(rings.delete(2));
        mover.join().expect("it ends");
        other.join().expect("it ends");
        assert_eq!(rings.keys(), [0, 4]);
    });
}

#[test]
fn a_key_that_is_replaced_is_always_found() {
    for keys in [&[2][..], &[2, 4]] {
        model(move || {
            let rings = Rings::new(keys);
            let reader = rings.spawn(1, |rings| assert!(rings.find(2).is_some()));
            assert!(rings.update(2, 1));
            assert!(rings.update(2, 2));
            reader.join().expect("it ends");
            assert_eq!(rings.find(2), Some(place_of(2, 2)));
        });
    }
}

#[test]
fn a_key_is_found_while_its_neighbours_come_and_go() {
    model(|| {
        let rings = Rings::new(&[0, 2, 4]);
        let reader = rings.spawn(1, |rings| {
            assert!(rings.find(2).is_some());
            assert!(rings.find(3).is_none());
        });
        assert!(rings.delete(4));
        assert!(rings.delete(0));
        assert!(rings.insert(5, 0));
        reader.join().expect("it ends");
        assert_eq!(rings.keys(), [2, 5]);
    });
}

#[test]
fn update_beside_insert_and_delete() {
    model(|| {
        let rings = Rings::new(&[2, 4]);
        let other = rings.spawn(1, |rings| assert!(rings.insert(3, 0)));
        assert!(rings.update(2, 1));
        other.join().expect("it ends");
        assert_eq!(rings.keys(), [2, 3, 4]);
    });
    model(|| {
        let rings = Rings::new(&[2, 4]);
        let other = rings.spawn(1, |rings| assert!(rings.delete(2)));
        let is_updated = rings.update(2, 1);
        other.join().expect("it ends");
        assert_eq!(rings.keys(), [4], "deleted before or after ({is_updated})");
    });
}

#[test]
fn two_updates_of_one_key() {
    model(|| {
        let rings = Rings::new(&[2, 4]);
        let other = rings.spawn(1, |rings| assert!(rings.update(2, 1)));
        assert!(rings.update(2, 2));
        other.join().expect("it ends");
        assert_eq!(rings.keys(), [2, 4]);
    });
}

/// A grace period is what loom's join gives: nobody who came through the old head is left.
fn split_beside(keys: &'static [u64], work: fn(&Rings), left: &'static [u64]) {
    model(move || {
        let rings = Rings::new(keys);
        let other = rings.spawn(1, move |rings| work(&rings));
        let [old, lower, upper] = &rings.words.heads;
        split(&rings, &Buckets { old, new: [lower, upper] }, PAIR);
        other.join().expect("it ends");
        assert_eq!(rings.keys(), left);
        let other = rings.spawn(1, move |rings| {
            left.iter().for_each(|key| assert!(rings.find(*key).is_some()));
            assert!(rings.insert(3, 0));
            assert!(rings.delete(3));
        });
        part(&rings, PAIR);
        assert!(rings.reachable().iter().all(|place| *place < PAIR.0), "the pair is out");
        other.join().expect("it ends");
        assert_eq!(rings.keys(), left);
    });
}

#[test]
fn a_split_beside_readers() {
    split_beside(
        &[2, 4],
        |rings| {
            assert!(rings.find(2).is_some());
            assert!(rings.find(4).is_some());
            assert!(rings.find(5).is_none());
        },
        &[2, 4],
    );
}

#[test]
fn a_split_beside_an_insert() {
    split_beside(&[2, 4], |rings| assert!(rings.insert(5, 0)), &[2, 4, 5]);
    split_beside(&[4], |rings| assert!(rings.insert(1, 0)), &[1, 4]);
}

#[test]
fn a_split_beside_a_delete() {
    split_beside(&[2, 4], |rings| assert!(rings.delete(4)), &[2]);
    split_beside(&[4], |rings| assert!(rings.delete(4)), &[]);
}

#[test]
fn a_split_beside_an_update_and_a_movement() {
    split_beside(&[2, 4], |rings| assert!(rings.update(2, 1)), &[2, 4]);
    split_beside(&[2, 4], |rings| rings.move_to(2, 0), &[2, 4]);
}

/// What came before an item of the lower half when the ring was whole is of the upper half: a head
/// that it would be the best for must not follow it there.
#[test]
fn a_split_beside_a_movement_to_what_came_before() {
    let to_upper = |rings: &Rings| movement::doubt(rings, hash_of(2), place_of(4, 0), true);
    split_beside(&[2, 4], to_upper, &[2, 4]);
    let to_upper = |rings: &Rings| sample::start(rings, hash_of(2), place_of(4, 0), 2);
    split_beside(&[2, 4], to_upper, &[2, 4]);
}

/// The update of values of up to 8 bytes: a word that changes in place, and a replacement that
/// copies it. Bits 0..8 are the value; the printed protocol has the item's Occupied elsewhere.
mod in_place {
    use super::*;

    /// Sealed: seal and value are exchanged together.
    const SEAL: u64 = 1 << 8;

    /// Adds one in place, or to the copy if there is one. As printed: checks Occupied, then
    /// exchanges the value alone.
    fn add_as_printed(value: &AtomicU64, occupied: &AtomicU64, copy: &AtomicU64) {
        loop {
            let word = if load(occupied) == 0 { value } else { copy };
            let seen = load(word);
            let is_done = word.compare_exchange(seen, seen + 1, SeqCst, SeqCst).is_ok();
            if is_done {
                return;
            }
        }
    }

    /// The printed protocol acknowledges a change that nobody will ever see.
    #[test]
    #[should_panic(expected = "an acknowledged write was lost")]
    fn as_printed_loses_a_write() {
        model(|| {
            let words: Arc<[AtomicU64; 3]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            let other = {
                let words = words.clone();
                thread::spawn(move || {
                    let [value, occupied, copy] = &*words;
                    add_as_printed(value, occupied, copy);
                })
            };
            // A touch: occupy, copy, publish the copy.
            let [value, occupied, copy] = &*words;
            copy.store(load(value), SeqCst);
            occupied.store(1, SeqCst);
            other.join().expect("it ends");
            let current = load(copy);
            assert_eq!(current, 1, "an acknowledged write was lost");
        });
    }

    /// An update that meets the seal becomes a replacement of its own, and is not acknowledged
    /// here.
    #[test]
    fn sealed_loses_none() {
        model(|| {
            let words: Arc<[AtomicU64; 2]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            let other = {
                let words = words.clone();
                thread::spawn(move || {
                    let mut seen = load(&words[0]);
                    while seen & SEAL == 0 {
                        match words[0].compare_exchange(seen, seen + 1, SeqCst, SeqCst) {
                            Ok(_) => return 1,
                            Err(changed) => seen = changed,
                        }
                    }
                    0
                })
            };
            let [value, copy] = &*words;
            copy.store(value.fetch_or(SEAL, SeqCst), SeqCst);
            let acknowledged = other.join().expect("it ends");
            assert_eq!(load(copy), acknowledged, "what was acknowledged is in the copy");
        });
    }
}

/// More threads and operations than loom could go through, in random orders.
#[cfg(shuttle)]
mod at_random {
    use shuttle::rand::{Rng, thread_rng};

    use super::*;

    /// The keys that all threads work on, of both halves.
    const FEW: u64 = 6;
    const WORKERS: u64 = 3;
    const OPERATIONS: usize = 5;

    /// Operations that are left, by key: places are not reused, as no grace period ends.
    type Versions = Arc<[AtomicU64; FEW as usize]>;

    /// A place for another version of the item, if there is one.
    fn next_version(versions: &Versions, key: u64) -> Option<u64> {
        let version = versions[key as usize].fetch_add(1, SeqCst);
        (version < VERSIONS).then_some(version)
    }

    /// Any operations in any order. Returns by key how many more were inserted than deleted.
    fn work(rings: &Rings, versions: &Versions) -> [i64; FEW as usize] {
        let mut balance = [0; FEW as usize];
        for _ in 0..OPERATIONS {
            let (key, other) = (thread_rng().gen_range(0..FEW), thread_rng().gen_range(0..FEW));
            match thread_rng().gen_range(0..7) {
                0 | 1 => {
                    let new = next_version(versions, key);
                    let is_in = new.is_some_and(|version| rings.insert(key, version));
                    balance[key as usize] += i64::from(is_in);
                }
                2 => balance[key as usize] -= i64::from(rings.delete(key)),
                3 => _ = next_version(versions, key).map(|version| rings.update(key, version)),
                4 => _ = rings.find(key),
                5 => {
                    if let Some(node) = rings.find(other) {
                        movement::doubt(rings, hash_of(key), node, true);
                    }
                }
                _ => {
                    if let Some(node) = rings.find(other) {
                        sample::start(rings, hash_of(key), node, 2);
                        sample::count(rings, hash_of(key), node, 2);
                    }
                }
            }
        }
        balance
    }

    /// Runs `beside` and all workers, which hold nothing afterwards: a grace period.
    fn together(
        rings: &Rings,
        versions: &Versions,
        beside: impl FnOnce(),
        present: &mut [i64; FEW as usize],
    ) {
        let spawn = |number| {
            let versions = versions.clone();
            rings.spawn(number, move |rings| work(&rings, &versions))
        };
        let workers: Vec<_> = (1..=WORKERS).map(spawn).collect();
        beside();
        for worker in workers {
            let balance = worker.join().expect("it ends");
            present.iter_mut().zip(balance).for_each(|(count, change)| *count += change);
        }
        let expected: Vec<u64> = (0..FEW).filter(|key| present[*key as usize] == 1).collect();
        assert_eq!(rings.keys(), expected);
        assert!(present.iter().all(|count| (0..=1).contains(count)), "{present:?}");
    }

    fn all_at_once() {
        let rings = Rings::new(&[0, 2, 4]);
        let versions: Versions = Arc::new(std::array::from_fn(|key| {
            AtomicU64::new(u64::from([0, 2, 4].contains(&key)))
        }));
        let mut present = std::array::from_fn(|key| i64::from([0, 2, 4].contains(&key)));
        let [old, lower, upper] = &rings.words.heads;
        let divide = || split(&rings, &Buckets { old, new: [lower, upper] }, PAIR);
        together(&rings, &versions, divide, &mut present);
        together(&rings, &versions, || part(&rings, PAIR), &mut present);
        together(&rings, &versions, || (), &mut present);
    }

    #[test]
    fn all_operations_beside_a_rehash() {
        shuttle::check_random(all_at_once, 10_000);
        shuttle::check_pct(all_at_once, 10_000, 3);
    }
}
