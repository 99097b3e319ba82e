//! The bucket's lock, the change of tables and the move of a chain, as they are, in every
//! interleaving that loom explores. Tables have two and four buckets, items are numbers.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::buckets::{BucketGuard, Buckets};
use super::links::{self, Links};
use super::locking::TestAndSet;
use super::tables::{Pair, Tables, TablesGuard};
use crate::mem::ItemRef;
use crate::sync::{AtomicU64, Ordering};

/// One more than the highest item.
const ITEMS: u64 = 10;

/// What the items hold. Loom objects to a look at what was not published to the looker.
struct Items {
    links: Vec<AtomicU64>,
    contents: Vec<UnsafeCell<u64>>,
}

impl Links for Items {
    fn link(&self, item: ItemRef) -> &AtomicU64 {
        &self.links[number(item) as usize]
    }

    fn hash(&self, item: ItemRef) -> u64 {
        hash(number(item))
    }
}

fn item(number: u64) -> ItemRef {
    ItemRef::from_bits(number * 8).expect("items begin with 1")
}

fn number(item: ItemRef) -> u64 {
    item.to_bits() / 8
}

/// Items 1, 5 and 9 share a bucket of four, and with 4 and 8 one of two.
fn hash(number: u64) -> u64 {
    number << 62
}

impl Items {
    fn new() -> Self {
        Self {
            links: (0..ITEMS).map(|_| AtomicU64::new(0)).collect(),
            contents: (0..ITEMS).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn fill(&self, number: u64) -> ItemRef {
        // SAFETY: what the tests are about.
        self.contents[number as usize].with_mut(|content| unsafe { *content = number });
        item(number)
    }

    fn check(&self, item: ItemRef) {
        let number = number(item);
        // SAFETY: what the tests are about.
        self.contents[number as usize]
            .with(|content| assert_eq!(unsafe { *content }, number, "an item that is not there"));
    }

    /// The numbers of a chain.
    fn chain(&self, first: Option<ItemRef>) -> Vec<u64> {
        let mut found = Vec::new();
        let mut next = first;
        while let Some(here) = next {
            self.check(here);
            found.push(number(here));
            next = self.next(here);
        }
        found
    }

    fn insert(&self, locked: &mut BucketGuard<'_, TestAndSet>, number: u64) {
        links::push(self, locked, self.fill(number));
    }

    /// Puts `by`, or nothing, where `number` is.
    fn exchange(&self, locked: &mut BucketGuard<'_, TestAndSet>, number: u64, by: Option<u64>) {
        let chain = self.chain(locked.first());
        let at = chain.iter().position(|found| *found == number).expect("the item is there");
        let mut to = chain.get(at + 1).map(|next| item(*next));
        if let Some(by) = by {
            self.set_next(self.fill(by), to);
            to = Some(item(by));
        }
        links::attach(self, locked, at.checked_sub(1).map(|before| item(chain[before])), to);
    }
}

/// An index of two buckets, and what is in it.
struct Index {
    tables: Tables<TestAndSet>,
    items: Items,
    /// Written when the first table ends: whoever uses it then, races.
    first_table: UnsafeCell<()>,
}

impl Index {
    /// With `buckets` buckets, and some items.
    fn new(buckets: usize, numbers: &[u64]) -> Arc<Self> {
        let (first, items) = (Buckets::model(buckets), Items::new());
        for number in numbers {
            items.insert(&mut first.lock(first.index_of(hash(*number))), *number);
        }
        let tables = Tables::new(first, 2);
        Arc::new(Self { tables, items, first_table: UnsafeCell::new(()) })
    }

    /// Initialisation, if the workers let us.
    fn begin(&self, buckets: usize) -> bool {
        self.tables.begin(Box::new(Buckets::model(buckets))).is_ok()
    }

    /// Moves all buckets, as the expand thread does it.
    fn move_all(&self) {
        // SAFETY: the test calls `begin` and `end` from this thread alone.
        let Pair { current, next } = unsafe { self.tables.pair() };
        let next = next.expect("an expansion is running");
        let units = if next.count() > current.count() { 1 } else { 2 };
        for index in (0..current.count()).step_by(units) {
            match units {
                1 => links::split(&self.items, current, next, index),
                _ => links::join(&self.items, current, next, index),
            }
            self.tables.set_moved(index + units);
        }
    }

    /// One operation of a worker.
    fn with_guard<R>(&self, operation: impl FnOnce(&TablesGuard<'_, '_, TestAndSet>) -> R) -> R {
        let handle = self.tables.handle();
        let guard = handle.enter();
        operation(&guard)
    }

    fn finds(&self, number: u64) -> bool {
        self.with_guard(|guard| {
            let locked = guard.lock(hash(number));
            self.items.chain(locked.first()).contains(&number)
        })
    }

    /// Looks without the lock for one of `wanted`, as a batch does: the first item of the chain,
    /// and the one that was met.
    fn explore(
        &self,
        guard: &TablesGuard<'_, '_, TestAndSet>,
        wanted: &[u64],
    ) -> [Option<ItemRef>; 2] {
        let first = guard.bucket(hash(wanted[0])).peek().item();
        let chain = self.items.chain(first);
        [first, chain.into_iter().find(|number| wanted.contains(number)).map(item)]
    }

    /// What a batch answers after it explored.
    fn confirm(
        &self,
        guard: &TablesGuard<'_, '_, TestAndSet>,
        probe: [Option<ItemRef>; 2],
        wanted: &[u64],
    ) -> Option<u64> {
        let hash = hash(wanted[0]);
        if let [Some(first), Some(found)] = probe
            && links::still_leads(&self.items, guard.bucket(hash), first, found)
        {
            CONFIRMED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Some(number(found));
        }
        let chain = self.items.chain(guard.lock(hash).first());
        chain.into_iter().find(|number| wanted.contains(number))
    }

    /// All items, found bucket by bucket in the order of their hashes.
    fn all(&self) -> Vec<u64> {
        let mut found = Vec::new();
        let mut from = Some(0);
        self.with_guard(|guard| {
            while let Some(hash) = from {
                let (locked, end) = guard.lock_range(hash);
                found.extend(self.items.chain(locked.first()));
                from = end;
            }
        });
        found.sort_unstable();
        found
    }
}

fn model(work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bounded: two preemptions find what two or three threads can do to each other.
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 20_000;
    builder.check(work);
}

/// Reads that took no lock.
static CONFIRMED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Runs `work` in a thread of its own, while a bucket or a table moves.
fn spawn(index: &Arc<Index>, work: impl Fn(&Index) + 'static) -> thread::JoinHandle<()> {
    let index = index.clone();
    thread::spawn(move || work(&index))
}

#[test]
fn a_bucket_excludes_writers_and_publishes_to_readers() {
    model(|| {
        let shared = Arc::new((Buckets::<TestAndSet>::model(2), Items::new()));
        let insert = |(buckets, items): &(Buckets<TestAndSet>, Items), number| {
            items.insert(&mut buckets.lock(buckets.index_of(hash(number))), number);
        };
        let other = shared.clone();
        let writer = thread::spawn(move || insert(&other, 1));
        let other = shared.clone();
        let reader = thread::spawn(move || {
            // As reads look before they lock: whatever is found can be followed.
            other.1.chain(other.0.bucket(0).peek().item());
        });
        insert(&shared, 5);
        writer.join().expect("it ends");
        reader.join().expect("it ends");
        let mut found = shared.1.chain(shared.0.lock(0).first());
        found.sort_unstable();
        assert_eq!(found, [1, 5], "a write was lost");
    });
}

/// Items 5 and 9 are one key's: 5 is replaced by 9, after the item before them in the chain, if
/// there is one, was taken away or another was put in front.
fn a_batch_beside(
    change: impl Fn(&Items, &mut BucketGuard<'_, TestAndSet>) + Copy + Send + Sync + 'static,
) {
    model(move || {
        let index = Index::new(4, &[5, 1]);
        let is_done = Arc::new(AtomicU64::new(0));
        let done = is_done.clone();
        let writer = spawn(&index, move |index| {
            index.with_guard(|guard| change(&index.items, &mut guard.lock(hash(5))));
            index.with_guard(|guard| {
                index.items.exchange(&mut guard.lock(hash(5)), 5, Some(9));
            });
            done.store(1, Ordering::Release);
        });
        index.with_guard(|guard| {
            let probes = [0; 2].map(|_| index.explore(guard, &[5, 9]));
            let was_done = is_done.load(Ordering::Acquire) == 1;
            let seen = probes.map(|probe| index.confirm(guard, probe, &[5, 9]));
            let allowed: &[[u64; 2]] = if was_done { &[[9, 9]] } else { &[[5, 5], [5, 9], [9, 9]] };
            assert!(allowed.contains(&seen.map(|seen| seen.expect("a present key was missed"))));
        });
        writer.join().expect("it ends");
    });
}

#[test]
fn gets_of_a_batch_see_what_is_there_and_never_go_back() {
    a_batch_beside(|_, _| {});
    a_batch_beside(|items, locked| items.exchange(locked, 1, None));
    assert!(CONFIRMED.load(std::sync::atomic::Ordering::Relaxed) > 0, "every read took the lock");
}

/// Initialisation and termination while a worker comes and goes.
#[test]
fn a_table_that_ended_is_not_used() {
    static ENDED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    model(|| {
        let index = Index::new(2, &[1]);
        let worker = spawn(&index, |index| {
            let handle = index.tables.handle();
            for _ in 0..2 {
                let guard = handle.enter();
                if guard.current().count() == 2 {
                    index.first_table.with(|_| ());
                }
                let locked = guard.lock(hash(1));
                assert_eq!(index.items.chain(locked.first()), [1], "a present key was missed");
            }
        });
        let mut ended = None;
        if index.begin(4) {
            index.move_all();
            // SAFETY: the pair of `move_all` is gone.
            ended = unsafe { index.tables.end() };
        }
        if ended.is_some() {
            // The table may be freed from here on. (It is, below: loom does not see a free.)
            index.first_table.with_mut(|_| ());
            ENDED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        worker.join().expect("it ends");
    });
    assert!(ENDED.load(std::sync::atomic::Ordering::Relaxed) > 0, "no expansion came to its end");
}

/// Moves all buckets of an index of `numbers` while `work` runs; in the end there are `left`.
fn move_during(
    buckets: [usize; 2],
    numbers: &'static [u64],
    work: impl Fn(&Index) + Copy + Send + Sync + 'static,
    left: &'static [u64],
) {
    model(move || {
        let index = Index::new(buckets[0], numbers);
        assert!(index.begin(buckets[1]), "no worker is inside");
        let worker = spawn(&index, work);
        index.move_all();
        worker.join().expect("it ends");
        assert_eq!(index.all(), left);
        // SAFETY: the pair of `move_all` is gone.
        assert!(unsafe { index.tables.end() }.is_some(), "no worker is inside");
        assert_eq!(index.all(), left);
    });
}

const GROW: [usize; 2] = [2, 4];
const SHRINK: [usize; 2] = [4, 2];

#[test]
fn a_present_key_is_found_while_its_bucket_moves() {
    let look = |index: &Index| {
        assert!(index.finds(1), "a present key was missed");
        assert!(index.finds(4), "a present key was missed");
        assert!(!index.finds(5));
    };
    move_during(GROW, &[1, 4, 9], look, &[1, 4, 9]);
    move_during(SHRINK, &[1, 4], look, &[1, 4]);
    let look = |index: &Index| {
        index.with_guard(|guard| {
            let probes = [1, 4].map(|number| (number, index.explore(guard, &[number])));
            for (number, probe) in probes {
                let seen = index.confirm(guard, probe, &[number]);
                assert_eq!(seen, Some(number), "a present key was missed by a batch");
            }
        });
    };
    move_during(GROW, &[1, 4, 9], look, &[1, 4, 9]);
    move_during(SHRINK, &[1, 4], look, &[1, 4]);
}

#[test]
fn an_insert_is_kept_while_its_bucket_moves() {
    let insert = |index: &Index| {
        index.with_guard(|guard| index.items.insert(&mut guard.lock(hash(5)), 5));
        assert!(index.finds(5), "a write was lost");
    };
    move_during(GROW, &[1, 4], insert, &[1, 4, 5]);
    move_during(GROW, &[4], insert, &[4, 5]);
    move_during(SHRINK, &[1, 4], insert, &[1, 4, 5]);
}

#[test]
fn an_update_and_a_delete_are_kept_while_their_bucket_moves() {
    let update = |index: &Index| {
        index.with_guard(|guard| index.items.exchange(&mut guard.lock(hash(1)), 1, Some(5)));
        assert!(index.finds(5), "a write was lost");
    };
    move_during(GROW, &[1, 4, 9], update, &[4, 5, 9]);
    let delete = |index: &Index| {
        index.with_guard(|guard| index.items.exchange(&mut guard.lock(hash(1)), 1, None));
        assert!(!index.finds(1), "a delete was lost");
    };
    move_during(GROW, &[1, 4, 9], delete, &[4, 9]);
    move_during(SHRINK, &[1, 4], delete, &[4]);
}
