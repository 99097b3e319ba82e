//! `amalgam-lab chaos`: systems under the same faults, with the same clients and checker.

mod checker;
mod clients;
mod load;
mod network;
mod report;
mod schedules;
mod systems;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amalgam_bench::UsageError;
use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::chaos::checker::{Trial, Verdict, failed, judge};
use crate::chaos::load::{KEYS, Load};
use crate::chaos::schedules::{DISK_HUNG, SCHEDULES, Schedule};
use crate::chaos::systems::{Cluster, Programs, System};

/// How long clients run before the fault, and after it at least.
const CALM: Duration = Duration::from_secs(3);
const SETTLED: Duration = Duration::from_secs(8);

/// Arguments of `chaos`.
#[derive(clap::Args)]
pub struct ChaosArguments {
    /// Systems to run, separated by commas, or `all`.
    #[arg(long, value_name = "LIST", default_value = "all")]
    systems: String,
    /// Schedules of faults to run, separated by commas, or `all`.
    #[arg(long, value_name = "LIST", default_value = "all")]
    schedules: String,
    /// The `amalgam` program.
    #[arg(long, value_name = "FILE", default_value = "target/debug/amalgam")]
    binary: PathBuf,
    /// Hazelcast for Java, `hazelcast-VERSION.jar`; without it, Hazelcast is left out.
    #[arg(long, value_name = "FILE")]
    hazelcast: Option<PathBuf>,
    /// Folder for results, a file each, and logs; a rerun goes on where this one stopped.
    #[arg(long, value_name = "DIR", default_value = "chaos")]
    out: PathBuf,
    /// Write the report, `chaos.md`, to this folder.
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
}

/// Runs all cells that have no result yet.
///
/// # Errors
///
/// If a name is unknown, the machine allows no namespaces, or a cell could not be measured.
pub fn run(arguments: &ChaosArguments) -> anyhow::Result<()> {
    let names: Vec<&str> = System::ALL.iter().map(|(name, _)| *name).collect();
    let systems = chosen("system", &arguments.systems, &names)?;
    let names: Vec<&str> = SCHEDULES.iter().map(|schedule| schedule.name).collect();
    let schedules = chosen("schedule", &arguments.schedules, &names)?;
    let file =
        |file: &PathBuf| file.canonicalize().with_context(|| format!("no file {}", file.display()));
    let programs = Programs {
        amalgam: file(&arguments.binary)?,
        hazelcast: arguments.hazelcast.as_ref().map(file).transpose()?,
    };
    network::isolate()?;
    std::fs::create_dir_all(&arguments.out)?;
    let out = arguments.out.canonicalize()?;
    let mut failed = Vec::new();
    for (name, system) in systems.iter().map(|place| System::ALL[*place]) {
        if let Some(advice) = system.missing(&programs) {
            println!("{name}: skipped, {advice}");
            continue;
        }
        for schedule in schedules.iter().map(|place| &SCHEDULES[*place]) {
            let file = out.join(format!("{name}-{}.json", schedule.name));
            if file.exists() || (schedule.is_ours_alone && !system.is_ours()) {
                continue;
            }
            println!("{name}, {}: begins", schedule.name);
            let folder = out.join(format!("{name}-{}", schedule.name));
            let cell = cell(system, schedule, &programs, &folder);
            network::heal();
            match cell {
                Ok(mut cell) => {
                    cell["system"] = json!(name);
                    cell["schedule"] = json!(schedule.name);
                    println!("{name}, {}: {cell}", schedule.name);
                    std::fs::write(&file, serde_json::to_string_pretty(&cell)?)?;
                }
                Err(error) => {
                    println!("{name}, {}: not measured: {error:#}", schedule.name);
                    failed.push(format!("{name}, {}", schedule.name));
                }
            }
        }
    }
    if let Some(docs) = &arguments.docs {
        let text = report::write(&cells(&out)?);
        std::fs::write(docs.join("chaos.md"), text)?;
    }
    if !failed.is_empty() {
        bail!("not measured, run again for them: {}", failed.join("; "));
    }
    Ok(())
}

/// The places in `names` of what a list has.
fn chosen(what: &str, list: &str, names: &[&str]) -> anyhow::Result<Vec<usize>> {
    if list == "all" {
        return Ok((0..names.len()).collect());
    }
    let place = |name: &str| {
        let place = names.iter().position(|known| *known == name);
        let unknown = || format!("there is no {what} {name}; there are {}", names.join(", "));
        place.ok_or_else(|| UsageError::new(unknown()).into())
    };
    list.split(',').map(|name| place(name.trim())).collect()
}

/// All results in a folder, in the order of systems and schedules.
fn cells(out: &Path) -> anyhow::Result<Vec<Value>> {
    let mut cells = Vec::new();
    for schedule in SCHEDULES {
        for (name, _) in System::ALL {
            let file = out.join(format!("{name}-{}.json", schedule.name));
            if let Ok(text) = std::fs::read_to_string(file) {
                cells.push(serde_json::from_str(&text)?);
            }
        }
    }
    Ok(cells)
}

/// One trial: calm, the fault and its end, calm, and a read of all keys.
fn cell(
    system: System,
    schedule: &Schedule,
    programs: &Programs,
    folder: &Path,
) -> anyhow::Result<Value> {
    // What an interrupted run left.
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    let mut cluster = Cluster::start(system, programs, folder, schedule.name == DISK_HUNG)?;
    let (protocol, members) = (system.protocol(), cluster.addresses());
    let load = Load { protocol, members, begin: Instant::now() };
    let stops = AtomicBool::new(false);
    let mut trial = Trial {
        keys: KEYS,
        forgets: system == System::AmalgamCache,
        victims: (schedule.victims)(&cluster),
        ..Trial::default()
    };
    let (mut events, outcome) = std::thread::scope(|scope| {
        let clients = scope.spawn(|| load.run(&stops));
        std::thread::sleep(CALM);
        trial.owners = cluster.owners();
        trial.fault_at = load.begin.elapsed();
        let outcome = (schedule.run)(&mut cluster);
        if outcome.is_ok() {
            std::thread::sleep(SETTLED);
        }
        stops.store(true, Ordering::Release);
        (clients.join().expect("no panic"), outcome)
    });
    outcome?;
    events.extend(load.read_all());
    std::fs::write(folder.join("failed.csv"), failed(&trial, &events))?;
    let verdict = judge(&trial, &events);
    Ok(result(&verdict))
}

fn result(verdict: &Verdict) -> Value {
    let seconds = |time: Duration| (time.as_secs_f64() * 1000.0).round() / 1000.0;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "acknowledged": verdict.acknowledged,
        "lost": verdict.lost,
        "unreadable": verdict.unreadable,
        "stale": verdict.stale,
        "misses": verdict.misses,
        "keys_unavailable": verdict.unavailable.len(),
        "worst_seconds": seconds(verdict.worst()),
        "median_seconds": seconds(verdict.median()),
        "healthy_errors": verdict.healthy_errors,
        "healthy_p99_seconds": verdict.healthy_p99.map(seconds),
        "machine_load": load.split(' ').next(),
        "commit": amalgam_bench::measure::commit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused_with_a_list() {
        assert_eq!(chosen("system", "b,a", &["a", "b"]).expect("known"), [1, 0]);
        assert_eq!(chosen("system", "all", &["a", "b"]).expect("known"), [0, 1]);
        let error = chosen("system", "c", &["a", "b"]).expect_err("unknown");
        assert_eq!(error.to_string(), "there is no system c; there are a, b");
    }
}
