//! The steps that divide a ring, in the order of `docs/hotring.md`, while other threads work.

use super::{BOUNDARIES, Broken, Head, Node, Operation, Ring, State, Step, Then, check_one};

/// The search for the end of a half: the last item passed and where its link led.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cut {
    half: usize,
    before: (Node, Node),
    /// Where the link shall lead.
    next: Node,
}

/// The steps of a rehash; the rehash items are inserted and unlinked as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rehash {
    Begin,
    Pair(usize),
    NewHead(usize),
    /// Everybody comes through the new heads from now on.
    Switch,
    /// The hot item stays the head of its half.
    Inherit(Node),
    /// A grace period.
    Wait,
    Cut(usize),
    CutOn(Cut),
    CutLink(Cut),
    Occupy(usize),
}

impl Ring {
    pub(super) fn rehash(&self, state: &mut State, thread: usize, step: Rehash) -> Step {
        let pair = self.pair();
        Step::Rehash(match step {
            Rehash::Begin if state.heads[0] == Head::EMPTY => {
                state.heads[0] = Head::MOVED;
                return Step::Done;
            }
            Rehash::Begin => return Step::LoadHead { unlinks: true },
            Rehash::Pair(half) => {
                state.items[pair + half].rehash = Some(true);
                if half == 0 { Rehash::Pair(1) } else { Rehash::NewHead(0) }
            }
            Rehash::NewHead(half) => {
                state.heads[1 + half] = Head::to(pair + half);
                if half == 0 { Rehash::NewHead(1) } else { Rehash::Switch }
            }
            Rehash::Switch => {
                let last = std::mem::replace(&mut state.heads[0], Head::MOVED);
                let is_reading = |other: &usize| state.steps[*other] != Step::Invoke;
                let others = (0..state.steps.len()).filter(|other| *other != thread);
                state.old_readers = others.filter(is_reading).collect();
                last.hot.map_or(Rehash::Wait, Rehash::Inherit)
            }
            Rehash::Inherit(hot) => {
                let item = state.items[hot];
                match item.occupied || item.rehash.is_some() {
                    true => Rehash::Wait,
                    false => return Step::Look { target: hot },
                }
            }
            Rehash::Wait => {
                let is_over = state.old_readers.iter().all(|at| state.steps[*at] == Step::Done);
                if is_over || self.broken == Broken::Grace { Rehash::Cut(0) } else { step }
            }
            Rehash::Cut(half) => {
                let next = state.items[pair + half].next;
                Rehash::CutOn(Cut { half, before: (pair + half, next), next })
            }
            Rehash::CutOn(cut) => {
                let (own, node) = (pair + cut.half, cut.before.1);
                let item = state.items[node];
                match (item.rehash.is_some(), item.occupied) {
                    (true, _) if node == own && cut.half == 0 => Rehash::Cut(1),
                    (true, _) if node == own => Rehash::Occupy(0),
                    (true, _) => Rehash::CutLink(Cut { next: own, ..cut }),
                    (false, true) => {
                        let then = Then::Cut(Cut { next: item.next, ..cut });
                        return Step::Leave { node, then };
                    }
                    (false, false) => Rehash::CutOn(Cut { before: (node, item.next), ..cut }),
                }
            }
            Rehash::CutLink(cut) => {
                let (before, next) = cut.before;
                match self.exchange_link(state, before, next, (cut.next, false)) {
                    true => Rehash::CutOn(Cut { before: (before, cut.next), ..cut }),
                    false => Rehash::Cut(cut.half),
                }
            }
            Rehash::Occupy(half) => {
                let node = pair + half;
                state.items[node].occupied = true;
                state.owned[thread] = Some(node);
                state.targets[thread] = BOUNDARIES[half];
                return Step::Leave { node, then: Then::Expel };
            }
        })
    }
}

/// A key of each half, one that is absent, and what leads the head away.
#[test]
fn a_rehash_beside_any_operation_is_linearizable() {
    use Operation::{Delete, Get, Move, Rehash, Set};
    for present in [&[2, 4, 12][..], &[4], &[12]] {
        for key in [4, 12, 14] {
            for other in [Get(key), Set(key), Delete(key), Move(key)] {
                assert!(check_one(present, vec![Rehash, other], Broken::Nothing));
            }
        }
    }
}

#[test]
fn a_rehash_beside_two_operations_is_linearizable() {
    use Operation::{Delete, Get, Move, Rehash, Set};
    for [one, other] in
        [[Delete(12), Get(12)], [Delete(4), Set(5)], [Set(12), Move(12)], [Delete(4), Move(4)]]
    {
        assert!(check_one(&[4, 12], vec![Rehash, one, other], Broken::Nothing));
    }
}

#[test]
fn a_rehash_without_a_grace_period_is_found_out() {
    use Operation::{Get, Rehash};
    assert!(!check_one(&[2, 4, 12], vec![Rehash, Get(4)], Broken::Grace));
}
