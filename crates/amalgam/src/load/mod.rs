//! `amalgam load`: copies items from one running server to another, memcached or Amalgam.
//!
//! The source lists its keys (`lru_crawler mgdump`); each item is fetched with its value, flags and
//! remaining seconds, and stored in the target. Items that the target already has are kept, so that
//! clients may use the target meanwhile and a load may be repeated.
//!
//! Invariants of this module:
//! 1. At most one value, and [`BATCH`] keys, are in memory.
//! 2. An item never gets more time to live than it had left when it was read.
//! 3. The progress file never counts a key whose answer from the target was not read.

mod keys;
mod server;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use amalgam_bench::Usage;
use anyhow::{Context, Result, bail, ensure};

use keys::Keys;
use server::{Key, Server, Stored};

/// The number of keys that are requested at once.
const BATCH: usize = 128;

/// The interval between two lines about the progress.
const REPORT: Duration = Duration::from_secs(5);

/// Arguments of `amalgam load`.
#[derive(clap::Args)]
pub struct Load {
    /// The server to copy from, as HOST:PORT or the path of a socket
    #[arg(long, value_name = "SERVER")]
    from: String,
    /// The server to copy to, as HOST:PORT or the path of a socket
    #[arg(long, value_name = "SERVER")]
    to: String,
    /// A file of keys as `lru_crawler mgdump` or `metadump` lists them; if it does not exist, it is
    /// written first [default: the source lists its keys]
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Replace items that the target already has
    #[arg(long)]
    overwrite: bool,
    /// Copy at most this many items per second [default: as fast as both servers can]
    #[arg(long, value_name = "NUM", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Print no progress
    #[arg(long)]
    quiet: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

/// How many keys were processed, by result; one key has exactly one result.
#[derive(Clone, Copy, Default, serde::Serialize)]
struct Report {
    keys: u64,
    copied: u64,
    bytes: u64,
    /// Items that expired or left the source meanwhile.
    missing: u64,
    /// Items that the target already had.
    present: u64,
    /// Items that the target refused.
    refused: u64,
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { keys, copied, bytes, missing, present, refused } = self;
        write!(
            formatter,
            "{keys} keys: {copied} copied ({} MiB), {present} were there, {missing} gone, \
             {refused} refused",
            bytes >> 20
        )
    }
}

/// Copies items until there are no more keys.
///
/// # Errors
///
/// If a server cannot be reached or breaks off, the key file cannot be read or written, or the
/// target refused items; the text says how to go on.
pub fn run(load: &Load) -> Result<()> {
    check_name(&load.to).context("--to").usage()?;
    check_name(&load.from).context("--from").usage()?;
    let mut target = Server::connect(&load.to).context("--to")?;
    let mut source = Server::connect(&load.from).context("--from")?;
    let mut keys = match &load.keys {
        Some(path) => {
            if !path.exists() {
                keys::write(path, &load.from)
                    .with_context(|| format!("cannot write the keys to {}", path.display()))?;
            }
            Keys::from_file(path)?
        }
        None => Keys::from_server(&load.from)?,
    };
    if keys.done() > 0 && !load.quiet {
        eprintln!("going on behind the {} keys that were done", keys.done());
    }
    let mut report = Report::default();
    let start = Instant::now();
    let mut next_report = start + REPORT;
    let mut batch = Vec::with_capacity(BATCH);
    let batch_keys = load.rate.map_or(BATCH, |rate| BATCH.min(rate as usize));
    loop {
        batch.clear();
        keys.fill(&mut batch, batch_keys).context("the list of keys ends too early")?;
        if batch.is_empty() {
            break;
        }
        let copied = copy(&batch, &mut source, &mut target, load.overwrite, &mut report);
        copied.with_context(|| format!("broken off after {report}; run it again to go on"))?;
        keys.note_done(batch.len() as u64)?;
        if let Some(rate) = load.rate {
            let due = Duration::from_secs_f64(report.keys as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        if !load.quiet && Instant::now() >= next_report {
            next_report = Instant::now() + REPORT;
            eprintln!("{report}, {:.0} keys/s", rate_of(&report, start));
        }
    }
    keys.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    if load.json {
        let mut result = serde_json::to_value(report)?;
        result["seconds"] = seconds.into();
        writeln!(std::io::stdout(), "{result}")?;
    } else {
        writeln!(std::io::stdout(), "{report}, in {seconds:.1} s")?;
    }
    ensure!(
        report.refused == 0,
        "the target refused {} items: is its memory (-m) or its largest item (-I) smaller?",
        report.refused
    );
    Ok(())
}

/// Refuses what is neither HOST:PORT nor a path; a host that is unknown now may be known later.
fn check_name(name: &str) -> Result<()> {
    let port = name.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    ensure!(
        name.contains('/') || matches!(port, Some(Ok(_))),
        "'{name}' is neither HOST:PORT nor the path of a socket"
    );
    Ok(())
}

fn rate_of(report: &Report, start: Instant) -> f64 {
    report.keys as f64 / start.elapsed().as_secs_f64().max(0.001)
}

/// Copies the items of some keys.
fn copy(
    batch: &[Key],
    source: &mut Server,
    target: &mut Server,
    overwrites: bool,
    report: &mut Report,
) -> Result<()> {
    source.ask_for(batch)?;
    let mut sent = 0;
    for key in batch {
        let Some(item) = source.next_item()? else {
            report.missing += 1;
            continue;
        };
        // The item has expired, so it counts as missing.
        if item.seconds_left == Some(0) {
            report.missing += 1;
            continue;
        }
        target.store(key, &item, overwrites)?;
        report.bytes += item.value.len() as u64;
        sent += 1;
    }
    source.expect_mark()?;
    target.flush_marked()?;
    for _ in 0..sent {
        match target.stored()? {
            Stored::Taken => report.copied += 1,
            Stored::Present => report.present += 1,
            Stored::Refused(reason) if reason.starts_with("CLIENT_ERROR unauth") => {
                bail!("the target wants users to sign in (-Y): load before that is turned on")
            }
            Stored::Refused(_) => report.refused += 1,
        }
    }
    target.expect_mark()?;
    report.keys += batch.len() as u64;
    Ok(())
}
