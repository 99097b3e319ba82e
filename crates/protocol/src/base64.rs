//! Base64 as memcached reads and writes it in keys: standard alphabet, padded.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A byte outside of the alphabet.
const INVALID: u8 = 0x80;

const VALUES: [u8; 256] = values();

const fn values() -> [u8; 256] {
    let mut values = [INVALID; 256];
    let mut index = 0;
    while index < 64 {
        values[ALPHABET[index] as usize] = index as u8;
        index += 1;
    }
    values[b'=' as usize] = 0;
    values
}

/// Decodes `source` into `target` and returns how many bytes that gave, at least one. As in
/// memcached, bytes outside of the alphabet are skipped and nothing behind padding is read.
/// None if the rest is not a whole number of blocks, or `target` might be too short.
pub fn decode(source: &[u8], target: &mut [u8]) -> Option<usize> {
    let valid = source.iter().filter(|byte| VALUES[usize::from(**byte)] != INVALID).count();
    if valid == 0 || valid % 4 != 0 || valid / 4 * 3 > target.len() {
        return None;
    }
    let mut written = 0;
    let mut block = [0; 4];
    let mut count = 0;
    let mut padding = 0;
    for byte in source {
        let value = VALUES[usize::from(*byte)];
        if value == INVALID {
            continue;
        }
        padding += usize::from(*byte == b'=');
        block[count] = value;
        count += 1;
        if count == 4 {
            count = 0;
            let [a, b, c, d] = block;
            let decoded = [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d];
            let length = 3_usize.checked_sub(padding).filter(|length| *length > 0)?;
            target[written..written + length].copy_from_slice(&decoded[..length]);
            written += length;
            if padding > 0 {
                break;
            }
        }
    }
    Some(written)
}

/// Appends `source` in base64.
pub fn append(out: &mut Vec<u8>, source: &[u8]) {
    for chunk in source.chunks(3) {
        let byte = |index| chunk.get(index).copied().unwrap_or(0);
        let (a, b, c) = (byte(0), byte(1), byte(2));
        let sextets = [a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63];
        let mut block = sextets.map(|sextet| ALPHABET[usize::from(sextet)]);
        block[chunk.len() + 1..].fill(b'=');
        out.extend_from_slice(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(source: &[u8]) -> Option<Vec<u8>> {
        let mut target = [0; 250];
        decode(source, &mut target).map(|length| target[..length].to_vec())
    }

    #[test]
    fn decoding_is_as_lenient_as_memcached() {
        assert_eq!(decoded(b"Zm9v").as_deref(), Some(&b"foo"[..]));
        assert_eq!(decoded(b"Zm8=").as_deref(), Some(&b"fo"[..]));
        assert_eq!(decoded(b"Zg==").as_deref(), Some(&b"f"[..]));
        assert_eq!(decoded(b"Zm9=").as_deref(), Some(&b"fo"[..]));
        assert_eq!(decoded(b"Zg=v").as_deref(), Some(&b"f\x00"[..]));
        assert_eq!(decoded(b"Zm9v!!").as_deref(), Some(&b"foo"[..]));
        assert_eq!(decoded(b"Zg==Zg==").as_deref(), Some(&b"f"[..]));
        for bad in [&b""[..], b"Z", b"Zm9", b"Zm9vZ", b"!!!!", b"====", b"Z==="] {
            assert_eq!(decoded(bad), None, "{}", bad.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_decodes(source in prop::collection::vec(any::<u8>(), 1..187)) {
            let mut out = Vec::new();
            append(&mut out, &source);
            prop_assert_eq!(decoded(&out), Some(source));
        }

        #[test]
        fn no_input_panics(source in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Some(bytes) = decoded(&source) {
                prop_assert!(!bytes.is_empty());
            }
        }
    }
}
