//! Exact unlinking: the pointer counts, not the key.

use std::ops::ControlFlow;

use amalgam_index::mem::ItemRef;
use amalgam_index::{Engine, Found, Sink, Worker};
use amalgam_op::Key;

use crate::harness::{Session, configuration, open};

/// Takes the reference of a hit.
#[derive(Default)]
struct Reference(Option<ItemRef>);

impl Sink for Reference {
    fn hit(&mut self, _position: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.0 = found.reference();
        ControlFlow::Continue(())
    }

    fn miss(&mut self, position: usize) -> ControlFlow<()> {
        panic!("key {position} is there")
    }
}

/// `compare_exchange_item` removes the item it was given once, and never that item's successor
/// under the same key.
/// An engine that shows no references, as `model`, has nothing to get wrong here.
pub fn compare_exchange_item<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    let value = b"too long for an in-place word";
    for round in 0..50 {
        let name = format!("key {round}");
        let key = Key::new(name.as_bytes(), index.seed());
        let mut reference = || {
            session.set(key.bytes(), value);
            let mut sink = Reference::default();
            session.worker.get_batch(&[key], &session.now, &mut sink);
            sink.0
        };
        let (Some(old), Some(new)) = (reference(), reference()) else { return };
        assert_ne!(old, new, "a replaced item waits for its grace period");
        let hash = key.hash();
        assert!(
            !I::compare_exchange_item(&mut session.worker, hash, old, None),
            "the key has a new item"
        );
        assert!(session.get(key.bytes()).is_some());
        let somewhere_else = hash.rotate_left(32) ^ 0xdead_beef;
        if I::compare_exchange_item(&mut session.worker, somewhere_else, new, None) {
            assert!(session.get(key.bytes()).is_none(), "true means unlinked");
            continue;
        }
        assert!(I::compare_exchange_item(&mut session.worker, hash, new, None));
        assert!(!I::compare_exchange_item(&mut session.worker, hash, new, None), "once");
        assert!(session.get(key.bytes()).is_none());
        session.set(key.bytes(), value);
        assert!(session.get(key.bytes()).is_some());
    }
}
