//! Secrets in files: tokens of the cluster's port, and passwords.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};

/// Random bytes of a token that `amalgam cluster token` makes.
const TOKEN_BYTES: usize = 32;
/// What 16 random bytes make at least: different characters among their hexadecimal digits.
const TOKEN_KINDS_MIN: usize = 7;

/// The join token in a file; empty if none is given.
pub fn token(path: Option<&Path>) -> anyhow::Result<String> {
    path.map_or(Ok(String::new()), |path| strong_secret(path, "the join token"))
}

/// The operator token in a file; empty if none is given.
pub fn operator_token(path: Option<&Path>) -> anyhow::Result<String> {
    path.map_or(Ok(String::new()), |path| strong_secret(path, "the operator token"))
}

/// Reads a secret that others could try to guess.
fn strong_secret(path: &Path, what: &str) -> anyhow::Result<String> {
    let secret = secret(path, what)?;
    let kinds: BTreeSet<u8> = secret.bytes().collect();
    ensure!(
        random_part(secret.as_bytes()).len() >= characters_min(&secret)
            && kinds.len() >= TOKEN_KINDS_MIN,
        "{what} in {} can be guessed: it must be made of at least 16 random bytes; make one with \
         'amalgam cluster token'",
        path.display()
    );
    Ok(secret)
}

/// The characters that 16 random bytes make at least, in the alphabet that this secret is of.
fn characters_min(secret: &str) -> usize {
    let is_of = |has: fn(char) -> bool| secret.chars().all(has);
    match () {
        () if is_of(|one| one.is_ascii_digit()) => 39,
        () if is_of(|one| one.is_ascii_hexdigit()) => 32,
        () if is_of(|one| one.is_ascii_lowercase() || one.is_ascii_digit()) => 25,
        () if is_of(|one| one.is_ascii_uppercase() || one.is_ascii_digit()) => 25,
        // In base64.
        () => 22,
    }
}

/// What a secret repeats; all of it if it repeats nothing.
fn random_part(secret: &[u8]) -> &[u8] {
    let is_period = |bytes: &usize| secret[*bytes..] == secret[..secret.len() - bytes];
    let period = (1..=secret.len() / 2).find(is_period);
    &secret[..period.unwrap_or(secret.len())]
}

/// Prints a token that nobody guesses.
pub fn make_token() -> anyhow::Result<()> {
    let mut bytes = [0; TOKEN_BYTES];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context("the system's random numbers cannot be read")?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(std::io::stdout(), "{token}").context("the token cannot be written")
}

/// Reads a secret from a file and trims the white space around it. `what` names the secret in
/// error texts.
pub fn secret(path: &Path, what: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{what} cannot be read from {}", path.display()))?;
    let secret = text.trim();
    ensure!(!secret.is_empty(), "{what} is missing: {} is empty", path.display());
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_can_be_guessed_are_refused() {
        let path = std::env::temp_dir().join(format!("amalgam-token-{}", std::process::id()));
        for (text, is_taken) in [
            ("a secret", false),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            // 11 bytes, and as many digits as 16 bytes have in another alphabet.
            ("16b72ee028b18a7767ac20", false),
            ("16b72ee028b18a7767ac20caf7cdee8", false),
            ("90210842738569012348765019283746", false),
            ("mzxw6ytboi2tgnjvmfzxi33o", false),
            ("correct horsecorrect horse", false),
            ("0123456789abcdef0123456789abcdef", false),
            ("3J5oXv0nWq8b1cTzKfYh2A\n", true),
            ("f00dfeed0123456789abcdef01234567", true),
            ("f00dfeed0123456789abcdef0123456f", true),
            ("MZXW6YTBOI2TGNJVMFZXI33OKA", true),
        ] {
            std::fs::write(&path, text).expect("a file");
            let read = token(Some(&path));
            assert_eq!(read.as_ref().ok().map(String::as_str), is_taken.then(|| text.trim()));
            if let Err(error) = read {
                assert!(error.to_string().contains("amalgam cluster token"), "{error}");
            }
        }
        std::fs::remove_file(&path).expect("it is ours");
    }
}
