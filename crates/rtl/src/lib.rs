//! The pipelined hash table as hardware (`rtl/`), simulated, and what it is compared with.
//!
//! With the feature `verilated` the build script turns the SystemVerilog into C++ by Verilator and
//! `Simulation` drives it through its streams; without it only the plain parts are there, so that
//! a plain build needs neither Verilator nor a C++ compiler.
//!
//! Invariants of this room:
//! 1. [`Reference`] shares no code with the hardware and knows no cycles: it carries requests out
//!    one after the other, as docs/pipeline.md says.
//! 2. A simulation is deterministic: its idle cycles, its back-pressure and the memory's latency
//!    come from its own random numbers.
//!    Only `serve` knows sockets and clocks.
//! 3. Every wait has a bound (`Simulation::run`): a table that stops answering fails its test.

mod configuration;
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

pub use configuration::{
    ALL, Configuration, ETHERNET, ETHERNET_40, ETHERNET_100, FRONTS, PRINTED, RING, SMALL, SOFTWARE,
};
pub use memory::Memory;
pub use reference::Reference;
pub use request::{Request, Response, opcode, status};
#[cfg(feature = "verilated")]
pub use simulation::{Answer, Counters, Pace, Simulation};
