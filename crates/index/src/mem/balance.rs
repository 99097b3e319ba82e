//! Balances memory between size classes by the value of a page: pages move from the class that
//! would lose least to the class that would gain most. Large items take part as one more class.
//!
//! A class's *pressure* is the number of items that it evicted lately for lack of memory, divided
//! by the pages that it holds. One page more lets the class keep each of these items longer, by one
//! part in the number of its pages. Equal pressures leave a class of long items fewer items than
//! one of short items, as a page spent on long items saves fewer misses. So that no class starves,
//! pages also move to a class whose memory turns over [`STARVED`] times as fast as another's.
//!
//! Older evictions fade as others follow and, more slowly, with time. Pressures of few evictions
//! differ by chance, so a page moves only if the pressures after the move still differ by
//! [`STANDARD_DEVIATIONS`] of such counts. A page that is emptied for a class is kept for it.

use std::sync::atomic::Ordering;

use amalgam_op::{IgnorePoison, Now};

use super::clock::{Swap, Take};
use super::page::PageState;
use super::{ClassState, Memory, Pool};

/// The evicted bytes that pressures count are at most 1/COUNTED_SHARE of the memory limit.
const COUNTED_SHARE: f64 = 2.0;
/// The part of the counted evictions that is left of them a second later, for loads that change:
/// an item's length must not make a load of the past outweigh the present one.
const LEFT_AFTER_SECOND: f64 = 0.95;
/// Pressures are compared once per second, and each time that 1/COMPARISON_SHARE of the memory
/// limit was evicted.
const COMPARISON_SHARE: f64 = 256.0;
/// The number of standard deviations by which the pressures must differ.
const STANDARD_DEVIATIONS: f64 = 4.0;
/// A class that turns over this many times as fast as another is starved, whatever the pressures.
const STARVED: f64 = 128.0;
/// One comparison moves at most 1/MOVED_SHARE of the pages, and [`MOST_MOVES`].
const MOVED_SHARE: usize = 128;
/// See [`MOVED_SHARE`].
const MOST_MOVES: usize = 8;
/// After this many seconds all counted evictions have faded.
const MOST_SECONDS: u32 = 256;
/// Pages are kept for a class for this many seconds at most.
const KEPT_SECONDS: u32 = 2;

/// What balancing knows of each class. Large items have the number after the last class.
#[derive(Default)]
pub(super) struct Balance {
    classes: Vec<ClassDemand>,
    /// The bytes evicted since the last comparison.
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
    /// The class's count of evictions when it was last read.
    evictions_read: u64,
    /// Recent evictions, of which older ones have faded.
    evicted: f64,
    /// The bytes of those evictions.
    evicted_bytes: f64,
    /// The bytes of all evictions when they were last read; of large items only.
    bytes_read: u64,
    /// Pages that the class holds or will get, without those that are being emptied.
    pages: usize,
}

impl ClassDemand {
    /// The pressure if the class held `pages` pages.
    fn pressure(&self, pages: usize) -> f64 {
        self.evicted / pages.max(1) as f64
    }

    /// The variance of the pressure, if evictions came by chance.
    fn variance(&self, pages: usize) -> f64 {
        (self.evicted + 1.0) / (pages.max(1) as f64).powi(2)
    }

    /// The part of its memory that the class evicted lately, if it held `pages` pages.
    fn turnover(&self, pages: usize, page_bytes: f64) -> f64 {
        self.evicted_bytes / (pages.max(1) as f64 * page_bytes)
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
                    let freed = self.evict_large(memory.page_bytes(), Take::Cold, now, swap);
                    memory.balance.lock().ignore_poison().from_large.push(receiver);
                    freed.bytes > 0
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
            let evicted = self.evict_class(donor, target, Take::Cold, now, swap);
            // These are not for lack of memory in the class.
            memory.balance.lock().ignore_poison().classes[donor].evictions_read += evicted as u64;
            self.flush();
        }
        self.evacuate_for(donor, Some(receiver), now, swap)
    }
}

impl Balance {
    /// Counts the evictions since the last call. Returns whether a comparison is due at `seconds`.
    fn count(&mut self, memory: &Memory, seconds: u32) -> bool {
        let limit = memory.budget.limit() as f64;
        self.classes.resize(memory.classes.count() + 1, ClassDemand::default());
        for (class, demand) in self.classes.iter_mut().enumerate() {
            let evictions = memory.evictions_of(class);
            let recent = evictions.saturating_sub(demand.evictions_read) as f64;
            demand.evictions_read = evictions.max(demand.evictions_read);
            let bytes = match memory.geometries.get(class) {
                Some(geometry) => recent * f64::from(geometry.slot_bytes),
                None => {
                    let bytes = memory.large_evicted_bytes.load(Ordering::Relaxed);
                    (bytes - std::mem::replace(&mut demand.bytes_read, bytes)) as f64
                }
            };
            demand.evicted += recent;
            demand.evicted_bytes += bytes;
            self.fresh_bytes += bytes;
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
        let bytes: f64 = self.classes.iter().map(|demand| demand.evicted_bytes).sum();
        if bytes > most_bytes {
            self.fade(most_bytes / bytes);
        }
        true
    }

    /// Multiplies all counted evictions by `left`, which is below 1.
    fn fade(&mut self, left: f64) {
        for demand in &mut self.classes {
            demand.evicted *= left;
            demand.evicted_bytes *= left;
        }
    }

    /// The moves that are due: donors and receivers.
    fn plan(&mut self, memory: &Memory, seconds: u32) -> Vec<(usize, usize)> {
        let large = memory.classes.count();
        self.classes.iter_mut().for_each(|demand| demand.pages = 0);
        self.classes[large].pages = memory.large.held_bytes() as usize / memory.page_bytes();
        let mut pages_on_their_way = self.from_large.len();
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
            memory.take_back_kept_pages();
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
    /// The number of evictions of a class for lack of memory.
    fn evictions_of(&self, class: usize) -> u64 {
        let state = self.class_states.get(class);
        state.map_or(&self.large_evictions, |state| &state.evictions).load(Ordering::Relaxed)
    }

    /// Gives memory that large items gave up to the classes that it is for.
    fn pay_from_large(&self) {
        let mut state = self.balance.lock().ignore_poison();
        while let Some(class) = state.from_large.last().copied() {
            let taken = self.lock_fresh().take(&self.budget, self.page_bytes(), self.pages.len());
            let Some((page, _)) = taken else { break };
            state.from_large.pop();
            self.pages[page as usize].set_receiver(Some(class));
            self.keep_page(page, class);
        }
    }

    /// Keeps a free page for a class.
    pub(super) fn keep_page(&self, page: u32, class: usize) {
        self.class_states[class].kept_pages.lock().ignore_poison().push(page);
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

    /// Makes all kept pages free for every class.
    pub(super) fn take_back_kept_pages(&self) {
        for class in 0..self.class_states.len() {
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

    fn demand(pages: usize, evicted: f64, slot_bytes: f64) -> ClassDemand {
        let evicted_bytes = evicted * slot_bytes;
        ClassDemand { pages, evicted, evicted_bytes, ..ClassDemand::default() }
    }

    /// All moves from a state in which no more items are evicted. Fails if they do not end.
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

    #[test]
    fn a_class_of_short_items_gets_more_pages_for_the_same_evicted_bytes() {
        let (_, pages) = moves(&[demand(50, 20_000.0, 100.0), demand(50, 2000.0, 1000.0)]);
        assert!((85..=92).contains(&pages[0]), "{pages:?}");
    }

    #[test]
    fn long_items_do_not_starve() {
        // By pressure alone, the long items would keep one page in a hundred.
        let (_, pages) = moves(&[demand(999, 100_000.0, 64.0), demand(1, 100.0, 60_000.0)]);
        assert!((2..=50).contains(&pages[1]), "{pages:?}");
        let turnover = |class: &ClassDemand, pages: usize| class.turnover(pages, PAGE_BYTES);
        let (short, long) = (demand(0, 100_000.0, 64.0), demand(0, 100.0, 60_000.0));
        let ratio = turnover(&long, pages[1] + 1) / turnover(&short, pages[0] - 1);
        assert!(ratio <= STARVED, "{pages:?}");
    }
}
