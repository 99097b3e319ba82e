//! The suite, applied to every engine of the table, and to the oracle.

use amalgam_conformance::suite;
use amalgam_index::for_each_engine;
use amalgam_index::mercury::MercuryPthread;
use amalgam_index::model::Model;

macro_rules! suites {
    ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
        $(suite!($module, $engine);)+
    };
}

for_each_engine!(suites);

suite!(model, Model);

// A variant for measurements, whose locks are others.
suite!(mercury_pthread, MercuryPthread);
