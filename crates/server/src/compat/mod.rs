//! What exists only so that memcached's clients, dashboards and operators find what they know.

pub mod slab_classes;
pub mod tunables;

/// The version of memcached whose behaviour this server has. `version` reports it, because clients
/// parse it to learn which commands they may send.
pub const MEMCACHED_VERSION: &str = "1.6.45";
