//! Lines of the text protocol: the first byte says where to cut, the rest is sent.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let [cut, input @ ..] = data {
        amalgam_fuzz::check(input, usize::from(*cut));
    }
});
