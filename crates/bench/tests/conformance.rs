//! The baselines mean what the engines mean.

use amalgam_bench::baselines::GlobalLock;
use amalgam_conformance::suite;

suite!(global_lock, GlobalLock);
