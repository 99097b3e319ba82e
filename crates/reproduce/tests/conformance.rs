//! The baselines mean what the engines mean.

use amalgam_conformance::suite;
use amalgam_reproduce::baselines::GlobalLock;

suite!(global_lock, GlobalLock);
