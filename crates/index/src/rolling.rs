//! Batches of reads, rolling: the processor works on some keys while the memory system fetches the
//! lines of others.

use std::ops::ControlFlow;

/// For how many keys of a batch at once is remembered what was found out about them.
const HINTS: usize = 16;

/// Answers `count` keys in order, until `answer` breaks off; returns how many were answered.
///
/// `ask` asks for the first line of a key. Once it had time to arrive, `look` finds out there what
/// is needed next, and asks for that; so `LOOKS` times, 1 or 2, counted from 0. A look is handed
/// what the one before found (at first `none`), and `answer` what the last one found.
#[inline]
pub(crate) fn roll<const LOOKS: usize, W, H: Copy>(
    worker: &mut W,
    count: usize,
    none: H,
    ask: impl Fn(&W, usize),
    look: impl Fn(&W, usize, usize, H) -> H,
    mut answer: impl FnMut(&mut W, usize, H) -> ControlFlow<()>,
) -> usize {
    // How many keys lie between one step of a key and its next: enough for a line to come, few
    // enough that a batch is soon under way.
    let ahead = const { HINTS / LOOKS };
    let mut hints = [none; HINTS];
    for step in 0..count + (LOOKS + 1) * ahead {
        if step < count {
            ask(worker, step);
        }
        // These wrap beyond the end until there is a key.
        let at = step.wrapping_sub((LOOKS + 1) * ahead);
        if at < count && answer(worker, at, hints[at % HINTS]).is_break() {
            return at + 1;
        }
        for number in (0..LOOKS).rev() {
            let at = step.wrapping_sub((number + 1) * ahead);
            if at < count {
                let before = if number == 0 { none } else { hints[at % HINTS] };
                hints[at % HINTS] = look(worker, at, number, before);
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers `count` keys, of which the last at `end`; returns what was answered.
    fn answers<const LOOKS: usize>(count: usize, end: usize) -> Vec<usize> {
        let asked = std::cell::Cell::new(0);
        let mut answered = Vec::new();
        let done = roll::<LOOKS, _, _>(
            &mut answered,
            count,
            0,
            |_, at| assert_eq!(asked.replace(at + 1), at, "asked in order"),
            |answered, at, look, hint| {
                assert!(at < asked.get() && at >= answered.len(), "between the two");
                let before = if look == 0 { 0 } else { at * LOOKS + look };
                assert_eq!(hint, before, "each its own, in order");
                at * LOOKS + look + 1
            },
            |answered, at, hint| {
                assert_eq!((answered.len(), hint), (at, (at + 1) * LOOKS), "all looks before");
                answered.push(at);
                if at == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        assert_eq!(done, answered.len());
        answered
    }

    fn every_key_is_asked_for_then_looked_at_then_answered<const LOOKS: usize>() {
        for count in [0, 1, 2, HINTS, 2 * HINTS + 1, 100] {
            assert_eq!(answers::<LOOKS>(count, usize::MAX).len(), count);
        }
        let answers = answers::<LOOKS>(100, 41);
        assert_eq!(answers.last(), Some(&41), "the batch goes on behind a break");
    }

    #[test]
    fn a_batch_with_one_look_and_with_two() {
        every_key_is_asked_for_then_looked_at_then_answered::<1>();
        every_key_is_asked_for_then_looked_at_then_answered::<2>();
    }
}
