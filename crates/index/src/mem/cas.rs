//! CAS ids, drawn in blocks so that workers do not meet at one counter for each write.

use amalgam_op::{ItemView, Op};

use super::Memory;

/// Ids that a pool draws at once.
const BLOCK: u64 = 1 << 12;

/// The ids that a pool has drawn and not handed out.
#[derive(Default)]
pub(super) struct CasIds {
    next: u64,
    end: u64,
}

impl CasIds {
    /// An id that was never handed out, and above that of the item it is to follow: from a block
    /// that was drawn later, where the item has its id from another pool. (An id that a client
    /// chose may be above all blocks; `decide` counts on from it.) Where the item has none, a
    /// client may hold one of an older version, from any pool: then it begins a block, above all
    /// that there are. So what one pool hands out only grows.
    #[inline]
    pub(super) fn fresh(
        &mut self,
        memory: &Memory,
        op: &Op<'_>,
        current: Option<&ItemView<'_>>,
    ) -> u64 {
        let is_behind = match current.map(|item| item.cas) {
            Some(None) => op.verb.uses_cas(),
            Some(Some(cas)) => cas >= self.next,
            None => false,
        };
        if self.next == self.end || is_behind {
            self.next = memory.draw_cas_ids(BLOCK);
            self.end = self.next + BLOCK;
        }
        self.next += 1;
        self.next - 1
    }
}
