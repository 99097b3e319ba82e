//! The baselines mean what the engines mean.

use amalgam_bench::baselines::{Chaining, GlobalLock};
use amalgam_conformance::suite;

suite!(chaining, Chaining);
suite!(global_lock, GlobalLock);
