//! Walking a ring, changing nothing: the search of reads, and tours of all items.
//!
//! Invariants:
//! 1. `before` was not occupied when its link was loaded, and nothing but occupied items stood
//!    between it and `at` at the moments that `docs/hotring.md` (race 1) names.
//! 2. `reached` is the distance of `before` and never falls while a walk goes on. So a walk ends
//!    after the ring's length in steps, and one more for each item inserted ahead of it.

use super::space::{Space, Target, boundary, compare, order_of, rehash_item_for};
use super::word::{Address, Link, Node};

/// The distance of an item with the target's tag that stands before the target. No other distance
/// is as large; one that stands behind it has distance 0.
const JUST_BEFORE: u64 = u64::MAX;

/// An item and its link as it was loaded: not occupied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) node: Node,
    pub(super) link: Link,
}

/// A walk along a ring towards a target.
pub(super) struct Walk<'s, 'k, S> {
    pub(super) space: &'s S,
    pub(super) target: Target<'k>,
    /// The last item that was passed, if any.
    pub(super) before: Option<Step>,
    /// Its distance.
    pub(super) reached: u64,
    /// The next item to look at.
    pub(super) at: Address,
    /// Items looked at.
    pub(super) visited: u32,
    run: Run,
}

/// What a step of a walk met.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// An item that is not the target; the target's place is further on.
    Item(Step),
    /// A rehash item; and the one of the pair from which the walk goes on: the target's half's own.
    Boundary { met: Step, own: Node },
    /// The target.
    Hit(Step),
    /// The target's place lies right behind `before`: it is absent.
    Passed,
    /// All items of the ring are occupied.
    Vacant,
}

/// What the order of an item says about the target.
pub(super) enum Verdict {
    Ahead(u64),
    Equal,
    Passed,
}

impl<'s, 'k, S: Space> Walk<'s, 'k, S> {
    #[inline]
    pub(super) fn new(space: &'s S, target: Target<'k>, at: Address) -> Self {
        Self { space, target, before: None, reached: 0, at, visited: 0, run: Run::default() }
    }

    /// Goes on until the target is found or known to be absent.
    #[inline]
    pub(super) fn finish(&mut self) -> Event {
        loop {
            match self.step() {
                Event::Item(_) | Event::Boundary { .. } => {}
                event => return event,
            }
        }
    }

    /// Looks at the next item.
    #[inline]
    pub(super) fn step(&mut self) -> Event {
        let bits = self.space.bits();
        loop {
            let Some(node) = bits.node_of(self.at) else { return Event::Vacant };
            let distance = self.target.distance(bits, self.at);
            if distance != 0 && distance < self.reached {
                // Without a look at the item: its tag alone says that it lies behind the target.
                return Event::Passed;
            }
            self.visited += 1;
            let link = self.space.load_link(node);
            if !link.is_plain() {
                match self.step_aside(node, link) {
                    Some(event) => return event,
                    None => continue,
                }
            }
            let step = Step { node, link };
            if distance == 0 || distance == self.reached {
                return match self.judge_closely(step, distance) {
                    Verdict::Equal => Event::Hit(step),
                    Verdict::Passed => Event::Passed,
                    Verdict::Ahead(distance) => {
                        self.pass(step, distance);
                        Event::Item(step)
                    }
                };
            }
            self.pass(step, distance);
            return Event::Item(step);
        }
    }

    #[inline]
    pub(super) fn pass(&mut self, step: Step, distance: u64) {
        self.before = Some(step);
        self.reached = distance;
        self.at = step.link.address();
        self.run.end();
    }

    /// Passes over an occupied item, or goes on from the rehash item of the target's own half.
    #[cold]
    fn step_aside(&mut self, node: Node, link: Link) -> Option<Event> {
        let met = Step { node, link };
        let (node, link) = match link.is_rehash() {
            true => {
                let own = rehash_item_for(self.space, self.target.order.hash, node, link);
                (own, if own == node { link } else { self.space.load_link(own) })
            }
            false => (node, link),
        };
        if link.is_occupied() {
            self.at = link.address();
            return self.run.is_endless(node).then_some(Event::Vacant);
        }
        let step = Step { node, link };
        let address = self.space.address(node, boundary(self.space, node, link));
        match self.judge(step, address) {
            Verdict::Equal => Some(Event::Hit(step)),
            Verdict::Passed => Some(Event::Passed),
            Verdict::Ahead(distance) => {
                self.pass(step, distance);
                Some(Event::Boundary { met, own: node })
            }
        }
    }

    /// Where an item stands.
    pub(super) fn judge(&self, step: Step, address: Address) -> Verdict {
        let distance = self.target.distance(self.space.bits(), address);
        if distance == 0 || distance == self.reached {
            self.judge_closely(step, distance)
        } else if distance < self.reached {
            Verdict::Passed
        } else {
            Verdict::Ahead(distance)
        }
    }

    /// Where an item stands whose tag is that of the target or that of the item before.
    #[inline]
    pub(super) fn judge_closely(&self, step: Step, distance: u64) -> Verdict {
        let key = self.target.order.key;
        if distance == 0 && !step.link.is_rehash() && self.space.has_key(step.node, key) {
            return Verdict::Equal;
        }
        self.judge_whole(step, distance)
    }

    /// By the whole order.
    #[cold]
    fn judge_whole(&self, step: Step, distance: u64) -> Verdict {
        let order = order_of(self.space, step.node, step.link);
        let distance = match distance {
            0 if order == self.target.order => return Verdict::Equal,
            0 if order < self.target.order => JUST_BEFORE,
            distance => distance,
        };
        let Some(before) = self.before else { return Verdict::Ahead(distance) };
        // Not further than the item before: the walk has come around. Met again (a ring of one) is
        // that, too.
        let has_passed = distance < self.reached
            || distance == self.reached
                && compare(self.space, (step.node, step.link), (before.node, before.link)).is_le();
        if has_passed { Verdict::Passed } else { Verdict::Ahead(distance) }
    }
}

/// Finds out that a run of occupied items has no end (Brent's algorithm).
#[derive(Default)]
struct Run {
    anchor: Option<Node>,
    length: u32,
    limit: u32,
}

impl Run {
    #[inline]
    fn end(&mut self) {
        self.limit = 0;
    }

    /// Whether `node`, which is occupied, was met before in this run.
    fn is_endless(&mut self, node: Node) -> bool {
        if self.limit == 0 {
            *self = Self { anchor: Some(node), length: 0, limit: 2 };
            return false;
        }
        if self.anchor == Some(node) {
            return true;
        }
        self.length += 1;
        if self.length == self.limit {
            *self = Self { anchor: Some(node), length: 0, limit: self.limit.saturating_mul(2) };
        }
        false
    }
}

/// How many items a tour visits at most: rings of more have no use for it.
pub(super) const LONGEST_TOUR: u32 = 4096;

/// Visits the items of the ring of `hash` once around, from the one that the head leads to (an
/// occupied or a rehash item there is passed over). Returns whether the tour was completed.
pub(super) fn tour<S: Space>(space: &S, hash: u64, mut visit: impl FnMut(Step)) -> bool {
    let (_, head) = space.head(hash);
    let Some(start) = first_item(space, hash, head.address()) else { return false };
    let order = space.order(start.node);
    visit(start);
    let target = Target::new(space.bits(), order);
    let mut walk = Walk::new(space, target, start.link.address());
    while walk.visited < LONGEST_TOUR {
        match walk.step() {
            Event::Item(step) => visit(step),
            Event::Boundary { .. } => {}
            Event::Hit(_) | Event::Passed | Event::Vacant => return true,
        }
    }
    false
}

/// The first item from `at` on that is neither occupied nor a rehash item.
fn first_item<S: Space>(space: &S, hash: u64, mut at: Address) -> Option<Step> {
    let mut run = Run::default();
    for _ in 0..LONGEST_TOUR {
        let node = space.bits().node_of(at)?;
        let link = space.load_link(node);
        if link.is_plain() {
            return Some(Step { node, link });
        }
        let own = match link.is_rehash() {
            true => rehash_item_for(space, hash, node, link),
            false => node,
        };
        at = space.load_link(own).address();
        if run.is_endless(own) {
            return None;
        }
    }
    None
}

/// The first unoccupied item behind the occupied `node`, a rehash item of its half included; none
/// if all items of the ring are occupied.
pub(super) fn successor<S: Space>(space: &S, hash: u64, node: Node) -> Option<Address> {
    let mut run = Run::default();
    let mut at = space.load_link(node).address();
    loop {
        let next = space.bits().node_of(at)?;
        let mut link = space.load_link(next);
        let mut next = next;
        if link.is_rehash() {
            let own = rehash_item_for(space, hash, next, link);
            if own != next {
                (next, link) = (own, space.load_link(own));
                at = space.address(own, boundary(space, own, link));
            }
        }
        if !link.is_occupied() {
            return Some(at);
        }
        if next == node || run.is_endless(next) {
            return None;
        }
        at = link.address();
    }
}
