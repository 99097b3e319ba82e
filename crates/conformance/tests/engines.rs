//! The suite, applied to every engine.

use amalgam_conformance::suite;
use amalgam_index::hotring::{HotRingR, HotRingS};
use amalgam_index::memc3::Memc3;
use amalgam_index::mercury::{Mercury, MercuryPthread};
use amalgam_index::model::Model;
use amalgam_index::pipeline::Pipeline;

suite!(model, Model);
suite!(mercury, Mercury);
suite!(mercury_pthread, MercuryPthread);
suite!(memc3, Memc3);
suite!(hotring_r, HotRingR);
suite!(hotring_s, HotRingS);
suite!(pipeline, Pipeline);
