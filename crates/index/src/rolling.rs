//! Batches of reads, rolling: the processor works on some keys while the memory system fetches the
//! lines of others.

use std::ops::ControlFlow;

/// How many keys of a batch lie between asking for a key's bucket and answering it.
const BUCKETS_AHEAD: usize = 32;
/// How many of them lie between asking for its item and answering it.
const ITEMS_AHEAD: usize = 16;

/// Answers `count` keys in order, until `answer` breaks off; returns how many were answered.
///
/// `ask` asks for the lines of a key's bucket. Once they had time to arrive, `look` finds out there
/// which item the key's most likely is, and asks for that. In the end `answer` is handed what
/// `look` found. `none` stands for what was not found yet.
#[inline]
pub(crate) fn roll<W, H: Copy>(
    worker: &mut W,
    count: usize,
    none: H,
    ask: impl Fn(&W, usize),
    look: impl Fn(&W, usize) -> H,
    mut answer: impl FnMut(&mut W, usize, H) -> ControlFlow<()>,
) -> usize {
    let mut hints = [none; ITEMS_AHEAD];
    for step in 0..count + BUCKETS_AHEAD {
        if step < count {
            ask(worker, step);
        }
        // Wraps beyond the end until there is a key.
        let at = step.wrapping_sub(BUCKETS_AHEAD);
        if at < count && answer(worker, at, hints[at % ITEMS_AHEAD]).is_break() {
            return at + 1;
        }
        let at = at.wrapping_add(ITEMS_AHEAD);
        if at < count {
            hints[at % ITEMS_AHEAD] = look(worker, at);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers `count` keys, of which the last at `end`; returns what was answered.
    fn answers(count: usize, end: usize) -> Vec<usize> {
        let asked = std::cell::Cell::new(0);
        let mut answered = Vec::new();
        let done = roll(
            &mut answered,
            count,
            usize::MAX,
            |_, at| assert_eq!(asked.replace(at + 1), at, "asked in order"),
            |answered, at| {
                assert!(at < asked.get() && at >= answered.len(), "between the two");
                at * 3
            },
            |answered, at, hint| {
                assert_eq!((answered.len(), hint), (at, at * 3), "in order, each with its own");
                answered.push(at);
                if at == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        assert_eq!(done, answered.len());
        answered
    }

    #[test]
    fn every_key_is_asked_for_then_looked_at_then_answered() {
        for count in [0, 1, 2, ITEMS_AHEAD, BUCKETS_AHEAD + 1, 100] {
            assert_eq!(answers(count, usize::MAX).len(), count);
        }
        assert_eq!(answers(100, 41).last(), Some(&41), "the batch goes on behind a break");
    }
}
