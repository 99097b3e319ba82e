//! `seeds FIRST LAST FILE [SCENARIO]` runs the seeds from FIRST to before LAST, and appends a line
//! to FILE for each block of twenty. Blocks that are in FILE already are skipped, so an interrupted
//! series continues. SCENARIO is a file of `crates/sim/scenarios`; without it all faults but rot
//! are on. For a seed with violations, the smallest scenario is printed in which it still fails.
//!
//! The exit code is 1 if a seed had violations, now or before, or if a thousand seeds without
//! SCENARIO never went through one of the required races.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use amalgam_sim::{Coverage, Mutant, Report, Scenario, shrink};

/// Seeds in a line of the file.
const BLOCK: u64 = 20;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (first, last, path, scenario) = match &arguments[..] {
        [first, last, path] => (first, last, path, Scenario::default()),
        [first, last, path, file] => {
            (first, last, path, Scenario::parse(&std::fs::read_to_string(file)?)?)
        }
        _ => return Err("seeds FIRST LAST FILE [SCENARIO]".into()),
    };
    let (first, last): (u64, u64) = (first.parse()?, last.parse()?);
    let text = if std::fs::exists(path)? { std::fs::read_to_string(path)? } else { String::new() };
    let done: BTreeMap<u64, Report> = text.lines().filter_map(Report::from_line).collect();
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if !text.is_empty() && !text.ends_with('\n') {
        writeln!(file)?;
    }
    let blocks: Vec<u64> = (first..last).step_by(BLOCK as usize).collect();
    let missing: Vec<u64> =
        blocks.iter().copied().filter(|block| !done.contains_key(block)).collect();
    let mut sum = Report::default();
    done.iter().filter(|(block, _)| blocks.contains(block)).for_each(|(_, report)| sum.add(report));
    run(missing, last, &scenario, &Mutex::new((&mut file, &mut sum)))?;
    print!("{sum}");
    let never: Vec<&str> = Coverage::REQUIRED
        .into_iter()
        .filter(|race| sum.get(&format!("race: {race}")) == 0)
        .collect();
    if !never.is_empty() {
        println!("never reached: {never:#?}");
    }
    let is_enough = never.is_empty() || last - first < 1_000 || scenario != Scenario::default();
    let is_well = sum.get("failed") == 0 && is_enough;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs blocks on as many threads as there are cores.
fn run(
    blocks: Vec<u64>,
    last: u64,
    scenario: &Scenario,
    sink: &Mutex<(&mut std::fs::File, &mut Report)>,
) -> std::io::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (left, started) = (Mutex::new(blocks.into_iter()), Instant::now());
    let work = || -> std::io::Result<()> {
        loop {
            let next = left.lock().expect("no thread panics while it holds the lock").next();
            let Some(block) = next else { return Ok(()) };
            let mut report = Report::default();
            for seed in block..(block + BLOCK).min(last) {
                let wrong = report.run(seed, scenario);
                wrong.iter().take(3).for_each(|wrong| println!("seed {seed}: {wrong}"));
                if let Some((least, wrong)) =
                    (!wrong.is_empty()).then(|| shrink(scenario, seed, Mutant::None)).flatten()
                {
                    println!("seed {seed} also fails with {}, in\n{least}", wrong[0]);
                }
            }
            let mut sink = sink.lock().expect("no thread panics while it holds the lock");
            let (file, sum) = &mut *sink;
            writeln!(file, "{}", report.to_line(block))?;
            sum.add(&report);
            let (seeds, failed) = (sum.get("seeds"), sum.get("failed"));
            let seconds = started.elapsed().as_secs();
            eprintln!("{seconds:>6} s: {seeds} seeds, {failed} with violations");
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a run does not panic"))
    })
}
