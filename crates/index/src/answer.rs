//! The end of a read and of an operation, alike in all engines: the item that was found goes to the
//! sink.

use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_op::{ItemView, Now, Op, Outcome, Verb};

use crate::mem::{Header, HeaderPredictor, Item, Memory};
use crate::{Found, Sink};

impl HeaderPredictor {
    /// Hands an item whose header is `header` to the sink, unless it is dead, and learns from it.
    pub fn show<'g>(
        &mut self,
        item: &Item<'g>,
        header: Header,
        position: usize,
        now: &Now,
        memory: &'g Arc<Memory>,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        if !now.is_live(item.expiry_of(header), header.generation()) {
            return sink.dead(position, now.generations_behind(header.generation()) > 0);
        }
        self.learn_length(header);
        let found = Found::in_memory(item.view_of(header), memory, item.reference());
        let flow = sink.hit(position, &found);
        item.mark_accessed(header, now.seconds);
        self.learn_header(header);
        flow
    }
}

/// Hands the item to the sink if `outcome` is a hit, and records the access.
pub fn show_outcome<'g>(
    op: &Op<'_>,
    item: &Item<'g>,
    view: ItemView<'g>,
    outcome: Outcome,
    now: &Now,
    memory: &'g Arc<Memory>,
    sink: &mut impl Sink,
) {
    let Outcome::Hit(hit) = outcome else { return };
    // An operation has one answer, so it does not matter whether the sink has room for more.
    let _ = sink.hit(0, &Found::in_memory(view, memory, item.reference()).with_hit(hit));
    if let Verb::Get(get) = op.verb
        && !get.is_quiet_access
    {
        item.mark_accessed(item.header(), now.seconds);
    }
}
