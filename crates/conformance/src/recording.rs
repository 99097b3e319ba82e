//! Histories for a checker outside this project: what clients asked, what they were told and when,
//! written as JSON lines. `docs/histories.md` describes the form, and `tests/oracle` checks it.
//!
//! Tests write histories where `AMALGAM_HISTORIES` names a folder, and none elsewhere.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use serde::Serialize;

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "memcached's commands and their arguments")]
pub enum Request {
    Get,
    Gets,
    Set {
        value: String,
    },
    Add {
        value: String,
    },
    Replace {
        value: String,
    },
    Append {
        value: String,
    },
    Prepend {
        value: String,
    },
    Cas {
        value: String,
        cas: u64,
    },
    Incr {
        delta: u64,
        /// The value of a missing item afterwards; None if it stays missing.
        #[serde(skip_serializing_if = "Option::is_none")]
        initial: Option<u64>,
    },
    Delete,
    Touch,
    /// Makes the items of all keys miss.
    Flush,
}

impl Request {
    /// Whether it can change an item.
    pub fn writes(&self) -> bool {
        !matches!(self, Self::Get | Self::Gets)
    }
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[allow(missing_docs, reason = "memcached's answers")]
pub enum Reply {
    Hit {
        found: String,
        /// The id that `gets` showed.
        #[serde(skip_serializing_if = "Option::is_none")]
        found_cas: Option<u64>,
    },
    Stored,
    NotStored,
    Exists,
    /// There is no item, and the request changed nothing; also the answer to a read that missed.
    NotFound,
    Deleted,
    Touched,
    Number {
        number: u64,
    },
    NotANumber,
    Flushed,
}

/// How an operation ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum End {
    /// It took effect once between `called` and `returned`, and this is its answer.
    Known(Reply),
    /// It may have taken effect at any time since `called`, or never.
    #[default]
    Unknown,
    /// It took no effect and never will.
    Refused,
}

/// One operation of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// The client; it may have several operations in flight.
    pub client: String,
    /// The key; empty for `Flush`.
    pub key: String,
    /// What was asked for.
    #[serde(flatten)]
    pub request: Request,
    /// The item lives this long after the request; None if the request does not say, or for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// When the request began.
    pub called: u64,
    /// When the answer arrived; None if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned: Option<u64>,
    /// The answer.
    #[serde(flatten)]
    pub end: End,
}

impl Operation {
    /// An operation without an answer so far.
    pub fn begun(client: &str, key: &str, request: Request, called: u64) -> Self {
        let (client, key) = (client.to_owned(), key.to_owned());
        let (ttl_seconds, returned, end) = (None, None, End::Unknown);
        Self { client, key, request, ttl_seconds, called, returned, end }
    }
}

/// The first line of a history.
#[derive(Debug, Serialize)]
struct Head<'h> {
    form: u32,
    source: &'h str,
    nanoseconds_per_unit: u64,
    forgets: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<&'static str>,
    violations: &'h [String],
}

/// A history and what is known of it.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Where it comes from, for people.
    pub source: String,
    /// The unit of `called` and `returned`.
    pub nanoseconds_per_unit: u64,
    /// Whether items may vanish at any time, as in a cache.
    pub forgets: bool,
    /// What this project's own checker found; None if none looked.
    pub violations: Option<Vec<String>>,
    /// The operations, in any order.
    pub operations: Vec<Operation>,
}

/// The folder for histories; None if nobody asked for them.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os("AMALGAM_HISTORIES").map(PathBuf::from)
}

impl History {
    /// Writes it to a file of this name in [`folder`], if there is one.
    pub fn write(&self, name: &str) -> std::io::Result<()> {
        let Some(folder) = folder() else { return Ok(()) };
        std::fs::create_dir_all(&folder)?;
        let mut file = BufWriter::new(File::create(folder.join(format!("{name}.jsonl")))?);
        let violations = self.violations.as_deref();
        let head = Head {
            form: 1,
            source: &self.source,
            nanoseconds_per_unit: self.nanoseconds_per_unit,
            forgets: self.forgets,
            own: violations.map(|found| if found.is_empty() { "holds" } else { "violated" }),
            violations: violations.unwrap_or_default(),
        };
        serde_json::to_writer(&mut file, &head)?;
        for operation in &self.operations {
            writeln!(file)?;
            serde_json::to_writer(&mut file, operation)?;
        }
        writeln!(file)?;
        file.flush()
    }
}

/// A history that several threads record on the machine's clock. It is written when it is dropped,
/// also while a test panics: then nothing is known of the own checker's verdict.
#[derive(Debug)]
pub struct Recorder {
    name: String,
    start: Instant,
    history: Mutex<History>,
}

impl Recorder {
    /// A recorder whose history goes to the file of this name.
    pub fn new(name: &str, source: &str) -> Self {
        let history =
            History { source: source.to_owned(), nanoseconds_per_unit: 1, ..History::default() };
        Self { name: name.to_owned(), start: Instant::now(), history: Mutex::new(history) }
    }

    /// The time.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Begins an operation. The number names it at its [`end`](Self::end).
    pub fn begin(&self, client: &str, key: &str, request: Request) -> usize {
        self.begin_for(client, key, request, None)
    }

    /// Begins an operation whose item lives for some time.
    pub fn begin_for(
        &self,
        client: &str,
        key: &str,
        request: Request,
        ttl_seconds: Option<u64>,
    ) -> usize {
        let mut history = self.history.lock().expect("no thread panics while it holds the lock");
        let operation = Operation::begun(client, key, request, self.now());
        history.operations.push(Operation { ttl_seconds, ..operation });
        history.operations.len() - 1
    }

    /// Records an operation that has ended.
    pub fn record(&self, operation: Operation) {
        let mut history = self.history.lock().expect("no thread panics while it holds the lock");
        history.operations.push(operation);
    }

    /// Ends an operation.
    pub fn end(&self, number: usize, end: End) {
        let returned = Some(self.now());
        let mut history = self.history.lock().expect("no thread panics while it holds the lock");
        let operation = &mut history.operations[number];
        (operation.returned, operation.end) = (returned, end);
    }

    /// Says what the own checker found.
    pub fn conclude(&self, violations: Vec<String>) {
        self.history.lock().expect("no thread panics while it holds the lock").violations =
            Some(violations);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Ok(history) = self.history.get_mut() {
            if std::thread::panicking() {
                history.violations = None;
            }
            if let Err(error) = history.write(&self.name) {
                eprintln!("the history {} is not written: {error}", self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_one_flat_object() {
        let mut operation =
            Operation::begun("a", "k", Request::Cas { value: "1".into(), cas: 7 }, 5);
        let text = |operation: &Operation| serde_json::to_string(operation).expect("plain data");
        let begun = r#"{"client":"a","key":"k","kind":"cas","value":"1","cas":7,"called":5"#;
        assert_eq!(text(&operation), format!(r#"{begun},"outcome":"unknown"}}"#));
        operation.returned = Some(9);
        operation.end = End::Known(Reply::Hit { found: "x".into(), found_cas: None });
        let ended = r#""returned":9,"outcome":"known","result":"hit","found":"x""#;
        assert_eq!(text(&operation), format!("{begun},{ended}}}"));
    }
}
