//! Simulates the pipelined hash table in hardware (`rtl/`) and holds its reference model.
//!
//! With the feature `verilated`, the build script compiles the SystemVerilog to C++ with Verilator
//! and `Simulation` drives the model through its streams. Without the feature only the parts in
//! plain Rust are built, which need neither Verilator nor a C++ compiler.
//!
//! Invariants of this crate:
//! 1. [`Reference`] shares no code with the hardware and has no notion of cycles: it executes
//!    requests one after the other, as docs/pipeline.md specifies.
//! 2. A simulation is deterministic: its idle cycles, its back-pressure and the memory's latency
//!    come from its own seeded random numbers. Only `serve` uses sockets and clocks.
//! 3. Every wait is bounded (`Simulation::run`), so a table that stops answering fails its test.

mod configuration;
mod configurations;
#[cfg(feature = "verilated")]
pub mod ethernet;
#[cfg(feature = "verilated")]
pub mod host_bridge;
#[cfg(feature = "verilated")]
pub mod line_rate;
mod memory;
#[cfg(feature = "verilated")]
mod model;
mod reference;
pub mod register_map;
mod request;
#[cfg(feature = "verilated")]
pub mod serve;
#[cfg(feature = "verilated")]
mod simulation;

pub use configuration::Configuration;
pub use configurations::{
    ALL, COUNTED, FRONTS, FULL, GIGABITS_10, GIGABITS_40, GIGABITS_100, HALF_LINES, LARGE, PAPER,
    SMALL, SOFTWARE,
};
pub use memory::Memory;
pub use reference::Reference;
pub use request::{Request, Response, opcode, status};
#[cfg(feature = "verilated")]
pub use simulation::{Answer, Counters, Pace, Simulation};
