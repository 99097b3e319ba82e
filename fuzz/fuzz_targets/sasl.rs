//! SASL exchanges. Nobody is let in who does not send a right password, and everybody who does.
#![no_main]

use std::sync::LazyLock;

use amalgam_fuzz::script::Script;
use amalgam_server::fuzzing::{Exchange, SaslStep, Users, sasl_step};
use libfuzzer_sys::fuzz_target;

const USERS: [(&[u8], &[u8]); 3] = [
    (b"ann", b"secret"),
    (b"tim", b"a password that is longer than a block of MD5, which is sixty-four bytes long"),
    (b"", b""),
];
const MECHANISMS: [&[u8]; 4] = [b"PLAIN", b"CRAM-MD5", b"", b"plain"];

static KNOWN: LazyLock<Users> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("amalgam-fuzz-users-{}", std::process::id()));
    let mut text = Vec::new();
    for (user, password) in USERS {
        text.extend_from_slice(&[user, b":", password, b"\n"].concat());
    }
    std::fs::write(&path, text).expect("it is written");
    let users = Users::load(&path).expect("it is read");
    std::fs::remove_file(&path).expect("it is ours");
    users
});

/// HMAC-MD5 of RFC 2104, written once more.
fn hmac(key: &[u8], message: &[u8]) -> String {
    let mut block = [0; 64];
    if key.len() > block.len() {
        block[..16].copy_from_slice(&*md5::compute(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = md5::compute([&block.map(|byte| byte ^ 0x36)[..], message].concat());
    format!("{:x}", md5::compute([&block.map(|byte| byte ^ 0x5c)[..], &*inner].concat()))
}

fn is_right(exchange: &Exchange, is_step: bool, mechanism: &[u8], message: &[u8]) -> bool {
    match (mechanism, exchange) {
        // What begins an exchange may carry the message already.
        (b"PLAIN", exchange) if !is_step || matches!(exchange, Exchange::Plain) => {
            let ends_with = |(user, password): &(&[u8], &[u8])| {
                let first = message.iter().position(|byte| *byte == 0);
                first.is_some_and(|at| message[at + 1..] == [user, &b"\0"[..], password].concat())
            };
            USERS.iter().any(ends_with)
        }
        (b"CRAM-MD5", Exchange::CramMd5(challenge)) if is_step => {
            let answer = |(user, password): &(&[u8], &[u8])| {
                [user, &b" "[..], hmac(password, challenge).as_bytes()].concat()
            };
            USERS.iter().any(|user| answer(user) == message)
        }
        _ => false,
    }
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let mut exchange = Exchange::None;
    while let Some(choice) = script.byte() {
        let (is_step, mechanism) = (choice & 1 == 1, MECHANISMS[usize::from(choice >> 1 & 3)]);
        let (user, password) = USERS[usize::from(choice >> 3) % USERS.len()];
        let mut message = match (choice >> 6, &exchange) {
            (0, _) => script.bytes().to_vec(),
            (1, _) => [&b"\0"[..], user, b"\0", password].concat(),
            (_, Exchange::CramMd5(challenge)) => {
                [user, &b" "[..], hmac(password, challenge).as_bytes()].concat()
            }
            _ => Vec::new(),
        };
        if choice >> 6 == 3 && !message.is_empty() {
            let at = script.number() % message.len();
            message[at] ^= script.byte().unwrap_or(1);
        }
        let is_right = is_right(&exchange, is_step, mechanism, &message);
        match sasl_step(exchange, is_step, mechanism, &message, Some(&KNOWN)) {
            SaslStep::Continue(next, sent) => {
                assert!(message.is_empty() && sent.len() <= 64, "what it says is bounded");
                exchange = next;
            }
            SaslStep::Done(is_let_in) => {
                let is_begun = message.is_empty() && !is_step;
                assert!(is_let_in == is_right || is_begun, "{mechanism:?} {message:?}");
                exchange = Exchange::None;
            }
        }
    }
});
