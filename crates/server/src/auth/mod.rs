//! Who may use the server: the file of users, and SASL.

pub mod sasl;
pub mod users;
