//! What an operation does to an item: memcached's semantics, once, for every engine.

use crate::{
    Arithmetic, Counted, Delete, Expiry, Get, Hit, ItemView, Now, Op, Outcome, Store, StoreMode,
    Verb, Written,
};

/// Digits of the largest 64-bit number.
const MAX_DIGITS: usize = 20;

/// What an engine has to execute, atomically with the state it showed to [`decide`].
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// Leave everything as it is.
    Keep(Outcome),
    /// Unlink the item (it may be dead already) and answer.
    Remove(Outcome),
    /// Put this item where the present one was, or where none was, and answer. On
    /// [`Outcome::Hit`] the *new* item goes to the sink.
    Replace(ItemWrite<'a>, Outcome),
}

/// An item to be written.
#[derive(Clone, Copy, Debug)]
pub struct ItemWrite<'a> {
    /// The value: the concatenation of these parts.
    pub parts: [Part<'a>; 2],
    /// The client's flags; see [`ItemView::flags`].
    pub flags: u32,
    /// The time when the item expires; see [`ItemView::expiry`].
    pub expiry: Expiry,
    /// The CAS id, if the item gets one; see [`ItemView::cas`].
    pub cas: Option<u64>,
    /// Bits that meta commands read and write.
    pub meta_flags: MetaFlags,
}

/// The bits of an item that meta commands read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags {
    /// Whether a client has read the item; see [`ItemView::fetched`].
    pub fetched: bool,
    /// Whether the item was invalidated; see [`ItemView::stale`].
    pub stale: bool,
    /// Whether a client holds the recache token; see [`ItemView::won`].
    pub won: bool,
}

/// A piece of a new value.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// A part without bytes.
    Empty,
    /// Bytes that the client sent.
    Bytes(&'a [u8]),
    /// The value that the item has now.
    Current,
    /// A number: the first N of these digits.
    Digits([u8; MAX_DIGITS], usize),
    /// This number of spaces.
    Spaces(usize),
}

impl Part<'_> {
    /// Length of the part in bytes if the present value has `current` bytes.
    fn len(&self, current: usize) -> usize {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Current => current,
            Self::Digits(_, length) | Self::Spaces(length) => *length,
        }
    }

    /// Writes the part to `target`. Requires: `target` has the part's length.
    fn write(&self, current: &[u8], target: &mut [u8]) {
        match self {
            Self::Empty => {}
            Self::Bytes(bytes) => target.copy_from_slice(bytes),
            Self::Current => target.copy_from_slice(current),
            Self::Digits(digits, length) => target.copy_from_slice(&digits[..*length]),
            Self::Spaces(_) => target.fill(b' '),
        }
    }
}

impl<'a> ItemWrite<'a> {
    fn of_value(value: Part<'a>, flags: u32, expiry: Expiry, cas: Option<u64>) -> Self {
        Self { parts: [value, Part::Empty], flags, expiry, cas, meta_flags: MetaFlags::default() }
    }

    /// The present item with the same value.
    fn of_item(item: &ItemView<'_>) -> Self {
        Self {
            parts: [Part::Current, Part::Empty],
            flags: item.flags,
            expiry: item.expiry,
            cas: item.cas,
            meta_flags: MetaFlags { fetched: item.fetched, stale: item.stale, won: item.won },
        }
    }

    /// Length of the new value in bytes, where the present one has `current` bytes.
    pub fn value_bytes(&self, current: usize) -> usize {
        self.parts.iter().map(|part| part.len(current)).sum()
    }

    /// Writes the new value to `target`, which has exactly [`ItemWrite::value_bytes`] bytes.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn write_value(&self, current: &[u8], target: &mut [u8]) {
        let (head, tail) = target.split_at_mut(self.parts[0].len(current.len()));
        self.parts[0].write(current, head);
        self.parts[1].write(current, tail);
    }

    /// Whether what `op` writes depends on the present value. If so, the engine must check that the
    /// value is still the same when it replaces the item.
    pub fn depends_on_value(&self, op: &Op<'_>) -> bool {
        let is_read = match op.verb {
            Verb::Arithmetic(_) => true,
            Verb::Store(store) => matches!(store.mode, StoreMode::Append | StoreMode::Prepend),
            Verb::Get(_) | Verb::Delete(_) => false,
        };
        is_read || self.parts.iter().any(|part| matches!(part, Part::Current))
    }

    /// The new value if the whole write consists of storing it into the in-place word of `item`:
    /// the item is alive, the value has at most 8 bytes and keeps its length, nothing else changes,
    /// and no CAS id has been handed out that would have to change. Otherwise None. A dead item is
    /// never changed, because its marks are not those of the item that takes its place.
    pub fn sole_word_change(&self, item: &ItemView<'_>, now: &Now) -> Option<[u8; 8]> {
        let length = item.value.len();
        let same = length <= 8
            && self.value_bytes(length) == length
            && self.flags == item.flags
            && self.expiry == item.expiry
            && self.cas.is_none()
            && item.cas.is_none()
            && self.meta_flags.stale == item.stale
            && self.meta_flags.won == item.won
            && now.generation == item.generation
            && !item.expiry.has_passed(now);
        if !same {
            return None;
        }
        let mut word = [0; 8];
        self.write_value(item.value.as_bytes(), &mut word[..length]);
        Some(word)
    }
}

/// Decides what `op` does to `current`, the item under its key; None if there is none. A dead item
/// must be passed, too.
///
/// `fresh_cas` is an id that was never handed out before. It is above the id of `current` unless a
/// client chose that one. It may remain unused.
pub fn decide<'a>(
    current: Option<&ItemView<'_>>,
    op: &Op<'a>,
    now: &Now,
    fresh_cas: u64,
) -> Decision<'a> {
    let live = current.filter(|item| now.is_live(item.expiry, item.generation));
    let decision = match &op.verb {
        Verb::Get(get) => decide_get(live, get, now, fresh_cas),
        Verb::Store(store) => decide_store(live, store, now, fresh_cas),
        Verb::Arithmetic(arithmetic) => decide_arithmetic(live, arithmetic, now, fresh_cas),
        Verb::Delete(delete) => decide_delete(live, delete, now, fresh_cas),
    };
    match decision {
        // A dead item is reclaimed by the first operation that finds it.
        Decision::Keep(outcome) if current.is_some() && live.is_none() => Decision::Remove(outcome),
        decision => decision,
    }
}

/// The CAS id of an item's next version: unique, and above the item's own.
fn next_cas(given: Option<u64>, item: Option<&ItemView<'_>>, fresh_cas: u64) -> u64 {
    let above = item.and_then(|item| item.cas).map_or(0, |cas| cas.wrapping_add(1));
    given.unwrap_or(fresh_cas.max(above))
}

fn decide_get<'a>(
    item: Option<&ItemView<'_>>,
    get: &Get,
    now: &Now,
    fresh_cas: u64,
) -> Decision<'a> {
    let Some(item) = item else {
        let Some(expiry) = get.vivify else { return Decision::Keep(Outcome::NotFound) };
        let cas = (get.wants_cas || get.new_cas.is_some())
            .then(|| next_cas(get.new_cas, None, fresh_cas));
        let mut item_write =
            ItemWrite::of_value(Part::Empty, 0, Expiry::from_client(expiry, now), cas);
        item_write.meta_flags.won = get.checks_stale;
        let hit = Hit { won: get.checks_stale, created: true, ..Hit::default() };
        return Decision::Replace(item_write, Outcome::Hit(hit));
    };
    let mut item_write = ItemWrite::of_item(item);
    if let Some(expiry) = get.touch {
        item_write.expiry = Expiry::from_client(expiry, now);
    }
    let judged = if get.touches_before_recache { item_write.expiry } else { item.expiry };
    let hit = Hit {
        won: !item.won && ((get.checks_stale && item.stale) || ends_soon(judged, get, now)),
        already_won: item.won,
        stale: item.stale,
        created: false,
        expiry_before: item.expiry,
    };
    item_write.meta_flags.won |= hit.won;
    if get.wants_cas && item.cas.is_none() {
        item_write.cas = Some(fresh_cas);
    }
    let unchanged = item_write.meta_flags.won == item.won
        && item_write.expiry == item.expiry
        && item_write.cas == item.cas;
    if unchanged {
        Decision::Keep(Outcome::Hit(hit))
    } else {
        Decision::Replace(item_write, Outcome::Hit(hit))
    }
}

/// Whether an item that ends at `expiry` should be recached because of its remaining time.
fn ends_soon(expiry: Expiry, get: &Get, now: &Now) -> bool {
    get.recache_below_seconds
        .is_some_and(|below| expiry != Expiry::NEVER && expiry < Expiry::from_client(below, now))
}

/// The result of comparing a client's CAS id with the item's.
#[derive(PartialEq)]
enum Comparison {
    NotAsked,
    Equal,
    Older,
    Different,
}

fn compare_cas(store: &Store<'_>, item: &ItemView<'_>, fresh_cas: u64) -> Comparison {
    let Some(compare) = store.compare else { return Comparison::NotAsked };
    match item.cas {
        // Where the item has this id by a client's choice, 0 still equals nothing.
        Some(cas) if cas == compare.cas && cas != 0 => Comparison::Equal,
        Some(cas) if cas < compare.cas => Comparison::Different,
        // An item without an id was written after every id that a client can hold.
        None if compare.cas >= fresh_cas => Comparison::Different,
        _ if compare.accepts_older_as_stale && compare.cas != 0 => Comparison::Older,
        _ => Comparison::Different,
    }
}

fn decide_store<'a>(
    item: Option<&ItemView<'_>>,
    store: &Store<'a>,
    now: &Now,
    fresh_cas: u64,
) -> Decision<'a> {
    let cas = (store.wants_cas || store.new_cas.is_some())
        .then(|| next_cas(store.new_cas, item, fresh_cas));
    let stored = |value_bytes| Outcome::Stored(Written { cas, value_bytes });
    let outcome = stored(store.value.len());
    let value = Part::Bytes(store.value);
    let new = ItemWrite::of_value(value, store.flags, Expiry::from_client(store.expiry, now), cas);
    let Some(item) = item else {
        return match store.mode {
            StoreMode::Set if store.compare.is_some() => Decision::Keep(Outcome::NotFound),
            StoreMode::Set | StoreMode::Add => Decision::Replace(new, outcome),
            StoreMode::Append | StoreMode::Prepend if store.vivify.is_some() => {
                let expiry = Expiry::from_client(store.vivify.unwrap_or(0), now);
                Decision::Replace(ItemWrite { expiry, ..new }, outcome)
            }
            _ => Decision::Keep(Outcome::NotStored),
        };
    };
    let comparison = compare_cas(store, item, fresh_cas);
    let joined = |parts| {
        let meta_flags = MetaFlags::default();
        let item_write =
            ItemWrite { parts, flags: item.flags, expiry: item.expiry, cas, meta_flags };
        Decision::Replace(item_write, stored(item_write.value_bytes(item.value.len())))
    };
    match store.mode {
        StoreMode::Add => Decision::Keep(Outcome::NotStored),
        StoreMode::Set if comparison == Comparison::Older => {
            let meta_flags = MetaFlags { stale: true, won: item.won, ..MetaFlags::default() };
            Decision::Replace(ItemWrite { expiry: item.expiry, meta_flags, ..new }, outcome)
        }
        _ if matches!(comparison, Comparison::Older | Comparison::Different) => {
            Decision::Keep(Outcome::Exists)
        }
        StoreMode::Set | StoreMode::Replace => Decision::Replace(new, outcome),
        StoreMode::Append => joined([Part::Current, value]),
        StoreMode::Prepend => joined([value, Part::Current]),
    }
}

fn decide_arithmetic<'a>(
    item: Option<&ItemView<'_>>,
    arithmetic: &Arithmetic,
    now: &Now,
    fresh_cas: u64,
) -> Decision<'a> {
    let cas = (arithmetic.wants_cas || arithmetic.new_cas.is_some())
        .then(|| next_cas(arithmetic.new_cas, item, fresh_cas));
    let Some(item) = item else {
        let Some(initial) = arithmetic.initial else { return Decision::Keep(Outcome::NotFound) };
        let expiry = Expiry::from_client(arithmetic.initial_expiry, now);
        let item_write = ItemWrite::of_value(digits(initial), 0, expiry, cas);
        let counted =
            Counted { number: initial, created: true, cas, expiry, expiry_before: Expiry::NEVER };
        return Decision::Replace(item_write, Outcome::Number(counted));
    };
    if item.value.is_empty() {
        return Decision::Keep(Outcome::NotANumber);
    }
    if arithmetic.compare.is_some_and(|cas| item.cas != Some(cas)) {
        return Decision::Keep(Outcome::Exists);
    }
    let Some(number) = parse_number(item.value.as_bytes()) else {
        return Decision::Keep(Outcome::NotANumber);
    };
    let number = if arithmetic.is_decrement {
        number.saturating_sub(arithmetic.delta)
    } else {
        number.wrapping_add(arithmetic.delta)
    };
    let mut item_write = ItemWrite::of_item(item);
    item_write.cas = cas;
    // A value never gets shorter: like memcached, fill it up with spaces.
    let digits = digits(number);
    item_write.parts = [digits, Part::Spaces(item.value.len().saturating_sub(digits.len(0)))];
    let expiry = arithmetic.touch.map_or(item.expiry, |expiry| Expiry::from_client(expiry, now));
    if item_write.value_bytes(0) > item.value.len() {
        // memcached makes a new item of a number that grew, and sets and shows what the client asks
        // for at the old one: neither the id nor the expiry stay.
        item_write.meta_flags = MetaFlags::default();
        item_write.cas = cas.map(|_| next_cas(None, Some(item), fresh_cas));
    } else {
        item_write.expiry = expiry;
    }
    let counted = Counted { number, created: false, cas, expiry, expiry_before: item.expiry };
    Decision::Replace(item_write, Outcome::Number(counted))
}

fn decide_delete<'a>(
    item: Option<&ItemView<'_>>,
    delete: &Delete,
    now: &Now,
    fresh_cas: u64,
) -> Decision<'a> {
    let Some(item) = item else { return Decision::Keep(Outcome::NotFound) };
    if delete.compare.is_some_and(|cas| item.cas != Some(cas)) {
        return Decision::Keep(Outcome::Exists);
    }
    if !delete.marks_stale && !delete.drops_value {
        return Decision::Remove(Outcome::Deleted);
    }
    let touch = delete.touch.map(|expiry| Expiry::from_client(expiry, now));
    let mut item_write = match delete.drops_value {
        true => ItemWrite::of_value(Part::Empty, delete.flags, touch.unwrap_or_default(), item.cas),
        false => ItemWrite { expiry: touch.unwrap_or(item.expiry), ..ItemWrite::of_item(item) },
    };
    if delete.marks_stale {
        item_write.meta_flags.stale = true;
        item_write.meta_flags.won = false;
        // The id changes only if a client may hold the old one.
        item_write.cas = item.cas.map(|_| next_cas(None, Some(item), fresh_cas));
    }
    item_write.cas = delete.new_cas.or(item_write.cas);
    Decision::Replace(item_write, Outcome::Invalidated)
}

/// The longest value that is accepted as a number. memcached stores longer values in chunks and
/// refuses arithmetic on them.
const MAX_NUMBER_VALUE_BYTES: usize = 512 << 10;

/// Reads a number as `strtoull` does: leading spaces are skipped, and after the number a space ends
/// the text.
fn parse_number(value: &[u8]) -> Option<u64> {
    if value.len() > MAX_NUMBER_VALUE_BYTES {
        return None;
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | 9..=13);
    let start = value.iter().position(|byte| !is_space(byte))?;
    let (is_negative, digits) = match value[start] {
        b'-' => (true, &value[start + 1..]),
        b'+' => (false, &value[start + 1..]),
        _ => (false, &value[start..]),
    };
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if length == 0 || digits.get(length).is_some_and(|byte| !is_space(byte) && *byte != 0) {
        return None;
    }
    let mut number = 0_u64;
    for digit in &digits[..length] {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    match is_negative {
        true => Some(number.wrapping_neg()).filter(|number| number >> 63 == 0),
        false => Some(number),
    }
}

/// `number` in decimal.
fn digits<'a>(mut number: u64) -> Part<'a> {
    let mut reversed = [0; MAX_DIGITS];
    let mut count = 0;
    loop {
        reversed[count] = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
        if number == 0 {
            break;
        }
    }
    let mut bytes = [0; MAX_DIGITS];
    for (target, source) in bytes.iter_mut().zip(reversed[..count].iter().rev()) {
        *target = *source;
    }
    Part::Digits(bytes, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compare, HashSeed, Key, Value};

    const NOW: Now = Now { seconds: 1000, epoch_unix_seconds: 1_600_000_000, generation: 0 };
    const FRESH: u64 = 50;

    fn item(value: &[u8]) -> ItemView<'_> {
        ItemView {
            key: b"key",
            value: Value::Bytes(value),
            flags: 7,
            expiry: Expiry(1060),
            cas: Some(20),
            generation: 0,
            fetched: true,
            stale: false,
            won: false,
            last_access_seconds: None,
        }
    }

    fn run<'a>(item: Option<&ItemView<'_>>, verb: Verb<'a>) -> Decision<'a> {
        let key = Key::new(b"key", &HashSeed::new(1));
        decide(item, &Op { key, verb }, &NOW, FRESH)
    }

    fn replaced<'a>(item: &ItemView<'_>, verb: Verb<'a>) -> (ItemWrite<'a>, Outcome) {
        match run(Some(item), verb) {
            Decision::Replace(item_write, outcome) => (item_write, outcome),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dead_item_is_replaced_even_by_one_that_is_dead_when_it_is_made() {
        let dead =
            ItemView { expiry: Expiry::from_client(-1, &NOW), cas: None, flags: 0, ..item(b"") };
        let get = Get { vivify: Some(-1), ..Get::default() };
        let (item_write, outcome) = replaced(&dead, Verb::Get(get));
        assert!(matches!(outcome, Outcome::Hit(hit) if hit.created), "{outcome:?}");
        assert_eq!(item_write.expiry, dead.expiry);
        assert!(dead.fetched && !item_write.meta_flags.fetched);
        assert_eq!(item_write.sole_word_change(&dead, &NOW), None);
        let alive = ItemView { expiry: Expiry::NEVER, ..dead };
        let set = Verb::Store(Store::new(StoreMode::Set, b"", 0, 0));
        let (item_write, _) = replaced(&alive, set);
        assert_eq!(item_write.sole_word_change(&alive, &NOW), Some([0; 8]));
    }

    #[test]
    fn dropping_the_value_drops_flags_and_expiry_but_not_the_id() {
        let delete = Delete { drops_value: true, ..Delete::default() };
        let (item_write, outcome) = replaced(&item(b"value"), Verb::Delete(delete));
        assert_eq!(outcome, Outcome::Invalidated);
        assert_eq!((item_write.value_bytes(5), item_write.flags, item_write.cas), (0, 0, Some(20)));
        assert_eq!(
            (item_write.expiry, item_write.meta_flags),
            (Expiry::NEVER, MetaFlags::default())
        );
        let delete = Delete { flags: 3, touch: Some(10), new_cas: Some(9), ..delete };
        let (item_write, _) = replaced(&item(b"value"), Verb::Delete(delete));
        assert_eq!(
            (item_write.flags, item_write.expiry, item_write.cas),
            (3, Expiry(1010), Some(9))
        );
    }

    #[test]
    fn marking_stale_keeps_the_item_and_moves_its_id_on() {
        let delete = Delete { marks_stale: true, ..Delete::default() };
        let won = ItemView { won: true, ..item(b"value") };
        let (item_write, _) = replaced(&won, Verb::Delete(delete));
        assert_eq!(
            (item_write.value_bytes(5), item_write.flags, item_write.expiry),
            (5, 7, Expiry(1060))
        );
        assert_eq!(
            (item_write.cas, item_write.meta_flags.stale, item_write.meta_flags.won),
            (Some(FRESH), true, false)
        );
        let without_id = ItemView { cas: None, ..item(b"value") };
        let (item_write, _) = replaced(&without_id, Verb::Delete(delete));
        assert_eq!(item_write.cas, None);
    }

    #[test]
    fn recache_compares_with_the_expiry_of_its_place_in_the_line() {
        let get = Get { touch: Some(20), recache_below_seconds: Some(30), ..Get::default() };
        let (item_write, outcome) = replaced(&item(b"value"), Verb::Get(get));
        assert!(matches!(outcome, Outcome::Hit(Hit { won: false, .. })));
        assert_eq!(item_write.expiry, Expiry(1020));
        let get = Get { touches_before_recache: true, ..get };
        let (item_write, outcome) = replaced(&item(b"value"), Verb::Get(get));
        let hit = Hit { won: true, expiry_before: Expiry(1060), ..Hit::default() };
        assert_eq!(outcome, Outcome::Hit(hit));
        assert!(item_write.meta_flags.won);
        // Zero is no threshold, and an item without expiry never ends soon.
        let get = Get { recache_below_seconds: Some(0), ..Get::default() };
        let keep = run(Some(&item(b"value")), Verb::Get(get));
        assert!(matches!(keep, Decision::Keep(Outcome::Hit(Hit { won: false, .. }))));
        let forever = ItemView { expiry: Expiry::NEVER, ..item(b"value") };
        let get = Get { recache_below_seconds: Some(1000), ..Get::default() };
        let keep = run(Some(&forever), Verb::Get(get));
        assert!(matches!(keep, Decision::Keep(Outcome::Hit(Hit { won: false, .. }))));
    }

    #[test]
    fn an_item_with_as_many_seconds_left_as_the_threshold_is_not_recached() {
        for (recache_below_seconds, won) in [(Some(60), false), (Some(61), true)] {
            let get = Get { recache_below_seconds, ..Get::default() };
            let outcome = match run(Some(&item(b"value")), Verb::Get(get)) {
                Decision::Keep(outcome) | Decision::Replace(_, outcome) => outcome,
                other => panic!("{other:?}"),
            };
            assert!(matches!(outcome, Outcome::Hit(hit) if hit.won == won), "{outcome:?}");
        }
    }

    #[test]
    fn a_read_removes_a_dead_item() {
        let dead = ItemView { expiry: Expiry(999), ..item(b"value") };
        let decision = run(Some(&dead), Verb::Get(Get::default()));
        assert!(matches!(decision, Decision::Remove(Outcome::NotFound)), "{decision:?}");
        let decision = run(None, Verb::Get(Get::default()));
        assert!(matches!(decision, Decision::Keep(Outcome::NotFound)), "{decision:?}");
    }

    #[test]
    fn a_written_item_has_an_id_if_one_was_given_or_asked_for() {
        let number = item(b"5");
        for (wants_cas, new_cas, cas) in
            [(false, None, None), (true, None, Some(FRESH)), (false, Some(9), Some(9))]
        {
            let get = Get { vivify: Some(10), wants_cas, new_cas, ..Get::default() };
            let plain = Store::new(StoreMode::Set, b"new", 0, 0);
            let store = Verb::Store(Store { wants_cas, new_cas, ..plain });
            let initial = Some(1);
            let count =
                Arithmetic { delta: 1, initial, wants_cas, new_cas, ..Arithmetic::default() };
            let count = Verb::Arithmetic(count);
            for (item, verb) in [
                (None, Verb::Get(get)),
                (None, store),
                (Some(&number), store),
                (None, count),
                (Some(&number), count),
            ] {
                let decision = run(item, verb);
                let Decision::Replace(item_write, _) = decision else { panic!("{decision:?}") };
                assert_eq!(item_write.cas, cas, "{verb:?}");
            }
        }
    }

    #[test]
    fn only_a_meta_get_is_told_to_recache_a_stale_item() {
        let stale = ItemView { stale: true, ..item(b"value") };
        let touch = Get { touch: Some(10), wants_cas: true, ..Get::default() };
        let (item_write, outcome) = replaced(&stale, Verb::Get(touch));
        let hit = Hit { stale: true, expiry_before: Expiry(1060), ..Hit::default() };
        assert_eq!((outcome, item_write.meta_flags.won), (Outcome::Hit(hit), false));
        let meta = Get { checks_stale: true, ..Get::default() };
        let (item_write, outcome) = replaced(&stale, Verb::Get(meta));
        assert_eq!(
            (outcome, item_write.meta_flags.won),
            (Outcome::Hit(Hit { won: true, ..hit }), true)
        );
        let won = ItemView { won: true, ..stale };
        let kept = run(Some(&won), Verb::Get(meta));
        assert!(matches!(kept, Decision::Keep(Outcome::Hit(Hit { won: false, .. }))));
    }

    #[test]
    fn every_store_is_refused_under_another_id() {
        for mode in [StoreMode::Set, StoreMode::Replace, StoreMode::Append, StoreMode::Prepend] {
            let store = |cas| {
                let compare = Some(Compare { cas, accepts_older_as_stale: false });
                Verb::Store(Store { compare, ..Store::new(mode, b"new", 0, 0) })
            };
            let refused = run(Some(&item(b"value")), store(19));
            assert!(matches!(refused, Decision::Keep(Outcome::Exists)), "{refused:?}");
            assert!(matches!(replaced(&item(b"value"), store(20)).1, Outcome::Stored(_)));
        }
    }

    #[test]
    fn what_an_append_makes_lives_as_long_as_asked() {
        for mode in [StoreMode::Append, StoreMode::Prepend] {
            let store = Store::new(mode, b"new", 0, 0);
            let refused = run(None, Verb::Store(store));
            assert!(matches!(refused, Decision::Keep(Outcome::NotStored)), "{refused:?}");
            let made = run(None, Verb::Store(Store { vivify: Some(10), ..store }));
            let Decision::Replace(item_write, _) = made else { panic!("{made:?}") };
            assert_eq!((item_write.value_bytes(0), item_write.expiry), (3, Expiry(1010)));
        }
    }

    #[test]
    fn an_id_from_the_future_is_no_older_id() {
        let store = |cas| {
            let compare = Some(Compare { cas, accepts_older_as_stale: true });
            Verb::Store(Store { compare, ..Store::new(StoreMode::Set, b"new", 0, 0) })
        };
        let without_id = ItemView { cas: None, ..item(b"value") };
        let (item_write, _) = replaced(&without_id, store(FRESH - 1));
        assert!(item_write.meta_flags.stale);
        assert_eq!(item_write.expiry, Expiry(1060));
        let refused = run(Some(&without_id), store(FRESH));
        assert!(matches!(refused, Decision::Keep(Outcome::Exists)));
        for won in [false, true] {
            let newer = ItemView { won, ..item(b"value") };
            let (item_write, _) = replaced(&newer, store(19));
            let meta_flags = MetaFlags { stale: true, won, ..MetaFlags::default() };
            assert_eq!(item_write.meta_flags, meta_flags);
        }
        let refused = run(Some(&item(b"value")), store(21));
        assert!(matches!(refused, Decision::Keep(Outcome::Exists)));
    }

    #[test]
    fn a_number_that_grows_is_a_new_item() {
        let add = |delta| Verb::Arithmetic(Arithmetic { delta, ..Arithmetic::default() });
        let stale = ItemView { stale: true, won: true, ..item(b"9") };
        let (item_write, _) = replaced(&stale, add(1));
        assert_eq!((item_write.meta_flags, item_write.flags), (MetaFlags::default(), 7));
        let stale = ItemView { stale: true, ..item(b"9 ") };
        let (item_write, outcome) = replaced(&stale, add(1));
        assert!(item_write.meta_flags.stale);
        let counted = Counted {
            number: 10,
            expiry: Expiry(1060),
            expiry_before: Expiry(1060),
            ..Counted::default()
        };
        assert_eq!(outcome, Outcome::Number(counted));
    }

    #[test]
    fn a_number_that_grows_shows_the_time_and_id_asked_for_and_keeps_neither() {
        let asked = Arithmetic {
            delta: 1,
            touch: Some(-1),
            new_cas: Some(900),
            wants_cas: true,
            ..Arithmetic::default()
        };
        let (item_write, outcome) = replaced(&item(b"9"), Verb::Arithmetic(asked));
        assert_eq!((item_write.expiry, item_write.cas), (Expiry(1060), Some(FRESH)));
        let counted = Counted {
            number: 10,
            created: false,
            cas: Some(900),
            expiry: Expiry(999),
            expiry_before: Expiry(1060),
        };
        assert_eq!(outcome, Outcome::Number(counted));
        let (item_write, _) = replaced(&item(b"8"), Verb::Arithmetic(asked));
        assert_eq!((item_write.expiry, item_write.cas), (Expiry(999), Some(900)));
    }

    #[test]
    fn the_id_0_equals_no_id_of_a_store() {
        let compare = Some(Compare { cas: 0, accepts_older_as_stale: true });
        let store = Store { compare, ..Store::new(StoreMode::Set, b"new", 0, 0) };
        let chosen = ItemView { cas: Some(0), ..item(b"value") };
        let refused = run(Some(&chosen), Verb::Store(store));
        assert!(matches!(refused, Decision::Keep(Outcome::Exists)));
    }

    #[test]
    fn only_a_meta_get_wins_the_item_that_it_creates() {
        for checks_stale in [false, true] {
            let get = Get { vivify: Some(30), checks_stale, ..Get::default() };
            let Decision::Replace(item_write, outcome) = run(None, Verb::Get(get)) else {
                panic!("created")
            };
            assert_eq!(item_write.meta_flags.won, checks_stale);
            let hit = Hit { won: checks_stale, created: true, ..Hit::default() };
            assert_eq!(outcome, Outcome::Hit(hit));
        }
    }

    #[test]
    fn an_empty_value_is_no_number_whatever_its_id() {
        let compare = Arithmetic { delta: 1, compare: Some(1), ..Arithmetic::default() };
        let kept = run(Some(&item(b"")), Verb::Arithmetic(compare));
        assert!(matches!(kept, Decision::Keep(Outcome::NotANumber)));
        let kept = run(Some(&item(b"1")), Verb::Arithmetic(compare));
        assert!(matches!(kept, Decision::Keep(Outcome::Exists)));
    }

    #[test]
    fn a_store_tells_the_whole_length() {
        let store = Store::new(StoreMode::Append, b"de", 1, 5);
        let (item_write, outcome) = replaced(&item(b"abc"), Verb::Store(store));
        assert_eq!(outcome, Outcome::Stored(Written { cas: None, value_bytes: 5 }));
        assert_eq!((item_write.flags, item_write.expiry), (7, Expiry(1060)));
    }
}
