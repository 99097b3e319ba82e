//! Sequences of operations, batches, flushes and time: engines answer as the model does. The first
//! byte says how many keys there are and how their hashes collide.
#![no_main]

use amalgam_conformance::random;
use amalgam_index::{hotring, memc3, mercury, pipeline};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    random::from_bytes::<mercury::Mercury>(data);
    random::from_bytes::<memc3::Memc3>(data);
    random::from_bytes::<hotring::HotRingR>(data);
    random::from_bytes::<hotring::HotRingS>(data);
    random::from_bytes::<pipeline::Pipeline>(data);
});
