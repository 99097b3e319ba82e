//! A map that runs `decide`.

use std::collections::BTreeMap;

use amalgam_op::{
    Decision, Expiry, Hit, ItemView, ItemWrite, MetaFlags, Now, Op, Outcome, Value, decide,
};

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
    meta_flags: MetaFlags,
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
            fetched: self.meta_flags.fetched,
            stale: self.meta_flags.stale,
            won: self.meta_flags.won,
            last_access_seconds: None,
        }
    }

    fn new(item_write: &ItemWrite<'_>, current: &[u8], now: &Now) -> Self {
        let mut value = vec![0; item_write.value_bytes(current.len())];
        item_write.write_value(current, &mut value);
        Self {
            value,
            flags: item_write.flags,
            expiry: item_write.expiry,
            cas: item_write.cas,
            generation: now.generation,
            meta_flags: item_write.meta_flags,
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
            item.meta_flags.fetched = true;
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
            Decision::Replace(item_write, outcome) => {
                let old = current.as_ref().map_or(&[][..], |item| item.value.as_bytes());
                if item_write.value_bytes(old.len()) > MAX_VALUE_BYTES {
                    return Outcome::TooLarge;
                }
                let item = Item::new(&item_write, old, now);
                self.items.insert(key.to_vec(), item);
                outcome
            }
        };
        if let (Outcome::Hit(how), Some(item)) = (outcome, self.items.get_mut(key)) {
            hit(&item.view(key), how);
            if let amalgam_op::Verb::Get(get) = op.verb {
                item.meta_flags.fetched |= !get.is_quiet_access;
            }
        }
        outcome
    }
}
