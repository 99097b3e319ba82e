//! Statistical sampling (section 3.2.2): counts a ring's accesses for a round, then moves its head
//! to the position from which these accesses cost least.

use super::change::move_head;
use super::space::{Space, address_for, exchange_head, exchange_link};
use super::walk::{LoadedNode, tour};
use super::word::{Head, MOST_SAMPLES, Node};

/// Begins a round of `samples` accesses for the ring of `hash`. If no round has settled the head
/// yet, the head also moves to `node` at once, which is a good guess until the round ends. Does
/// nothing if a round or a movement is under way. (Counts are cleared when a round ends; a few may
/// be left from a round that was cut off.)
#[cold]
pub(super) fn start<S: Space>(space: &S, hash: u64, node: Node, samples: u64) {
    let (word, head) = space.head(hash);
    if head.is_active() || head.is_moving() || head == Head::EMPTY {
        return;
    }
    match address_for(space, word, node) {
        Some(address) if head.patience() == 0 => {
            move_head(space, word, head, Head::to(address).activated(samples));
        }
        _ => _ = exchange_head(word, head, head.activated(samples)),
    }
}

/// The number of samples of a round in a table whose rings have `items_per_ring` items on average.
pub(super) fn samples_of(items_per_ring: u64) -> u64 {
    items_per_ring.clamp(2, MOST_SAMPLES)
}

/// Clears the access count of an item.
fn clear<S: Space>(space: &S, loaded: LoadedNode) {
    if loaded.link.count() != 0 {
        // A link that changed meanwhile keeps its count, which is noise for one round.
        let _ = exchange_link(space.link(loaded.node), loaded.link, loaded.link.uncounted());
    }
}

/// Counts an access to `node` (or an access to its successor for which `node` would be the best
/// head) in a round of `samples`. The thread that takes the last sample moves the head. Accesses to
/// the head's item are not counted: they are the samples that are missing when the round ends.
#[cold]
pub(super) fn count<S: Space>(space: &S, hash: u64, node: Node, samples: u64) {
    let (word, head) = space.head(hash);
    if !head.is_active() {
        return;
    }
    if space.bits().node_of(head.address()) != Some(node) {
        let link = space.load_link(node);
        if link.is_plain() {
            // The count is lost if the link changes at this moment, and then falls to the head's
            // item.
            let _ = exchange_link(space.link(node), link, link.counted());
        }
    }
    if head.counter() > 1 {
        exchange_head(word, head, head.sampled());
    } else if exchange_head(word, head, head.settled()) {
        // Only one thread clears Active and ends the round.
        conclude(space, hash, head.settled(), samples);
    }
}

/// Moves the head to the position of least income (formula 6) and clears the counts.
fn conclude<S: Space>(space: &S, hash: u64, head: Head, samples: u64) {
    let (mut items, mut counted) = (0, 0);
    let is_complete = tour(space, hash, |loaded| {
        items += 1;
        counted += loaded.link.count();
    });
    let mut best = Best::new(items, samples.max(counted));
    // The tour begins at the head's item.
    let mut missing = samples.saturating_sub(counted);
    tour(space, hash, |loaded| {
        best.see(loaded.node, loaded.link.count() + std::mem::take(&mut missing));
        clear(space, loaded);
    });
    let (word, _) = space.head(hash);
    match best.node.and_then(|node| address_for(space, word, node)) {
        Some(address) if is_complete => {
            let target = Head::to(address).with_patience(head.patience().max(1));
            move_head(space, word, head, target);
        }
        // The head is at the best position: the next round can wait longer.
        _ => _ = exchange_head(word, head, head.with_patience(head.patience() + 1)),
    }
}

/// Finds the position of least income in one pass. With k items, of which item i was met n(i) times
/// in N samples, W(t) is the sum of n(i)/N times the distance from t to i. A step from t to t+1
/// brings all items nearer by one, but item t, which is then k-1 away: N W(t+1) = N W(t) - N + k
/// n(t).
struct Best {
    items: i64,
    samples: i64,
    /// N W(t) - N W(0) at the next position.
    income: i64,
    least: i64,
    /// The position of least income; none while that is the first.
    node: Option<Node>,
}

impl Best {
    fn new(items: u64, samples: u64) -> Self {
        let (items, samples) = (items as i64, samples as i64);
        Self { items, samples, income: 0, least: 0, node: None }
    }

    fn see(&mut self, node: Node, count: u64) {
        if self.income < self.least {
            (self.least, self.node) = (self.income, Some(node));
        }
        self.income += self.items * count as i64 - self.samples;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Formula 6 as printed.
    fn income(counts: &[u64], t: usize) -> u64 {
        let k = counts.len();
        (0..k).map(|i| counts[i] * ((i + k - t) % k) as u64).sum()
    }

    #[test]
    fn the_best_position_has_the_least_income() {
        let mut random = 1_u64;
        for _ in 0..2000 {
            let mut below = |bound: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % bound
            };
            let counts: Vec<u64> = (0..1 + below(12)).map(|_| below(9)).collect();
            let mut best = Best::new(counts.len() as u64, counts.iter().sum());
            for (position, count) in counts.iter().enumerate() {
                best.see(Node(position as u64 + 1), *count);
            }
            let chosen = best.node.map_or(0, |node| node.0 as usize - 1);
            let least = (0..counts.len()).map(|t| income(&counts, t)).min();
            assert_eq!(Some(income(&counts, chosen)), least, "{counts:?}");
        }
    }
}
