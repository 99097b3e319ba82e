//! Who may use the server: a file of `user:password` lines, as memcached reads it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock};
use std::time::SystemTime;

/// A user and the password.
type Entry = (Vec<u8>, Vec<u8>);

/// The users of a file, which may be read again while the server runs.
pub struct Users {
    path: PathBuf,
    entries: RwLock<Vec<Entry>>,
    /// How the file looked when it was last read.
    seen: Mutex<Option<Look>>,
}

/// When a file was last written, and its length.
type Look = (SystemTime, u64);

impl Users {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or has a line without a colon; the text says which.
    pub fn load(path: &Path) -> io::Result<Self> {
        let seen = Mutex::new(look(path));
        let entries = RwLock::new(read(path)?);
        Ok(Self { path: path.to_owned(), entries, seen })
    }

    /// Reads the file again; if that fails, the users stay who they were.
    ///
    /// # Errors
    ///
    /// As [`Users::load`].
    pub fn reload(&self) -> io::Result<()> {
        let entries = read(&self.path)?;
        *self.entries.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = entries;
        Ok(())
    }

    /// Reads the file again if it was written since; if that fails, the users stay who they were.
    /// memcached looks up each of SASL's users in the file itself.
    pub fn follow_file(&self) {
        let now = look(&self.path);
        let mut seen = self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if now.is_some() && *seen != now {
            *seen = now;
            let _ = self.reload();
        }
    }

    /// Whether the password is the user's. Takes as long for a wrong one as for the right one.
    pub fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        let entries = self.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_this = |(name, secret): &Entry| same(name, user) & same(secret, password);
        entries.iter().fold(false, |found, entry| found | is_this(entry))
    }

    /// A user's password. Takes as long for nobody as for somebody.
    pub fn password_of(&self, user: &[u8]) -> Option<Vec<u8>> {
        let entries = self.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut password = None;
        for (name, secret) in entries.iter() {
            if same(name, user) {
                password = Some(secret);
            }
        }
        password.cloned()
    }
}

fn look(path: &Path) -> Option<Look> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// Compares without telling by the time where the difference is.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    let differences =
        one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let bytes = std::fs::read(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let mut entries = Vec::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            let text = format!("{}: line {}: not user:password", path.display(), number + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        entries.push((line[..colon].to_vec(), line[colon + 1..].to_vec()));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_those_of_the_file() {
        let path = std::env::temp_dir().join(format!("amalgam-users-{}", std::process::id()));
        std::fs::write(&path, "ann:secret\r\nbob:a:b\n\neve:").unwrap();
        let users = Users::load(&path).unwrap();
        assert!(users.knows(b"ann", b"secret"));
        assert!(users.knows(b"bob", b"a:b"));
        assert!(users.knows(b"eve", b""));
        for (user, password) in [("ann", "secre"), ("ann", "secret2"), ("an", "secret"), ("", "")] {
            assert!(!users.knows(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert_eq!(users.password_of(b"bob").as_deref(), Some(&b"a:b"[..]));
        assert_eq!(users.password_of(b"an"), None);
        std::fs::write(&path, "ann:changed\n").unwrap();
        users.reload().unwrap();
        assert!(users.knows(b"ann", b"changed") && !users.knows(b"bob", b"a:b"));
        std::fs::write(&path, "ann:changed\nbob:back\n").unwrap();
        assert!(!users.knows(b"bob", b"back"));
        users.follow_file();
        assert!(users.knows(b"bob", b"back"));
        std::fs::write(&path, "nonsense\n").unwrap();
        users.follow_file();
        assert!(users.reload().unwrap_err().to_string().contains("line 1"));
        assert!(users.knows(b"ann", b"changed"));
        std::fs::remove_file(&path).unwrap();
    }
}
