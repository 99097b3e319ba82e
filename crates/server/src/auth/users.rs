//! The users of the server: a file of `user:password` lines, in memcached's format.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock};
use std::time::SystemTime;

use amalgam_op::IgnorePoison;

/// The name of a user, and the password.
type Entry = (Vec<u8>, Vec<u8>);

/// The users in a file, which may be read again while the server runs. Shared by all threads.
pub struct Users {
    path: PathBuf,
    entries: RwLock<Vec<Entry>>,
    /// The stamp of the file when it was last read; None if it had none.
    last_read: Mutex<Option<FileStamp>>,
}

/// The modification time of a file, and its length.
type FileStamp = (SystemTime, u64);

impl Users {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or has a line without a colon; the message names the line.
    pub fn load(path: &Path) -> io::Result<Self> {
        let last_read = Mutex::new(file_stamp(path));
        let entries = RwLock::new(read(path)?);
        Ok(Self { path: path.to_owned(), entries, last_read })
    }

    /// Reads the file again.
    ///
    /// # Errors
    ///
    /// As [`Users::load`]; the users then stay as they were.
    pub fn reload(&self) -> io::Result<()> {
        let entries = read(&self.path)?;
        *self.entries.write().ignore_poison() = entries;
        Ok(())
    }

    /// Reads the file again if it changed; if that fails, the users stay as they were. This is for
    /// SASL, where memcached looks up each user in the file itself.
    pub fn reload_if_changed(&self) {
        let now = file_stamp(&self.path);
        let mut last_read = self.last_read.lock().ignore_poison();
        if now.is_some() && *last_read != now {
            *last_read = now;
            let _ = self.reload();
        }
    }

    /// Whether the password is the user's. Takes the same time for a wrong and the right one.
    pub fn verify(&self, user: &[u8], password: &[u8]) -> bool {
        let entries = self.entries.read().ignore_poison();
        let is_this = |(name, secret): &Entry| {
            constant_time_eq(name, user) & constant_time_eq(secret, password)
        };
        entries.iter().fold(false, |found, entry| found | is_this(entry))
    }

    /// A user's password; None if there is no such user, in the same time.
    pub fn password_of(&self, user: &[u8]) -> Option<Vec<u8>> {
        let entries = self.entries.read().ignore_poison();
        let mut password = None;
        for (name, secret) in entries.iter() {
            if constant_time_eq(name, user) {
                password = Some(secret);
            }
        }
        password.cloned()
    }
}

fn file_stamp(path: &Path) -> Option<FileStamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// Compares in a time that depends on the lengths only, so that it does not reveal where the inputs
/// differ.
pub fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    let differences =
        one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

/// Parses the file.
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
            let text =
                format!("{}: line {} is not of the form user:password", path.display(), number + 1);
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
    fn users_are_read_from_the_file() {
        let path = std::env::temp_dir().join(format!("amalgam-users-{}", std::process::id()));
        std::fs::write(&path, "ann:secret\r\nbob:a:b\n\neve:").unwrap();
        let users = Users::load(&path).unwrap();
        assert!(users.verify(b"ann", b"secret"));
        assert!(users.verify(b"bob", b"a:b"));
        assert!(users.verify(b"eve", b""));
        for (user, password) in [("ann", "secre"), ("ann", "secret2"), ("an", "secret"), ("", "")] {
            assert!(!users.verify(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert_eq!(users.password_of(b"bob").as_deref(), Some(&b"a:b"[..]));
        assert_eq!(users.password_of(b"an"), None);
        std::fs::write(&path, "ann:changed\n").unwrap();
        users.reload().unwrap();
        assert!(users.verify(b"ann", b"changed") && !users.verify(b"bob", b"a:b"));
        std::fs::write(&path, "ann:changed\nbob:back\n").unwrap();
        assert!(!users.verify(b"bob", b"back"));
        users.reload_if_changed();
        assert!(users.verify(b"bob", b"back"));
        std::fs::write(&path, "nonsense\n").unwrap();
        users.reload_if_changed();
        assert!(users.reload().unwrap_err().to_string().contains("line 1"));
        assert!(users.verify(b"ann", b"changed"));
        std::fs::remove_file(&path).unwrap();
    }
}
