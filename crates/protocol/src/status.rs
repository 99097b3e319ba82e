//! The status of an answer of the binary protocol.

pub const OK: u16 = 0x00;
pub const NOT_FOUND: u16 = 0x01;
pub const EXISTS: u16 = 0x02;
pub const TOO_LARGE: u16 = 0x03;
pub const INVALID: u16 = 0x04;
pub const NOT_STORED: u16 = 0x05;
pub const NOT_A_NUMBER: u16 = 0x06;
pub const AUTHENTICATION: u16 = 0x20;
pub const AUTHENTICATION_GOES_ON: u16 = 0x21;
pub const UNKNOWN_COMMAND: u16 = 0x81;
pub const OUT_OF_MEMORY: u16 = 0x82;
pub const INTERNAL: u16 = 0x84;
pub const TEMPORARY_FAILURE: u16 = 0x86;

/// The text that memcached sends with a status.
pub fn text(status: u16) -> &'static str {
    match status {
        NOT_FOUND => "Not found",
        EXISTS => "Data exists for key.",
        TOO_LARGE => "Too large.",
        NOT_STORED => "Not stored.",
        NOT_A_NUMBER => "Non-numeric server-side value for incr or decr",
        AUTHENTICATION => "Auth failure.",
        UNKNOWN_COMMAND => "Unknown command",
        OUT_OF_MEMORY => "Out of memory",
        INTERNAL => "Internal error",
        TEMPORARY_FAILURE => "Temporary failure",
        _ => "Invalid arguments",
    }
}
