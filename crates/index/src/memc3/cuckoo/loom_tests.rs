//! The table as it is, a handful of buckets large, in every interleaving that loom explores.
//!
//! ItemHashes are numbers: a reference says which key it is an item of, and so where it may lie.
//! Each test ends with a look at the whole table: every key has one word, where a reader looks for
//! it.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::PathSearch;

/// A key that may lie in two buckets, whose numbers have three bits; the serial number tells keys
/// with the same buckets apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    first: u64,
    other: u64,
    serial: u64,
}

/// Versions of an item differ in the lowest bits of its reference.
const VERSION_BITS: u32 = 3;
const SERIAL_BITS: u32 = 3;
/// No reference is 0.
const ITEM: u64 = 1 << 20;

fn key(first: u64, other: u64) -> Key {
    Key { first, other, serial: 0 }
}

impl Key {
    fn hash(self) -> u64 {
        let leads_there = |tag: &u16| Tag(*tag).offset() & 7 == self.first ^ self.other;
        let mut tags = (1..u16::MAX).filter(leads_there);
        let tag = tags.nth(self.serial as usize).expect("a tag with this offset");
        u64::from(tag) << 48 | self.first
    }

    fn reference(self, version: u64) -> u64 {
        let place = self.first << 3 | self.other;
        ITEM | (place << SERIAL_BITS | self.serial) << VERSION_BITS | version
    }

    fn of(reference: u64) -> Self {
        let bits = reference >> VERSION_BITS;
        let place = bits >> SERIAL_BITS;
        Self { first: place >> 3 & 7, other: place & 7, serial: bits & 7 }
    }
}

struct Hashes;

impl ItemHashes for Hashes {
    fn hash(&self, reference: u64) -> u64 {
        Key::of(reference).hash()
    }

    fn prefetch(&self, _reference: u64) {}
}

/// What the threads share: a table, and the layers that left it, which live until all are done.
struct Shared<const SLOTS: usize> {
    cuckoo: Cuckoo<SLOTS>,
    left: std::sync::Mutex<Vec<Box<Layer<SLOTS>>>>,
}

#[derive(Clone)]
struct Model<const SLOTS: usize>(Arc<Shared<SLOTS>>);

impl<const SLOTS: usize> Model<SLOTS> {
    /// A table whose buckets hold `rows`; as many stripes as buckets, or fewer.
    fn new(stripes: usize, rows: &[&[Key]]) -> Self {
        let table = Table::model(rows.len());
        for (bucket, keys) in rows.iter().enumerate() {
            for (slot, key) in keys.iter().enumerate() {
                table.store(bucket, slot, Self::word(*key, 0));
            }
        }
        let cuckoo = Cuckoo::new(table, stripes);
        Self(Arc::new(Shared { cuckoo, left: std::sync::Mutex::default() }))
    }

    fn word(key: Key, version: u64) -> Word {
        Word::new(Self::pair(key).tag, key.reference(version))
    }

    fn pair(key: Key) -> BucketPair {
        BucketPair::of::<SLOTS>(key.hash())
    }

    fn view(&self) -> View<'_, SLOTS> {
        // SAFETY: layers that are taken out are kept in `left`.
        unsafe { self.0.cuckoo.view() }
    }

    fn spawn<R: 'static>(&self, work: impl FnOnce(Self) -> R + 'static) -> thread::JoinHandle<R> {
        let model = self.clone();
        thread::spawn(move || work(model))
    }

    fn find(&self, key: Key) -> Option<SlotSnapshot<'_, SLOTS>> {
        self.view().validated_lookup(&Self::pair(key), |word| Key::of(word.reference()) == key)
    }

    fn has(&self, key: Key) -> bool {
        self.find(key).is_some()
    }

    fn insert(&self, key: Key, version: u64) -> Insertion {
        let mut paths = PathFinder::new(PathSearch::Walks(1), 3, 1);
        let is_same = |word: Word| Key::of(word.reference()) == key;
        let word = Self::word(key, version);
        self.view().insert(&Self::pair(key), word, is_same, &Hashes, &mut paths)
    }

    /// Over whatever is in the first slot of the first bucket.
    fn insert_over(&self, key: Key, version: u64) -> Insertion {
        let is_same = |word: Word| Key::of(word.reference()) == key;
        self.view().insert_over(&Self::pair(key), Self::word(key, version), is_same, |_| 0)
    }

    /// Replaces the item of `key`, or unlinks it, as a write does: whoever comes first. Answers
    /// the version that it took out.
    fn exchange(&self, key: Key, new: Option<u64>) -> Option<u64> {
        loop {
            let place = self.find(key)?;
            let new = new.map_or(Word::EMPTY, |version| Self::word(key, version));
            if self.view().exchange(&place, new, || true) {
                return Some(place.word.reference() & 7);
            }
        }
    }

    /// Unlinks one version of an item, as the eviction does.
    fn evict(&self, key: Key, version: u64) -> bool {
        let old = Self::word(key, version);
        self.view().exchange_anywhere(&Self::pair(key), old, Word::EMPTY, || true)
    }

    /// Moves the item of `key`, which lies in `from`, to the empty first slot of `to`.
    fn displace(&self, key: Key, from: usize, to: usize) -> bool {
        let from = PathStep { bucket: from, slot: 0, word: Self::word(key, 0) };
        let to = PathStep { bucket: to, slot: 0, word: Word::EMPTY };
        let view = self.view();
        view.displace(view.root, &from, &to)
    }

    fn grow(&self) {
        let view = self.view();
        let next = Table::model(2 * view.root.table.len());
        assert!(view.grow(Box::new(Layer::new(next))).is_ok(), "nobody else grows it");
    }

    fn finish_growth(&self) {
        if let Some(layer) = self.view().finish_growth() {
            self.0.left.lock().expect("nobody panicked").push(layer);
        }
    }

    /// The keys that are there, at rest, each of which has one word.
    fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut layer = Some(self.view().root);
        while let Some(present) = layer {
            for bucket in 0..present.table.len() {
                let words = (0..SLOTS).map(|slot| present.table.word(bucket, slot));
                let items = words.filter(|word| word.is_item());
                keys.extend(items.map(|word| Key::of(word.reference())));
            }
            layer = present.next();
        }
        keys.sort_unstable();
        let all = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), all, "every key has one word");
        keys.iter().for_each(|key| assert!(self.has(*key), "{key:?} is where it is looked for"));
        keys
    }

    #[track_caller]
    fn assert_keys(&self, expected: &[Key]) {
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(self.keys(), expected);
    }
}

fn model(work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bounded: two or three preemptions find what two or three threads can do to each other.
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 20_000;
    builder.check(work);
}

const A: Key = Key { first: 1, other: 0, serial: 0 };
const B: Key = Key { first: 0, other: 3, serial: 0 };
const C: Key = Key { first: 3, other: 2, serial: 0 };
/// B has room at once, or must displace A.
const EMPTY: &[&[Key]] = &[&[], &[], &[], &[]];
const CROWDED: &[&[Key]] = &[&[A], &[], &[], &[C]];

fn join<R>(thread: thread::JoinHandle<R>) -> R {
    thread.join().expect("it ends")
}

// ---- Readers during displacements.

/// The reader looks at bucket 1 first, to which the insert of B moves A while it looks.
#[test]
fn a_key_is_found_while_an_insert_displaces_it() {
    for stripes in [4, 1] {
        model(move || {
            let table = Model::<1>::new(stripes, CROWDED);
            let reader = table.spawn(|table| assert!(table.has(A), "missed a present key"));
            assert!(matches!(table.insert(B, 0), Insertion::Done));
            join(reader);
            table.assert_keys(&[A, B, C]);
        });
    }
}

/// There and back: when the reader looks again, A lies where it did before.
#[test]
fn a_key_is_found_although_it_comes_back() {
    model(|| {
        let table = Model::<1>::new(2, &[&[A], &[]]);
        let reader = table.spawn(|table| assert!(table.has(A), "missed a present key"));
        assert!(table.displace(A, 0, 1));
        assert!(table.displace(A, 1, 0));
        join(reader);
        table.assert_keys(&[A]);
    });
}

// ---- Readers during evictions.

/// One store evicts a key and inserts another in its place: a reader finds one of the two.
#[test]
fn readers_of_a_victim_find_it_or_what_came_in_its_place() {
    let (old, new) = (key(0, 1), Key { serial: 1, ..key(0, 1) });
    for looks_for_the_new_first in [false, true] {
        model(move || {
            let table = Model::<1>::new(2, &[&[old], &[A]]);
            let reader = table.spawn(move |table| match looks_for_the_new_first {
                true => assert!(!table.has(new) || !table.has(old), "a victim came back"),
                false => assert!(table.has(old) || table.has(new), "a victim went too early"),
            });
            assert!(matches!(table.insert_over(new, 0), Insertion::Evicted(_)));
            join(reader);
            table.assert_keys(&[new, A]);
        });
    }
}

/// The eviction finds exactly the item it wants, wherever it is moved meanwhile.
#[test]
fn an_evicted_key_stays_gone() {
    model(|| {
        let table = Model::<1>::new(2, &[&[A], &[]]);
        let mover = table.spawn(|table| table.displace(A, 0, 1));
        assert!(table.evict(A, 0), "it was there all the time");
        assert!(!table.has(A), "an evicted key came back");
        join(mover);
        table.assert_keys(&[]);
    });
}

/// The thread that removes an item retires it, so exactly one may.
#[test]
fn one_of_an_eviction_and_a_replacement_takes_an_item_out() {
    for new in [Some(1), None] {
        model(move || {
            let table = Model::<1>::new(2, &[&[A], &[]]);
            let evictor = table.spawn(|table| table.evict(A, 0));
            let replaced = table.exchange(A, new);
            assert_ne!(join(evictor), replaced.is_some(), "taken out twice, or by nobody");
            table.assert_keys(if replaced.and(new).is_some() { &[A] } else { &[] });
        });
    }
}

#[test]
fn a_key_that_is_replaced_and_displaced_is_found() {
    model(|| {
        let table = Model::<1>::new(2, &[&[A], &[]]);
        let reader = table.spawn(|table| {
            let [first, second] = [(); 2].map(|()| {
                let place = table.find(A).expect("missed a present key");
                place.word.reference() & 7
            });
            assert!(first <= second, "a read went back in time");
        });
        let mover = table.spawn(|table| table.displace(A, 0, 1));
        assert_eq!(table.exchange(A, Some(1)), Some(0));
        join(reader);
        join(mover);
        table.assert_keys(&[A]);
    });
}

// ---- Concurrent writers.

#[test]
fn one_of_two_inserts_of_a_key_succeeds() {
    // Both find the bucket free, or both have to displace A first.
    for rows in [EMPTY, CROWDED] {
        model(move || {
            let table = Model::<1>::new(4, rows);
            let other = table.spawn(move |table| table.insert(B, 1));
            let insertions = [table.insert(B, 2), join(other)];
            let done = insertions.iter().filter(|one| matches!(one, Insertion::Done)).count();
            let gave_up = insertions.iter().any(|one| matches!(one, Insertion::Again));
            assert!(done == 1 || done == 0 && gave_up, "{done} of two inserted the key");
            table.keys();
        });
    }
}

#[test]
fn an_insert_sees_the_key_that_is_displaced() {
    model(|| {
        let table = Model::<1>::new(2, &[&[A], &[]]);
        let mover = table.spawn(|table| table.displace(A, 0, 1));
        assert!(matches!(table.insert(A, 1), Insertion::Present));
        join(mover);
        table.assert_keys(&[A]);
    });
}

/// Each has the other's first bucket as its second; whoever took them in that order would wait for
/// the other forever.
#[test]
fn inserts_that_cross_do_not_wait_for_each_other() {
    model(|| {
        let table = Model::<2>::new(4, &[&[], &[]]);
        let (there, back) = (key(0, 1), key(1, 0));
        let other = table.spawn(move |table| {
            assert!(matches!(table.insert(there, 0), Insertion::Done));
        });
        assert!(matches!(table.insert(back, 0), Insertion::Done));
        join(other);
        table.assert_keys(&[there, back]);
    });
}

/// Two paths that need the same empty slot, and items that lie on both.
#[test]
fn paths_that_cross_lose_nothing() {
    let other_key = Key { serial: 1, ..B };
    model(move || {
        let table = Model::<1>::new(4, CROWDED);
        let other = table.spawn(move |table| table.insert(other_key, 0));
        let own = table.insert(B, 0);
        let mut expected = vec![A, C];
        for (insertion, key) in [(own, B), (join(other), other_key)] {
            match insertion {
                Insertion::Done => expected.push(key),
                Insertion::Full | Insertion::Again => {}
                _ => panic!("neither is there, and none is evicted"),
            }
        }
        table.assert_keys(&expected);
    });
}

#[test]
fn a_removal_beside_a_displacement_of_another() {
    model(|| {
        let table = Model::<1>::new(4, CROWDED);
        let other = table.spawn(|table| assert_eq!(table.exchange(A, None), Some(0)));
        let insertion = table.insert(B, 0);
        join(other);
        match insertion {
            Insertion::Done => table.assert_keys(&[B, C]),
            _ => table.assert_keys(&[C]),
        }
    });
}

// ---- Growth during everything else.

/// Keys that growth parts: their buckets are 0 and 1, then 4 of them.
const LOW: Key = Key { first: 0, other: 1, serial: 0 };
const HIGH: Key = Key { first: 3, other: 2, serial: 0 };
const HALF: &[&[Key]] = &[&[LOW], &[]];
const FULL: &[&[Key]] = &[&[LOW], &[HIGH]];

#[test]
fn keys_are_found_while_the_table_grows() {
    model(|| {
        let table = Model::<2>::new(2, FULL);
        let reader = table.spawn(|table| {
            assert!(table.has(LOW), "missed a present key");
            assert!(table.has(HIGH), "missed a present key");
        });
        table.grow();
        assert!(table.view().step(2, &Hashes));
        table.finish_growth();
        assert_eq!(table.view().root.table.len(), 4);
        join(reader);
        table.assert_keys(&[LOW, HIGH]);
    });
}

/// A reader from before the growth runs next to a writer that displaces in the new table: the key
/// moves from a bucket of the old table to the other bucket in the new one.
#[test]
fn a_key_is_found_that_growth_and_a_displacement_move() {
    model(|| {
        // Its first bucket is empty, and it lies in the other one.
        let table = Model::<1>::new(2, &[&[A], &[]]);
        let reader = table.spawn(|table| assert!(table.has(A), "missed a present key"));
        table.grow();
        table.view().move_all(&Hashes);
        table.finish_growth();
        assert!(table.displace(A, 0, 1));
        join(reader);
        table.assert_keys(&[A]);
    });
}

#[test]
fn an_insert_beside_growth_stays() {
    // Both buckets are full in the old table, so the insert moves them on by itself.
    for rows in [HALF, FULL] {
        model(move || {
            let new = key(2, 3);
            let table = Model::<1>::new(2, rows);
            table.grow();
            let other = table.spawn(move |table| table.insert(new, 0));
            table.view().step(2, &Hashes);
            table.finish_growth();
            let mut expected = rows.concat();
            match join(other) {
                Insertion::Done => expected.push(new),
                // HIGH may be where it has to be, and is not moved within the bounds.
                Insertion::Full | Insertion::Again if rows.concat().len() > 1 => {}
                _ => panic!("there was room"),
            }
            table.assert_keys(&expected);
        });
    }
}

#[test]
fn a_removal_beside_growth_removes() {
    model(|| {
        let table = Model::<2>::new(2, FULL);
        let other = table.spawn(|table| assert_eq!(table.exchange(LOW, None), Some(0)));
        table.grow();
        table.view().step(2, &Hashes);
        table.finish_growth();
        join(other);
        table.assert_keys(&[HIGH]);
    });
}

#[test]
fn a_replacement_beside_growth_replaces() {
    model(|| {
        let table = Model::<2>::new(2, HALF);
        let other = table.spawn(|table| assert_eq!(table.exchange(LOW, Some(1)), Some(0)));
        table.grow();
        table.view().step(2, &Hashes);
        table.finish_growth();
        join(other);
        assert_eq!(table.exchange(LOW, None), Some(1), "the new version moved, or came after");
        table.assert_keys(&[]);
    });
}

/// Whoever sees every bucket moved can end the growth, even if those who moved them do not run.
#[test]
fn a_third_party_ends_a_growth() {
    model(|| {
        let table = Model::<1>::new(2, HALF);
        table.grow();
        let third = table.spawn(|table| {
            let before = std::ptr::from_ref(table.view().root);
            table.view().move_all(&Hashes);
            table.finish_growth();
            let after = std::ptr::from_ref(table.view().root);
            assert_ne!(before, after, "the growth did not end");
        });
        // Does not end it.
        table.view().step(1, &Hashes);
        join(third);
        table.assert_keys(&[LOW]);
    });
}

// ---- Scans during displacements.

/// Scans bucket by bucket, up to `most`. The number of visits, and where to go on.
fn visits<const SLOTS: usize>(
    table: &Model<SLOTS>,
    from: crate::Cursor,
    most: usize,
) -> (usize, Option<crate::Cursor>) {
    let (mut seen, mut buckets, mut cursor) = (0, 0, Some(from));
    while let Some(at) = cursor.filter(|_| buckets < most) {
        buckets += 1;
        cursor = table.view().scan(at, 1, &mut |_| {
            seen += 1;
            std::ops::ControlFlow::Continue(())
        });
    }
    (seen, cursor)
}

/// The position passes bucket 0, then 2, then 1 (their bits reversed): A moves behind it.
#[test]
fn a_scan_visits_a_key_that_is_displaced_behind_it() {
    for (from, to) in [(1, 0), (0, 1)] {
        model(move || {
            let rows: [&[Key]; 2] = if from == 0 { [&[A], &[]] } else { [&[], &[A]] };
            let table = Model::<1>::new(2, &rows);
            let mover = table.spawn(move |table| table.displace(A, from, to));
            let (seen, _) = visits(&table, crate::Cursor::START, usize::MAX);
            assert!(seen > 0, "the scan missed a present key");
            join(mover);
        });
    }
}

/// The bucket that HIGH was displaced to, behind the scan, is split while the scan looks there.
#[test]
fn a_scan_visits_a_key_whose_new_bucket_is_split() {
    model(|| {
        let table = Model::<1>::new(2, &[&[], &[HIGH]]);
        let cursor = visits(&table, crate::Cursor::START, 1).1.expect("it has passed bucket 0");
        assert!(table.displace(HIGH, 1, 0));
        let grower = table.spawn(|table| {
            table.grow();
            table.view().move_all(&Hashes);
            table.finish_growth();
        });
        assert!(visits(&table, cursor, usize::MAX).0 > 0, "the scan missed a present key");
        join(grower);
    });
}
