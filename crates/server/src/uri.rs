//! Keys in percent-encoding (RFC 3986), as memcached writes them in its logs and dumps.

/// A key in percent-encoding: one word of ASCII, whatever bytes it has.
pub fn uri_encoded(key: &[u8]) -> String {
    let mut text = Vec::with_capacity(key.len());
    append_uri_encoded(&mut text, key);
    String::from_utf8(text).expect("an encoded key is ASCII")
}

/// Appends a key in percent-encoding.
pub fn append_uri_encoded(out: &mut Vec<u8>, key: &[u8]) {
    for byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(*byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_one_word() {
        assert_eq!(uri_encoded(b"user:7/a b"), "user%3A7%2Fa%20b");
        assert_eq!(uri_encoded(b"<\x00\xff\r\n%>"), "%3C%00%FF%0D%0A%25%3E");
    }

    #[test]
    fn keys_are_escaped() {
        let mut out = Vec::new();
        append_uri_encoded(&mut out, b"a-Z_9.~ %/\xff");
        assert_eq!(out, b"a-Z_9.~%20%25%2F%FF");
    }
}
