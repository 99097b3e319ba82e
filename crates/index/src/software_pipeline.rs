//! Batches of reads, rolling: the processor works on some keys while the memory system fetches the
//! lines of others.

use std::ops::ControlFlow;

/// Answers `count` keys in order, until `answer` breaks off; returns how many were answered.
///
/// `ask` asks for the first line of a key. Once it had time to arrive, `look` finds out there what
/// is needed next, and asks for that; so `LOOKS` times, counted from 0. A look changes what the one
/// before found (the first one writes it), and `answer` is handed what the last one found. It is
/// remembered of `HINTS` keys, so `HINTS / LOOKS` keys lie between one step of a key and its next:
/// enough for a line to come, few enough that a batch is soon under way.
///
/// What was found for later keys is older than what an answer finds that looks anew, so that a key
/// which occurs twice would be read in the wrong order. Such an answer calls [`Later::renew`].
#[inline]
pub(crate) fn run<const LOOKS: usize, const HINTS: usize, W, H: Copy>(
    worker: &mut W,
    count: usize,
    none: H,
    ask: impl Fn(&W, usize),
    look: impl Fn(&W, usize, usize, &mut H),
    mut answer: impl FnMut(&mut W, usize, H, Later<'_, H, HINTS>) -> ControlFlow<()>,
) -> usize {
    let ahead = const { HINTS / LOOKS }.min(count);
    let mut hints = [none; HINTS];
    for step in 0..count + (LOOKS + 1) * ahead {
        if step < count {
            ask(worker, step);
        }
        // These wrap beyond the end until there is a key.
        let at = step.wrapping_sub((LOOKS + 1) * ahead);
        if at < count {
            let (hint, end) = (hints[at % HINTS], count.min(at + ahead));
            if answer(worker, at, hint, Later { hints: &mut hints, end }).is_break() {
                return at + 1;
            }
        }
        for number in (0..LOOKS).rev() {
            let at = step.wrapping_sub((number + 1) * ahead);
            if at < count {
                look(worker, at, number, &mut hints[at % HINTS]);
            }
        }
    }
    count
}

/// The keys behind the one that is answered for which the last look is over.
pub(crate) struct Later<'h, H, const HINTS: usize> {
    hints: &'h mut [H; HINTS],
    end: usize,
}

impl<H, const HINTS: usize> Later<'_, H, HINTS> {
    /// Looks once more at those keys behind `at` that `is_same` selects.
    pub(crate) fn renew(
        self,
        at: usize,
        is_same: impl Fn(usize) -> bool,
        mut look: impl FnMut(usize, &mut H),
    ) {
        for later in (at + 1..self.end).filter(|later| is_same(*later)) {
            look(later, &mut self.hints[later % HINTS]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers `count` keys, of which the last at `end`; returns what was answered.
    fn answers<const LOOKS: usize, const HINTS: usize>(count: usize, end: usize) -> Vec<usize> {
        let asked = std::cell::Cell::new(0);
        let mut answered = Vec::new();
        let done = run::<LOOKS, HINTS, _, _>(
            &mut answered,
            count,
            0,
            |_, at| assert_eq!(asked.replace(at + 1), at, "asked in order"),
            |answered, at, look, hint| {
                assert!(at < asked.get() && at >= answered.len(), "between the two");
                assert!(look == 0 || *hint == at * LOOKS + look, "each its own, in order");
                *hint = at * LOOKS + look + 1;
            },
            |answered, at, hint, _| {
                assert_eq!((answered.len(), hint), (at, (at + 1) * LOOKS), "all looks before");
                answered.push(at);
                if at == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        assert_eq!(done, answered.len());
        answered
    }

    fn every_key_is_asked_for_then_looked_at_then_answered<
        const LOOKS: usize,
        const HINTS: usize,
    >() {
        for count in [0, 1, 2, HINTS / LOOKS, HINTS, 2 * HINTS + 1, 100] {
            assert_eq!(answers::<LOOKS, HINTS>(count, usize::MAX).len(), count);
        }
        let answers = answers::<LOOKS, HINTS>(100, 41);
        assert_eq!(answers.last(), Some(&41), "the batch goes on behind a break");
    }

    /// All keys are one key, whose value is newer at each look.
    #[test]
    fn an_answer_that_looks_anew_is_not_newer_than_those_behind_it() {
        let looks = std::cell::Cell::new(0);
        let look = |seen: &mut usize| *seen = looks.replace(looks.get() + 1);
        let mut answers = Vec::new();
        let done = run::<2, 16, _, _>(
            &mut answers,
            50,
            0,
            |_, _| (),
            |_, _, number, seen| {
                if number == 1 {
                    look(seen)
                }
            },
            |answers, at, mut seen, later| {
                if at % 5 == 3 {
                    look(&mut seen);
                    later.renew(at, |_| true, |_, seen| look(seen));
                }
                answers.push(seen);
                ControlFlow::Continue(())
            },
        );
        assert!(done == 50 && answers.is_sorted(), "{answers:?}");
    }

    #[test]
    fn a_batch_with_one_look_and_with_more() {
        every_key_is_asked_for_then_looked_at_then_answered::<1, 16>();
        every_key_is_asked_for_then_looked_at_then_answered::<2, 16>();
        every_key_is_asked_for_then_looked_at_then_answered::<3, 48>();
    }
}
