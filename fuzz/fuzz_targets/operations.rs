//! Sequences of operations, batches, flushes and time: engines that evict only when memory is full
//! answer as the model does (`pipeline` also evicts from a full bucket). The first byte says how
//! many keys there are and how their hashes collide.
#![no_main]

use amalgam_conformance::random;
use amalgam_index::{hotring, memc3, mercury};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    random::from_bytes::<mercury::Mercury>(data);
    random::from_bytes::<memc3::Memc3>(data);
    random::from_bytes::<hotring::HotRingR>(data);
    random::from_bytes::<hotring::HotRingS>(data);
});
