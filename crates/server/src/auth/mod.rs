//! Authentication: the file of users, and SASL.

pub mod sasl;
pub mod users;
