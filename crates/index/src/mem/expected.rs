//! The end of a read and of an operation, alike in all engines: an item was found, and goes to the
//! sink.

use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_op::{ItemView, Now, Op, Outcome, Verb};

use super::Memory;
use super::header::Header;
use super::item::Item;
use super::look::Look;
use crate::{Found, Sink};

/// What a worker expects of the next item that it reads: that it looks like the last ones.
pub struct Expected {
    look: Look,
    /// The header of the item that was read last and that did not look so.
    other_header: Option<Header>,
    reach_bytes: usize,
}

impl Expected {
    /// Of a worker that has read nothing yet.
    pub const NOTHING: Self = Self { look: Look::NONE, other_header: None, reach_bytes: 0 };

    /// How items look. A guess, which a read compares instead of working out where fields lie.
    #[inline]
    pub fn look(&self) -> &Look {
        &self.look
    }

    /// How far the last byte of an item lies behind its header's first: where its last line is.
    #[inline]
    pub fn reach_bytes(&self) -> usize {
        self.reach_bytes
    }

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
        self.reach_bytes = header.bytes() - 1;
        let found = Found::in_memory(item.view_of(header), memory, item.reference());
        let flow = sink.hit(position, &found);
        item.mark_accessed(header, now.seconds);
        // Two of a kind: so may be the next. A sealed header is no item's for long.
        let other = self.other_header.replace(header);
        if !header.is_sealed() && other.is_some_and(|other| other.looks_like(header)) {
            self.look = Look::of_read(header);
        }
        flow
    }
}

/// Hands the item that an operation hit to the sink, if it hit, and notes the access.
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
    // One answer: whether more would fit is of no interest.
    let _ = sink.hit(0, &Found::in_memory(view, memory, item.reference()).with_hit(hit));
    if let Verb::Get(get) = op.verb
        && !get.is_quiet_access
    {
        item.mark_accessed(item.header(), now.seconds);
    }
}
