//! How long etcd has answered without a break.

/// The parts of a lease that are the longest break between two answers, and the time that members
/// have after a longer one.
const BREAK_PARTS: u64 = 2;
/// The shortest such time, in milliseconds.
const BREAK_MS_MIN: u64 = 1_000;

/// When etcd answered this node. All leases may have ended during a break that all nodes had, and
/// each node needs a moment to get a new one.
#[derive(Debug, Default)]
pub(super) struct Contact {
    /// When it answered last; None before it has.
    last_ms: Option<u64>,
    /// The end of the time that members have after the last break; None if that is over.
    settled_ms: Option<u64>,
}

impl Contact {
    /// Notes an answer. Whether the last break was long enough ago for members to be removed. Where
    /// each answer takes that long, they are removed at every second one.
    pub(super) fn is_settled(&mut self, now_ms: u64, lease_ms: u64) -> bool {
        let break_ms = (lease_ms / BREAK_PARTS).max(BREAK_MS_MIN);
        let last_ms = self.last_ms.replace(now_ms);
        match self.settled_ms {
            None if last_ms.is_some_and(|last_ms| now_ms > last_ms + break_ms) => {
                self.settled_ms = Some(now_ms + break_ms);
            }
            Some(settled_ms) if now_ms >= settled_ms => self.settled_ms = None,
            None | Some(_) => {}
        }
        self.settled_ms.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_time_after_a_break() {
        let mut contact = Contact::default();
        assert!(contact.is_settled(50_000, 4_000), "who has just started had no break");
        assert!(contact.is_settled(52_000, 4_000));
        assert!(!contact.is_settled(54_001, 4_000));
        assert!(!contact.is_settled(56_000, 4_000));
        assert!(contact.is_settled(56_001, 4_000));
        // An etcd that is always slow.
        let settled = [59_000, 62_000, 65_000, 68_000].map(|ms| contact.is_settled(ms, 4_000));
        assert_eq!(settled, [false, true, false, true]);
    }
}
