//! Operation codes of the binary protocol; the quiet variants are folded into the others.

pub const GET: u8 = 0x00;
pub const SET: u8 = 0x01;
pub const ADD: u8 = 0x02;
pub const REPLACE: u8 = 0x03;
pub const DELETE: u8 = 0x04;
pub const INCREMENT: u8 = 0x05;
pub const DECREMENT: u8 = 0x06;
pub const QUIT: u8 = 0x07;
pub const FLUSH: u8 = 0x08;
pub const NO_OPERATION: u8 = 0x0a;
pub const VERSION: u8 = 0x0b;
pub const GET_WITH_KEY: u8 = 0x0c;
pub const APPEND: u8 = 0x0e;
pub const PREPEND: u8 = 0x0f;
pub const STAT: u8 = 0x10;
pub const TOUCH: u8 = 0x1c;
pub const GET_AND_TOUCH: u8 = 0x1d;
pub const LIST_MECHANISMS: u8 = 0x20;
pub const AUTHENTICATE: u8 = 0x21;
pub const AUTHENTICATION_STEP: u8 = 0x22;
pub const GET_AND_TOUCH_WITH_KEY: u8 = 0x23;

/// The loud variant of `code`, and whether `code` is quiet.
pub const fn fold(code: u8) -> (u8, bool) {
    match code {
        0x09 => (GET, true),
        0x0d => (GET_WITH_KEY, true),
        0x11..=0x18 => (code - 0x10, true),
        0x19 => (APPEND, true),
        0x1a => (PREPEND, true),
        0x1e => (GET_AND_TOUCH, true),
        0x24 => (GET_AND_TOUCH_WITH_KEY, true),
        _ => (code, false),
    }
}
