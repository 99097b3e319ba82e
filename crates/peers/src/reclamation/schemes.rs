//! The schemes: where items come from, how readers are kept safe, when memory is free again.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use amalgam_index::Configuration;
use amalgam_index::mem::{ItemLayout, ItemRef, Memory, Pool, SlotLayout};
use amalgam_op::{Expiry, ItemWrite, MetaFlags, Now, Part};
use anyhow::Context;
use crossbeam_epoch::{Atomic, Collector, LocalHandle, Owned};

/// The front of an item, which names its place.
pub const KEY_BYTES: usize = 8;

const NOW: Now = Now::at(1000);

/// A set of places that each hold an item of `N` bytes: its place's number in eight bytes, then
/// anything.
pub trait Scheme<const N: usize>: Send + Sync + Sized {
    /// As results name it.
    const NAME: &'static str;

    /// What a thread works through.
    type Thread<'s>: SchemeThread
    where
        Self: 's;

    /// A scheme with all places filled, for `threads` threads at a time. `counts`: whether it
    /// counts the items that wait to be freed.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    fn open(places: usize, threads: usize, counts: bool) -> anyhow::Result<Self>;

    /// Registers the calling thread.
    fn thread(&self) -> Self::Thread<'_>;

    /// Items that were retired and are not free yet, if it was opened to count them.
    fn waiting(&self) -> u64;
}

/// One thread's access to a [`Scheme`].
pub trait SchemeThread {
    /// Looks at the items of all `places` under one guard. Returns how many were not of theirs:
    /// memory that was used again too early.
    fn read(&mut self, places: &[u32]) -> u64;

    /// Puts a new item there, and retires the one before.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    fn replace(&mut self, place: u32) -> anyhow::Result<()>;

    /// Between operations: the thread holds nothing.
    fn quiesce(&mut self) {}
}

/// The item of `place`.
fn contents<const N: usize>(place: u32) -> [u8; N] {
    let mut bytes = [0x5a; N];
    bytes[..KEY_BYTES].copy_from_slice(&u64::from(place).to_le_bytes());
    bytes
}

fn is_of<const N: usize>(bytes: &[u8; N], place: u32) -> bool {
    bytes[..KEY_BYTES] == u64::from(place).to_le_bytes()
}

/// Ours: quiescent states of workers, items in an arena.
pub struct Ours {
    memory: Arc<Memory>,
    words: Vec<AtomicU64>,
    /// Where an item's key stands in it: the same in all. Readers look there at once, as they do
    /// in the others' items, so that reclamation is compared and not how items are laid out.
    key_offset: usize,
}

/// A thread's access to [`Ours`].
pub struct OursThread<'s, const N: usize> {
    pool: Pool<'s>,
    words: &'s [AtomicU64],
    key_offset: usize,
}

impl<const N: usize> OursThread<'_, N> {
    /// The bits of a new item of `place`.
    #[inline]
    fn item(&mut self, place: u32) -> anyhow::Result<u64> {
        let bytes: [u8; N] = contents(place);
        let (key, value) = bytes.split_at(KEY_BYTES);
        let parts = [Part::Bytes(value), Part::Empty];
        let item_write = ItemWrite {
            parts,
            flags: 0,
            expiry: Expiry::NEVER,
            cas: None,
            meta_flags: MetaFlags::default(),
        };
        let layout =
            ItemLayout::new(KEY_BYTES, &item_write, 0, &NOW).context("an item too long")?;
        let slot = match self.pool.reserve(layout) {
            Ok(slot) => slot,
            Err(_) => anyhow::bail!("the arena is full of items that wait to be freed"),
        };
        Ok(self.pool.fill(slot, key, &item_write, &[]).to_bits())
    }
}

/// Room for the items, and for what waits: each worker's bag and those that are sealed.
const ARENA_BYTES: usize = 256 << 20;

impl<const N: usize> Scheme<N> for Ours {
    const NAME: &'static str = "amalgam";
    type Thread<'s> = OursThread<'s, N>;

    fn open(places: usize, threads: usize, _counts: bool) -> anyhow::Result<Self> {
        let configuration = Configuration {
            memory_bytes: ARENA_BYTES,
            workers: threads + 1,
            prefault: true,
            ..Configuration::default()
        };
        let memory = Memory::new(&configuration, SlotLayout::Plain)?;
        let words: Vec<_> = (0..places).map(|_| AtomicU64::new(0)).collect();
        let mut key_offset = 0;
        let mut thread = OursThread::<N> { pool: Pool::new(&memory), words: &[], key_offset };
        for (place, word) in words.iter().enumerate() {
            let bits = thread.item(place as u32)?;
            word.store(bits, Ordering::Relaxed);
            let guard = thread.pool.pin();
            let reference = ItemRef::from_bits(bits).context("an item")?;
            // SAFETY: just filled, and never retired while this function runs.
            let item = unsafe { memory.item(reference, &guard) };
            key_offset = item.key().as_ptr().addr() - memory.address_of(bits).addr();
        }
        drop(thread);
        Ok(Self { memory, words, key_offset })
    }

    fn thread(&self) -> OursThread<'_, N> {
        let pool = Pool::new(&self.memory);
        OursThread { pool, words: &self.words, key_offset: self.key_offset }
    }

    fn waiting(&self) -> u64 {
        // The arena counts always: bytes with the header, of items that are all of one length.
        let statistics = self.memory.statistics();
        statistics.waiting * self.words.len() as u64 / statistics.items.max(1)
    }
}

impl<const N: usize> SchemeThread for OursThread<'_, N> {
    #[inline]
    fn read(&mut self, places: &[u32]) -> u64 {
        let _guard = self.pool.pin();
        let mut wrong = 0;
        for &place in places {
            // Acquire pairs with the exchange in `replace`: the item was written before.
            let bits = self.words[place as usize].load(Ordering::Acquire);
            let key = self.pool.memory().address_of(bits).wrapping_add(self.key_offset);
            // SAFETY: places always hold an item, the guard keeps it, and its key never changes.
            let key = unsafe { key.cast::<[u8; KEY_BYTES]>().read() };
            wrong += u64::from(key != u64::from(place).to_le_bytes());
        }
        wrong
    }

    #[inline]
    fn replace(&mut self, place: u32) -> anyhow::Result<()> {
        let bits = self.item(place)?;
        let old = {
            // Engines look at the item that they replace, so they hold a guard; so do the others.
            let _guard = self.pool.pin();
            self.words[place as usize].swap(bits, Ordering::AcqRel)
        };
        if let Some(old) = ItemRef::from_bits(old) {
            // SAFETY: we took it out of its only word.
            unsafe { self.pool.retire(old) };
        }
        Ok(())
    }

    #[inline]
    fn quiesce(&mut self) {
        self.pool.quiesce();
    }
}

/// crossbeam-epoch with a collector of its own, so that no thread-local variable is looked up;
/// items from the C library's allocator.
pub struct Crossbeam<const N: usize> {
    collector: Collector,
    places: Vec<Atomic<[u8; N]>>,
    ledger: Option<Arc<Ledger>>,
}

/// What was retired and what was freed.
#[derive(Default)]
struct Ledger {
    retired: AtomicU64,
    freed: AtomicU64,
}

/// A thread's access to [`Crossbeam`].
pub struct CrossbeamThread<'s, const N: usize> {
    handle: LocalHandle,
    scheme: &'s Crossbeam<N>,
}

impl<const N: usize> Scheme<N> for Crossbeam<N> {
    const NAME: &'static str = "crossbeam-epoch";
    type Thread<'s> = CrossbeamThread<'s, N>;

    fn open(places: usize, _threads: usize, counts: bool) -> anyhow::Result<Self> {
        Ok(Self {
            collector: Collector::new(),
            places: (0..places).map(|place| Atomic::new(contents(place as u32))).collect(),
            ledger: counts.then(Arc::default),
        })
    }

    fn thread(&self) -> CrossbeamThread<'_, N> {
        CrossbeamThread { handle: self.collector.register(), scheme: self }
    }

    fn waiting(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| {
            // Freed first: what is freed meanwhile must not make the difference negative.
            let freed = ledger.freed.load(Ordering::Acquire);
            ledger.retired.load(Ordering::Relaxed) - freed
        })
    }
}

impl<const N: usize> SchemeThread for CrossbeamThread<'_, N> {
    #[inline]
    fn read(&mut self, places: &[u32]) -> u64 {
        let guard = self.handle.pin();
        let mut wrong = 0;
        for &place in places {
            let item = self.scheme.places[place as usize].load(Ordering::Acquire, &guard);
            // SAFETY: places always hold an item, and the guard keeps it.
            wrong += u64::from(!is_of(unsafe { item.deref() }, place));
        }
        wrong
    }

    #[inline]
    fn replace(&mut self, place: u32) -> anyhow::Result<()> {
        let new = Owned::new(contents(place));
        let guard = self.handle.pin();
        let old = self.scheme.places[place as usize].swap(new, Ordering::AcqRel, &guard);
        match &self.scheme.ledger {
            // SAFETY: we took it out of its only place.
            None => unsafe { guard.defer_destroy(old) },
            Some(ledger) => {
                ledger.retired.fetch_add(1, Ordering::Relaxed);
                let ledger = ledger.clone();
                // SAFETY: as above; the items are bytes, which any thread may free.
                unsafe {
                    guard.defer_unchecked(move || {
                        drop(old.into_owned());
                        ledger.freed.fetch_add(1, Ordering::Release);
                    });
                }
            }
        }
        Ok(())
    }
}

impl<const N: usize> Drop for Crossbeam<N> {
    fn drop(&mut self) {
        for place in &mut self.places {
            // SAFETY: no thread is left, and each place holds an item of its own.
            drop(unsafe { std::mem::replace(place, Atomic::null()).into_owned() });
        }
    }
}

/// The floor: no guard at all, and the item before is freed at once. Right only where nobody reads
/// what somebody replaces.
pub struct Unguarded<const N: usize>(Vec<AtomicPtr<[u8; N]>>);

/// A thread's access to [`Unguarded`].
pub struct UnguardedThread<'s, const N: usize>(&'s [AtomicPtr<[u8; N]>]);

impl<const N: usize> Scheme<N> for Unguarded<N> {
    const NAME: &'static str = "unguarded";
    type Thread<'s> = UnguardedThread<'s, N>;

    fn open(places: usize, _threads: usize, _counts: bool) -> anyhow::Result<Self> {
        let item = |place| AtomicPtr::new(Box::into_raw(Box::new(contents(place as u32))));
        Ok(Self((0..places).map(item).collect()))
    }

    fn thread(&self) -> UnguardedThread<'_, N> {
        UnguardedThread(&self.0)
    }

    fn waiting(&self) -> u64 {
        0
    }
}

impl<const N: usize> SchemeThread for UnguardedThread<'_, N> {
    #[inline]
    fn read(&mut self, places: &[u32]) -> u64 {
        let mut wrong = 0;
        for &place in places {
            let item = self.0[place as usize].load(Ordering::Acquire);
            // SAFETY: places always hold an item, and the loads that take it are of one thread or
            // have no writer.
            wrong += u64::from(!is_of(unsafe { &*item }, place));
        }
        wrong
    }

    #[inline]
    fn replace(&mut self, place: u32) -> anyhow::Result<()> {
        let new = Box::into_raw(Box::new(contents(place)));
        let old = self.0[place as usize].swap(new, Ordering::AcqRel);
        // SAFETY: made by a box, taken out of its only place, and no other thread reads.
        drop(unsafe { Box::from_raw(old) });
        Ok(())
    }
}

impl<const N: usize> Drop for Unguarded<N> {
    fn drop(&mut self) {
        for item in &mut self.0 {
            // SAFETY: made by a box, and each place holds an item of its own.
            drop(unsafe { Box::from_raw(*item.get_mut()) });
        }
    }
}

/// Exchanges the items of places 0 and 1, as memory given away too early would.
#[cfg(test)]
mod confused {
    use super::*;

    impl Ours {
        pub fn confuse(&self) {
            let first = self.words[0].load(Ordering::Relaxed);
            let second = self.words[1].swap(first, Ordering::Relaxed);
            self.words[0].store(second, Ordering::Relaxed);
        }
    }

    impl<const N: usize> Crossbeam<N> {
        pub fn confuse(&self) {
            let guard = crossbeam_epoch::pin();
            let first = self.places[0].load(Ordering::Relaxed, &guard);
            let second = self.places[1].swap(first, Ordering::Relaxed, &guard);
            self.places[0].store(second, Ordering::Relaxed);
        }
    }

    impl<const N: usize> Unguarded<N> {
        pub fn confuse(&self) {
            let first = self.0[0].load(Ordering::Relaxed);
            let second = self.0[1].swap(first, Ordering::Relaxed);
            self.0[0].store(second, Ordering::Relaxed);
        }
    }
}
