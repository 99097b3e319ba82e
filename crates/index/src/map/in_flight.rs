//! The keys whose values are being computed, so that of all who ask for an absent key one computes.
//!
//! Thread safety: all methods may be called by any thread.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex};
use std::task::{Context, Poll, Waker};

use amalgam_op::IgnorePoison;

/// Keys that are claimed, each with the wakers of the tasks that wait for it.
#[derive(Default)]
pub(super) struct InFlight {
    keys: Mutex<HashMap<Box<[u8]>, Vec<Waker>>>,
    ended: Condvar,
}

impl InFlight {
    /// Waits until nobody computes the value of `key`, and claims it. Blocks the thread.
    pub(super) fn claim<'f>(&'f self, key: &'f [u8]) -> Claim<'f> {
        let mut keys = self.keys.lock().ignore_poison();
        while keys.contains_key(key) {
            keys = self.ended.wait(keys).ignore_poison();
        }
        keys.insert(key.into(), Vec::new());
        Claim { in_flight: self, key }
    }

    /// As [`Self::claim`], for a task.
    pub(super) async fn claim_in_task<'f>(&'f self, key: &'f [u8]) -> Claim<'f> {
        poll_fn(|context| self.poll_claim(key, context)).await
    }

    fn poll_claim<'f>(&'f self, key: &'f [u8], context: &mut Context<'_>) -> Poll<Claim<'f>> {
        let mut keys = self.keys.lock().ignore_poison();
        if let Some(waiting) = keys.get_mut(key) {
            // A task that is polled again, for whatever reason, waits once.
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            return Poll::Pending;
        }
        keys.insert(key.into(), Vec::new());
        Poll::Ready(Claim { in_flight: self, key })
    }
}

/// The right to compute the value of a key; given up when dropped, also by a panic, or by a task
/// that is cancelled.
pub(super) struct Claim<'f> {
    in_flight: &'f InFlight,
    key: &'f [u8],
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let waiting = self.in_flight.keys.lock().ignore_poison().remove(self.key);
        self.in_flight.ended.notify_all();
        // A waker may run the task here and now, so the lock is free.
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}
