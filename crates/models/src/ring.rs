//! HotRing's ring as a model of words, checked exhaustively: three items, three threads, and every
//! order in which their loads and exchanges can come, also while a rehash divides the ring.
//! `docs/hotring.md` has the protocol in prose; loom runs the code itself, in fewer orders. Tests
//! that break a rule see it found out.

mod rehash;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use stateright::{Checker, Model, Property};

use rehash::{Cut, Rehash};

type Node = usize;
type Key = u8;
type Value = u8;

/// Distances are counted modulo this; keys lie below.
const KEYS: u8 = 16;
/// Where the halves of the ring begin, for a rehash: at the rehash items' keys, which no item has.
const BOUNDARIES: [Key; 2] = [0, 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Get(Key),
    Set(Key),
    Delete(Key),
    /// Leads the head to the item of a key, as a cold access does.
    Move(Key),
    /// Divides the ring into two.
    Rehash,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Found(Option<Value>),
    Stored,
    Deleted(bool),
    Moved,
}

/// What the ring stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Map(std::collections::BTreeMap<Key, Value>);

impl SequentialSpec for Map {
    /// What to do, and the value that a store would write.
    type Op = (Operation, Value);
    type Ret = Answer;

    fn invoke(&mut self, (operation, value): &Self::Op) -> Answer {
        match operation {
            Operation::Get(key) => Answer::Found(self.0.get(key).copied()),
            Operation::Set(key) => {
                self.0.insert(*key, *value);
                Answer::Stored
            }
            Operation::Delete(key) => Answer::Deleted(self.0.remove(key).is_some()),
            Operation::Move(_) | Operation::Rehash => Answer::Moved,
        }
    }
}

/// An item: its link, and what never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Item {
    next: Node,
    occupied: bool,
    retired: bool,
    key: Key,
    value: Value,
    /// It is a rehash item, and whether both of the pair are in the ring.
    rehash: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Head {
    hot: Option<Node>,
    /// The thread that announced a movement.
    moving: Option<usize>,
}

impl Head {
    const EMPTY: Self = Self { hot: None, moving: None };
    /// The ring is reached through the heads of its halves.
    const MOVED: Self = Self { hot: None, moving: Some(usize::MAX) };

    fn to(hot: Node) -> Self {
        Self { hot: Some(hot), moving: None }
    }
}

/// One of the heads, and what was in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct HeadWord {
    word: usize,
    head: Head,
}

/// A walk: the last item passed and where its link led, its distance, what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Walk {
    before: Option<(Node, Node)>,
    reached: u8,
    at: Node,
    /// Occupied items in a row: more than there are is a ring without others.
    run: usize,
    /// Whether occupied items are unlinked on the way.
    unlinks: bool,
}

/// Where an item's departure from the head goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    /// To the walk that unlinks it.
    Expel,
    /// To the exchange that unlinks what a walk came to.
    Bypass(Walk),
    /// To the exchange that unlinks what the cut came to.
    Cut(Cut),
}

/// What a thread does next: each step loads or exchanges one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Invoke,
    LoadHead {
        unlinks: bool,
    },
    Walk(Walk),
    Bypass(Walk),
    Occupy {
        node: Node,
        next: Node,
    },
    Replace {
        node: Node,
        next: Node,
    },
    InsertFirst,
    Insert {
        before: Node,
        next: Node,
    },
    /// Before a movement: is another under way?
    Look {
        target: Node,
    },
    Leave {
        node: Node,
        then: Then,
    },
    Cancel {
        node: Node,
        head_word: HeadWord,
        then: Then,
    },
    Succeed {
        node: Node,
        head_word: HeadWord,
        at: Node,
        run: usize,
        then: Then,
    },
    Empty {
        node: Node,
        head_word: HeadWord,
        then: Then,
    },
    Announce {
        head_word: HeadWord,
        target: Node,
        left: Option<(Node, Then)>,
    },
    Validate {
        head_word: HeadWord,
        target: Node,
        left: Option<(Node, Then)>,
    },
    Commit {
        head_word: HeadWord,
        target: Option<Node>,
        left: Option<(Node, Then)>,
    },
    Rehash(Rehash),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Of the ring, and of its halves.
    heads: [Head; 3],
    items: Vec<Item>,
    steps: Vec<Step>,
    /// What each thread looks for.
    targets: Vec<Key>,
    /// Threads that may have come through the head of the whole ring.
    old_readers: Vec<usize>,
    /// The item that each thread occupied.
    owned: Vec<Option<Node>>,
    history: LinearizabilityTester<usize, Map>,
}

impl State {
    /// The head that leads to `key` now.
    fn head_word(&self, key: Key) -> HeadWord {
        let word = match self.heads[0] {
            Head::MOVED => 1 + half_of(key),
            _ => 0,
        };
        HeadWord { word, head: self.heads[word] }
    }
}

fn half_of(key: Key) -> usize {
    usize::from(key >= BOUNDARIES[1])
}

/// A rule to break.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Nothing,
    /// An insert does not look whether the item before is occupied.
    Insert,
    /// A head moves without a look at its target.
    Movement,
    /// The halves are parted without a grace period.
    Grace,
}

struct Ring {
    present: &'static [Key],
    operations: Vec<Operation>,
    broken: Broken,
}

impl Ring {
    fn key(&self, thread: usize) -> Key {
        match self.operations[thread] {
            Operation::Get(key)
            | Operation::Set(key)
            | Operation::Delete(key)
            | Operation::Move(key) => key,
            Operation::Rehash => BOUNDARIES[0],
        }
    }

    fn is_rehash(&self, thread: usize) -> bool {
        self.operations[thread] == Operation::Rehash
    }

    /// The item that a thread may publish.
    fn own(&self, state: &State, thread: usize) -> Node {
        match self.is_rehash(thread) {
            true => self.pair() + half_of(state.targets[thread]),
            false => self.present.len() + thread,
        }
    }

    /// The first of the rehash items; the other follows it.
    fn pair(&self) -> Node {
        self.present.len() + self.operations.len()
    }

    /// Where somebody who looks for `key` goes on from `node`: from the rehash item of its half.
    fn redirected(&self, state: &State, key: Key, node: Node) -> Node {
        if state.items[node].rehash == Some(true) { self.pair() + half_of(key) } else { node }
    }

    fn finish(&self, state: &mut State, thread: usize, answer: Answer) -> Step {
        if self.is_rehash(thread) {
            return match answer {
                Answer::Stored if half_of(state.targets[thread]) == 0 => {
                    state.targets[thread] = BOUNDARIES[1];
                    Step::LoadHead { unlinks: true }
                }
                Answer::Stored => Step::Rehash(Rehash::Pair(0)),
                _ => Step::Rehash(Rehash::Wait),
            };
        }
        state.history.on_return(thread, answer).expect("it was invoked");
        Step::Done
    }

    /// The one who occupied an item retires it once it has left the ring.
    fn retire(&self, state: &mut State, thread: usize) -> Step {
        let node = state.owned[thread].take().expect("it was occupied");
        if node == self.pair() {
            return Step::Rehash(Rehash::Occupy(1));
        }
        state.items[node].retired = true;
        if self.is_rehash(thread) {
            // Both lie in one piece of memory.
            state.items[self.pair()].retired = true;
            return Step::Done;
        }
        let answer = match self.operations[thread] {
            Operation::Delete(_) => Answer::Deleted(true),
            _ => Answer::Stored,
        };
        self.finish(state, thread, answer)
    }

    /// The key is present at `node`, whose link leads to `next`.
    fn present(&self, state: &mut State, thread: usize, node: Node, next: Node) -> Step {
        match self.operations[thread] {
            Operation::Get(_) => {
                let value = state.items[node].value;
                self.finish(state, thread, Answer::Found(Some(value)))
            }
            Operation::Set(_) => Step::Replace { node, next },
            Operation::Delete(_) => Step::Occupy { node, next },
            Operation::Move(_) => Step::Look { target: node },
            Operation::Rehash => unreachable!("a boundary is inserted once"),
        }
    }

    /// The key is absent; `walk` came to its place, or the ring is empty.
    fn absent(&self, state: &mut State, thread: usize, walk: Option<Walk>) -> Step {
        match self.operations[thread] {
            Operation::Get(_) => self.finish(state, thread, Answer::Found(None)),
            Operation::Delete(_) => self.finish(state, thread, Answer::Deleted(false)),
            Operation::Move(_) => self.finish(state, thread, Answer::Moved),
            Operation::Set(_) | Operation::Rehash => {
                match walk.map(|walk| (walk.before, walk.at)) {
                    None => Step::InsertFirst,
                    Some((Some((before, next)), at)) if next == at => Step::Insert { before, next },
                    // Something occupied stands between: unlinked first.
                    Some(_) => Step::LoadHead { unlinks: true },
                }
            }
        }
    }

    fn load_head(&self, state: &mut State, thread: usize, unlinks: bool) -> Step {
        match state.head_word(state.targets[thread]).head.hot {
            None if state.owned[thread].is_some() => self.retire(state, thread),
            None => self.absent(state, thread, None),
            Some(at) => Step::Walk(Walk { before: None, reached: 0, at, run: 0, unlinks }),
        }
    }

    fn walk(&self, state: &mut State, thread: usize, mut walk: Walk) -> Step {
        if state.items[walk.at].occupied && walk.unlinks {
            return Step::Leave { node: walk.at, then: Then::Bypass(walk) };
        }
        let target = state.targets[thread];
        let here = self.redirected(state, target, walk.at);
        let item = state.items[here];
        if item.occupied {
            walk.run += 1;
            walk.at = item.next;
            return match walk.run > state.items.len() {
                true => self.absent(state, thread, Some(walk)),
                false => Step::Walk(walk),
            };
        }
        walk.run = 0;
        let distance = (item.key + KEYS - target) % KEYS;
        let is_passed = walk.before.is_some() && distance <= walk.reached;
        let is_adjacent = walk.before.is_some_and(|(_, next)| next == walk.at);
        if state.owned[thread].is_some() && (is_passed || distance == 0) && is_adjacent {
            return self.retire(state, thread);
        }
        if walk.unlinks && (is_passed || distance == 0) && !is_adjacent && walk.before.is_some() {
            return Step::LoadHead { unlinks: true };
        }
        if distance == 0 && state.owned[thread].is_none() {
            return self.present(state, thread, here, item.next);
        }
        if is_passed {
            return self.absent(state, thread, Some(walk));
        }
        let before = Some((here, item.next));
        Step::Walk(Walk { before, reached: distance, at: item.next, ..walk })
    }

    /// Unlinks the occupied item that the walk is at, which no head leads to.
    fn bypass(&self, state: &mut State, mut walk: Walk) -> Step {
        let restart = Step::LoadHead { unlinks: true };
        let Some((before, next)) = walk.before else { return restart };
        let link = state.items[before];
        if link.occupied || link.next != next || next != walk.at {
            return restart;
        }
        walk.at = state.items[walk.at].next;
        state.items[before].next = walk.at;
        walk.before = Some((before, walk.at));
        Step::Walk(walk)
    }

    fn left(then: Then) -> Step {
        match then {
            Then::Expel => Step::LoadHead { unlinks: true },
            Then::Bypass(walk) => Step::Bypass(walk),
            Then::Cut(cut) => Step::Rehash(Rehash::CutLink(cut)),
        }
    }

    fn leave(&self, state: &State, node: Node, then: Then) -> Step {
        let head_word = state.head_word(state.items[node].key);
        match (head_word.head.hot == Some(node), head_word.head.moving) {
            (true, _) => {
                Step::Succeed { node, head_word, at: state.items[node].next, run: 0, then }
            }
            (false, Some(_)) => Step::Cancel { node, head_word, then },
            (false, None) => Self::left(then),
        }
    }

    /// Looks for the first unoccupied item behind the one that a head leads to, to lead it there.
    fn succeed(&self, state: &State, step: Step) -> Step {
        let Step::Succeed { node, head_word, at, run, then } = step else { return step };
        let target = self.redirected(state, state.items[node].key, at);
        let item = state.items[target];
        match item.occupied {
            true if run > state.items.len() => Step::Empty { node, head_word, then },
            true => Step::Succeed { node, head_word, at: item.next, run: run + 1, then },
            false => Step::Announce { head_word, target, left: Some((node, then)) },
        }
    }

    /// After a movement, done or not.
    fn moved(&self, state: &mut State, thread: usize, left: Option<(Node, Then)>) -> Step {
        match left {
            Some((node, then)) => Step::Leave { node, then },
            None => {
                let is_set = matches!(self.operations[thread], Operation::Set(_));
                self.finish(state, thread, if is_set { Answer::Stored } else { Answer::Moved })
            }
        }
    }

    fn exchange_head(state: &mut State, old: HeadWord, new: Head) -> bool {
        let head = &mut state.heads[old.word];
        let is_done = *head == old.head;
        if is_done {
            *head = new;
        }
        is_done
    }

    /// Exchanges an unoccupied link. With a rule broken, an occupied one as well.
    fn exchange_link(&self, state: &mut State, node: Node, next: Node, new: (Node, bool)) -> bool {
        let item = &mut state.items[node];
        let is_done = item.next == next && (!item.occupied || self.broken == Broken::Insert);
        if is_done {
            (item.next, item.occupied) = (new.0, new.1 || item.occupied);
        }
        is_done
    }

    fn step(&self, state: &mut State, thread: usize, step: Step) -> Step {
        let own = self.own(state, thread);
        let restart = Step::LoadHead { unlinks: false };
        match step {
            Step::Invoke if self.is_rehash(thread) => Step::Rehash(Rehash::Begin),
            Step::Rehash(rehash) => self.rehash(state, thread, rehash),
            Step::Invoke => {
                let value = state.items[own].value;
                let operation = (self.operations[thread], value);
                state.history.on_invoke(thread, operation).expect("once");
                restart
            }
            Step::LoadHead { unlinks } => self.load_head(state, thread, unlinks),
            Step::Walk(walk) => self.walk(state, thread, walk),
            Step::Bypass(walk) => self.bypass(state, walk),
            Step::Occupy { node, next } | Step::Replace { node, next } => {
                let mut link = next;
                if matches!(step, Step::Replace { .. }) {
                    state.items[own].next = next;
                    link = own;
                }
                if state.items[node].occupied
                    || !self.exchange_link(state, node, next, (link, true))
                {
                    return restart;
                }
                state.owned[thread] = Some(node);
                Step::Leave { node, then: Then::Expel }
            }
            Step::InsertFirst => {
                state.items[own].next = own;
                let word = state.head_word(state.targets[thread]).word;
                let empty = HeadWord { word, head: Head::EMPTY };
                match Self::exchange_head(state, empty, Head::to(own)) {
                    true => self.finish(state, thread, Answer::Stored),
                    false => restart,
                }
            }
            Step::Insert { before, next } => {
                state.items[own].next = next;
                match self.exchange_link(state, before, next, (own, false)) {
                    true if self.is_rehash(thread) => self.finish(state, thread, Answer::Stored),
                    // What is new is read soon.
                    true => Step::Look { target: own },
                    false => restart,
                }
            }
            Step::Leave { node, then } => self.leave(state, node, then),
            Step::Cancel { node, head_word, then } => {
                Self::exchange_head(state, head_word, Head { moving: None, ..head_word.head });
                Step::Leave { node, then }
            }
            Step::Succeed { .. } => self.succeed(state, step),
            Step::Look { target } => match state.head_word(state.items[target].key) {
                head_word @ HeadWord { head: Head { hot: Some(_), moving: None }, .. } => {
                    Step::Announce { head_word, target, left: None }
                }
                _ => self.moved(state, thread, None),
            },
            Step::Empty { node, head_word, then } => {
                Self::exchange_head(state, head_word, Head::EMPTY);
                Step::Leave { node, then }
            }
            Step::Announce { head_word, target, left } => {
                let announced = Head { moving: Some(thread), ..head_word.head };
                match Self::exchange_head(state, head_word, announced) {
                    true => Step::Validate { head_word, target, left },
                    false => self.moved(state, thread, left),
                }
            }
            Step::Validate { head_word, target, left } => {
                let may = !state.items[target].occupied || self.broken == Broken::Movement;
                Step::Commit { head_word, target: may.then_some(target), left }
            }
            Step::Commit { head_word, target, left } => {
                let announced = Head { moving: Some(thread), ..head_word.head };
                let hot = target.or(head_word.head.hot);
                let head_word = HeadWord { head: announced, ..head_word };
                Self::exchange_head(state, head_word, Head { hot, moving: None });
                self.moved(state, thread, left)
            }
            Step::Done => Step::Done,
        }
    }
}

impl Model for Ring {
    type State = State;
    type Action = usize;

    fn init_states(&self) -> Vec<State> {
        let count = self.present.len();
        let threads = self.operations.len();
        let key = |node: Node| match node.checked_sub(count) {
            None => self.present[node],
            Some(thread) if thread < threads => self.key(thread),
            Some(place) => BOUNDARIES[place - threads],
        };
        let items = (0..count + threads + BOUNDARIES.len()).map(|node| Item {
            next: if node < count { (node + 1) % count } else { node },
            occupied: false,
            retired: false,
            key: key(node),
            value: node as Value,
            rehash: (node >= count + threads).then_some(false),
        });
        let map = Map(self.present.iter().copied().zip(0..).collect());
        (0..count)
            .map(|hot| State {
                heads: [Head::to(hot), Head::EMPTY, Head::EMPTY],
                items: items.clone().collect(),
                steps: vec![Step::Invoke; threads],
                targets: (0..threads).map(|thread| self.key(thread)).collect(),
                old_readers: Vec::new(),
                owned: vec![None; threads],
                history: LinearizabilityTester::new(map.clone()),
            })
            .collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<usize>) {
        actions.extend((0..state.steps.len()).filter(|at| state.steps[*at] != Step::Done));
    }

    fn next_state(&self, last: &State, thread: usize) -> Option<State> {
        let mut state = last.clone();
        state.steps[thread] = self.step(&mut state, thread, last.steps[thread]);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("linearizable", |_, state: &State| {
                // Before the first answer nothing can be wrong with it.
                state.steps.iter().all(|step| *step != Step::Done) || state.history.is_consistent()
            }),
            Property::always("the ring that is left is the map", |_, state: &State| {
                state.steps.iter().any(|step| *step != Step::Done) || is_map(state)
            }),
            Property::always("nothing retired is in reach", |_, state: &State| {
                let mut nodes = BOUNDARIES.iter().flat_map(|key| reachable(state, *key));
                nodes.all(|node| !state.items[node].retired)
            }),
            Property::sometimes("all threads end", |_, state: &State| {
                state.steps.iter().all(|step| *step == Step::Done)
            }),
        ]
    }
}

/// The items from the head of `key` on, once around.
fn reachable(state: &State, key: Key) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut next = state.head_word(key).head.hot;
    while let Some(node) = next.filter(|node| !nodes.contains(node)) {
        nodes.push(node);
        next = Some(state.items[node].next);
    }
    nodes
}

/// Whether reading every key now fits what came before.
fn is_map(state: &State) -> bool {
    let mut history = state.history.clone();
    let is_asked = |key: &Key| state.items.iter().any(|item| item.key == *key);
    (0..KEYS).filter(|key| !BOUNDARIES.contains(key) && is_asked(key)).all(|key| {
        let live = |node: &&Node| state.items[**node].key == key && !state.items[**node].occupied;
        let nodes = reachable(state, key);
        let value = nodes.iter().find(live).map(|node| state.items[*node].value);
        let reader = state.steps.len();
        history.on_invoke(reader, (Operation::Get(key), 0)).is_ok()
            && history.on_return(reader, Answer::Found(value)).is_ok()
            && history.is_consistent()
    })
}

/// Checks all combinations of three operations out of some on keys that are there and not.
fn check(present: &'static [Key], choices: &[Operation], broken: Broken) -> bool {
    let count = choices.len();
    let mut is_sound = true;
    for (a, b, c) in
        (0..count).flat_map(|a| (a..count).flat_map(move |b| (b..count).map(move |c| (a, b, c))))
    {
        is_sound &= check_one(present, vec![choices[a], choices[b], choices[c]], broken);
    }
    is_sound
}

/// Checks one set of operations, one a thread.
fn check_one(present: &'static [Key], operations: Vec<Operation>, broken: Broken) -> bool {
    let checker = Ring { present, operations, broken }.checker().spawn_dfs().join();
    assert!(checker.is_done());
    if broken == Broken::Nothing {
        checker.assert_properties();
    }
    checker.discoveries().len() == 1
}

#[test]
fn writes_and_movements_on_a_ring_are_linearizable() {
    use Operation::{Delete, Move, Set};
    let choices = [Set(4), Delete(4), Set(5), Move(4)];
    assert!(check(&[2, 4, 6], &choices, Broken::Nothing));
}

#[test]
fn reads_beside_writes_on_a_ring_are_linearizable() {
    use Operation::{Delete, Get, Set};
    assert!(check(&[2, 4, 6], &[Get(4), Set(4), Delete(4)], Broken::Nothing));
}

#[test]
fn neighbours_are_deleted_side_by_side() {
    use Operation::{Delete, Set};
    for last in [Set(5), Delete(2)] {
        assert!(check_one(&[2, 4, 6], vec![Delete(4), Delete(2), last], Broken::Nothing));
    }
}

#[test]
fn rings_of_one_become_empty_and_come_again() {
    use Operation::{Delete, Get, Set};
    assert!(check(&[4], &[Get(4), Set(4), Delete(4), Set(5)], Broken::Nothing));
}

#[test]
fn an_insert_that_ignores_occupied_is_found_out() {
    use Operation::{Delete, Set};
    assert!(!check(&[2, 4, 6], &[Delete(4), Set(5)], Broken::Insert));
}

#[test]
fn a_movement_that_ignores_occupied_is_found_out() {
    use Operation::{Delete, Move};
    assert!(!check(&[2, 4, 6], &[Delete(4), Move(4)], Broken::Movement));
}
