//! The suite, applied to every engine.

use amalgam_conformance::suite;
use amalgam_index::model::Model;

suite!(model, Model);
