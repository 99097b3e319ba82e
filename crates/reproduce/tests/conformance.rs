//! The baselines mean what the engines mean.

use amalgam_conformance::suite;
use amalgam_reproduce::baselines::Memcached14;

suite!(global_lock, Memcached14);
