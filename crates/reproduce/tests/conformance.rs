//! The baselines pass the engines' conformance tests.

use amalgam_conformance::suite;
use amalgam_reproduce::baselines::Memcached14;

suite!(global_lock, Memcached14);
