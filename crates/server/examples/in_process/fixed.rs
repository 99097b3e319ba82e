//! A store that holds an item under every key, so that only the server's own cost remains.

use std::ops::ControlFlow;

use amalgam_index::maintenance::Signal;
use amalgam_index::mem::ItemRef;
use amalgam_index::op::{
    Expiry, HashSeed, Hit, ItemView, Key, Now, Op, Outcome, Value, Verb, Written,
};
use amalgam_index::{
    Configuration, Cursor, Engine, Found, OpenError, Sink, Statistics, Store, Worker,
};

pub struct Fixed {
    seed: HashSeed,
    signal: Signal,
}

pub struct FixedWorker;

static VALUE: [u8; 32] = *b"vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";

fn item<'k>(key: &Key<'k>) -> ItemView<'k> {
    ItemView {
        key: key.bytes(),
        value: Value::Bytes(&VALUE),
        flags: 0,
        expiry: Expiry::NEVER,
        cas: Some(1),
        generation: 0,
        fetched: true,
        stale: false,
        won: false,
        last_access_seconds: None,
    }
}

impl Store for Fixed {
    const NAME: &'static str = "fixed";
    type Worker<'i> = FixedWorker;

    fn worker(&self) -> FixedWorker {
        FixedWorker
    }

    fn seed(&self) -> &HashSeed {
        &self.seed
    }

    fn statistics(&self) -> Statistics {
        Statistics::default()
    }

    fn set_memory_limit(&self, _: usize) {}
}

impl Engine for Fixed {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        Ok(Self { seed: configuration.seed.clone(), signal: Signal::default() })
    }

    fn maintenance_signal(&self) -> &Signal {
        &self.signal
    }

    fn maintain(_: &mut FixedWorker, _: &Now) -> bool {
        false
    }

    fn compare_exchange_item(_: &mut FixedWorker, _: u64, _: ItemRef, _: Option<ItemRef>) -> bool {
        false
    }
}

impl Worker for FixedWorker {
    // Inlined, so that the count does not depend on how the compiler divides the program.
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], _: &Now, sink: &mut impl Sink) -> usize {
        for (position, key) in keys.iter().enumerate() {
            if sink.hit(position, &Found::new(item(key))).is_break() {
                return position + 1;
            }
        }
        keys.len()
    }

    fn apply(&mut self, op: &Op<'_>, _: &Now, sink: &mut impl Sink) -> Outcome {
        match op.verb {
            Verb::Get(_) => {
                let _ = sink.hit(0, &Found::new(item(&op.key)));
                Outcome::Hit(Hit::default())
            }
            Verb::Store(_) => Outcome::Stored(Written::default()),
            Verb::Arithmetic(_) => Outcome::NotANumber,
            Verb::Delete(_) => Outcome::Deleted,
        }
    }

    fn prefetch(&self, _: &Key<'_>) {}

    fn scan(
        &mut self,
        _: Cursor,
        _: usize,
        _: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        None
    }

    fn quiesce(&mut self) {}
}
