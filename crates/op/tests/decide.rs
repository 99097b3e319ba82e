//! `decide` against a second, plain statement of memcached's rules, written for this test alone.
//!
//! The reference works on owned values and follows the words of memcached's manual. It shares only
//! the data types with the code under test.

use amalgam_op::{
    Arithmetic, Compare, Decision, Delete, Expiry, Get, HashSeed, ItemView, Key, Now, Op, Outcome,
    PlainSet, Store, StoreMode, Value, Verb, decide,
};
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    value: Vec<u8>,
    flags: u32,
    /// Second at which the item expires; 0 means never.
    ends: u64,
    cas: Option<u64>,
    generation: u8,
}

/// The answer that a client sees according to the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Item(Vec<u8>),
    Stored,
    NotStored,
    NotFound,
    Exists,
    Deleted,
    Number(u64),
    NotANumber,
}

const MONTH: i64 = 30 * 24 * 3600;

/// memcached's `realtime`, except that what is over ended a second ago.
fn ends(expiry: i64, now: &Now) -> u64 {
    match realtime(expiry, now) {
        0 => 0,
        at => at.max(u64::from(now.seconds) - 1).max(1),
    }
}

fn realtime(expiry: i64, now: &Now) -> u64 {
    let now_seconds = u64::from(now.seconds);
    if expiry == 0 {
        0
    } else if expiry < 0 {
        1
    } else if expiry <= MONTH {
        now_seconds + expiry as u64
    } else if expiry <= now.epoch_unix_seconds {
        1
    } else {
        ((expiry - now.epoch_unix_seconds) as u64).min(u64::from(u32::MAX))
    }
}

/// `strtoull`, with memcached's conditions on the end of the number.
fn number(value: &[u8]) -> Option<u64> {
    let text: String = value.iter().map(|byte| char::from(*byte)).collect();
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (sign, rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (&text[..1], rest),
        None => ("", text),
    };
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, behind) = rest.split_at(end);
    let ends_well =
        behind.is_empty() || behind.starts_with([' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '\0']);
    let magnitude = digits.trim_start_matches('0');
    if digits.is_empty() || !ends_well || magnitude.len() > 20 {
        return None;
    }
    let magnitude: u128 = if magnitude.is_empty() { 0 } else { magnitude.parse().ok()? };
    let magnitude = u64::try_from(magnitude).ok()?;
    match sign {
        // A minus is obeyed modulo 2^64, and refused where the result looks negative.
        "-" => Some(0_u64.wrapping_sub(magnitude)).filter(|number| *number <= i64::MAX as u64),
        _ => Some(magnitude),
    }
}

/// memcached's rules: returns the item afterwards and the answer that the client sees.
fn reference(item: Option<Item>, verb: &Verb<'_>, now: &Now) -> (Option<Item>, Seen) {
    let item = item.filter(|item| {
        let is_flushed = item.generation != now.generation;
        !is_flushed && (item.ends == 0 || item.ends > u64::from(now.seconds))
    });
    match verb {
        Verb::Get(get) => match item {
            None => (None, Seen::NotFound),
            Some(mut item) => {
                if let Some(expiry) = get.touch {
                    item.ends = ends(expiry, now);
                }
                let value = item.value.clone();
                (Some(item), Seen::Item(value))
            }
        },
        Verb::Delete(delete) => match (item, delete.compare) {
            (None, _) => (None, Seen::NotFound),
            (Some(item), Some(cas)) if item.cas != Some(cas) => (Some(item), Seen::Exists),
            _ => (None, Seen::Deleted),
        },
        Verb::Store(store) => reference_store(item, store, now),
        Verb::Arithmetic(arithmetic) => reference_count(item, arithmetic, now),
    }
}

fn reference_store(item: Option<Item>, store: &Store<'_>, now: &Now) -> (Option<Item>, Seen) {
    let new = Item {
        value: store.value.to_vec(),
        flags: store.flags,
        ends: ends(store.expiry, now),
        cas: None,
        generation: now.generation,
    };
    match (store.mode, item, store.compare) {
        (StoreMode::Set, None, Some(_)) => (None, Seen::NotFound),
        (StoreMode::Set, Some(item), Some(compare)) if item.cas != Some(compare.cas) => {
            (Some(item), Seen::Exists)
        }
        (StoreMode::Set, _, _) | (StoreMode::Add, None, _) => (Some(new), Seen::Stored),
        (StoreMode::Replace, Some(_), None) => (Some(new), Seen::Stored),
        (StoreMode::Append, Some(mut item), None) => {
            item.value.extend(new.value);
            (Some(Item { cas: None, generation: now.generation, ..item }), Seen::Stored)
        }
        (StoreMode::Prepend, Some(item), None) => {
            let value = [new.value, item.value].concat();
            (Some(Item { value, cas: None, generation: now.generation, ..item }), Seen::Stored)
        }
        (_, item, _) => (item, Seen::NotStored),
    }
}

fn reference_count(item: Option<Item>, arithmetic: &Arithmetic, now: &Now) -> (Option<Item>, Seen) {
    let Some(mut item) = item else {
        let Some(initial) = arithmetic.initial else { return (None, Seen::NotFound) };
        let new = Item {
            value: initial.to_string().into_bytes(),
            flags: 0,
            ends: ends(arithmetic.initial_expiry, now),
            cas: None,
            generation: now.generation,
        };
        return (Some(new), Seen::Number(initial));
    };
    let Some(before) = number(&item.value) else {
        return (Some(item), Seen::NotANumber);
    };
    let after = if arithmetic.is_decrement {
        before.saturating_sub(arithmetic.delta)
    } else {
        ((u128::from(before) + u128::from(arithmetic.delta)) % (1 << 64)) as u64
    };
    let length = item.value.len();
    item.value = format!("{after:<length$}").into_bytes();
    item.cas = None;
    (Some(item), Seen::Number(after))
}

fn view<'i>(key: &'i [u8], item: &'i Item) -> ItemView<'i> {
    ItemView {
        key,
        value: Value::Bytes(&item.value),
        flags: item.flags,
        expiry: Expiry(item.ends as u32),
        cas: item.cas,
        generation: item.generation,
        fetched: false,
        stale: false,
        won: false,
        last_access_seconds: None,
    }
}

/// Executes a decision, as an engine would.
fn execute(item: Option<Item>, op: &Op<'_>, now: &Now) -> (Option<Item>, Seen) {
    const FRESH: u64 = 1_000_000;
    let view = item.as_ref().map(|item| view(op.key.bytes(), item));
    let (after, outcome) = match decide(view.as_ref(), op, now, FRESH) {
        Decision::Keep(outcome) => (item, outcome),
        Decision::Remove(outcome) => (None, outcome),
        Decision::Replace(item_write, outcome) => {
            let current = item.as_ref().map_or(&[][..], |item| &item.value);
            let mut value = vec![0xcc; item_write.value_bytes(current.len())];
            item_write.write_value(current, &mut value);
            if let Outcome::Stored(written) = outcome {
                assert_eq!(written.value_bytes, value.len(), "the answer has the new length");
            }
            if let Some(view) = view
                && let Some(word) = item_write.sole_word_change(&view, now)
            {
                assert_eq!(&word[..value.len()], value, "the word is the value");
                assert_eq!(value.len(), current.len());
            }
            let ends = u64::from(item_write.expiry.0);
            let (flags, cas, generation) = (item_write.flags, item_write.cas, now.generation);
            (Some(Item { value, flags, ends, cas, generation }), outcome)
        }
    };
    let seen = match outcome {
        Outcome::Hit(_) => Seen::Item(after.as_ref().expect("a hit has an item").value.clone()),
        Outcome::NotFound => Seen::NotFound,
        Outcome::Stored(_) => Seen::Stored,
        Outcome::NotStored => Seen::NotStored,
        Outcome::Exists => Seen::Exists,
        Outcome::Deleted => Seen::Deleted,
        Outcome::Number(counted) => Seen::Number(counted.number),
        Outcome::NotANumber => Seen::NotANumber,
        other => panic!("{other:?} is no answer to these operations"),
    };
    (after, seen)
}

const UNIX: i64 = 1_700_000_000;

/// Expiry as clients send it, close to every edge.
fn expiry() -> impl Strategy<Value = i64> {
    let around = |center: i64| (-3..=3_i64).prop_map(move |offset| center + offset);
    prop_oneof![
        around(0),
        around(MONTH),
        around(UNIX),
        around(UNIX + 1000),
        Just(i64::MIN),
        Just(i64::MAX),
        any::<i64>(),
    ]
}

/// Values that are numbers, that are nearly numbers, and arbitrary ones.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let padded = ("[ \t]{0,3}", any::<u64>(), "[ \r\n\0x]{0,3}")
        .prop_map(|(before, number, behind)| format!("{before}{number}{behind}").into_bytes());
    prop_oneof![
        3 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        2 => (0..200_u64).prop_map(|number| number.to_string().into_bytes()),
        2 => "[-+ 0-9]{0,22}".prop_map(String::into_bytes),
        1 => "(1844674407370955161[0-9]|0{1,30}[0-9]{1,20}|-[0-9]{1,21})"
            .prop_map(String::into_bytes),
        2 => padded,
        1 => (0..3000_usize).prop_map(|length| format!("{:<length$}", 7).into_bytes()),
        2 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

fn item() -> impl Strategy<Value = Option<Item>> {
    let ends = prop_oneof![Just(0), 997..1004_u64, 1..5000_u64];
    let cas = prop::option::of(1..4_u64);
    let generation = prop_oneof![5 => Just(3_u8), 1 => Just(2_u8)];
    let item = (value(), any::<u32>(), ends, cas, generation).prop_map(
        |(value, flags, ends, cas, generation)| Item { value, flags, ends, cas, generation },
    );
    prop::option::weighted(0.85, item)
}

/// A verb without its borrowed value.
#[derive(Clone, Debug)]
enum Act {
    Get(Option<i64>),
    Store(StoreMode, Vec<u8>, u32, i64, Option<u64>),
    Arithmetic(Arithmetic),
    Delete(Option<u64>),
}

/// The modes of a store, mostly that of a set.
fn mode() -> impl Strategy<Value = StoreMode> {
    prop_oneof![
        8 => Just(StoreMode::Set),
        1 => Just(StoreMode::Add),
        1 => Just(StoreMode::Replace),
        1 => Just(StoreMode::Append),
        1 => Just(StoreMode::Prepend),
    ]
}

/// The id that a store compares, whether it asks for one, and the one that it gives: mostly none.
fn cas_uses() -> impl Strategy<Value = (Option<u64>, bool, Option<u64>)> {
    let id = || prop::option::weighted(0.2, 0..5_u64);
    prop_oneof![1 => Just((None, false, None)), 1 => (id(), any::<bool>(), id())]
}

fn act() -> impl Strategy<Value = Act> {
    let mode = prop_oneof![
        Just(StoreMode::Add),
        Just(StoreMode::Replace),
        Just(StoreMode::Append),
        Just(StoreMode::Prepend),
    ];
    let plain = (mode, value(), any::<u32>(), expiry())
        .prop_map(|(mode, value, flags, expiry)| Act::Store(mode, value, flags, expiry, None));
    let set = (value(), any::<u32>(), expiry(), prop::option::of(0..5_u64)).prop_map(
        |(value, flags, expiry, cas)| Act::Store(StoreMode::Set, value, flags, expiry, cas),
    );
    let delta = prop_oneof![0..1000_u64, any::<u64>(), Just(u64::MAX)];
    let arithmetic = (delta, any::<bool>(), prop::option::of(any::<u64>()), expiry()).prop_map(
        |(delta, is_decrement, initial, initial_expiry)| {
            let some = Arithmetic { delta, is_decrement, initial, ..Arithmetic::default() };
            Act::Arithmetic(Arithmetic { initial_expiry, ..some })
        },
    );
    prop_oneof![
        prop::option::of(expiry()).prop_map(Act::Get),
        plain,
        set,
        arithmetic,
        prop::option::of(1..4_u64).prop_map(Act::Delete),
    ]
}

impl Act {
    fn verb(&self) -> Verb<'_> {
        match self {
            Self::Get(touch) => Verb::Get(Get { touch: *touch, ..Get::default() }),
            Self::Store(mode, value, flags, expiry, cas) => {
                let compare = cas.map(|cas| Compare { cas, accepts_older_as_stale: false });
                Verb::Store(Store { compare, ..Store::new(*mode, value, *flags, *expiry) })
            }
            Self::Arithmetic(arithmetic) => Verb::Arithmetic(*arithmetic),
            Self::Delete(compare) => {
                Verb::Delete(Delete { compare: *compare, ..Delete::default() })
            }
        }
    }
}

fn now() -> Now {
    Now { seconds: 1000, epoch_unix_seconds: UNIX, generation: 3 }
}

/// Dead items may be removed or left; to a client there is no difference.
fn visible(item: Option<Item>, now: &Now) -> Option<Item> {
    item.filter(|item| now.is_live(Expiry(item.ends as u32), item.generation))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn one_operation_does_what_memcached_does(item in item(), act in act()) {
        let now = now();
        let key = Key::new(b"key", &HashSeed::new(1));
        let op = Op { key, verb: act.verb() };
        let ours = execute(item.clone(), &op, &now);
        let theirs = reference(item, &op.verb, &now);
        prop_assert_eq!(ours.1, theirs.1);
        prop_assert_eq!(visible(ours.0, &now), visible(theirs.0, &now));
    }

    #[test]
    fn numbers_survive_a_round_trip(start in any::<u64>(), deltas in
        proptest::collection::vec((any::<bool>(), any::<u64>()), 1..20)) {
        let now = now();
        let key = Key::new(b"key", &HashSeed::new(1));
        let mut item = Some(Item {
            value: start.to_string().into_bytes(), flags: 5, ends: 0, cas: None, generation: 3,
        });
        let mut number = start;
        for (is_decrement, delta) in deltas {
            number = match is_decrement {
                true => number.saturating_sub(delta),
                false => number.wrapping_add(delta),
            };
            let arithmetic = Arithmetic { delta, is_decrement, ..Arithmetic::default() };
            let longest = item.as_ref().map_or(0, |item| item.value.len());
            let op = Op { key, verb: Verb::Arithmetic(arithmetic) };
            let (after, seen) = execute(item, &op, &now);
            prop_assert_eq!(seen, Seen::Number(number));
            let value = &after.as_ref().expect("the number").value;
            prop_assert!(value.len() >= longest, "a number never gets shorter");
            let text = String::from_utf8(value.clone()).expect("digits");
            prop_assert_eq!(text.trim_end_matches(' '), number.to_string());
            item = after;
        }
    }

    #[test]
    fn expiry_is_memcacheds(sent in expiry(), seconds in prop_oneof![1..u32::MAX, 1..5_u32]) {
        let now = Now { seconds, ..now() };
        let expected = ends(sent, &now).min(u64::from(u32::MAX));
        prop_assert_eq!(u64::from(Expiry::from_client(sent, &now).0), expected);
    }

    #[test]
    fn a_plain_set_is_decided_without_the_item(item in item(), value in value(),
        (flags, expiry, mode, uses_cas, vivify) in
        (any::<u32>(), expiry(), mode(), cas_uses(), prop::option::of(expiry()))) {
        let now = now();
        let (compare, wants_cas, new_cas) = uses_cas;
        let compare = compare.map(|cas| Compare { cas, accepts_older_as_stale: cas % 2 == 0 });
        let plain = Store::new(mode, &value, flags, expiry);
        let store = Store { compare, vivify, wants_cas, new_cas, ..plain };
        let op = Op { key: Key::new(b"key", &HashSeed::new(1)), verb: Verb::Store(store) };
        let set = PlainSet::of(&op, &now);
        prop_assert_eq!(set.is_some(), mode == StoreMode::Set && uses_cas == (None, false, None));
        if let Some(set) = set {
            let view = item.as_ref().map(|item| view(b"key", item));
            let decided = decide(view.as_ref(), &op, &now, 1 << 40);
            prop_assert_eq!(format!("{decided:?}"), format!("{:?}", set.decision()));
        }
    }

    /// Two items that differ in their value alone: where the new values differ, the write says that
    /// it depends on the present one. One that only stores what was sent does not.
    #[test]
    fn writes_that_read_the_value_say_so(item in item(), act in act(), other in value()) {
        let now = now();
        let op = Op { key: Key::new(b"key", &HashSeed::new(1)), verb: act.verb() };
        let Some(item) = item else { return Ok(()) };
        let value = item.value.iter().enumerate();
        let value = value.map(|(place, byte)| other.get(place).copied().unwrap_or(*byte));
        let twin = Item { value: value.collect(), ..item.clone() };
        let write = |item: &Item| {
            let decision = decide(Some(&view(b"key", item)), &op, &now, 1 << 40);
            let Decision::Replace(write, _) = decision else { return None };
            let mut new = vec![0; write.value_bytes(item.value.len())];
            write.write_value(&item.value, &mut new);
            Some((new, write.depends_on_value(&op)))
        };
        let (one, two) = (write(&item), write(&twin));
        let depends = one.iter().chain(&two).any(|(_, depends)| *depends);
        let new = |write: Option<(Vec<u8>, bool)>| write.map(|(new, _)| new);
        prop_assert!(new(one) == new(two) || depends);
        if let Verb::Store(Store { mode, .. }) = op.verb {
            let is_joined = matches!(mode, StoreMode::Append | StoreMode::Prepend);
            prop_assert!(!depends || is_joined);
        }
    }

    #[test]
    fn deciding_again_says_the_same(item in item(), act in act()) {
        let now = now();
        let op = Op { key: Key::new(b"key", &HashSeed::new(1)), verb: act.verb() };
        let first = execute(item.clone(), &op, &now);
        prop_assert_eq!(first, execute(item, &op, &now));
    }

    #[test]
    fn every_new_cas_id_is_larger(item in item(), act in act()) {
        let now = now();
        let op = Op { key: Key::new(b"key", &HashSeed::new(1)), verb: act.verb() };
        let before = item.as_ref().and_then(|item| item.cas);
        let (after, _) = execute(item.clone(), &op, &now);
        let same = after.as_ref().map(|item| &item.value) == item.as_ref().map(|item| &item.value);
        if let (Some(before), Some(after)) = (before, after.and_then(|item| item.cas)) {
            prop_assert!(after > before || (after == before && same));
        }
    }
}

#[test]
fn generations_wrap_and_tell_before_from_after() {
    for current in 0..64_u8 {
        let now = Now { generation: current, ..now() };
        for behind in 1..32 {
            let old = (current + 64 - behind) % 64;
            assert!(!now.is_live(Expiry::NEVER, old), "{old} is dead at {current}");
            assert_eq!(now.generations_behind(old), behind);
        }
        for ahead in 0..32 {
            assert!(now.is_live(Expiry::NEVER, (current + ahead) % 64), "{ahead} ahead lives");
        }
        let next = Now { generation: Now::next_generation(current), ..now };
        assert!(!next.is_live(Expiry::NEVER, current));
    }
}
