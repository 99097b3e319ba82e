//! How much of a node's memory its clients may fill.
//!
//! When one of N members dies, each other one takes over 1/(N-1) of what it had. There is room for
//! that if clients fill at most (N-1)/N of each node's memory. N is the largest number of members
//! within a day: a death does not make clients' part smaller.

/// How long a member that is gone still counts, in milliseconds.
const COUNTS_MS: u64 = 86_400_000;
/// Nodes take over unequal parts, and pages of size classes are not full: 1/MARGIN of the memory is
/// kept beyond the part of a dead node.
const MARGIN: usize = 32;
/// Where more than the clients' part is used, 1/OVERWRITE_SHARE of the memory is free for values
/// that replace others.
const OVERWRITE_SHARE: usize = 64;

/// One engine's memory, and the part that is kept.
#[derive(Debug)]
pub(crate) struct Reserve {
    bytes: usize,
    /// Whether this node takes over from dead ones at all.
    exists: bool,
    is_open: bool,
    /// The most members, and when that number was seen last.
    members: usize,
    members_ms: u64,
    limit: usize,
}

impl Reserve {
    pub(crate) fn new(bytes: usize, exists: bool) -> Self {
        Self { bytes, exists, is_open: false, members: 0, members_ms: 0, limit: bytes }
    }

    pub(crate) fn set_memory(&mut self, bytes: usize) {
        self.bytes = bytes;
        // Else each change would be room to grow where more than the clients' part is used.
        self.limit = self.limit.min(bytes);
    }

    /// What is handed over may take all memory, or no longer.
    pub(crate) fn open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    /// The number of members at this time.
    pub(crate) fn saw_members(&mut self, now_ms: u64, members: usize) {
        if members >= self.members || now_ms >= self.members_ms + COUNTS_MS {
            (self.members, self.members_ms) = (members, now_ms);
        }
    }

    /// What clients may fill, in bytes.
    fn share(&self) -> usize {
        match self.members {
            _ if !self.exists => self.bytes,
            // Nobody has anything to hand over.
            0 | 1 => self.bytes,
            members => self.bytes - self.bytes / members - self.bytes / MARGIN,
        }
    }

    /// What clients may fill, and all memory, in bytes.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.share(), self.bytes)
    }

    /// The engine's limit, in bytes, while it uses `used` of them.
    pub(crate) fn limit(&mut self, used: usize) -> usize {
        let share = self.share();
        self.limit = if self.is_open {
            self.bytes
        } else if used <= share {
            share
        } else {
            // It goes down with what is used, and never up.
            let room = used.saturating_add(self.bytes / OVERWRITE_SHARE);
            self.limit.min(room).max(share)
        };
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 96 << 20;

    #[test]
    fn a_dead_nodes_part_fits_beside_what_clients_filled() {
        for members in 2..100 {
            let mut reserve = Reserve::new(BYTES, true);
            reserve.saw_members(5, members);
            let share = reserve.limit(0);
            let after = share + share / (members - 1);
            assert!(after <= BYTES && share > BYTES / 3, "{members}: {share}");
        }
    }

    #[test]
    fn a_death_does_not_make_the_clients_part_smaller_for_a_day() {
        let mut reserve = Reserve::new(BYTES, true);
        reserve.saw_members(5, 3);
        let share = reserve.limit(0);
        reserve.saw_members(10, 2);
        reserve.saw_members(COUNTS_MS, 2);
        assert_eq!(reserve.limit(0), share);
        reserve.saw_members(COUNTS_MS + 5, 2);
        assert!(reserve.limit(0) < share, "two members are what there is");
        reserve.saw_members(COUNTS_MS + 6, 4);
        assert!(reserve.limit(0) > share);
    }

    #[test]
    fn what_was_handed_over_stays_and_can_be_overwritten() {
        let mut reserve = Reserve::new(BYTES, true);
        reserve.saw_members(5, 3);
        let share = reserve.limit(0);
        reserve.open(true);
        assert_eq!(reserve.limit(share), BYTES);
        reserve.open(false);
        let used = share + (10 << 20);
        let limit = reserve.limit(used);
        assert!(limit > used && limit < used + (4 << 20), "room to overwrite, not to grow");
        assert_eq!(reserve.limit(limit), limit, "clients who fill that get no more");
        reserve.set_memory(BYTES);
        assert_eq!(reserve.limit(limit), limit, "nor when the memory is set again");
        assert!(reserve.limit(share + 1) < limit);
        assert_eq!(reserve.limit(share), share);
        assert_eq!(reserve.limit(used), share, "what clients free they can fill only so far");
    }

    #[test]
    fn without_backups_or_other_nodes_clients_fill_all() {
        let mut alone = Reserve::new(BYTES, true);
        alone.saw_members(5, 1);
        assert_eq!(alone.limit(0), BYTES);
        let mut unbacked = Reserve::new(BYTES, false);
        unbacked.saw_members(5, 3);
        assert_eq!(unbacked.limit(0), BYTES);
        unbacked.set_memory(BYTES / 2);
        assert_eq!(unbacked.limit(0), BYTES / 2);
    }
}
