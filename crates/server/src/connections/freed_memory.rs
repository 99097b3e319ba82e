//! When memory that was freed goes back to the system.
//!
//! The allocator keeps what is freed for later, all of it if the pieces are short. After an attack
//! that filled the buffers' share, or the failover of a node, the process would keep that much for
//! good.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::net::sys;

/// Fewer freed bytes than this stay with the allocator: buffers of a busy server come and go.
const WORTH_BYTES: usize = 16 << 20;

/// How long the buffers must have taken less than half of what they took before: memory that is
/// soon used again would cost page faults.
const QUIET: Duration = Duration::from_secs(2);

/// How often [`ResidentMemory::watch`] looks.
const LOOK: Duration = Duration::from_secs(5);

/// The free memory that the allocator may keep resident, in bytes; or 1/N of the resident bytes of
/// which no use is known, if that is more.
const UNUSED_BYTES: usize = 8 << 20;
const UNUSED_PARTS: usize = 32;

/// The free memory that the allocator of a server without a cluster may keep resident: 1/N of the
/// memory limit, within these bounds.
const UNUSED_LIMIT_PARTS: usize = 64;
const LEAST_UNUSED_BYTES: usize = 512 << 10;
const MOST_UNUSED_BYTES: usize = 64 << 20;

/// Watches how many bytes buffers take. Used by one thread.
#[derive(Debug, Default)]
pub struct FreedMemory {
    /// The most bytes since memory was last given back.
    most_bytes: usize,
    /// Since when less than half of it is used; None while more is.
    low_since: Option<Instant>,
}

/// Watches the resident memory of a process: a node's failovers and catch-ups take several times
/// what it needs otherwise, and a server's bursts of requests a good part of a small limit. Both
/// may begin and end between two looks, so that what is in use at a look says little. Used by one
/// thread.
#[derive(Debug)]
pub struct ResidentMemory {
    /// When it is looked at next.
    next_look: Option<Instant>,
    /// Free memory that may stay resident, in bytes.
    kept_bytes: usize,
    /// The least resident bytes of which no use was known at any look since memory was last given
    /// back, and right after that: stacks, and pieces between those in use, which giving back does
    /// not change. `usize::MAX` before the first look. Relaxed: no other memory depends on it.
    rest_bytes: Arc<AtomicUsize>,
}

impl Default for ResidentMemory {
    fn default() -> Self {
        let rest_bytes = Arc::new(AtomicUsize::new(usize::MAX));
        Self { next_look: None, kept_bytes: UNUSED_BYTES, rest_bytes }
    }
}

impl ResidentMemory {
    /// For a server with this memory limit.
    pub fn of_server(limit_bytes: usize) -> Self {
        let share = limit_bytes / UNUSED_LIMIT_PARTS;
        let kept_bytes = share.clamp(LEAST_UNUSED_BYTES, MOST_UNUSED_BYTES);
        Self { kept_bytes, ..Self::default() }
    }

    /// Whether [`ResidentMemory::watch`] looks now.
    pub fn looks(&self, now: Instant) -> bool {
        cfg!(target_env = "gnu") && self.next_look.is_none_or(|next| now >= next)
    }

    /// Gives free memory back to the system once more of it is resident than is worth keeping.
    /// `elsewhere_bytes` are in use without having come from the allocator. Call it once a second
    /// or more often. Does nothing where the C library is not GNU's: musl's keeps little.
    pub fn watch(&mut self, elsewhere_bytes: usize, now: Instant) {
        if !self.looks(now) {
            return;
        }
        self.next_look = Some(now + LOOK);
        let Some(bytes) = unused_bytes(elsewhere_bytes) else { return };
        if self.is_due(bytes) {
            let rest_bytes = Arc::clone(&self.rest_bytes);
            give_back(bytes, move || {
                let rest = unused_bytes(elsewhere_bytes).unwrap_or(bytes);
                rest_bytes.store(rest, Ordering::Relaxed);
            });
        }
    }

    /// Whether `unused`, the resident bytes of which no use is known, are worth giving back.
    fn is_due(&self, unused: usize) -> bool {
        let rest = self.rest_bytes.fetch_min(unused, Ordering::Relaxed).min(unused);
        unused - rest >= self.kept_bytes.max(rest / UNUSED_PARTS)
    }
}

/// Resident bytes that are neither in use by the allocator's count nor `elsewhere_bytes`; None if
/// the system does not say.
fn unused_bytes(elsewhere_bytes: usize) -> Option<usize> {
    let resident_bytes = sys::anonymous_resident_bytes()?;
    Some(resident_bytes.saturating_sub(sys::allocated_bytes() + elsewhere_bytes))
}

/// Gives free memory back to the system, and then calls `done`, in a thread: it takes up to a
/// millisecond for each MiB, and the caller has others to serve. If there can be no thread, the
/// memory stays until the next time.
fn give_back(bytes: usize, done: impl FnOnce() + Send + 'static) {
    let give_back = move || {
        let begin = Instant::now();
        sys::give_back_memory();
        let ms = begin.elapsed().as_millis();
        log::debug!(bytes, ms; "gave freed memory back to the system");
        done();
    };
    let _ = std::thread::Builder::new().name("give back".into()).spawn(give_back);
}

impl FreedMemory {
    /// Gives free memory back to the system if much was freed and is not used again. Call it once a
    /// second or more often.
    pub fn give_back(&mut self, used_bytes: usize, now: Instant) {
        let freed = self.most_bytes.saturating_sub(used_bytes);
        if self.is_due(used_bytes, now) {
            give_back(freed, || {});
        }
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

    #[test]
    fn what_a_node_does_not_use_goes_back_whenever_it_came() {
        let memory = ResidentMemory::default();
        let is_due = |mib: usize| memory.is_due(mib << 20);
        let rest_is = |mib: usize| memory.rest_bytes.store(mib << 20, Ordering::Relaxed);
        assert!(!is_due(20) && !is_due(27), "little more than ever");
        assert!(is_due(28), "though nothing was seen to be freed");
        rest_is(24);
        assert!(!is_due(24) && !is_due(31) && is_due(32), "what stays is not tried for nothing");
        rest_is(32);
        assert!(!is_due(32) && !is_due(10) && !is_due(17) && is_due(18), "some was used again");
        rest_is(640);
        assert!(!is_due(659) && is_due(660), "a part of much");
    }

    #[test]
    fn a_server_keeps_a_part_of_its_limit() {
        for (limit_mib, kept_kib) in
            [(16, 512), (32, 512), (64, 1024), (1024, 16_384), (8192, 65_536)]
        {
            let memory = ResidentMemory::of_server(limit_mib << 20);
            assert!(!memory.is_due(2 << 20) && !memory.is_due((2 << 20) + (kept_kib << 10) - 1));
            assert!(memory.is_due((2 << 20) + (kept_kib << 10)), "{limit_mib} MiB");
        }
    }

    /// The free pieces lie between others, and no look has seen them in use.
    #[test]
    #[cfg(target_env = "gnu")]
    fn resident_memory_that_is_free_is_found_and_given_back() {
        // Other tests use memory meanwhile, so it is tried more than once.
        let is_given_back = (0..20).any(|_| {
            let memory = ResidentMemory::default();
            let unused = || unused_bytes(0).expect("the system says");
            assert!(!memory.is_due(unused()));
            let mut pieces: Vec<Vec<u8>> = (0..64_000).map(|_| vec![1; 1 << 10]).collect();
            let kept: Vec<Vec<u8>> = pieces.drain(..).step_by(1_000).collect();
            let before = unused();
            let is_found = memory.is_due(before);
            sys::give_back_memory();
            is_found && unused() + (32 << 20) <= before && kept.len() == 64
        });
        assert!(is_given_back);
    }
}
