//! SASL as the binary protocol speaks it: PLAIN (RFC 4616) and CRAM-MD5 (RFC 2195).
//!
//! CRAM-MD5 keeps the password off the wire and no more: an eavesdropper can still try passwords
//! offline, and MD5 is weak. It is here because clients that are built on Cyrus SASL prefer it to
//! PLAIN. Use TLS for protection.

use ring::rand::{SecureRandom, SystemRandom};

use crate::auth::users::{Users, constant_time_eq};

/// The supported mechanisms, as the server lists them.
pub const MECHANISMS: &[u8] = b"CRAM-MD5 PLAIN";

/// The block size of MD5.
const BLOCK_BYTES: usize = 64;

/// The state of a client's authentication exchange.
#[derive(Clone, Debug, Default)]
pub enum Exchange {
    /// No exchange is in progress.
    #[default]
    None,
    /// PLAIN: the client has still to send its message, which it may also send at once.
    Plain,
    /// CRAM-MD5: the client has still to answer this challenge.
    CramMd5(Box<[u8]>),
}

/// The result of a client's packet.
pub enum SaslStep {
    /// The exchange goes on in this state, and the client is sent these bytes.
    Continue(Exchange, Box<[u8]>),
    /// The exchange has ended; whether the credentials were right.
    Done(bool),
}

/// Handles a packet of a client: the first of an exchange, or if `is_step`, the next of `exchange`.
pub fn step(
    exchange: Exchange,
    is_step: bool,
    mechanism: &[u8],
    message: &[u8],
    users: Option<&Users>,
) -> SaslStep {
    let Some(users) = users else { return SaslStep::Done(false) };
    users.reload_if_changed();
    match (mechanism, is_step, exchange) {
        (b"PLAIN", false, _) if message.is_empty() => {
            SaslStep::Continue(Exchange::Plain, Box::default())
        }
        (b"PLAIN", false, _) | (b"PLAIN", true, Exchange::Plain) => {
            SaslStep::Done(is_plain_valid(users, message))
        }
        (b"CRAM-MD5", false, _) if message.is_empty() => match challenge() {
            Some(challenge) => SaslStep::Continue(Exchange::CramMd5(challenge.clone()), challenge),
            None => SaslStep::Done(false),
        },
        (b"CRAM-MD5", true, Exchange::CramMd5(challenge)) => {
            SaslStep::Done(is_digest_valid(users, &challenge, message))
        }
        _ => SaslStep::Done(false),
    }
}

/// Whether the credentials in a message of PLAIN (`identity NUL user NUL password`) are right.
fn is_plain_valid(users: &Users, message: &[u8]) -> bool {
    let mut parts = message.splitn(3, |byte| *byte == 0);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(user), Some(password)) => users.verify(user, password),
        _ => false,
    }
}

/// Whether an answer to a CRAM-MD5 challenge (`user SPACE digest`, the digest in lower-case
/// hexadecimal) is right.
fn is_digest_valid(users: &Users, challenge: &[u8], answer: &[u8]) -> bool {
    let mut parts = answer.rsplitn(2, |byte| *byte == b' ');
    let (Some(digest), Some(user)) = (parts.next(), parts.next()) else { return false };
    let password = users.password_of(user);
    // An unknown user takes the same time.
    let expected = hmac_md5(password.as_deref().unwrap_or_default(), challenge);
    constant_time_eq(digest, format!("{expected:x}").as_bytes()) && password.is_some()
}

/// A fresh challenge, in the form of a message id as RFC 2195 demands; None if the system has no
/// randomness.
fn challenge() -> Option<Box<[u8]>> {
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random).ok()?;
    Some(format!("<{:032x}@amalgam>", u128::from_ne_bytes(random)).into_bytes().into())
}

/// HMAC-MD5 (RFC 2104).
fn hmac_md5(key: &[u8], message: &[u8]) -> md5::Digest {
    let mut block = [0; BLOCK_BYTES];
    match block.get_mut(..key.len()) {
        Some(start) => start.copy_from_slice(key),
        None => block[..16].copy_from_slice(&md5::compute(key).0),
    }
    let keyed = |pad: u8, message: &[u8]| {
        let mut context = md5::Context::new();
        context.consume(block.map(|byte| byte ^ pad));
        context.consume(message);
        context.finalize()
    };
    keyed(0x5c, &keyed(0x36, message).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 2202, cases 1, 2 and 6: a key shorter than a block, one of words, one longer.
    #[test]
    fn hmac_is_that_of_rfc_2202() {
        let hmac = |key: &[u8], message: &[u8]| format!("{:x}", hmac_md5(key, message));
        assert_eq!(hmac(&[0x0b; 16], b"Hi There"), "9294727a3638bb1c13f48ef8158bfc9d");
        let (key, message) = (b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hmac(key, message), "750c783e6ab0b503eaa86e310a5db738");
        let message = b"Test Using Larger Than Block-Size Key - Hash Key First";
        assert_eq!(hmac(&[0xaa; 80], message), "6b1ab7fe4bd7bf8f0b62e6ce61b9d0cd");
    }

    #[test]
    fn both_mechanisms_know_the_users() {
        let path = std::env::temp_dir().join(format!("amalgam-sasl-{}", std::process::id()));
        std::fs::write(&path, "tim:tanstaaftanstaaf\nann:secret\n").unwrap();
        let users = Users::load(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(is_plain_valid(&users, b"\0ann\0secret"));
        assert!(is_plain_valid(&users, b"ann\0ann\0secret"));
        assert!(
            !is_plain_valid(&users, b"\0ann\0wrong") && !is_plain_valid(&users, b"ann\0secret")
        );

        // The example of RFC 2195.
        let challenge = b"<1896.697170952@postoffice.reston.mci.net>";
        let digest = "b913a602c7eda7a495b4e6e7334d3890";
        let knows = |answer: String| is_digest_valid(&users, challenge, answer.as_bytes());
        assert!(knows(format!("tim {digest}")));
        assert!(!knows(format!("ann {digest}")) && !knows(format!("eve {digest}")));
        assert!(!knows(digest.to_owned()) && !knows("tim ".to_owned()) && !knows(String::new()));
        let of_nobody = format!("eve {:x}", hmac_md5(b"", challenge));
        assert!(!knows(of_nobody));
        assert_ne!(super::challenge(), super::challenge());
    }

    #[test]
    fn a_step_needs_the_exchange_it_belongs_to() {
        let path = std::env::temp_dir().join(format!("amalgam-steps-{}", std::process::id()));
        std::fs::write(&path, "ann:secret\n").unwrap();
        let users = Users::load(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let is_right = |exchange, is_step, mechanism: &str, message: &str| {
            let (mechanism, message) = (mechanism.as_bytes(), message.as_bytes());
            let outcome = step(exchange, is_step, mechanism, message, Some(&users));
            matches!(outcome, SaslStep::Done(true))
        };
        assert!(is_right(Exchange::None, false, "PLAIN", "\0ann\0secret"));
        assert!(is_right(Exchange::Plain, true, "PLAIN", "\0ann\0secret"));
        assert!(!is_right(Exchange::None, true, "PLAIN", "\0ann\0secret"));
        assert!(!is_right(Exchange::Plain, true, "LOGIN", "\0ann\0secret"));
        let SaslStep::Continue(exchange, challenge) =
            step(Exchange::None, false, b"CRAM-MD5", b"", Some(&users))
        else {
            panic!("no challenge")
        };
        let answer = format!("ann {:x}", hmac_md5(b"secret", &challenge));
        assert!(is_right(exchange.clone(), true, "CRAM-MD5", &answer));
        assert!(!is_right(exchange, true, "PLAIN", &answer));
        assert!(!is_right(Exchange::None, true, "CRAM-MD5", &answer));
        assert!(!is_right(Exchange::None, false, "CRAM-MD5", &answer));
    }
}
