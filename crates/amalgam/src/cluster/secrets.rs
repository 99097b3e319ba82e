//! Secrets in files: tokens of the cluster's port, and passwords.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};

/// Random bytes of a token that `amalgam cluster token` makes.
const TOKEN_BYTES: usize = 32;
/// What 16 random bytes make at least: characters in base64, and different ones among those of
/// their hexadecimal digits.
const TOKEN_CHARACTERS_MIN: usize = 22;
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
        secret.len() >= TOKEN_CHARACTERS_MIN && kinds.len() >= TOKEN_KINDS_MIN,
        "{what} in {} can be guessed: it must be made of at least 16 random bytes; make one with \
         'amalgam cluster token'",
        path.display()
    );
    Ok(secret)
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
            ("3J5oXv0nWq8b1cTzKfYh2A\n", true),
            ("f00dfeed0123456789abcdef01234567", true),
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
