//! Sequences of operations, batches, flushes and time: engines answer as the model does. The first
//! byte says how many keys there are and how their hashes collide.
#![no_main]

use amalgam_conformance::random::Sequence;
use amalgam_index::{hotring, memc3, mercury, pipeline};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(sequence) = Sequence::from_bytes(data) else { return };
    sequence.check::<mercury::Mercury>();
    sequence.check::<memc3::Memc3>();
    sequence.check::<hotring::HotRingR>();
    sequence.check::<hotring::HotRingS>();
    sequence.check::<pipeline::Pipeline>();
});
