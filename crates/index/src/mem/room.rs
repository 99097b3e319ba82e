//! Finding memory for a request: evicting for it, and waiting for grace periods.
//!
//! What is evicted is free after a grace period. A full class therefore evicts ahead of its
//! requests; one that finds nothing free waits, and evicts more only if that does not help.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amalgam_op::Now;

use super::budget::Need;
use super::clock::{Swap, Take};
use super::counters::add;
use super::large::Large;
use super::pool::NO_TRADE;
use super::{ItemRef, Memory, Pool, Shortage};

/// A full class keeps 1/AHEAD_SHARE of its items' slots (and [`LEAST_AHEAD`]) free or waiting for a
/// grace period: a worker that needs a slot then finds one whose grace period is over.
const AHEAD_SHARE: u64 = 64;
/// See [`AHEAD_SHARE`].
const LEAST_AHEAD: u64 = 2;
/// The most slots that a class keeps free, however many items it has.
const MOST_AHEAD: u64 = 1024;
/// The most bytes of slots that a class keeps free; at least one slot.
const MOST_BYTES_AHEAD: u64 = 256 << 10;
/// One call evicts 1/STEPS of what a class keeps free: a request does not wait for more.
const STEPS: u64 = 4;
/// Slots of at least this size are evicted one at a time: an eviction is cheap compared with
/// copying such an item.
const SINGLE_SLOT_BYTES: u32 = 8 << 10;
/// The most items that one call evicts.
const EVICT_ITEMS: u64 = 64;
/// Fewer retired items than this wait for their grace period to begin until a slot is needed: a
/// barrier for each would cost more than it gains.
const SEALED_ITEMS: usize = 8;
/// The number of attempts to find memory for a request before it is refused: about 50 ms.
const ROUNDS: usize = 512;
/// As [`ROUNDS`] if an item waits that this worker retired: about 0.3 s.
const OWN_ROUNDS: usize = 1024;
/// One round in this many evicts; the others wait for grace periods.
const ROUNDS_PER_EVICTION: usize = 128;
/// The first round only yields the processor for this long: where cores are idle, most grace
/// periods end sooner than a sleep would. Where other programs want the cores, one yield takes
/// milliseconds. Each round then sleeps for [`PAUSE`].
const EAGER: Duration = Duration::from_micros(100);
/// The pauses of the processor between two looks at other workers' pins, whose cache lines a look
/// takes away from them.
const SPINS: usize = 32;
/// After this many evictions for one large item, all of them taken by others, the next one follows
/// [`ROUNDS_PER_EVICTION`] rounds later.
const MOST_TAKEN: usize = 8;
/// The number of rounds before the first eviction if another worker's grace period may be enough:
/// about 15 ms, in which a worker that was preempted between pin and unpin runs again.
const GRACE_ROUNDS: usize = 120;
/// As [`GRACE_ROUNDS`] if an item of the class waits that this worker retired: about 0.15 s. An
/// eviction would wait for the same workers, and longer.
const OWN_GRACE_ROUNDS: usize = 768;
/// As [`GRACE_ROUNDS`] if a class without items holds pages: about 2 ms, in which workers that run
/// give up what they keep at hand.
const EMPTY_ROUNDS: usize = 16;
/// A request takes a slot of a larger class of at most this many times the size, so that few small
/// items cannot use up the pages of long ones.
const LARGER_FACTOR: u32 = 4;
/// From this round on the slot may be of any size: the request would soon be refused.
const ANY_LARGER_ROUND: usize = ROUNDS_PER_EVICTION;
/// The sleep in a later round.
const PAUSE: Duration = Duration::from_micros(100);
/// The sleep in rounds after [`ROUNDS`].
const LONG_PAUSE: Duration = Duration::from_micros(400);

impl Pool<'_> {
    /// Evicts until memory for the refused item is likely to be found. An item whose key has the
    /// hash `spared` may move, and is not evicted. Returns whether to try again; false means out of
    /// memory. Requires: the caller holds no guard and no lock of the engine.
    #[cold]
    pub fn make_room(
        &mut self,
        shortage: Shortage,
        spared: Option<u64>,
        now: &Now,
        swap: &mut Swap<'_>,
    ) -> bool {
        let swap: &mut Swap<'_> = &mut |hash, old, new: Option<ItemRef>| {
            (new.is_some() || spared != Some(hash)) && swap(hash, old, new)
        };
        if let Need::Class(class) = shortage.0
            && self.memory.evicts
            && self.trade(class, now, swap)
        {
            return true;
        }
        let first = self.rounds_of_grace(shortage.0);
        let (mut next_eviction, mut taken) = (first, 0);
        for round in 0..if first == OWN_GRACE_ROUNDS { OWN_ROUNDS } else { ROUNDS } {
            if round == next_eviction {
                let is_on_its_way = self.evict_for(shortage.0, now, swap);
                taken += usize::from(is_on_its_way);
                next_eviction += ROUNDS_PER_EVICTION;
            }
            match self.await_room(shortage.0, round) {
                Some(true) => return true,
                Some(false) => {}
                None => break,
            }
            // What was evicted for a large item is free for whoever comes first.
            let is_lost = (1..MOST_TAKEN).contains(&taken) && !self.has_waiting_large();
            if is_lost && matches!(shortage.0, Need::Large(_)) {
                next_eviction = round + 1;
            }
        }
        add(&self.counters().out_of_memory, 1);
        false
    }

    /// One round of [`Pool::make_room`]: looks for memory, and waits if there is none yet. Returns
    /// whether it found some; None if waiting is no use.
    fn await_room(&mut self, need: Need, round: usize) -> Option<bool> {
        let mut asked_at = None;
        loop {
            self.flush();
            let has_room = match need {
                Need::TooLarge => return None,
                Need::Class(class) => {
                    let accepts_larger = round > 0 || asked_at.is_some();
                    let factor = if round < ANY_LARGER_ROUND { LARGER_FACTOR } else { u32::MAX };
                    self.set_slot_aside(class)
                        || self.set_stray_slot_aside(class)
                        || (accepts_larger && self.set_larger_slot_aside(class, factor))
                }
                Need::Large(bytes) => self.has_room_for_large(bytes),
            };
            if has_room {
                return Some(true);
            }
            if !self.memory.evicts {
                return None;
            }
            // Evicted memory waits for workers between pin and unpin, or lies in a worker's bag,
            // magazine or page: ask the workers to give it up. They do so when they run next, so
            // look once for what is at hand before letting them run.
            if round == 0 && asked_at.is_none() {
                self.memory.pressure.fetch_add(1, Ordering::Relaxed);
                self.give_up_all();
                asked_at = Some(Instant::now());
                continue;
            }
            if asked_at.is_some_and(|at| at.elapsed() < EAGER) {
                (0..SPINS).for_each(|_| std::hint::spin_loop());
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(if round < ROUNDS { PAUSE } else { LONG_PAUSE });
            return Some(false);
        }
    }

    /// Evicts as many items of a full class as it stores: what is evicted now is past its grace
    /// period when a later request needs its slot, so that no request waits. Returns whether a slot
    /// was found. A class *trades* from its first shortage until it has, or may get, more free
    /// slots than it keeps.
    fn trade(&mut self, class: usize, now: &Now, swap: &mut Swap<'_>) -> bool {
        let memory = self.memory;
        let kept = self.kept_free(class);
        let step = self.eviction_step(class);
        let free = self.slots_of(class).saturating_sub(memory.items_of(class));
        let has_spare = free > 2 * kept
            || memory.supply() > memory.reserve_pages()
            || memory.has_kept_page(class);
        let credit = self.credit(class);
        if credit == 0 && has_spare && self.set_slot_aside(class) {
            self.set_credit(class, NO_TRADE);
            return true;
        }
        // A shortage before the credit is used up waits for a grace period, if one may end it.
        let has_waiting = credit > 0 && self.has_waiting(class);
        if !has_waiting && !self.waits_for_grace(class) {
            let target = match free {
                _ if free < kept => 2 * step,
                // Evictions for lack of slots at hand came in addition to those for the credit.
                _ if free >= kept + step as u64 && self.has_at_hand(class) => 0,
                _ => step,
            };
            self.evict_class(class, target, Take::Cold, now, swap);
            self.seal_from((kept as usize / 2).max(SEALED_ITEMS));
        }
        if credit == 0 || credit as usize > step {
            self.set_credit(class, step as u32);
        }
        if self.set_slot_aside(class) {
            return true;
        }
        self.flush();
        self.set_slot_aside(class)
    }

    /// The number of slots in all pages of a class.
    pub(super) fn slots_of(&self, class: usize) -> u64 {
        u64::from(self.memory.pages_of(class)) * u64::from(self.memory.geometries[class].slots)
    }

    /// The number of slots that the class keeps free or waiting for a grace period once it is full.
    pub(super) fn kept_free(&self, class: usize) -> u64 {
        let most = MOST_BYTES_AHEAD / u64::from(self.memory.geometries[class].slot_bytes);
        let share = LEAST_AHEAD + self.memory.items_of(class) / AHEAD_SHARE;
        share.min(MOST_AHEAD).min(most).max(1)
    }

    /// The number of items that one call evicts.
    fn eviction_step(&self, class: usize) -> usize {
        if self.memory.geometries[class].slot_bytes >= SINGLE_SLOT_BYTES {
            return 1;
        }
        (self.kept_free(class) / STEPS).clamp(1, EVICT_ITEMS) as usize
    }

    /// Whether most slots of the class are free or hold retired items: one of them is free soon,
    /// and no item need be evicted.
    pub(super) fn waits_for_grace(&self, class: usize) -> bool {
        self.memory.evicts && 2 * self.memory.items_of(class) < self.slots_of(class)
    }

    /// The number of rounds to wait for grace periods before an item is evicted.
    fn rounds_of_grace(&self, need: Need) -> usize {
        match need {
            Need::Class(class) if self.memory.evicts && self.has_waiting(class) => OWN_GRACE_ROUNDS,
            Need::Class(class) if self.waits_for_grace(class) => GRACE_ROUNDS,
            Need::Class(_) if self.memory.has_empty_class() => EMPTY_ROUNDS,
            _ => 0,
        }
    }

    /// Evicts for one item. Returns whether all memory that a large item needs is on its way.
    fn evict_for(&mut self, need: Need, now: &Now, swap: &mut Swap<'_>) -> bool {
        let take = if self.memory.evicts { Take::Cold } else { Take::Dead };
        match need {
            Need::TooLarge => false,
            Need::Class(class) => {
                let target = self.eviction_step(class);
                if self.evict_class(class, target, take, now, swap) == 0 && self.memory.evicts {
                    self.take_page_from_others(class, now, swap);
                }
                false
            }
            Need::Large(bytes) => {
                let charge = Large::charge(bytes + 8);
                let kept = match self.memory.large.has_run(charge) {
                    true => self.memory.kept_for_large.load(Ordering::Relaxed),
                    false => 0,
                };
                let needed = charge.saturating_sub(kept);
                let freed = self.evict_large(needed, take, now, swap);
                self.memory.awaited_by_large.fetch_add(freed, Ordering::Relaxed);
                if freed < needed && self.memory.evicts {
                    for _ in 0..(needed - freed).div_ceil(self.memory.page_bytes()) {
                        self.evacuate_donor(self.memory.classes.count(), now, swap);
                    }
                }
                freed >= needed
            }
        }
    }

    /// Whether [`Pool::take_large`] would find both a charge and a run of address space: a request
    /// that tries again in vain would do so for ever.
    fn has_room_for_large(&mut self, bytes: usize) -> bool {
        let needed = Large::charge(bytes + 8);
        // A difference of a count that is read twice may be negative: other workers change it.
        let missing = |memory: &Memory| {
            let kept = memory.kept_for_large.load(Ordering::Relaxed);
            needed.saturating_sub(memory.unused_for_large() + kept)
        };
        let before = missing(self.memory);
        if before > 0 {
            self.memory.discard_pages_for_large(before);
        }
        missing(self.memory) == 0 && self.memory.large.has_run(needed)
    }

    /// Sets a slot aside for the caller's next attempt.
    fn set_slot_aside(&mut self, class: usize) -> bool {
        let slot = self.take_free_slot(class);
        self.replace_aside(class, slot)
    }

    /// As `set_slot_aside`, with a slot of a larger class, of at most `factor` times the bytes. All
    /// free slots of a class may be held by workers that do not run now; on a machine that other
    /// programs keep busy they run again after milliseconds.
    fn set_larger_slot_aside(&mut self, class: usize, factor: u32) -> bool {
        let memory = self.memory;
        let bytes = |class: usize| memory.geometries[class].slot_bytes;
        let most = bytes(class).saturating_mul(factor);
        let mut larger =
            (class + 1..memory.classes.count()).take_while(|class| bytes(*class) <= most);
        let slot = larger.find_map(|class| self.take_slot_without_page(class));
        self.replace_aside(class, slot)
    }

    /// As `set_slot_aside`, with a slot that only a walk of all pages finds.
    fn set_stray_slot_aside(&mut self, class: usize) -> bool {
        let slot = self.take_stray_slot(class);
        self.replace_aside(class, slot)
    }

    fn replace_aside(&mut self, class: usize, slot: Option<ItemRef>) -> bool {
        if let Some((_, unused)) = std::mem::replace(&mut self.aside, slot.map(|at| (class, at))) {
            self.free_slot(unused);
        }
        slot.is_some()
    }

    /// Whether an item of the class that this pool retired waits for its grace period.
    fn has_waiting(&self, class: usize) -> bool {
        let is_in = |item| !self.memory.is_large(item) && self.memory.place_of(item).1 == class;
        self.waiting_items().any(is_in)
    }

    /// Whether a large item that this pool retired waits for its grace period.
    fn has_waiting_large(&self) -> bool {
        self.waiting_items().any(|item| self.memory.is_large(item))
    }
}
