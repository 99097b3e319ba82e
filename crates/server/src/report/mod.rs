//! The texts of `stats`, under memcached's names.
//!
//! What memcached counts about mechanisms that this server does not have (LRU segments, response
//! objects, its slab rebalancer) is reported as 0, so that programs that read those names find
//! them.

pub mod connections;
pub mod general;
pub mod settings;
pub mod slabs;
