//! Each verb and its edges, against explicit expectations.

use std::collections::HashSet;

use amalgam_index::{Engine, Worker};
use amalgam_op::{
    Arithmetic, Compare, Delete, Expiry, Get, Outcome, Store, StoreMode, Verb, Written,
};

use crate::harness::{Session, configuration, number, open, stored};

/// set, get, and their replacement by values of all short lengths and some long ones.
pub fn set_and_get<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    assert_eq!(session.get(b"k"), None);
    for length in (0..70).chain([127, 128, 255, 256, 1000, 4095, 4096, 65_536, 500_000]) {
        let value: Vec<u8> = (0..length).map(|i| (i * 31 + length) as u8).collect();
        session.set(b"k", &value);
        assert_eq!(session.value(b"k"), Some(value));
    }
    session.set(b"k", b"short again");
    assert_eq!(session.value(b"k").as_deref(), Some(&b"short again"[..]));
}

/// Keys of 1 to 250 bytes, binary ones too, stay apart.
pub fn keys<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let keys: Vec<Vec<u8>> = (1..=250_usize)
        .flat_map(|length| {
            let same = vec![b'k'; length];
            let mut other = same.clone();
            other[length - 1] = 0xff;
            [same, other]
        })
        .collect();
    for (number, key) in keys.iter().enumerate() {
        session.set(key, number.to_string().as_bytes());
    }
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(session.value(key), Some(number.to_string().into_bytes()));
    }
}

/// The 32 bits of flags come back, zero too, and a later store changes them.
pub fn flags<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for flags in [0, 1, 0xffff, 0x1_0000, u32::MAX, 0] {
        let store = Store::new(StoreMode::Set, b"v", flags, 0);
        assert_eq!(session.apply(b"k", Verb::Store(store)).0, stored(1));
        assert_eq!(session.get(b"k").expect("a hit").flags, flags);
    }
}

/// add and replace, on missing and on present keys.
pub fn add_and_replace<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    assert_eq!(session.store(StoreMode::Replace, b"k", b"0"), Outcome::NotStored);
    assert_eq!(session.get(b"k"), None);
    assert_eq!(session.store(StoreMode::Add, b"k", b"1"), stored(1));
    assert_eq!(session.store(StoreMode::Add, b"k", b"2"), Outcome::NotStored);
    assert_eq!(session.value(b"k").as_deref(), Some(&b"1"[..]));
    assert_eq!(session.store(StoreMode::Replace, b"k", b"3"), stored(1));
    assert_eq!(session.value(b"k").as_deref(), Some(&b"3"[..]));
}

/// append and prepend keep flags and expiry, and grow a value through many sizes.
pub fn append_and_prepend<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    assert_eq!(session.store(StoreMode::Append, b"k", b"x"), Outcome::NotStored);
    assert_eq!(session.store(StoreMode::Prepend, b"k", b"x"), Outcome::NotStored);
    session.apply(b"k", Verb::Store(Store::new(StoreMode::Set, b"", 77, 500)));
    let before = session.get(b"k").expect("a hit");
    let mut expected = Vec::new();
    for turn in 0..300_u32 {
        let piece = turn.to_string().into_bytes();
        if turn % 2 == 0 {
            expected.extend_from_slice(&piece);
            let outcome = session.store(StoreMode::Append, b"k", &piece);
            assert_eq!(outcome, stored(expected.len()));
        } else {
            expected.splice(0..0, piece.iter().copied());
            let outcome = session.store(StoreMode::Prepend, b"k", &piece);
            assert_eq!(outcome, stored(expected.len()));
        }
    }
    let after = session.get(b"k").expect("a hit");
    assert_eq!(after.value, expected);
    assert_eq!((after.flags, after.expiry), (77, before.expiry));
}

/// cas: found only under the id that gets gave, once.
pub fn cas<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let cas = |id| {
        let compare = Some(Compare { cas: id, accepts_older_as_stale: false });
        Verb::Store(Store { compare, ..Store::new(StoreMode::Set, b"new", 0, 0) })
    };
    assert_eq!(session.apply(b"k", cas(1)).0, Outcome::NotFound);
    assert_eq!(session.get(b"k"), None);
    session.set(b"k", b"old");
    // Nobody asked for an id yet, so none can be right.
    assert_eq!(session.apply(b"k", cas(0)).0, Outcome::Exists);
    let (_, id) = session.gets(b"k").expect("a hit");
    assert_eq!(session.gets(b"k"), Some((b"old".to_vec(), id)), "the id holds until a write");
    assert_eq!(session.apply(b"k", cas(id + 1)).0, Outcome::Exists);
    assert_eq!(session.value(b"k").as_deref(), Some(&b"old"[..]));
    assert_eq!(session.apply(b"k", cas(id)).0, stored(3));
    assert_eq!(session.apply(b"k", cas(id)).0, Outcome::Exists);
    let (value, next) = session.gets(b"k").expect("a hit");
    assert_eq!(value, b"new");
    assert!(next > id, "ids grow: {next} after {id}");
}

/// Every kind of write ends the life of a CAS id.
pub fn writes_change_the_cas_id<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let writes: [Verb<'_>; 6] = [
        Verb::Store(Store::new(StoreMode::Set, b"1", 0, 0)),
        Verb::Store(Store::new(StoreMode::Replace, b"1", 0, 0)),
        Verb::Store(Store::new(StoreMode::Append, b"1", 0, 0)),
        Verb::Store(Store::new(StoreMode::Prepend, b"1", 0, 0)),
        Verb::Arithmetic(Arithmetic { delta: 1, ..Arithmetic::default() }),
        // The same number again is a write all the same.
        Verb::Arithmetic(Arithmetic { delta: 0, ..Arithmetic::default() }),
    ];
    session.set(b"k", b"1");
    for write in writes {
        let (_, id) = session.gets(b"k").expect("a hit");
        session.apply(b"k", write);
        let compare = Some(Compare { cas: id, accepts_older_as_stale: false });
        let cas = Store { compare, ..Store::new(StoreMode::Set, b"lost", 0, 0) };
        assert_eq!(session.apply(b"k", Verb::Store(cas)).0, Outcome::Exists, "after {write:?}");
        let (_, next) = session.gets(b"k").expect("a hit");
        assert!(next > id, "ids grow: {next} after {id}, by {write:?}");
    }
}

/// An id of a deleted item does not fit its successor.
pub fn cas_ids_are_not_reused<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let mut last = 0;
    for _ in 0..100 {
        session.set(b"k", b"v");
        let (_, id) = session.gets(b"k").expect("a hit");
        assert!(id > last, "{id} after {last}");
        last = id;
        assert_eq!(session.delete(b"k"), Outcome::Deleted);
    }
    // Nor do two workers give one id to two versions: each follows the other's ids.
    let mut sessions = [session, Session::new(&index)];
    let mut ids = HashSet::new();
    for round in 0..100_usize {
        let session = &mut sessions[round.div_ceil(2) % 2];
        let store = Store { wants_cas: true, ..Store::new(StoreMode::Set, b"v", 0, 0) };
        let (outcome, _) = session.apply(b"k", Verb::Store(store));
        let Outcome::Stored(Written { cas: Some(id), .. }) = outcome else { panic!("{outcome:?}") };
        assert!(ids.insert(id), "{id} twice");
        if round % 3 == 2 {
            assert_eq!(session.delete(b"k"), Outcome::Deleted);
        }
    }
}

/// An id is older than those of all later versions, whichever workers gave them.
pub fn cas_ids_grow_from_worker_to_worker<I: Engine>() {
    let index: I = open(&configuration());
    let mut sessions = [Session::new(&index), Session::new(&index)];
    let store = |session: &mut Session<'_, I>, key| {
        let store = Store { wants_cas: true, ..Store::new(StoreMode::Set, b"v", 0, 0) };
        match session.apply(key, Verb::Store(store)).0 {
            Outcome::Stored(Written { cas: Some(id), .. }) => id,
            outcome => panic!("{outcome:?}"),
        }
    };
    // The first worker's ids begin before those of the second.
    store(&mut sessions[0], b"other");
    for round in 0..100 {
        let id = store(&mut sessions[1], b"k");
        let session = &mut sessions[0];
        // A version that nobody asks about has no id yet.
        session.set(b"k", b"v");
        if round % 2 == 0 {
            let (_, next) = session.gets(b"k").expect("a hit");
            assert!(next > id, "{next} after {id}");
        }
        let compare = Some(Compare { cas: id, accepts_older_as_stale: true });
        let late = Store { compare, ..Store::new(StoreMode::Set, b"late", 0, 0) };
        let (outcome, _) = session.apply(b"k", Verb::Store(late));
        assert!(matches!(outcome, Outcome::Stored(_)), "round {round}: {outcome:?}");
        let never = Some(Compare { cas: u64::MAX, accepts_older_as_stale: true });
        let future = Store { compare: never, ..Store::new(StoreMode::Set, b"future", 0, 0) };
        assert_eq!(session.apply(b"k", Verb::Store(future)).0, Outcome::Exists);
    }
}

/// incr wraps, decr stops at 0, numbers get longer and are padded, and keep flags.
pub fn arithmetic<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    assert_eq!(session.add(b"n", 1), Outcome::NotFound);
    session.apply(b"n", Verb::Store(Store::new(StoreMode::Set, b"9", 42, 0)));
    assert_eq!(number(session.add(b"n", 1)), Some(10));
    assert_eq!(session.value(b"n").as_deref(), Some(&b"10"[..]));
    assert_eq!(number(session.add(b"n", -3)), Some(7));
    assert_eq!(session.value(b"n").as_deref(), Some(&b"7 "[..]), "padded, as memcached does");
    assert_eq!(number(session.add(b"n", -8)), Some(0));
    assert_eq!(session.get(b"n").expect("a hit").flags, 42);
    session.set(b"n", u64::MAX.to_string().as_bytes());
    assert_eq!(number(session.add(b"n", 1)), Some(0));
    assert_eq!(number(session.add(b"n", -1)), Some(0));
    // Through every length, over the edge of the in-place word.
    session.set(b"n", b"1");
    let mut expected = 1_u64;
    for _ in 0..19 {
        let delta = i64::try_from(expected * 9).unwrap_or(i64::MAX);
        expected += delta.unsigned_abs();
        assert_eq!(number(session.add(b"n", delta)), Some(expected));
        assert_eq!(session.value(b"n"), Some(expected.to_string().into_bytes()));
    }
}

/// Arithmetic on a value that is not a number leaves the value as it is.
pub fn not_a_number<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for value in ["", "x", "12x", "18446744073709551616", "hello world and more than a word"] {
        session.set(b"n", value.as_bytes());
        assert_eq!(session.add(b"n", 1), Outcome::NotANumber, "{value:?}");
        assert_eq!(session.value(b"n"), Some(value.as_bytes().to_vec()));
    }
}

/// Arithmetic that creates what is missing.
pub fn arithmetic_with_initial<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let verb = Verb::Arithmetic(Arithmetic {
        delta: 5,
        initial: Some(100),
        initial_expiry: 50,
        wants_cas: true,
        ..Arithmetic::default()
    });
    let mut count = || match session.apply(b"n", verb).0 {
        Outcome::Number(counted) => counted,
        other => panic!("{other:?} is no number"),
    };
    let (first, second) = (count(), count());
    assert_eq!((first.number, second.number), (100, 105));
    assert_eq!((first.expiry_before, first.expiry), (Expiry::NEVER, Expiry(1050)));
    assert_eq!((second.expiry_before, second.expiry), (Expiry(1050), Expiry(1050)));
    assert!(second.cas > first.cas, "{second:?} after {first:?}");
    assert_eq!(session.gets(b"n"), second.cas.map(|cas| (b"105".to_vec(), cas)));
    session.now.seconds += 50;
    assert_eq!(session.get(b"n"), None, "the initial expiry holds");
}

/// delete, with and without a CAS id.
pub fn delete<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    assert_eq!(session.delete(b"k"), Outcome::NotFound);
    session.set(b"k", b"v");
    assert_eq!(session.delete(b"k"), Outcome::Deleted);
    assert_eq!(session.delete(b"k"), Outcome::NotFound);
    assert_eq!(session.get(b"k"), None);
    session.set(b"k", b"w");
    let (_, id) = session.gets(b"k").expect("a hit");
    let delete = |id| Verb::Delete(Delete { compare: Some(id), ..Delete::default() });
    assert_eq!(session.apply(b"k", delete(id + 1)).0, Outcome::Exists);
    assert_eq!(session.apply(b"k", delete(id)).0, Outcome::Deleted);
    assert_eq!(session.get(b"k"), None);
}

/// touch and get-and-touch move the expiry and nothing else.
pub fn touch<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let touch = |seconds| Verb::Get(Get { touch: Some(seconds), ..Get::default() });
    assert_eq!(session.apply(b"k", touch(10)).0, Outcome::NotFound);
    session.apply(b"k", Verb::Store(Store::new(StoreMode::Set, b"value", 3, 10)));
    let (_, item) = session.apply(b"k", touch(100));
    assert_eq!(item.expect("a hit").value, b"value");
    session.now.seconds += 99;
    let item = session.get(b"k").expect("alive until its second");
    assert_eq!((item.value.as_slice(), item.flags), (&b"value"[..], 3));
    session.now.seconds += 1;
    assert_eq!(session.get(b"k"), None);
    session.set(b"k", b"value");
    session.apply(b"k", touch(-1));
    assert_eq!(session.get(b"k"), None, "a negative expiry is over at once");
    session.apply(b"k", Verb::Store(Store::new(StoreMode::Set, b"value", 3, 10)));
    session.apply(b"k", touch(0));
    session.now.seconds += 1_000_000;
    assert!(session.get(b"k").is_some(), "0 is forever");
}

/// Meta's marks: fetched, stale, won.
pub fn marks<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    session.set(b"k", b"a value of some length");
    assert!(!session.get(b"k").expect("a hit").fetched);
    assert!(session.get(b"k").expect("a hit").fetched);
    session.set(b"k", b"a value of some length");
    let quiet = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
    assert!(!session.apply(b"k", quiet).1.expect("a hit").fetched);
    assert!(!session.get(b"k").expect("a hit").fetched, "a quiet read leaves no trace");

    let stale = Verb::Delete(Delete { marks_stale: true, ..Delete::default() });
    assert_eq!(session.apply(b"k", stale).0, Outcome::Invalidated);
    let classic = Verb::Get(Get::default());
    let Outcome::Hit(hit) = session.apply(b"k", classic).0 else { panic!("stale items answer") };
    assert!(!hit.won && hit.stale && !hit.already_won, "{hit:?}");
    let get = Verb::Get(Get { checks_stale: true, ..Get::default() });
    let Outcome::Hit(first) = session.apply(b"k", get).0 else { panic!("stale items answer") };
    let Outcome::Hit(second) = session.apply(b"k", get).0 else { panic!("stale items answer") };
    assert!(first.won && first.stale && !first.already_won, "{first:?}");
    assert!(!second.won && second.stale && second.already_won, "{second:?}");
    session.set(b"k", b"fresh");
    let Outcome::Hit(hit) = session.apply(b"k", get).0 else { panic!("a hit") };
    assert!(!hit.won && !hit.stale && !hit.already_won, "{hit:?}");
}

/// A get that creates what is missing, and the race for recaching.
pub fn vivify<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let get = Get { vivify: Some(30), checks_stale: true, ..Get::default() };
    let get = Verb::Get(get);
    let (Outcome::Hit(hit), Some(item)) = session.apply(b"k", get) else { panic!("created") };
    assert!(hit.won && hit.created && item.value.is_empty(), "{hit:?} {item:?}");
    let (Outcome::Hit(hit), Some(_)) = session.apply(b"k", get) else { panic!("there now") };
    assert!(!hit.won && !hit.created && hit.already_won, "{hit:?}");
    session.now.seconds += 30;
    assert_eq!(session.get(b"k"), None);
    // Nobody has read an item that takes the place of one that was dead when it was made.
    let get = Verb::Get(Get { vivify: Some(-1), checks_stale: true, ..Get::default() });
    for _ in 0..3 {
        let (Outcome::Hit(hit), Some(item)) = session.apply(b"d", get) else { panic!("created") };
        assert!(hit.created && !item.fetched, "{hit:?} {item:?}");
    }

    let store = Store::new(StoreMode::Append, b"made", 9, 0);
    let append = Verb::Store(Store { vivify: Some(0), ..store });
    assert_eq!(session.apply(b"a", append).0, stored(4));
    assert_eq!(session.apply(b"a", append).0, stored(8));
    assert_eq!(session.value(b"a").as_deref(), Some(&b"mademade"[..]));
}

/// An item that exceeds the limit is refused and the present one stays.
pub fn too_large<I: Engine>() {
    let mut configuration = configuration();
    configuration.max_item_bytes = 100_000;
    let index: I = open(&configuration);
    let mut session = Session::new(&index);
    session.set(b"k", &[1; 90_000]);
    assert_eq!(session.store(StoreMode::Set, b"k", &[2; 100_000]), Outcome::TooLarge);
    assert_eq!(session.store(StoreMode::Append, b"k", &[3; 20_000]), Outcome::TooLarge);
    assert_eq!(session.store(StoreMode::Add, b"other", &[4; 200_000]), Outcome::TooLarge);
    assert_eq!(session.value(b"k"), Some(vec![1; 90_000]));
    assert_eq!(session.get(b"other"), None);
}

/// A present item is counted once.
pub fn counts<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for round in 0..3 {
        for number in 0..1000 {
            session.set(format!("key {number}").as_bytes(), &[b'v'; 20][..10 + round]);
        }
        session.worker.quiesce();
        assert_eq!(index.statistics().items, 1000);
    }
    for number in 0..1000 {
        assert_eq!(session.delete(format!("key {number}").as_bytes()), Outcome::Deleted);
    }
    session.settle();
    assert_eq!(index.statistics().items, 0);
}
