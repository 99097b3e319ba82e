//! The sizes that a server accepts, and whether a client must authenticate.

/// The longest line other than a get that may be incomplete, in bytes.
pub const MAX_LINE_BYTES: usize = 2048;

/// The limits within which a server accepts requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest item in bytes (`-I`), as memcached counts it; see [`item_bytes`].
    pub max_item_bytes: usize,
    /// The longest line of a get in bytes; longer ones close the connection. (In
    /// memcached only its memory bounds it.)
    pub max_get_line_bytes: usize,
    /// Whether items have CAS ids (no `-C`).
    pub hands_out_cas: bool,
    /// Whether this connection must authenticate, and whether it has.
    pub authentication: Authentication,
}

/// The authentication state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// The server has no users, so nobody authenticates.
    NotOffered,
    /// The connection has not authenticated; only authentication is accepted from it.
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

/// The size of an item in bytes as memcached computes it. `-I` bounds this size, so that the
/// largest value is the same as memcached's.
#[inline]
pub fn item_bytes(key_bytes: usize, value_bytes: usize, flags: u32, has_cas: bool) -> usize {
    let header = 48 + if has_cas { 8 } else { 0 } + if flags != 0 { 4 } else { 0 };
    (header + key_bytes + 1 + 2).saturating_add(value_bytes)
}
