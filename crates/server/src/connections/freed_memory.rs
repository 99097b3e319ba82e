//! When memory that was freed goes back to the system.
//!
//! The allocator keeps what is freed for later, all of it if the pieces are short. After an attack
//! that filled the buffers' share, or the failover of a node, the process would keep that much for
//! good.

use std::time::{Duration, Instant};

use crate::net::sys;

/// Fewer freed bytes than this stay with the allocator: buffers of a busy server come and go.
const WORTH_BYTES: usize = 16 << 20;

/// How long the buffers must have taken less than half of what they took before: memory that is
/// soon used again would cost page faults.
const QUIET: Duration = Duration::from_secs(2);

/// How often [`FreedMemory::watch_allocator`] looks at the allocator.
const LOOK: Duration = Duration::from_secs(5);

/// Watches how many bytes buffers, or all of the heap, take. Used by one thread.
#[derive(Debug, Default)]
pub struct FreedMemory {
    /// The most bytes since memory was last given back.
    most_bytes: usize,
    /// Since when less than half of it is used; None while more is.
    low_since: Option<Instant>,
    /// When the allocator is looked at next.
    next_look: Option<Instant>,
}

impl FreedMemory {
    /// As [`Self::give_back`], of all that the process takes from the allocator: for a node, whose
    /// failovers and catch-ups take several times what it needs otherwise. Does nothing where the C
    /// library is not GNU's.
    pub fn watch_allocator(&mut self, now: Instant) {
        if self.next_look.is_none_or(|next| now >= next) {
            self.next_look = Some(now + LOOK);
            self.give_back(sys::allocated_bytes(), now);
        }
    }

    /// Gives free memory back to the system if much was freed and is not used again. Call it once a
    /// second or more often.
    pub fn give_back(&mut self, used_bytes: usize, now: Instant) {
        let freed = self.most_bytes.saturating_sub(used_bytes);
        if !self.is_due(used_bytes, now) {
            return;
        }
        // It takes up to a millisecond for each MiB, and the caller has others to serve. If there
        // can be no thread, the memory stays until the next time.
        let give_back = move || {
            sys::give_back_memory();
            let ms = now.elapsed().as_millis();
            log::debug!(freed, ms; "gave freed memory back to the system");
        };
        let _ = std::thread::Builder::new().name("give back".into()).spawn(give_back);
    }

    fn is_due(&mut self, used_bytes: usize, now: Instant) -> bool {
        self.most_bytes = self.most_bytes.max(used_bytes);
        let freed = self.most_bytes - used_bytes;
        if freed < WORTH_BYTES || freed < self.most_bytes / 2 {
            self.low_since = None;
            return false;
        }
        let since = *self.low_since.get_or_insert(now);
        let is_due = now.saturating_duration_since(since) >= QUIET;
        if is_due {
            (self.most_bytes, self.low_since) = (used_bytes, None);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_when_much_stays_unused() {
        let start = Instant::now();
        let mut memory = FreedMemory::default();
        let mut is_due =
            |mib: usize, seconds| memory.is_due(mib << 20, start + Duration::from_secs(seconds));
        assert!(!is_due(0, 0) && !is_due(200, 1) && !is_due(10, 2));
        assert!(!is_due(150, 3), "it is used again");
        assert!(!is_due(10, 4) && !is_due(20, 5) && is_due(10, 6));
        assert!(!is_due(10, 7) && !is_due(10, 60), "once");
        assert!(!is_due(20, 61) && !is_due(0, 62) && is_due(0, 64), "half is much");
        assert!(!is_due(15, 65) && !is_due(0, 66) && !is_due(0, 70), "too little");
    }
}
