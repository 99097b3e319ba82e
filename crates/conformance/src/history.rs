//! Linearizability: threads record what they asked, what they were told, and when; a search then
//! looks for one order of the operations that explains every answer (Wing and Gong, with the
//! states that were tried remembered). Keys are independent, so each key's history is checked by
//! itself.

use std::collections::HashSet;
use std::sync::Barrier;
use std::time::Instant;

use amalgam_index::{Engine, Worker};
use amalgam_op::{Compare, Outcome, Store, StoreMode, Verb};

use crate::harness::{Random, Session, configuration, effort, number, open, with_maintenance};
use crate::recording::{self, End, Operation, Reply, Request};

/// A call of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A batched read.
    Get,
    /// A read of value and CAS id.
    Gets,
    /// A store under a mode.
    Store(StoreMode, Vec<u8>),
    /// A store if the id still fits.
    Cas(Vec<u8>, u64),
    /// An `incr` by this amount.
    Increment(u64),
    /// A `delete` of the key.
    Delete,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The value and, from gets, its id.
    Found(Vec<u8>, Option<u64>),
    /// Any other read or write without a number.
    Plain(Outcome),
    /// The new number.
    Number(u64),
}

/// One operation, from before its call to after its return.
#[derive(Clone, Debug)]
pub struct Event {
    /// Nanoseconds since the start, before the call.
    pub called: u64,
    /// Nanoseconds since the start, after the return.
    pub returned: u64,
    /// The call that was made.
    pub call: Call,
    /// The answer to the call.
    pub answer: Answer,
}

/// The item of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct State {
    value: Option<Vec<u8>>,
    /// The id that some gets was shown for this version.
    id: Option<u64>,
}

impl State {
    fn of(value: Vec<u8>) -> Self {
        Self { value: Some(value), id: None }
    }

    /// The state after `call`, if `answer` is right for it here.
    fn after(&self, call: &Call, answer: &Answer) -> Option<Self> {
        use Outcome::{Deleted, Exists, NotANumber, NotFound, NotStored, Stored};
        let value = self.value.as_ref();
        match (call, answer) {
            (Call::Get, Answer::Found(found, _)) => (value == Some(found)).then(|| self.clone()),
            (Call::Gets, Answer::Found(found, id)) => {
                let fits = value == Some(found) && (self.id.is_none() || self.id == *id);
                fits.then(|| Self { id: *id, ..self.clone() })
            }
            (Call::Store(mode, new), Answer::Plain(Stored(_))) => match (mode, value) {
                (StoreMode::Set, _) | (StoreMode::Add, None) | (StoreMode::Replace, Some(_)) => {
                    Some(Self::of(new.clone()))
                }
                (StoreMode::Append, Some(old)) => Some(Self::of([&old[..], new].concat())),
                (StoreMode::Prepend, Some(old)) => Some(Self::of([&new[..], old].concat())),
                _ => None,
            },
            (Call::Store(mode, _), Answer::Plain(NotStored)) => match (mode, value) {
                (StoreMode::Set, _) => None,
                (StoreMode::Add, value) => value.is_some().then(|| self.clone()),
                (_, value) => value.is_none().then(|| self.clone()),
            },
            (Call::Cas(new, id), Answer::Plain(Stored(_))) => {
                (self.id == Some(*id)).then(|| Self::of(new.clone()))
            }
            (Call::Cas(_, id), Answer::Plain(Exists)) => {
                (value.is_some() && self.id != Some(*id)).then(|| self.clone())
            }
            (Call::Increment(delta), Answer::Number(sum)) => {
                let before = parse(value?)?;
                (before.wrapping_add(*delta) == *sum).then(|| Self::of(sum.to_string().into()))
            }
            (Call::Increment(_), Answer::Plain(NotANumber)) => {
                parse(value?).is_none().then(|| self.clone())
            }
            (Call::Delete, Answer::Plain(Deleted)) => value.map(|_| Self::default()),
            (
                Call::Get | Call::Gets | Call::Delete | Call::Increment(_) | Call::Cas(..),
                Answer::Plain(NotFound),
            ) => value.is_none().then(|| self.clone()),
            _ => None,
        }
    }
}

fn parse(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Looks for an order that explains `threads`, each a list of events one after the other.
///
/// # Errors
///
/// Describes the furthest point that any order reached.
pub fn explain(threads: &[Vec<Event>]) -> Result<(), String> {
    let mut tried = HashSet::new();
    let mut stack = vec![(vec![0; threads.len()], State::default())];
    let mut furthest = (0, None);
    while let Some((places, state)) = stack.pop() {
        if !tried.insert((places.clone(), state.clone())) {
            continue;
        }
        let done: usize = places.iter().sum();
        if furthest.1.is_none() || done > furthest.0 {
            furthest = (done, Some((places.clone(), state.clone())));
        }
        // An event that was called after another had returned cannot come before it.
        let pending = threads.iter().zip(&places).filter_map(|(events, place)| events.get(*place));
        let Some(first_return) = pending.map(|event| event.returned).min() else { return Ok(()) };
        for (thread, place) in places.iter().enumerate() {
            let Some(event) = threads[thread].get(*place) else { continue };
            if event.called > first_return {
                continue;
            }
            if let Some(next) = state.after(&event.call, &event.answer) {
                let mut places = places.clone();
                places[thread] += 1;
                stack.push((places, next));
            }
        }
    }
    let (done, place) = furthest;
    let (places, state) = place.expect("the start was tried");
    let next: Vec<_> =
        threads.iter().zip(&places).map(|(events, place)| events.get(*place)).collect();
    Err(format!("no order goes beyond {done} events: in {state:?} none of {next:#?} fits"))
}

const THREADS: usize = 3;
const KEYS: usize = 2;
/// Events of one thread on all keys, in one history.
const EVENTS: usize = 150;
/// Requests for other keys, before the recording begins and again during it: enough for an engine
/// that grows its table by the cost of accesses to have decided.
const CROWD: usize = 4096;

fn act<I: Engine>(
    session: &mut Session<'_, I>,
    random: &mut Random,
    key: &[u8],
    id: &mut u64,
    tag: u64,
) -> (Call, Answer) {
    // Some values fit an in-place word, some do not; all but the numbers are unique.
    let value = match random.below(3) {
        0 => format!("{tag}").into_bytes(),
        1 => format!("v{}", tag % 100_000).into_bytes(),
        _ => format!("a longer value, number {tag}").into_bytes(),
    };
    let found = |item: Option<(Vec<u8>, Option<u64>)>| match item {
        Some((value, id)) => Answer::Found(value, id),
        None => Answer::Plain(Outcome::NotFound),
    };
    match random.below(10) {
        0..=1 => (Call::Get, found(session.value(key).map(|value| (value, None)))),
        2 => {
            let item = session.gets(key);
            *id = item.as_ref().map_or(*id, |(_, id)| *id);
            (Call::Gets, found(item.map(|(value, id)| (value, Some(id)))))
        }
        3 => {
            let compare = Some(Compare { cas: *id, accepts_older_as_stale: false });
            let store = Store { compare, ..Store::new(StoreMode::Set, &value, 0, 0) };
            let (outcome, _) = session.apply(key, Verb::Store(store));
            (Call::Cas(value.clone(), *id), Answer::Plain(outcome))
        }
        4 => (Call::Delete, Answer::Plain(session.delete(key))),
        5 => {
            let outcome = session.add(key, 7);
            let answer = number(outcome).map_or(Answer::Plain(outcome), Answer::Number);
            (Call::Increment(7), answer)
        }
        choice => {
            let mode = [StoreMode::Set, StoreMode::Add, StoreMode::Replace, StoreMode::Append];
            let mode = mode[choice - 6];
            let outcome = session.store(mode, key, &value);
            (Call::Store(mode, value), Answer::Plain(outcome))
        }
    }
}

/// What one thread did, by key.
type Recording = [Vec<Event>; KEYS];

fn record<I: Engine>(index: &I, seed: u64, start: Instant, barrier: &Barrier) -> Recording {
    let mut session = Session::new(index);
    let mut random = Random(seed);
    let mut events: Recording = Default::default();
    let mut ids = [0; KEYS];
    let nanoseconds = || start.elapsed().as_nanos() as u64;
    barrier.wait();
    for turn in 0..EVENTS {
        let key = random.below(KEYS);
        let name = format!("key {key}");
        let tag = seed.wrapping_mul(1000) % 1_000_000_000 + turn as u64;
        let called = nanoseconds();
        let (call, answer) = act(&mut session, &mut random, name.as_bytes(), &mut ids[key], tag);
        events[key].push(Event { called, returned: nanoseconds(), call, answer });
        session.worker.quiesce();
    }
    events
}

/// Asks for many keys around the recorded ones, new ones among them, so that the table grows.
fn crowd<I: Engine>(session: &mut Session<'_, I>, turns: std::ops::Range<usize>) {
    const OLD_AND_NEW: usize = 9;
    for turn in turns {
        let name = |number: usize| format!("one of many, {number}").into_bytes();
        if turn % OLD_AND_NEW == 0 {
            session.set(&name(turn / OLD_AND_NEW), b"stays");
        } else {
            let number = turn * 31 % (turn / OLD_AND_NEW + 1);
            assert!(session.value(&name(number)).is_some(), "key {number} of the crowd");
        }
        session.worker.quiesce();
    }
}

fn request(call: &Call) -> Request {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    match call {
        Call::Get => Request::Get,
        Call::Gets => Request::Gets,
        Call::Store(StoreMode::Set, value) => Request::Set { value: text(value) },
        Call::Store(StoreMode::Add, value) => Request::Add { value: text(value) },
        Call::Store(StoreMode::Replace, value) => Request::Replace { value: text(value) },
        Call::Store(StoreMode::Append, value) => Request::Append { value: text(value) },
        Call::Store(StoreMode::Prepend, value) => Request::Prepend { value: text(value) },
        Call::Cas(value, cas) => Request::Cas { value: text(value), cas: *cas },
        Call::Increment(delta) => Request::Incr { delta: *delta, initial: None },
        Call::Delete => Request::Delete,
    }
}

fn reply(answer: &Answer) -> Reply {
    match answer {
        Answer::Found(value, id) => {
            Reply::Hit { found: String::from_utf8_lossy(value).into_owned(), found_cas: *id }
        }
        Answer::Number(number) => Reply::Number { number: *number },
        Answer::Plain(Outcome::Stored(_)) => Reply::Stored,
        Answer::Plain(Outcome::NotStored) => Reply::NotStored,
        Answer::Plain(Outcome::Exists) => Reply::Exists,
        Answer::Plain(Outcome::NotFound) => Reply::NotFound,
        Answer::Plain(Outcome::Deleted) => Reply::Deleted,
        Answer::Plain(Outcome::NotANumber) => Reply::NotANumber,
        Answer::Plain(outcome) => panic!("no call is answered with {outcome:?}"),
    }
}

/// The events of one key, in the form for checkers outside this project.
fn operations(threads: &[Vec<Event>], key: &str) -> Vec<Operation> {
    let operation = |thread: usize, event: &Event| Operation {
        returned: Some(event.returned),
        end: End::Known(reply(&event.answer)),
        ..Operation::begun(&thread.to_string(), key, request(&event.call), event.called)
    };
    let of = |(thread, events): (usize, &Vec<Event>)| -> Vec<Operation> {
        events.iter().map(|event| operation(thread, event)).collect()
    };
    threads.iter().enumerate().flat_map(of).collect()
}

/// Records histories of a few threads on a few keys, and explains each. Every other time the table
/// grows meanwhile.
pub fn linearizable<I: Engine>() {
    let mut history = recording::History {
        source: format!("races of threads on {}", I::NAME),
        nanoseconds_per_unit: 1,
        violations: Some(Vec::new()),
        ..recording::History::default()
    };
    // Variants of an engine may share its name, but not the name of their type.
    let name = std::any::type_name::<I>().replace(|sign: char| !sign.is_alphanumeric(), "-");
    let name = format!("engine-{name}");
    let write = |history: &recording::History| {
        history.write(&name).expect("the folder can be written");
    };
    for round in 0..60 * effort() as u64 {
        let index: I = open(&configuration());
        let now = Session::new(&index).now;
        let is_crowded = round % 2 == 1;
        let (start, barrier) = (Instant::now(), Barrier::new(THREADS));
        let recordings: Vec<Recording> = with_maintenance(&index, now, || {
            let mut others = is_crowded.then(|| Session::new(&index));
            if let Some(session) = &mut others {
                crowd(session, 0..CROWD);
            }
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS as u64)
                    .map(|thread| {
                        let (index, barrier) = (&index, &barrier);
                        let seed = round * 100 + thread;
                        scope.spawn(move || record(index, seed, start, barrier))
                    })
                    .collect();
                if let Some(session) = &mut others {
                    crowd(session, CROWD..2 * CROWD);
                }
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            })
        });
        for key in 0..KEYS {
            let threads: Vec<_> =
                recordings.iter().map(|recording| recording[key].clone()).collect();
            history.operations.extend(operations(&threads, &format!("round {round}, key {key}")));
            if let Err(reason) = explain(&threads) {
                history.violations = Some(vec![reason.clone()]);
                write(&history);
                panic!("{} is not linearizable in round {round}, key {key}: {reason}", I::NAME);
            }
        }
    }
    write(&history);
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_op::Written;

    fn event(called: u64, returned: u64, call: Call, answer: Answer) -> Event {
        Event { called, returned, call, answer }
    }

    fn set(called: u64, returned: u64, value: &str) -> Event {
        let stored = Answer::Plain(Outcome::Stored(Written::default()));
        event(called, returned, Call::Store(StoreMode::Set, value.into()), stored)
    }

    fn found(called: u64, returned: u64, value: &str) -> Event {
        event(called, returned, Call::Get, Answer::Found(value.into(), None))
    }

    fn missed(called: u64, returned: u64) -> Event {
        event(called, returned, Call::Get, Answer::Plain(Outcome::NotFound))
    }

    #[test]
    fn overlapping_events_may_come_in_either_order() {
        let writer = vec![set(0, 10, "1"), set(20, 30, "2")];
        assert!(explain(&[writer.clone(), vec![missed(5, 6), found(7, 8, "1")]]).is_ok());
        assert!(explain(&[writer.clone(), vec![found(5, 6, "1"), found(25, 26, "2")]]).is_ok());
        assert!(explain(&[writer, vec![found(25, 26, "1"), found(27, 28, "1")]]).is_ok());
    }

    #[test]
    fn a_missed_present_key_is_found_out() {
        assert!(explain(&[vec![set(0, 10, "1")], vec![missed(11, 12)]]).is_err());
        assert!(explain(&[vec![set(0, 10, "1")], vec![found(3, 4, "1"), missed(5, 6)]]).is_err());
    }

    #[test]
    fn a_read_that_goes_back_in_time_is_found_out() {
        let writer = vec![set(0, 10, "1"), set(20, 30, "2")];
        let reader = vec![found(22, 23, "2"), found(24, 25, "1")];
        assert!(explain(&[writer.clone(), reader]).is_err());
        let (one, other) = (vec![found(22, 23, "2")], vec![found(24, 25, "1")]);
        assert!(explain(&[writer, one, other]).is_err());
    }

    #[test]
    fn a_lost_update_is_found_out() {
        let append = |called, returned, value: &str| {
            let stored = Answer::Plain(Outcome::Stored(Written::default()));
            event(called, returned, Call::Store(StoreMode::Append, value.into()), stored)
        };
        let one = vec![set(0, 1, "-"), append(10, 20, "a")];
        let lost = [one.clone(), vec![append(10, 20, "b")], vec![found(30, 31, "-b")]];
        assert!(explain(&lost).is_err());
        let kept = [one, vec![append(10, 20, "b")], vec![found(30, 31, "-ba")]];
        assert!(explain(&kept).is_ok());
    }

    #[test]
    fn two_winners_of_one_id_are_found_out() {
        let gets = event(2, 3, Call::Gets, Answer::Found("1".into(), Some(9)));
        let cas = |value: &str| {
            let stored = Answer::Plain(Outcome::Stored(Written::default()));
            event(10, 20, Call::Cas(value.into(), 9), stored)
        };
        let first = vec![set(0, 1, "1"), gets, cas("2")];
        assert!(explain(std::slice::from_ref(&first)).is_ok());
        assert!(explain(&[first, vec![cas("3")]]).is_err());
    }
}
