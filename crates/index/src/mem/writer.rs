//! The loop around a write, alike in engines that change the index by one step at a time: look,
//! decide, fill an item, take that step, and start over where another thread was first.

use amalgam_op::{Now, Outcome};

use super::header::ItemLayout;
use super::pool::{Pool, Shortage, Slot};

/// Attempts of a write. Each fails only because another thread's write came first, so this bound is
/// met by a bug or by nobody.
const ATTEMPTS: usize = 1 << 20;

/// What an attempt of a write came to.
pub enum Attempt {
    /// The operation took effect, or there was nothing to do.
    Done(Outcome),
    /// Somebody else's write came first.
    Again,
    /// An item of this layout has to be written, and there was no slot for it.
    Needs(ItemLayout),
}

/// A worker that writes by attempts.
pub trait Writer<'i> {
    /// The worker's pool.
    fn pool(&mut self) -> &mut Pool<'i>;

    /// As [`Pool::make_room`], through the engine's index. The worker holds no guard.
    fn make_room(&mut self, shortage: Shortage, now: &Now) -> bool;

    /// A slot for `layout`, evicting where that is allowed.
    ///
    /// # Errors
    ///
    /// `TooLarge`, or `OutOfMemory` where nothing can be evicted.
    fn reserve(&mut self, layout: ItemLayout, now: &Now) -> Result<Slot, Outcome> {
        loop {
            let shortage = match self.pool().reserve(layout) {
                Ok(slot) => return Ok(slot),
                Err(shortage) if shortage.is_too_large() => return Err(Outcome::TooLarge),
                Err(shortage) => shortage,
            };
            // Bounded: it gives up where nothing can be evicted.
            if !self.make_room(shortage, now) {
                return Err(Outcome::OutOfMemory);
            }
        }
    }

    /// Calls `attempt` until it is done, with the slot that it asked for. It takes the slot if it
    /// fills it, and holds no guard when it returns.
    fn until_done(
        &mut self,
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
                    match self.reserve(layout, now) {
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
