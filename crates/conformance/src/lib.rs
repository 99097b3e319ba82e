//! One suite of tests that every engine passes: explicit cases, random sequences compared with
//! `model`, and races.
//!
//! [`suite!`] makes a module of tests for an engine: `suite!(mercury, Mercury);`. Random and racing
//! tests do `AMALGAM_EFFORT` times as much work; a random failure prints the `AMALGAM_SEED` that
//! repeats it and its smallest form.
//!
//! Invariants of this crate:
//! 1. Tests speak to an engine through [`amalgam_index::Engine`] alone.
//! 2. No test measures time; every loop ends by a count.
//! 3. Each checker has tests of its own, in which it finds faults planted on purpose.

#![forbid(unsafe_code)]

pub mod batch;
pub mod collisions;
pub mod exact;
pub mod harness;
pub mod history;
pub mod memory;
pub mod random;
pub mod recording;
pub mod scan;
pub mod threads;
pub mod time;
pub mod verbs;

/// All tests of the suite for one engine, in a module of the given name.
#[macro_export]
macro_rules! suite {
    ($name:ident, $engine:ty) => {
        $crate::tests! { $name, $engine,
            verbs: set_and_get keys flags add_and_replace append_and_prepend cas
                writes_change_the_cas_id cas_ids_are_not_reused
                cas_ids_grow_from_worker_to_worker arithmetic not_a_number
                arithmetic_with_initial delete touch marks vivify too_large counts;
            batch: every_size breaks_and_resumes dead_items_miss prefetch_is_a_hint pins
                sets_of_one_key_in_order;
            time: expiry dead_to_every_verb flush last_access newer_generation_is_alive sweep
                every_second_reclaims_what_has_expired;
            collisions: few_keys many_keys;
            scan: at_rest breaks while_growing beside_writers;
            exact: compare_exchange_item;
            random: few_keys many_keys colliding_keys;
            memory: growth_loses_nothing cache_evicts growing_item_stays
                resting_workers_keep_nothing refuses_when_full no_size_starves
                memory_returns churn limit_changes;
            threads: counters appends one_wins present_keys_are_found present_keys_make_way
                evicted_keys_stay_gone workers_come_and_go
                writes_end_while_the_limit_moves;
            history: linearizable;
        }
    };
}

/// The form behind [`suite!`]: tests by the module they live in.
#[doc(hidden)]
#[macro_export]
macro_rules! tests {
    ($name:ident, $engine:ty, $($module:ident: $($test:ident)+;)+) => {
        mod $name {
            use super::*;
            $(mod $module {
                use super::*;
                $(#[test]
                fn $test() {
                    $crate::$module::$test::<$engine>();
                })+
            })+
        }
    };
}
