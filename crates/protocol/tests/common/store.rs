//! A map that runs `decide`.

use std::collections::BTreeMap;

use amalgam_op::{Decision, Draft, Expiry, Hit, ItemView, Marks, Now, Op, Outcome, Value, decide};

/// The largest item the store takes, in bytes of its value.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

#[derive(Default)]
pub struct Store {
    items: BTreeMap<Vec<u8>, Item>,
    next_cas: u64,
}

#[derive(Clone, Default)]
pub struct Item {
    value: Vec<u8>,
    flags: u32,
    expiry: Expiry,
    cas: Option<u64>,
    generation: u8,
    marks: Marks,
}

impl Item {
    pub fn view<'a>(&'a self, key: &'a [u8]) -> ItemView<'a> {
        ItemView {
            key,
            value: Value::Bytes(&self.value),
            flags: self.flags,
            expiry: self.expiry,
            cas: self.cas,
            generation: self.generation,
            fetched: self.marks.fetched,
            stale: self.marks.stale,
            won: self.marks.won,
            last_access_seconds: None,
        }
    }

    fn new(draft: &Draft<'_>, current: &[u8], now: &Now) -> Self {
        let mut value = vec![0; draft.value_bytes(current.len())];
        draft.write_value(current, &mut value);
        Self {
            value,
            flags: draft.flags,
            expiry: draft.expiry,
            cas: draft.cas,
            generation: now.generation,
            marks: draft.marks,
        }
    }
}

impl Store {
    /// A copy of the live item under `key`.
    pub fn get(&self, key: &[u8], now: &Now) -> Option<Item> {
        let item = self.items.get(key)?;
        now.is_live(item.expiry, item.generation).then(|| item.clone())
    }

    pub fn mark_fetched(&mut self, key: &[u8]) {
        if let Some(item) = self.items.get_mut(key) {
            item.marks.fetched = true;
        }
    }

    pub fn apply(
        &mut self,
        op: &Op<'_>,
        now: &Now,
        hit: impl FnOnce(&ItemView<'_>, Hit),
    ) -> Outcome {
        self.next_cas += 1;
        let key = op.key.bytes();
        let current = self.items.get(key).map(|item| item.view(key));
        let outcome = match decide(current.as_ref(), op, now, self.next_cas) {
            Decision::Keep(outcome) => outcome,
            Decision::Remove(outcome) => {
                self.items.remove(key);
                outcome
            }
            Decision::Replace(draft, outcome) => {
                let old = current.as_ref().map_or(&[][..], |item| item.value.as_bytes());
                if draft.value_bytes(old.len()) > MAX_VALUE_BYTES {
                    return Outcome::TooLarge;
                }
                let item = Item::new(&draft, old, now);
                self.items.insert(key.to_vec(), item);
                outcome
            }
        };
        if let (Outcome::Hit(how), Some(item)) = (outcome, self.items.get_mut(key)) {
            hit(&item.view(key), how);
            if let amalgam_op::Verb::Get(get) = op.verb {
                item.marks.fetched |= !get.is_quiet_access;
            }
        }
        outcome
    }
}
