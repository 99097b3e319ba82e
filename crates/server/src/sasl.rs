//! SASL as the binary protocol speaks it: PLAIN (RFC 4616) and CRAM-MD5 (RFC 2195).
//!
//! CRAM-MD5 keeps the password off the wire and no more: whoever listens can still try passwords
//! on what he heard, and MD5 is weak. It is here because clients that are built on Cyrus SASL
//! prefer it to PLAIN; TLS is what protects.

use ring::rand::{SecureRandom, SystemRandom};

use crate::users::{Users, same};

/// What the server can do, as it lists it.
pub const MECHANISMS: &[u8] = b"CRAM-MD5 PLAIN";

/// MD5 works on blocks of this size.
const BLOCK_BYTES: usize = 64;

/// What the server waits for from a client that has begun to authenticate.
#[derive(Clone, Debug, Default)]
pub enum Exchange {
    /// Nothing: no exchange is under way.
    #[default]
    None,
    /// The message of PLAIN, which the client may send with its first packet or after it.
    Plain,
    /// The answer to this challenge.
    CramMd5(Box<[u8]>),
}

/// What a client's packet leads to.
pub enum Outcome {
    /// The client is asked to go on with [`Exchange`], and sent these bytes.
    Continue(Exchange, Box<[u8]>),
    /// The exchange ends; whether the credentials were right.
    Done(bool),
}

/// Takes a packet of a client: the first of an exchange, or a step of the one that `exchange` says.
pub fn step(
    exchange: Exchange,
    is_step: bool,
    mechanism: &[u8],
    message: &[u8],
    users: Option<&Users>,
) -> Outcome {
    let Some(users) = users else { return Outcome::Done(false) };
    users.follow_file();
    match (mechanism, is_step, exchange) {
        (b"PLAIN", false, _) if message.is_empty() => {
            Outcome::Continue(Exchange::Plain, Box::default())
        }
        (b"PLAIN", false, _) | (b"PLAIN", true, Exchange::Plain) => {
            Outcome::Done(knows_plain(users, message))
        }
        (b"CRAM-MD5", false, _) if message.is_empty() => match challenge() {
            Some(challenge) => Outcome::Continue(Exchange::CramMd5(challenge.clone()), challenge),
            None => Outcome::Done(false),
        },
        (b"CRAM-MD5", true, Exchange::CramMd5(challenge)) => {
            Outcome::Done(knows_digest(users, &challenge, message))
        }
        _ => Outcome::Done(false),
    }
}

/// Whether a message of PLAIN (`identity NUL user NUL password`) is right.
fn knows_plain(users: &Users, message: &[u8]) -> bool {
    let mut parts = message.splitn(3, |byte| *byte == 0);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(user), Some(password)) => users.knows(user, password),
        _ => false,
    }
}

/// Whether an answer of CRAM-MD5 (`user SPACE digest`, the digest in lower-case hexadecimal) is
/// right.
fn knows_digest(users: &Users, challenge: &[u8], answer: &[u8]) -> bool {
    let mut parts = answer.rsplitn(2, |byte| *byte == b' ');
    let (Some(digest), Some(user)) = (parts.next(), parts.next()) else { return false };
    let password = users.password_of(user);
    // As long a way for a user who is not there.
    let expected = hmac_md5(password.as_deref().unwrap_or_default(), challenge);
    same(digest, format!("{expected:x}").as_bytes()) && password.is_some()
}

/// Bytes that were never asked before, in the form of a message id as RFC 2195 wants it; `None`
/// where the system has no randomness to give.
fn challenge() -> Option<Box<[u8]>> {
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random).ok()?;
    Some(format!("<{:032x}@amalgam>", u128::from_ne_bytes(random)).into_bytes().into())
}

/// RFC 2104 with MD5.
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
        assert!(knows_plain(&users, b"\0ann\0secret"));
        assert!(knows_plain(&users, b"ann\0ann\0secret"));
        assert!(!knows_plain(&users, b"\0ann\0wrong") && !knows_plain(&users, b"ann\0secret"));

        // The example of RFC 2195.
        let challenge = b"<1896.697170952@postoffice.reston.mci.net>";
        let digest = "b913a602c7eda7a495b4e6e7334d3890";
        let knows = |answer: String| knows_digest(&users, challenge, answer.as_bytes());
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
            matches!(outcome, Outcome::Done(true))
        };
        assert!(is_right(Exchange::None, false, "PLAIN", "\0ann\0secret"));
        assert!(is_right(Exchange::Plain, true, "PLAIN", "\0ann\0secret"));
        assert!(!is_right(Exchange::None, true, "PLAIN", "\0ann\0secret"));
        assert!(!is_right(Exchange::Plain, true, "LOGIN", "\0ann\0secret"));
        let Outcome::Continue(exchange, challenge) =
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
