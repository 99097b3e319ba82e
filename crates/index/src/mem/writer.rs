//! The retry loop around a write, shared by engines whose writes take effect by one compare and
//! exchange: look up the key, decide, fill an item, change the index, and start over if another
//! thread changed it first.

use amalgam_op::{Now, Op, Outcome};

use super::Shortage;
use super::header::ItemLayout;
use super::pool::{Pool, Slot};

/// The bound on attempts of one write. An attempt fails only because another thread's write came
/// first, so only a bug reaches the bound.
const ATTEMPTS: usize = 1 << 20;

/// The hash of the key whose item may not be evicted to make room for `op`. Without it an append
/// to the only item of a size class could evict that item, and find nothing to append to.
pub fn spared_by(op: &Op<'_>) -> Option<u64> {
    op.verb.depends_on_item().then(|| op.key.hash())
}

/// The result of one attempt of a write.
pub enum Attempt {
    /// The operation took effect, or there was nothing to do.
    Done(Outcome),
    /// Another thread's write came first: try again.
    Again,
    /// The write needs a slot for an item of this layout.
    Needs(ItemLayout),
}

/// A worker that writes by attempts.
pub trait Writer<'i> {
    /// The worker's pool.
    fn pool(&mut self) -> &mut Pool<'i>;

    /// Calls [`Pool::make_room`] with the engine's way to unlink items. Requires: the worker holds
    /// no guard.
    fn make_room(&mut self, shortage: Shortage, spared: Option<u64>, now: &Now) -> bool;

    /// Reserves a slot for `layout`, and evicts items for it if the index may. An item whose key
    /// has the hash `spared` is not evicted.
    ///
    /// # Errors
    ///
    /// `TooLarge` if the item is longer than the index accepts; `OutOfMemory` if nothing can be
    /// evicted.
    fn reserve(
        &mut self,
        layout: ItemLayout,
        spared: Option<u64>,
        now: &Now,
    ) -> Result<Slot, Outcome> {
        loop {
            let shortage = match self.pool().reserve(layout) {
                Ok(slot) => return Ok(slot),
                Err(shortage) if shortage.is_too_large() => return Err(Outcome::TooLarge),
                Err(shortage) => shortage,
            };
            // The loop is bounded: `make_room` returns false when nothing can be evicted.
            if !self.make_room(shortage, spared, now) {
                return Err(Outcome::OutOfMemory);
            }
        }
    }

    /// Calls `attempt` until it is done. An attempt that returned [`Attempt::Needs`] finds a slot
    /// in its second argument the next time; it takes the slot out if it fills it. Requires:
    /// `attempt` holds no guard when it returns.
    fn until_done(
        &mut self,
        op: &Op<'_>,
        now: &Now,
        mut attempt: impl FnMut(&mut Self, &mut Option<Slot>) -> Attempt,
    ) -> Outcome {
        let mut slot = None;
        let mut outcome = Outcome::OutOfMemory;
        for _ in 0..ATTEMPTS {
            match attempt(self, &mut slot) {
                Attempt::Done(done) => {
                    outcome = done;
                    break;
                }
                Attempt::Again => {}
                Attempt::Needs(layout) => {
                    if let Some(slot) = slot.take() {
                        self.pool().give_back(slot);
                    }
                    match self.reserve(layout, spared_by(op), now) {
                        Ok(reserved) => slot = Some(reserved),
                        Err(refused) => {
                            outcome = refused;
                            break;
                        }
                    }
                }
            }
        }
        if let Some(slot) = slot {
            self.pool().give_back(slot);
        }
        outcome
    }
}
