//! The keys whose values are being computed, so that of all who ask for an absent key one computes.
//!
//! Thread safety: all methods may be called by any thread.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex};

use amalgam_op::IgnorePoison;

/// Keys whose values are being computed. A thread that finds its key there waits for the result.
#[derive(Default)]
pub(super) struct InFlight {
    keys: Mutex<HashSet<Box<[u8]>>>,
    ended: Condvar,
}

impl InFlight {
    /// Waits until no other thread computes the value of `key`, and claims it.
    pub(super) fn claim<'f>(&'f self, key: &'f [u8]) -> Claim<'f> {
        let mut keys = self.keys.lock().ignore_poison();
        while keys.contains(key) {
            keys = self.ended.wait(keys).ignore_poison();
        }
        keys.insert(key.into());
        Claim { in_flight: self, key }
    }
}

/// The right to compute the value of a key; given up when dropped, also by a panic.
pub(super) struct Claim<'f> {
    in_flight: &'f InFlight,
    key: &'f [u8],
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.in_flight.keys.lock().ignore_poison().remove(self.key);
        self.in_flight.ended.notify_all();
    }
}
