//! The checkers find faults that were planted on purpose.

#[path = "../../server/tests/suite/altered.rs"]
mod altered;

use std::panic::{AssertUnwindSafe, catch_unwind};

use altered::{Alteration, Altered};
use amalgam_conformance::{history, threads};
use amalgam_index::model::ModelWorker;
use amalgam_index::{Sink, Worker};
use amalgam_op::{Delete, Key, Now, Op, Outcome, StoreMode, Verb};

/// An append that reads and writes in two steps, and loses what comes between.
const LOSES_APPENDS: u8 = 1;
/// A replacement that removes first, so that readers miss a present key.
const REMOVES_FIRST: u8 = 2;

/// A fault of the model.
struct Faulty<const FAULT: u8>;

fn value_of(model: &mut ModelWorker<'_>, key: Key<'_>, now: &Now) -> Option<Vec<u8>> {
    let mut sink = amalgam_conformance::harness::Recorder::default();
    model.get_batch(&[key], now, &mut sink);
    sink.seen.pop().and_then(|(_, item)| item).map(|item| item.value)
}

impl<const FAULT: u8> Alteration for Faulty<FAULT> {
    const NAME: &'static str = "faulty";

    fn apply(model: &mut ModelWorker<'_>, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        match op.verb {
            Verb::Store(store) if store.mode == StoreMode::Append && FAULT == LOSES_APPENDS => {
                let Some(mut value) = value_of(model, op.key, now) else {
                    return Outcome::NotStored;
                };
                std::thread::yield_now();
                value.extend_from_slice(store.value);
                let verb =
                    Verb::Store(amalgam_op::Store { mode: StoreMode::Set, value: &value, ..store });
                model.apply(&Op { verb, ..*op }, now, sink)
            }
            Verb::Store(store) if store.mode == StoreMode::Set && FAULT == REMOVES_FIRST => {
                let verb = Verb::Delete(Delete::default());
                model.apply(&Op { verb, ..*op }, now, sink);
                std::thread::yield_now();
                model.apply(op, now, sink)
            }
            _ => model.apply(op, now, sink),
        }
    }
}

/// How often a race may go unnoticed before the checker is at fault.
const ATTEMPTS: usize = 20;

fn finds(check: impl Fn()) -> bool {
    (0..ATTEMPTS).any(|_| catch_unwind(AssertUnwindSafe(&check)).is_err())
}

#[test]
fn lost_appends_are_not_linearizable() {
    assert!(finds(history::linearizable::<Altered<Faulty<LOSES_APPENDS>>>));
}

#[test]
fn lost_appends_do_not_sum_up() {
    assert!(finds(threads::appends::<Altered<Faulty<LOSES_APPENDS>>>));
}

#[test]
fn a_removal_before_a_store_is_not_linearizable() {
    assert!(finds(history::linearizable::<Altered<Faulty<REMOVES_FIRST>>>));
}

#[test]
fn a_removal_before_a_store_misses_present_keys() {
    assert!(finds(threads::present_keys_are_found::<Altered<Faulty<REMOVES_FIRST>>>));
}
