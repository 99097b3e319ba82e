//! The suite, applied to every engine of the table.

use amalgam_conformance::suite;
use amalgam_index::for_each_engine;
use amalgam_index::mercury::MercuryPthread;

macro_rules! suites {
    ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
        $(suite!($module, $engine);)+
    };
}

for_each_engine!(suites);

// A variant for measurements, whose locks are others.
suite!(mercury_pthread, MercuryPthread);
