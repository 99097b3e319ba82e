//! CAS ids, which pools draw in blocks so that workers do not contend for one counter on every
//! write.

use amalgam_op::{ItemView, Op};

use super::Memory;

/// The number of ids that a pool draws at once.
const BLOCK: u64 = 1 << 12;

/// The ids that a pool has drawn and not handed out: `next..end`.
#[derive(Default)]
pub(super) struct CasIds {
    next: u64,
    end: u64,
}

impl CasIds {
    /// An id that was never handed out and that is above the id of the current item. If the current
    /// item's id came from a later block of another pool, this pool draws a new block. (An id that
    /// a client chose may be above all blocks; `decide` counts on from it.) If the current item has
    /// no id, a client may still hold the id of an older version, from any pool: then the pool
    /// draws a new block too, which is above all ids handed out. The ids that one pool hands out
    /// only grow.
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
