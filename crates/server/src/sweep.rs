//! Removal of every dead item, so that the count of flushes may go on.

use std::ops::ControlFlow;

use amalgam_index::{Cursor, Found, Index, Sink, Worker};
use amalgam_op::{Get, Key, Op, Verb};

use crate::clock::Clock;

/// Buckets looked at between two quiescent states.
const SLICE_BUCKETS: usize = 256;

struct Nowhere;

impl Sink for Nowhere {
    fn hit(&mut self, _: usize, _: &Found<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Removes every item that is dead when it starts.
pub fn sweep<I: Index>(index: &I, clock: &Clock) {
    let target = clock.begin_sweep();
    let mut worker = index.worker();
    let mut dead: Vec<Vec<u8>> = Vec::new();
    let mut cursor = Some(Cursor::START);
    // A read that finds a dead item removes it; one that leaves the recency bits alone is enough.
    let verb = Verb::Get(Get { is_quiet_access: true, ..Get::default() });
    while let Some(from) = cursor {
        let now = clock.now();
        cursor = worker.scan(from, SLICE_BUCKETS, &mut |item| {
            if now.generations_behind(item.generation) > 0 {
                dead.push(item.key.to_vec());
            }
            ControlFlow::Continue(())
        });
        for key in dead.drain(..) {
            let key = Key::new(&key, index.seed());
            worker.apply(&Op { key, verb }, &now, &mut Nowhere);
        }
        worker.quiesce();
    }
    clock.end_sweep(target);
}
