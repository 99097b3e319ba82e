//! Lists of keys, from a server that dumps them or from a file with such a dump.

use std::fs::{File, rename};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::server::{Key, Server};

/// A list of keys, and how many of them are copied already.
pub struct Keys {
    list: List,
    /// The file that holds `done`; `None` for a list from a server.
    progress: Option<PathBuf>,
    done: u64,
    has_ended: bool,
}

enum List {
    Server(Server),
    File(BufReader<File>),
}

/// The longest line of a list, in bytes.
const LONGEST_LINE: u64 = 4096;

/// A list may begin with the line `BEGIN`, and ends with one of the lines `ENDS`.
const BEGIN: &str = "OK";
const ENDS: [&str; 2] = ["EN", "END"];

/// Writes the keys of a server to a file. The file appears complete or not at all.
pub fn write(path: &Path, server: &str) -> Result<()> {
    let mut server = Server::connect(server)?;
    server.ask_for_keys()?;
    let partial = with_ending(path, ".part");
    let mut file = BufWriter::new(File::create(&partial)?);
    loop {
        let line = server.line()?;
        refuse(&line)?;
        if line == BEGIN {
            continue;
        }
        writeln!(file, "{line}")?;
        if ENDS.contains(&line.as_str()) {
            break;
        }
    }
    file.into_inner()?.sync_all()?;
    Ok(rename(partial, path)?)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Fails if `line` is a refusal: dumps may be turned off, or another dump may be in progress.
fn refuse(line: &str) -> Result<()> {
    let is_refusal =
        ["ERROR", "CLIENT_ERROR", "SERVER_ERROR", "BUSY"].iter().any(|word| line.starts_with(word));
    ensure!(!is_refusal, "the source does not list its keys: {line}");
    Ok(())
}

impl Keys {
    /// Requests the keys that a server has now.
    pub fn from_server(name: &str) -> Result<Self> {
        let mut server = Server::connect(name)?;
        server.ask_for_keys()?;
        Ok(Self { list: List::Server(server), progress: None, done: 0, has_ended: false })
    }

    /// Opens a file of keys and skips the keys that were copied before.
    pub fn from_file(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let list = List::File(BufReader::new(file));
        let progress = with_ending(path, ".done");
        let done = match std::fs::read_to_string(&progress) {
            Ok(text) => text.trim().parse().with_context(|| {
                format!("{} holds no number: remove it to begin anew", progress.display())
            })?,
            Err(_) => 0,
        };
        let mut keys = Self { list, progress: Some(progress), done, has_ended: false };
        for _ in 0..done {
            keys.line().context("the list is shorter than what was done of it")?;
        }
        Ok(keys)
    }

    /// The number of keys that are copied already, including those of earlier runs.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Appends the next keys to `keys` until it holds `most` or the list ends.
    pub fn fill(&mut self, keys: &mut Vec<Key>, most: usize) -> Result<()> {
        while keys.len() < most && !self.has_ended {
            let line = self.line()?;
            if ENDS.contains(&line.as_str()) {
                self.has_ended = true;
            } else {
                keys.push(Key::parse(&line)?);
            }
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let line = self.any_line()?;
        if line == BEGIN { self.any_line() } else { Ok(line) }
    }

    fn any_line(&mut self) -> Result<String> {
        match &mut self.list {
            List::Server(server) => {
                let line = server.line()?;
                refuse(&line)?;
                Ok(line)
            }
            List::File(file) => {
                let mut line = String::new();
                file.by_ref().take(LONGEST_LINE).read_line(&mut line)?;
                ensure!(line.ends_with('\n'), "no EN or END stands at the end of the list");
                Ok(line.trim_end().to_owned())
            }
        }
    }

    /// Records that `count` more keys are copied.
    pub fn note_done(&mut self, count: u64) -> Result<()> {
        self.done += count;
        let Some(progress) = &self.progress else { return Ok(()) };
        std::fs::write(progress, format!("{}\n", self.done))
            .with_context(|| format!("cannot write {}", progress.display()))
    }

    /// Removes the progress file once all keys are copied: the next load of the list starts over.
    pub fn finish(self) -> Result<()> {
        match self.progress {
            Some(progress) if progress.exists() => Ok(std::fs::remove_file(progress)?),
            _ => Ok(()),
        }
    }
}

impl Key {
    /// Reads a line of `mgdump` (`mg KEY`, `mg KEY b`) or of `metadump` (`key=KEY ...`).
    fn parse(line: &str) -> Result<Self> {
        if let Some(rest) = line.strip_prefix("mg ") {
            let mut words = rest.split(' ').filter(|word| !word.is_empty());
            let text = words.next().with_context(|| format!("'{line}' names no key"))?.to_owned();
            return Ok(Self { text, is_base64: words.any(|word| word == "b") });
        }
        let Some(rest) = line.strip_prefix("key=") else {
            bail!("'{line}' is no line of lru_crawler mgdump or metadump");
        };
        let encoded = rest.split(' ').next().unwrap_or_default();
        let key = decode(encoded).with_context(|| format!("'{line}' names no key"))?;
        let is_plain = key.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        match String::from_utf8(key) {
            Ok(text) if is_plain => Ok(Self { text, is_base64: false }),
            Ok(text) => Ok(Self::in_base64(text.as_bytes())),
            Err(error) => Ok(Self::in_base64(error.as_bytes())),
        }
    }

    fn in_base64(key: &[u8]) -> Self {
        let mut text = Vec::new();
        amalgam_server::append_base64(&mut text, key);
        Self { text: String::from_utf8_lossy(&text).into_owned(), is_base64: true }
    }
}

/// Decodes the percent escapes of a URI. Returns `None` if the text is empty or an escape is
/// malformed.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let (digits, behind) = rest.split_first_chunk::<2>()?;
            bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
            rest = behind;
        } else {
            bytes.push(*first);
        }
    }
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<(String, bool)> {
        Key::parse(line).ok().map(|key| (key.text, key.is_base64))
    }

    #[test]
    fn keys_of_both_dumps_are_read() {
        assert_eq!(parsed("mg foo"), Some(("foo".into(), false)));
        assert_eq!(parsed("mg Zm9v b"), Some(("Zm9v".into(), true)));
        assert_eq!(parsed("key=a%25b exp=-1 la=1 flags=0"), Some(("a%b".into(), false)));
        assert_eq!(parsed("key=a%20b exp=-1"), Some(("YSBi".into(), true)));
        assert_eq!(parsed("key=%FF exp=-1"), Some(("/w==".into(), true)));
        for line in ["", "mg ", "key=", "key=%2", "key=%zz", "get foo", "STAT a b"] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }
}
