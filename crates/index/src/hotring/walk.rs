//! Walks along a ring that change nothing: the search for a key, and tours of all items.
//!
//! Invariants:
//! 1. `before` was not occupied when its link was loaded, and nothing but occupied items stood
//!    between it and `at` at the moments that `docs/hotring.md` (race 1) names.
//! 2. `reached` is the distance of `before` and never decreases during a walk. So a walk ends after
//!    as many steps as the ring has items, plus one for each item inserted ahead of it.

use super::space::{Space, Target, boundary, compare, order_of, rehash_item_for};
use super::word::{Address, Link, Node};

/// The distance of an item that has the target's tag and stands before the target in the order. It
/// exceeds all other distances; an item with the target's tag that stands after the target has
/// distance 0.
const JUST_BEFORE: u64 = u64::MAX;

/// An item and its link as it was loaded. Unless stated otherwise, the link is not occupied.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedNode {
    pub(super) node: Node,
    pub(super) link: Link,
}

/// A walk along a ring towards a target.
pub(super) struct Walk<'s, 'k, S> {
    pub(super) space: &'s S,
    pub(super) target: Target<'k>,
    /// The last item that was passed, if any.
    pub(super) before: Option<LoadedNode>,
    /// The distance of `before`.
    pub(super) reached: u64,
    /// The address of the next item to visit.
    pub(super) at: Address,
    /// The number of items visited.
    pub(super) visited: u32,
    run: Run,
}

/// The outcome of one step of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// An item that is not the target; the target's position is further on.
    Item(LoadedNode),
    /// A rehash item. `own` is the one of its pair from which the walk goes on: that of the
    /// target's half.
    Boundary { met: LoadedNode, own: Node },
    /// The target.
    Hit(LoadedNode),
    /// The target is absent: its position is right after `before`.
    Passed,
    /// All items of the ring are occupied.
    Vacant,
}

/// The position of an item relative to the target.
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

    /// Walks until the target is found or known to be absent.
    #[inline]
    pub(super) fn finish(&mut self) -> Event {
        loop {
            match self.step() {
                Event::Item(_) | Event::Boundary { .. } => {}
                event => return event,
            }
        }
    }

    /// Visits the next item.
    #[inline]
    pub(super) fn step(&mut self) -> Event {
        let bits = self.space.bits();
        loop {
            let Some(node) = bits.node_of(self.at) else { return Event::Vacant };
            let distance = self.target.distance(bits, self.at);
            if distance != 0 && distance < self.reached {
                // The item need not be read: its tag alone says that it lies after the target.
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
            let loaded = LoadedNode { node, link };
            if distance == 0 || distance == self.reached {
                return match self.judge_closely(loaded, distance) {
                    Verdict::Equal => Event::Hit(loaded),
                    Verdict::Passed => Event::Passed,
                    Verdict::Ahead(distance) => {
                        self.pass(loaded, distance);
                        Event::Item(loaded)
                    }
                };
            }
            self.pass(loaded, distance);
            return Event::Item(loaded);
        }
    }

    #[inline]
    pub(super) fn pass(&mut self, loaded: LoadedNode, distance: u64) {
        self.before = Some(loaded);
        self.reached = distance;
        self.at = loaded.link.address();
        self.run.end();
    }

    /// Skips an occupied item, or goes on from the rehash item of the target's half. Returns None
    /// if the walk goes on without an event.
    #[cold]
    fn step_aside(&mut self, node: Node, link: Link) -> Option<Event> {
        let met = LoadedNode { node, link };
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
        let loaded = LoadedNode { node, link };
        let address = self.space.address(node, boundary(self.space, node, link));
        match self.judge(loaded, address) {
            Verdict::Equal => Some(Event::Hit(loaded)),
            Verdict::Passed => Some(Event::Passed),
            Verdict::Ahead(distance) => {
                self.pass(loaded, distance);
                Some(Event::Boundary { met, own: node })
            }
        }
    }

    /// Compares the position of an item at `address` with the target, by tags where these decide.
    pub(super) fn judge(&self, loaded: LoadedNode, address: Address) -> Verdict {
        let distance = self.target.distance(self.space.bits(), address);
        if distance == 0 || distance == self.reached {
            self.judge_closely(loaded, distance)
        } else if distance < self.reached {
            Verdict::Passed
        } else {
            Verdict::Ahead(distance)
        }
    }

    /// As [`Walk::judge`], for an item whose tag equals that of the target or that of the item
    /// before.
    #[inline]
    pub(super) fn judge_closely(&self, loaded: LoadedNode, distance: u64) -> Verdict {
        let key = self.target.order.key;
        if distance == 0 && !loaded.link.is_rehash() && self.space.has_key(loaded.node, key) {
            return Verdict::Equal;
        }
        self.judge_whole(loaded, distance)
    }

    /// As [`Walk::judge`], by hash and key.
    #[cold]
    fn judge_whole(&self, loaded: LoadedNode, distance: u64) -> Verdict {
        let order = order_of(self.space, loaded.node, loaded.link);
        let distance = match distance {
            0 if order == self.target.order => return Verdict::Equal,
            0 if order < self.target.order => JUST_BEFORE,
            distance => distance,
        };
        let Some(before) = self.before else { return Verdict::Ahead(distance) };
        // The item is not further than the item before, or it is the same one (in a ring of one
        // item): the walk has gone around the ring.
        let has_passed = distance < self.reached
            || distance == self.reached
                && compare(self.space, (loaded.node, loaded.link), (before.node, before.link))
                    .is_le();
        if has_passed { Verdict::Passed } else { Verdict::Ahead(distance) }
    }
}

/// Detects a cycle of occupied items, which a walk would never leave (Brent's algorithm).
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

    /// Whether the occupied `node` was met before in this run of occupied items.
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

/// The largest number of items that a tour visits.
pub(super) const LONGEST_TOUR: u32 = 4096;

/// Visits each item of the ring of `hash` once, from the one that the head leads to; skips occupied
/// and rehash items. Returns whether the tour was completed.
pub(super) fn tour<S: Space>(space: &S, hash: u64, mut visit: impl FnMut(LoadedNode)) -> bool {
    let (_, head) = space.head(hash);
    let Some(start) = first_item(space, hash, head.address()) else { return false };
    let order = space.order(start.node);
    visit(start);
    let target = Target::new(space.bits(), order);
    let mut walk = Walk::new(space, target, start.link.address());
    while walk.visited < LONGEST_TOUR {
        match walk.step() {
            Event::Item(loaded) => visit(loaded),
            Event::Boundary { .. } => {}
            Event::Hit(_) | Event::Passed | Event::Vacant => return true,
        }
    }
    false
}

/// The first item from `at` on that is neither occupied nor a rehash item; None if there is none.
fn first_item<S: Space>(space: &S, hash: u64, mut at: Address) -> Option<LoadedNode> {
    let mut run = Run::default();
    for _ in 0..LONGEST_TOUR {
        let node = space.bits().node_of(at)?;
        let link = space.load_link(node);
        if link.is_plain() {
            return Some(LoadedNode { node, link });
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

/// The first unoccupied item after the occupied `node`, which may be a rehash item of its half;
/// None if all items of the ring are occupied.
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
