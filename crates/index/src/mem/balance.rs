//! Balances memory between size classes by the value of a page: pages move from the class that
//! would lose least to the class that would gain most. Large items take part as one more class.
//!
//! A class's *pressure* is the number of items that its CLOCK hand met lately, divided by the pages
//! that it holds. The hand goes round the faster the fewer pages there are, so that equal pressures
//! give an item a time without reads that is in inverse proportion to its length, as Greedy-Dual-
//! Size does (Cao and Irani, USITS 1997): a page spent on long items saves fewer misses. (To count
//! the items that the hand evicted, without those that it spared, would take memory from the
//! classes whose items are read most.) So that no class starves, pages also move to a class whose
//! memory turns over [`STARVED`] times as fast as another's.
//!
//! Items that the class lost with its pages, and those by which it has grown, count as if the hand
//! had met them. (A class that fills new pages evicts nothing. It would look idle, and lose its
//! pages to classes that gain less from them.) Items that were deleted or have expired made room,
//! so they are no part of it.
//!
//! Older counts fade as others follow and, more slowly, with time. Pressures of few items differ by
//! chance, so a page moves only if the pressures after the move still differ by
//! [`STANDARD_DEVIATIONS`] of such counts. A page that is emptied for a class is kept for it.

use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_op::{IgnorePoison, Now};

use super::budget::Need;
use super::clock::{Swap, Take};
use super::large::Large;
use super::page::PageState;
use super::{ClassState, ItemRef, Memory, Pool, Shortage};

/// The bytes of the items that pressures count are at most 1/COUNTED_SHARE of the memory limit.
const COUNTED_SHARE: f64 = 2.0;
/// The part of the counted items that is left of them a second later, for loads that change:
/// an item's length must not make a load of the past outweigh the present one.
const LEFT_AFTER_SECOND: f64 = 0.95;
/// Pressures are compared once per second, and each time that 1/COMPARISON_SHARE of the memory
/// limit was passed.
const COMPARISON_SHARE: f64 = 256.0;
/// The number of standard deviations by which the pressures must differ.
const STANDARD_DEVIATIONS: f64 = 4.0;
/// A class whose hand goes round this many times as fast as another's is starved, whatever the
/// pressures: more than the length of a page over that of a short item.
const STARVED: f64 = 4096.0;
/// One comparison moves at most 1/MOVED_SHARE of the pages, and [`MOST_MOVES`].
const MOVED_SHARE: usize = 128;
/// See [`MOVED_SHARE`].
const MOST_MOVES: usize = 8;
/// After this many seconds all counted items have faded.
const MOST_SECONDS: u32 = 256;
/// Pages are kept for a class for this many seconds at most.
const KEPT_SECONDS: u32 = 2;

/// What balancing knows of each class. Large items have the number after the last class.
#[derive(Default)]
pub(super) struct Balance {
    classes: Vec<ClassDemand>,
    /// The bytes passed since the last comparison.
    fresh_bytes: f64,
    /// The second of the last comparison.
    seconds: u32,
    /// The second of the last comparison at which no page was on its way to a class.
    settled_seconds: u32,
    /// The classes that are to get a page of the memory that large items gave up.
    from_large: Vec<usize>,
}

/// The state of one class.
#[derive(Clone, Copy, Default)]
struct ClassDemand {
    /// The class's items when they were last counted.
    counted: Counted,
    /// The items that the hand met lately, of which older ones have faded; not below 0.
    met: f64,
    /// Their bytes.
    met_bytes: f64,
    /// Those among them that the hand did not spare, and by which the class has grown.
    arrived: f64,
    /// Pages that the class holds or will get, without those that are being emptied.
    pages: usize,
}

/// Items that the hand of a class has evicted or spared since the start, or that the class holds.
#[derive(Clone, Copy, Default)]
struct Amount {
    items: f64,
    bytes: f64,
}

impl Amount {
    /// How much more this is than `before`.
    fn since(self, before: Self) -> Self {
        Self { items: self.items - before.items, bytes: self.bytes - before.bytes }
    }
}

/// What is counted of a class.
#[derive(Clone, Copy, Default)]
struct Counted {
    displaced: Amount,
    spared: Amount,
    held: Amount,
}

impl ClassDemand {
    /// Enters what the hand met since the last call. Returns the bytes of that.
    fn count(&mut self, now: Counted) -> f64 {
        let Counted { displaced, spared, held } = std::mem::replace(&mut self.counted, now);
        let displaced = now.displaced.since(displaced);
        let spared = now.spared.since(spared);
        // The growth is below 0 where items left with a page, were deleted or have expired.
        let grown = now.held.since(held);
        let arrived = displaced.items + grown.items;
        self.arrived = (self.arrived + arrived).max(0.0);
        self.met = (self.met + arrived + spared.items).max(0.0);
        let passed_bytes = displaced.bytes + spared.bytes;
        self.met_bytes = (self.met_bytes + passed_bytes + grown.bytes).max(0.0);
        passed_bytes
    }

    /// The pressure if the class held `pages` pages.
    fn pressure(&self, pages: usize) -> f64 {
        self.met / pages.max(1) as f64
    }

    /// The variance of the pressure, if items arrived by chance, each of which makes the hand spare
    /// some others.
    fn variance(&self, pages: usize) -> f64 {
        let met_each = (self.met / self.arrived.max(1.0)).max(1.0);
        (self.arrived + 1.0) * (met_each / pages.max(1) as f64).powi(2)
    }

    /// The part of its memory that the hand passed lately, if it held `pages` pages.
    fn turnover(&self, pages: usize, page_bytes: f64) -> f64 {
        self.met_bytes / (pages.max(1) as f64 * page_bytes)
    }

    /// The pressure after the class has got one more page, and its variance.
    fn as_receiver(&self) -> (f64, f64) {
        (self.pressure(self.pages + 1), self.variance(self.pages + 1))
    }

    /// The pressure after the class has given a page away, and its variance.
    fn as_donor(&self) -> (f64, f64) {
        (self.pressure(self.pages - 1), self.variance(self.pages - 1))
    }
}

impl Pool<'_> {
    /// Moves some pages if a comparison of the classes is due and finds differences.
    pub(super) fn balance(&mut self, now: &Now, swap: &mut Swap<'_>) {
        let memory = self.memory;
        if !memory.evicts {
            return;
        }
        memory.pay_from_large();
        let moves = {
            let mut state = memory.balance.lock().ignore_poison();
            if !state.count(memory, now.seconds) {
                return;
            }
            state.plan(memory, now.seconds)
        };
        let large = memory.classes.count();
        for (donor, receiver) in moves {
            let has_moved = match donor == large {
                true => {
                    let freed = self.evict_large_for_page(now, swap);
                    memory.balance.lock().ignore_poison().from_large.push(receiver);
                    freed > 0
                }
                false => self.give_page(donor, receiver, now, swap),
            };
            if has_moved && receiver != large {
                memory.pages_moved.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.flush();
        memory.pay_from_large();
    }

    /// Empties a page of `donor` for `receiver`, after the evictions that make room for its items
    /// in other pages.
    fn give_page(&mut self, donor: usize, receiver: usize, now: &Now, swap: &mut Swap<'_>) -> bool {
        let memory = self.memory;
        let free = self.slots_of(donor).saturating_sub(memory.items_of(donor));
        let needed = u64::from(memory.geometries[donor].slots) + self.kept_free(donor);
        let target = needed.saturating_sub(free) as usize;
        if target > 0 {
            // The hand moves for another class: that is no pressure of this one. A count of another
            // thread that is lost meanwhile makes a comparison worse and nothing wrong.
            let spared = &memory.class_states[donor].spared;
            let before = spared.load(Ordering::Relaxed);
            self.evict_class(donor, target, Take::Cold, now, swap);
            spared.store(before, Ordering::Relaxed);
            self.flush();
        }
        self.evacuate_for(donor, Some(receiver), now, swap)
    }

    /// Evicts large items for a page of a class. Returns the bytes that they held. As in
    /// [`Self::give_page`], the hand's way is no pressure of theirs.
    pub(super) fn evict_large_for_page(&mut self, now: &Now, swap: &mut Swap<'_>) -> usize {
        let memory = self.memory;
        let counts = [&memory.large_spared, &memory.large_spared_bytes];
        let before = counts.map(|count| count.load(Ordering::Relaxed));
        let freed = self.evict_large(memory.page_bytes(), Take::Cold, now, swap);
        counts
            .iter()
            .zip(before)
            .for_each(|(count, before)| count.store(before, Ordering::Relaxed));
        freed
    }

    /// Takes memory for a large item of `bytes`.
    pub(super) fn take_large(&mut self, bytes: usize) -> Result<ItemRef, Shortage> {
        let memory = self.memory;
        let shortage = Shortage(Need::Large(bytes));
        let charge = Large::charge(bytes + 8);
        if !memory.try_charge_large(charge) {
            memory.discard_pages_for_large(charge);
            if !memory.try_charge_large(charge) {
                self.flush();
                if !memory.try_charge_large(charge) {
                    return Err(shortage);
                }
            }
        }
        let header_of = |start: u64| start + 8 + memory.layout.link_bytes() as u64;
        let clear = |start| memory.clear_header(header_of(start));
        let Some(start) = memory.large.take(bytes + 8, clear) else {
            memory.budget.release(charge);
            return Err(shortage);
        };
        memory.discard_resident();
        let item = ItemRef::from_bits(header_of(start)).expect("large items lie behind the pages");
        // Fresh address space is not forbidden yet, and the item may be shorter than its run.
        memory.forbid_item(item);
        Ok(item)
    }
}

impl Balance {
    /// Counts what the hands met since the last call. Returns whether a comparison is due at
    /// `seconds`.
    fn count(&mut self, memory: &Memory, seconds: u32) -> bool {
        let limit = memory.budget.limit() as f64;
        self.classes.resize(memory.classes.count() + 1, ClassDemand::default());
        for (class, demand) in self.classes.iter_mut().enumerate() {
            self.fresh_bytes += demand.count(memory.count_class(class));
        }
        let is_due = self.fresh_bytes > limit / COMPARISON_SHARE || self.seconds != seconds;
        if !is_due || self.fresh_bytes == 0.0 {
            return false;
        }
        self.fresh_bytes = 0.0;
        let passed = seconds.saturating_sub(self.seconds).min(MOST_SECONDS);
        self.seconds = seconds;
        let left = LEFT_AFTER_SECOND.powi(passed as i32);
        self.fade(left);
        let most_bytes = limit / COUNTED_SHARE;
        let bytes: f64 = self.classes.iter().map(|demand| demand.met_bytes).sum();
        if bytes > most_bytes {
            self.fade(most_bytes / bytes);
        }
        true
    }

    /// Multiplies all counts by `left`, which is below 1.
    fn fade(&mut self, left: f64) {
        for demand in &mut self.classes {
            demand.met *= left;
            demand.arrived *= left;
            demand.met_bytes *= left;
        }
    }

    /// The moves that are due: donors and receivers.
    fn plan(&mut self, memory: &Memory, seconds: u32) -> Vec<(usize, usize)> {
        let large = memory.classes.count();
        self.classes.iter_mut().for_each(|demand| demand.pages = 0);
        let kept_for_large = memory.kept_for_large.load(Ordering::Relaxed);
        let large_bytes = memory.large.held_bytes() as usize + kept_for_large;
        self.classes[large].pages = large_bytes / memory.page_bytes();
        let mut pages_on_their_way = self.from_large.len() + kept_for_large / memory.page_bytes();
        self.from_large.iter().for_each(|class| self.classes[*class].pages += 1);
        let used = memory.lock_fresh().next as usize;
        for page in &memory.pages[..used] {
            let (state, class) = page.state();
            if matches!(state, PageState::Owned | PageState::Full | PageState::Partial) {
                self.classes[class].pages += 1;
            } else if let Some(receiver) = page.receiver() {
                self.classes[receiver].pages += 1;
                pages_on_their_way += 1;
            }
        }
        if pages_on_their_way == 0 {
            self.settled_seconds = seconds;
        } else if seconds.saturating_sub(self.settled_seconds) > KEPT_SECONDS {
            self.from_large.clear();
            memory.take_back_kept_pages(|_| false);
            self.settled_seconds = seconds;
        }
        let pages = memory.budget.limit() / memory.page_bytes();
        let most = (pages / MOVED_SHARE).clamp(1, MOST_MOVES);
        let most = most.min((4 * most).saturating_sub(pages_on_their_way));
        let page_bytes = memory.page_bytes() as f64;
        std::iter::from_fn(|| self.next_move(page_bytes)).take(most).collect()
    }

    /// The move of a page that is worth most, if one is worth it, which it enters as done.
    fn next_move(&mut self, page_bytes: f64) -> Option<(usize, usize)> {
        let (donor, receiver) =
            self.move_for_starved(page_bytes).or_else(|| self.move_by_pressure(page_bytes))?;
        self.classes[receiver].pages += 1;
        self.classes[donor].pages -= 1;
        Some((donor, receiver))
    }

    /// The donor and receiver of a page, if one class turns over so much faster than another that
    /// its items find no time to be read.
    fn move_for_starved(&self, page_bytes: f64) -> Option<(usize, usize)> {
        let classes = || self.classes.iter().enumerate();
        let (receiver, most) = classes()
            .map(|(class, demand)| (class, demand.turnover(demand.pages + 1, page_bytes)))
            .max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let (donor, least) = classes()
            .filter(|(class, demand)| demand.pages > 1 && *class != receiver)
            .map(|(class, demand)| (class, demand.turnover(demand.pages - 1, page_bytes)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        (most > 1.0 && most > STARVED * least).then_some((donor, receiver))
    }

    /// The donor and receiver of a page, if their pressures differ by more than chance.
    fn move_by_pressure(&self, page_bytes: f64) -> Option<(usize, usize)> {
        let classes = || self.classes.iter().enumerate();
        let (receiver, (gain, gain_variance)) = classes()
            .map(|(class, demand)| (class, demand.as_receiver()))
            .max_by(|(_, (one, _)), (_, (other, _))| one.total_cmp(other))?;
        let demand = &self.classes[receiver];
        let turnover = demand.turnover(demand.pages + 1, page_bytes);
        let (donor, (loss, loss_variance)) = classes()
            .filter(|(class, demand)| demand.pages > 1 && *class != receiver)
            .filter(|(_, demand)| {
                demand.turnover(demand.pages - 1, page_bytes) <= (STARVED * turnover).max(1.0)
            })
            .map(|(class, demand)| (class, demand.as_donor()))
            .min_by(|(_, (one, _)), (_, (other, _))| one.total_cmp(other))?;
        let chance = (gain_variance + loss_variance).sqrt();
        (gain - loss > STANDARD_DEVIATIONS * chance).then_some((donor, receiver))
    }
}

impl Memory {
    /// The items of a class, or all large ones, that its hand met and that it holds.
    fn count_class(&self, class: usize) -> Counted {
        let amount = |items: u64, bytes: u64| Amount { items: items as f64, bytes: bytes as f64 };
        let Some(state) = self.class_states.get(class) else {
            let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let (live, live_bytes) = self.large.live_items_and_bytes();
            return Counted {
                displaced: amount(load(&self.large_evictions), load(&self.large_evicted_bytes)),
                spared: amount(load(&self.large_spared), load(&self.large_spared_bytes)),
                held: amount(live, live_bytes),
            };
        };
        let slot_bytes = u64::from(self.geometries[class].slot_bytes);
        let of_slots = |slots: u64| amount(slots, slots * slot_bytes);
        let evicted = state.evictions.load(Ordering::Relaxed);
        let displaced = evicted + state.displaced_by_moves.load(Ordering::Relaxed);
        Counted {
            displaced: of_slots(displaced),
            spared: of_slots(state.spared.load(Ordering::Relaxed)),
            held: of_slots(self.items_of(class)),
        }
    }

    /// Gives memory that large items gave up to the classes that it is for.
    fn pay_from_large(&self) {
        let mut state = self.balance.lock().ignore_poison();
        while let Some(class) = state.from_large.last().copied() {
            let Some((page, _)) = self.take_fresh() else { break };
            state.from_large.pop();
            self.pages[page as usize].set_receiver(Some(class));
            self.keep_page(page, class);
        }
    }

    /// Keeps a free page for a class.
    pub(super) fn keep_page(&self, page: u32, class: usize) {
        self.class_states[class].kept_pages.lock().ignore_poison().push(page);
    }

    /// Keeps the memory of a free page for large items.
    pub(super) fn keep_for_large(&self, page: u32) {
        self.pages[page as usize].set_receiver(None);
        self.discard_page(page);
        self.kept_for_large.fetch_add(self.page_bytes(), Ordering::Relaxed);
    }

    /// The bytes below the limit that large items may take, without those kept for them. The
    /// reserve is for large items only while there are none: each time that they took it,
    /// maintenance would empty pages of the class that holds most.
    pub(super) fn unused_for_large(&self) -> usize {
        let unused = self.budget.limit().saturating_sub(self.budget.used());
        unused.saturating_sub(self.reserve_before_large() * self.page_bytes())
    }

    /// The number of free pages that large items leave to other classes.
    fn reserve_before_large(&self) -> usize {
        if self.evicts && self.large.held_bytes() > 0 { self.reserve_pages() } else { 0 }
    }

    /// Discards free pages for `bytes` of large items, where more than the reserve are free.
    pub(super) fn discard_pages_for_large(&self, bytes: usize) {
        let spare = self.supply().saturating_sub(self.reserve_before_large());
        self.discard_free_pages(bytes.min(spare * self.page_bytes()));
    }

    /// Takes the charge of a run of `bytes` back, or keeps it for the large items that it was
    /// evicted for.
    pub(super) fn give_back_large(&self, bytes: usize) {
        let take = |awaited: usize| Some(awaited.saturating_sub(bytes));
        // Relaxed: counts of bytes, which guard no memory.
        let awaited =
            self.awaited_by_large.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let kept = awaited.unwrap_or(0).min(bytes);
        self.kept_for_large.fetch_add(kept, Ordering::Relaxed);
        self.budget.release(bytes - kept);
    }

    /// Charges a large item of `bytes` to what is kept for such, and the rest to the limit, if that
    /// allows it; returns whether it did.
    pub(super) fn try_charge_large(&self, bytes: usize) -> bool {
        let take = |kept: usize| Some(kept.saturating_sub(bytes));
        // Relaxed: a count of bytes, which guards no memory.
        let kept = self.kept_for_large.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let kept = kept.unwrap_or(0);
        // What is kept is charged already, even while a lowered limit is exceeded.
        let rest = bytes.saturating_sub(kept);
        let is_charged =
            rest == 0 || (rest <= self.unused_for_large() && self.budget.try_charge(rest));
        if !is_charged {
            self.kept_for_large.fetch_add(kept.min(bytes), Ordering::Relaxed);
        }
        is_charged
    }

    /// Takes a page that is kept for a class.
    pub(super) fn take_kept_page(&self, class: usize) -> Option<u32> {
        let page = self.class_states[class].kept_pages.lock().ignore_poison().pop()?;
        self.pages[page as usize].set_receiver(None);
        Some(page)
    }

    /// Whether a page is kept for a class.
    pub(super) fn has_kept_page(&self, class: usize) -> bool {
        !self.class_states[class].kept_pages.lock().ignore_poison().is_empty()
    }

    /// The number of pages that are kept for classes.
    pub(super) fn kept_pages(&self) -> usize {
        let kept = |state: &ClassState| state.kept_pages.lock().ignore_poison().len();
        self.class_states.iter().map(|state| kept(state)).sum()
    }

    /// Makes what is kept for large items free for every class, and all kept pages apart from those
    /// of the classes that are spared.
    pub(super) fn take_back_kept_pages(&self, is_spared: impl Fn(usize) -> bool) {
        self.awaited_by_large.store(0, Ordering::Relaxed);
        self.budget.release(self.kept_for_large.swap(0, Ordering::Relaxed));
        for class in (0..self.class_states.len()).filter(|class| !is_spared(*class)) {
            while let Some(page) = self.take_kept_page(class) {
                self.lock_fresh().list.push(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: f64 = 65536.0;

    fn demand(pages: usize, met: f64, slot_bytes: f64) -> ClassDemand {
        let met_bytes = met * slot_bytes;
        ClassDemand { pages, met, met_bytes, arrived: met, ..ClassDemand::default() }
    }

    /// All moves from a state in which the hands stand. Fails if they do not end.
    fn moves(classes: &[ClassDemand]) -> (Vec<(usize, usize)>, Vec<usize>) {
        let mut state = Balance { classes: classes.to_vec(), ..Balance::default() };
        let all: usize = classes.iter().map(|demand| demand.pages).sum();
        let moves: Vec<_> =
            std::iter::from_fn(|| state.next_move(PAGE_BYTES)).take(2 * all).collect();
        assert!(moves.len() < 2 * all, "pages move to and fro: {moves:?}");
        (moves, state.classes.iter().map(|demand| demand.pages).collect())
    }

    #[test]
    fn equal_pressures_and_chance_move_nothing() {
        let equal = [demand(100, 2000.0, 100.0), demand(50, 1000.0, 1000.0)];
        assert_eq!(moves(&equal).0, []);
        let by_chance = [demand(10, 12.0, 100.0), demand(10, 4.0, 100.0)];
        assert_eq!(moves(&by_chance).0, []);
    }

    #[test]
    fn idle_classes_give_all_pages_but_one() {
        let (_, pages) = moves(&[demand(60, 0.0, 100.0), demand(4, 5000.0, 2000.0)]);
        assert_eq!(pages, [1, 63]);
    }

    /// One arrival makes the hand of a class whose items are all popular spare hundreds. Few such
    /// bursts are chance, many are not.
    #[test]
    fn bursts_of_spared_items_move_nothing() {
        let of_bursts = |arrived| ClassDemand { arrived, ..demand(2, 300.0 * arrived, 200.0) };
        let others = demand(100, 2000.0, 1000.0);
        assert_eq!(moves(&[of_bursts(1.0), others]).0, []);
        assert!(!moves(&[of_bursts(100.0), others]).0.is_empty());
    }

    #[test]
    fn a_class_of_short_items_gets_more_pages_for_the_same_bytes() {
        let (_, pages) = moves(&[demand(50, 20_000.0, 100.0), demand(50, 2000.0, 1000.0)]);
        assert!((85..=92).contains(&pages[0]), "{pages:?}");
    }

    #[test]
    fn long_items_do_not_starve() {
        // By pressure alone, the long items would keep one page, and live 14,000 times as short as
        // the others.
        let (_, pages) = moves(&[demand(999, 100_000.0, 64.0), demand(1, 100.0, 900_000.0)]);
        assert!((2..=50).contains(&pages[1]), "{pages:?}");
        let turnover = |class: &ClassDemand, pages: usize| class.turnover(pages, PAGE_BYTES);
        let (short, long) = (demand(0, 100_000.0, 64.0), demand(0, 100.0, 900_000.0));
        let ratio = turnover(&long, pages[1] + 1) / turnover(&short, pages[0] - 1);
        assert!(ratio <= STARVED, "{pages:?}");
    }
}
