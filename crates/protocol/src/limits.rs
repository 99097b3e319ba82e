//! The sizes that a server accepts, and whether a client must authenticate.

/// A line other than a get may have this many bytes before its end is received.
pub const MAX_LINE_BYTES: usize = 2048;

/// What a server accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest item in bytes (`-I`), as memcached counts it; see [`item_bytes`].
    pub max_item_bytes: usize,
    /// The longest line of a get in bytes; longer ones close the connection. (memcached has no
    /// bound here but its memory.)
    pub max_get_line_bytes: usize,
    /// Whether items have CAS ids (no `-C`).
    pub hands_out_cas: bool,
    /// Whether this connection must authenticate, and whether it has.
    pub authentication: Authentication,
}

/// Where a connection stands with authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// The server knows no users.
    NotOffered,
    /// Nothing but authentication is taken from this connection.
    Missing,
    /// The connection has authenticated.
    Given,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_item_bytes: 1 << 20,
            max_get_line_bytes: 1 << 20,
            hands_out_cas: true,
            authentication: Authentication::NotOffered,
        }
    }
}

/// The size that memcached reckons an item at, in bytes: that is what `-I` bounds, so clients see
/// the same largest value.
#[inline]
pub fn item_bytes(key_bytes: usize, value_bytes: usize, flags: u32, has_cas: bool) -> usize {
    let header = 48 + if has_cas { 8 } else { 0 } + if flags != 0 { 4 } else { 0 };
    (header + key_bytes + 1 + 2).saturating_add(value_bytes)
}
