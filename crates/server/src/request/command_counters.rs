//! Which counters an operation moves, by memcached's rules.

use amalgam_op::{Outcome, Verb};

use crate::metrics::counters::Counts;

/// Counts an executed operation.
pub fn count_operation(counts: &mut Counts, verb: &Verb<'_>, outcome: &Outcome) {
    match outcome {
        Outcome::TooLarge => counts.store_too_large += 1,
        Outcome::OutOfMemory => counts.store_no_memory += 1,
        _ => {}
    }
    match verb {
        Verb::Get(get) => {
            if get.touch.is_some() {
                counts.cmd_touch += 1;
                count(outcome, &mut counts.touch_hits, &mut counts.touch_misses);
            }
        }
        Verb::Store(store) => {
            counts.cmd_set += 1;
            if store.compare.is_some() {
                match outcome {
                    Outcome::NotFound => counts.cas_misses += 1,
                    Outcome::Exists => counts.cas_badval += 1,
                    Outcome::Stored(_) => counts.cas_hits += 1,
                    _ => {}
                }
            }
        }
        Verb::Arithmetic(arithmetic) if arithmetic.is_decrement => {
            count(outcome, &mut counts.decr_hits, &mut counts.decr_misses);
        }
        Verb::Arithmetic(_) => {
            count(outcome, &mut counts.incr_hits, &mut counts.incr_misses);
        }
        Verb::Delete(_) => {
            count(outcome, &mut counts.delete_hits, &mut counts.delete_misses);
        }
    }
}

/// Counts a hit or a miss; an operation that failed on an item is neither.
fn count(outcome: &Outcome, hits: &mut u64, misses: &mut u64) {
    match outcome {
        Outcome::Hit(_) | Outcome::Number(_) | Outcome::Deleted | Outcome::Invalidated => {
            *hits += 1;
        }
        Outcome::NotFound => *misses += 1,
        _ => {}
    }
}
