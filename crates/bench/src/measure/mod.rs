//! The sources of figures: clocks, histograms, memory and facts about the machine.
//!
//! Invariants of this module:
//! 1. Nothing here knows a workload, an engine or a server.
//! 2. Reading a clock or counting a latency allocates nothing.

mod clock;
mod machine;
mod numbers;
mod pin;
mod timing;

pub use clock::{
    RunQueue, anonymous_bytes, cpu_of_threads_ns, process_cpu_ns, resident_bytes_of, thread_cpu_ns,
};
pub use machine::{Machine, commit};
pub use numbers::{Spread, parse_count, parse_size};
pub use pin::{allowed_cores, pin_to};
pub use timing::{Timing, time_null_loop};
