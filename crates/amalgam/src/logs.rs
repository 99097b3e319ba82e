//! The server's log on standard error: one line per event, as text or as JSON.
//!
//! Invariants of this module:
//! 1. No line holds a key, a value or a password: callers pass addresses, numbers, options and the
//!    system's errors. Control characters are escaped, so that text from outside cannot begin a
//!    line, and fields that could be misread are quoted.
//! 2. At most [`BURST`] lines are written at once and [`LINES_PER_SECOND`] over time; the next line
//!    says how many were left out. Why a node ends ([`FINAL_TARGET`]) is never left out.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use amalgam_node::FINAL_TARGET;
use log::kv::{Key, Value, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::{Deserialize, Serialize};

/// The capacity of the token bucket: the most lines at once.
const BURST: u32 = 100;

/// The rate at which the token bucket refills, in lines a second.
const LINES_PER_SECOND: u32 = 20;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Time, level, words, then name=value.
    Text,
    /// One JSON object a line.
    Json,
}

/// The lowest severity that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threshold {
    /// Failures that end the server or prevent its start.
    Error,
    /// Conditions that an operator should look at.
    Warn,
    /// The start, the configuration and the end of the server.
    Info,
    /// Every connection as well.
    Debug,
}

impl From<Threshold> for LevelFilter {
    fn from(threshold: Threshold) -> Self {
        match threshold {
            Threshold::Error => Self::Error,
            Threshold::Warn => Self::Warn,
            Threshold::Info => Self::Info,
            Threshold::Debug => Self::Debug,
        }
    }
}

/// Installs the logger of the process, and a hook that logs panics. Later calls have no effect.
pub fn start(threshold: Threshold, format: Format) {
    let logger = Logger { format, limiter: Mutex::new(RateLimiter::new(Instant::now())) };
    // This fails only after an earlier call, whose logger stays.
    if log::set_boxed_logger(Box::new(logger)).is_err() {
        return;
    }
    log::set_max_level(threshold.into());
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let payload = panic.payload();
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        let reason = owned.or(payload.downcast_ref::<&str>().copied()).unwrap_or("?");
        let thread = thread.name().unwrap_or("?");
        log::error!(thread, place, reason; "a thread panicked");
    }));
}

struct Logger {
    format: Format,
    limiter: Mutex<RateLimiter>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries are left out: they might log what invariant 1 forbids.
        metadata.level() <= log::max_level() && metadata.target().starts_with("amalgam")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut limiter = self.limiter.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_final = record.target() == FINAL_TARGET;
        let Some(left_out) = limiter.take(Instant::now(), is_final) else { return };
        drop(limiter);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, millis) = (time.as_secs(), time.subsec_millis());
        let line = match self.format {
            Format::Text => text(record, seconds, millis, left_out),
            Format::Json => json(record, seconds, millis, left_out),
        };
        // A failure to write the log cannot be reported anywhere.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// A token bucket that limits the rate of log lines.
struct RateLimiter {
    tokens: f64,
    filled: Instant,
    left_out: u64,
}

impl RateLimiter {
    fn new(now: Instant) -> Self {
        Self { tokens: BURST.into(), filled: now, left_out: 0 }
    }

    /// Takes a token for one line. Returns the number of lines that were left out since the last
    /// line; `None` if there is no token, so that this line is left out too. A final line needs
    /// no token.
    fn take(&mut self, now: Instant, is_final: bool) -> Option<u64> {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        let tokens = self.tokens + seconds * f64::from(LINES_PER_SECOND);
        self.tokens = tokens.min(BURST.into());
        if self.tokens < 1.0 && !is_final {
            self.left_out += 1;
            return None;
        }
        self.tokens = (self.tokens - 1.0).max(0.0);
        Some(std::mem::take(&mut self.left_out))
    }
}

fn level(record: &Record<'_>) -> &'static str {
    match record.level() {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug | Level::Trace => "debug",
    }
}

/// A time since the Unix epoch in UTC, as RFC 3339 writes it.
fn timestamp(seconds: u64, millis: u32) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, in cycles of 400 years: a year that begins in March has its
    // leap day at the end.
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (year, hour) = (400 * cycle + year + carry, second / 3600);
    let (minute, second) = (second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

fn text(record: &Record<'_>, seconds: u64, millis: u32, left_out: u64) -> String {
    struct Pairs(String);
    impl<'v> VisitSource<'v> for Pairs {
        fn visit_pair(&mut self, key: Key<'v>, value: Value<'v>) -> Result<(), log::kv::Error> {
            Ok(write!(self.0, " {key}={}", quoted(value.to_string()))?)
        }
    }
    let mut pairs = Pairs(record.args().to_string());
    // Writing to a string cannot fail.
    let _ = record.key_values().visit(&mut pairs);
    if left_out > 0 {
        let _ = write!(pairs.0, " lines_left_out={left_out}");
    }
    let words: String = pairs.0.chars().flat_map(on_one_line).collect();
    format!("{} {:<5} {words}\n", timestamp(seconds, millis), level(record))
}

/// A value of a text log: in quotes and escaped as a string of Rust, unless it can be read in one
/// way only.
fn quoted(value: String) -> String {
    let escaped = format!("{value:?}");
    let has_escapes = escaped.len() != value.len() + 2;
    let is_plain = !value.is_empty() && !value.contains([' ', '=']) && !has_escapes;
    if is_plain { value } else { escaped }
}

/// A character, escaped if it is a control character of lines or terminals.
fn on_one_line(letter: char) -> impl Iterator<Item = char> {
    let escaped = letter.is_control().then(|| letter.escape_default());
    let plain = (!letter.is_control()).then_some(letter);
    escaped.into_iter().flatten().chain(plain)
}

fn json(record: &Record<'_>, seconds: u64, millis: u32, left_out: u64) -> String {
    struct Pairs(serde_json::Map<String, serde_json::Value>);
    impl<'v> VisitSource<'v> for Pairs {
        fn visit_pair(&mut self, key: Key<'v>, value: Value<'v>) -> Result<(), log::kv::Error> {
            let value = match (value.to_bool(), value.to_i64()) {
                (Some(value), _) => value.into(),
                (_, Some(value)) => value.into(),
                _ => value.to_string().into(),
            };
            self.0.insert(key.to_string(), value);
            Ok(())
        }
    }
    let mut pairs = Pairs(serde_json::Map::new());
    // Inserting into a map cannot fail.
    let _ = record.key_values().visit(&mut pairs);
    pairs.0.insert("time".into(), timestamp(seconds, millis).into());
    pairs.0.insert("level".into(), level(record).into());
    pairs.0.insert("message".into(), record.args().to_string().into());
    if left_out > 0 {
        pairs.0.insert("lines_left_out".into(), left_out.into());
    }
    format!("{}\n", serde_json::Value::from(pairs.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The same warning in both formats.
    fn lines(message: &str, pairs: &[(&str, Value<'_>)], left_out: u64) -> (String, String) {
        let arguments = format_args!("{message}");
        let record =
            Record::builder().level(Level::Warn).args(arguments).key_values(&pairs).build();
        (text(&record, 1_700_000_000, 7, left_out), json(&record, 1_700_000_000, 7, left_out))
    }

    #[test]
    fn events_are_written_in_both_formats() {
        let pairs =
            [("threads", Value::from(4)), ("path", Value::from("a b")), ("on", true.into())];
        let (text, json) = lines("words", &pairs, 3);
        let expected = "2023-11-14T22:13:20.007Z warn  words threads=4 path=\"a b\" on=true \
                        lines_left_out=3\n";
        assert_eq!(text, expected);
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!({
                "time": "2023-11-14T22:13:20.007Z", "level": "warn", "message": "words",
                "threads": 4, "path": "a b", "on": true, "lines_left_out": 3,
            })
        );
    }

    #[test]
    fn values_that_could_be_misread_are_quoted() {
        for (value, expected) in [
            ("plain", "plain"),
            ("127.0.0.1:11211", "127.0.0.1:11211"),
            ("it's", "it's"),
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("a=b", r#""a=b""#),
            ("a\tb", r#""a\tb""#),
            ("a\r\nb", r#""a\r\nb""#),
            ("\u{1b}[2J", r#""\u{1b}[2J""#),
            ("a\u{202e}b", r#""a\u{202e}b""#),
            (r#"say "a""#, r#""say \"a\"""#),
            (r"C:\new", r#""C:\\new""#),
        ] {
            let (text, json) = lines("words", &[("value", Value::from(value))], 0);
            let (_, written) = text.split_once(" words value=").expect("a value");
            assert_eq!(written, format!("{expected}\n"), "{value:?}");
            let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            assert_eq!(json["value"], value);
        }
    }

    #[test]
    fn nobody_begins_a_line_of_his_own() {
        let evil = "x\n2023-11-14T22:13:20Z error \u{1b}[2J";
        let (text, json) = lines(evil, &[("peer", Value::from(evil))], 0);
        for line in [text, json] {
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(line.ends_with('\n') && !line.contains('\u{1b}'), "{line}");
        }
    }

    #[test]
    fn dates_are_right_at_the_ends_of_years_and_months() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(seconds, 0), date);
        }
    }

    #[test]
    fn a_flood_is_cut_and_told_of() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(start);
        let passed = (0..1000).filter(|_| limiter.take(start, false).is_some()).count();
        assert_eq!(passed, BURST as usize);
        let later = start + Duration::from_millis(500);
        assert_eq!(limiter.take(later, false), Some(900));
        let passed = (0..1000).filter(|_| limiter.take(later, false).is_some()).count();
        assert!(limiter.take(later, true).is_some(), "why it ends is told whatever came before");
        assert_eq!(passed, LINES_PER_SECOND as usize / 2 - 1);
    }
}
