//! Executes the runs of figures, each in its own process. Their output is kept in files, so that an
//! interrupted reproduction goes on where it was. A command that several figures share is executed
//! once.

use std::collections::HashMap;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde_json::Value;

use super::plan::{Program, Reading, Run, SYNTHESIS, command_line};
use super::point::{AxisPosition, Point};
use super::servers::Servers;
use crate::programs::AMALGAM;
use amalgam_bench::measure::commit;

/// Executes runs, and keeps their output in a folder.
pub struct Runs {
    folder: PathBuf,
    own: PathBuf,
    /// Identifies this build: the output of another build is not used.
    build: String,
    passes: usize,
    /// The output of the runs that were executed, by pass and command.
    printed: HashMap<(usize, String), Vec<Value>>,
    progress: Progress,
}

/// The progress over all planned runs.
struct Progress {
    started: Instant,
    count: usize,
    done: usize,
    /// Expected seconds of all runs (`expected`), of the runs that are over (`passed`), and of the
    /// runs that this process measured (`measured`).
    expected: f64,
    passed: f64,
    measured: f64,
}

/// An executed run, as the folder keeps it.
#[derive(serde::Serialize, serde::Deserialize)]
struct Record {
    build: String,
    command: String,
    lines: Vec<Value>,
}

impl Runs {
    /// Keeps runs in `folder`. There are `count` runs in `passes` passes to execute, which are
    /// expected to take `expected` seconds.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created.
    pub fn new(folder: &Path, passes: usize, count: usize, expected: f64) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let own = std::env::current_exe().context("the path of this program")?;
        let build = build(&own).with_context(|| own.display().to_string())?;
        let progress = Progress {
            started: Instant::now(),
            count,
            done: 0,
            expected,
            passed: 0.0,
            measured: 0.0,
        };
        let (folder, printed) = (folder.to_owned(), HashMap::new());
        Ok(Self { folder, own, build, passes, printed, progress })
    }

    /// Executes a run for a pass (the first is 0), unless this build has executed it before.
    ///
    /// # Errors
    ///
    /// If the program is missing, fails, or prints a line that is not JSON.
    pub fn execute(&mut self, figure: &str, run: &Run, pass: usize) -> anyhow::Result<()> {
        let command = command_line(run);
        let kept = (pass, command.clone());
        if self.printed.contains_key(&kept) {
            self.progress.skip(run);
            return Ok(());
        }
        let file = format!("{:016x}-{}.json", key(&command), pass + 1);
        let file = self.folder.join(file);
        let lines = self.load_or_measure(&file, figure, run, command, pass)?;
        self.printed.insert(kept, lines);
        Ok(())
    }

    /// The output of a run: read from `file`, or else measured and written there.
    fn load_or_measure(
        &mut self,
        file: &Path,
        figure: &str,
        run: &Run,
        command: String,
        pass: usize,
    ) -> anyhow::Result<Vec<Value>> {
        let kept = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let kept =
            kept.filter(|record: &Record| record.build == self.build && record.command == command);
        if let Some(record) = kept {
            self.progress.skip(run);
            return Ok(record.lines);
        }
        self.progress.tell(figure, run, pass, self.passes);
        let lines = self.lines(run);
        self.progress.pass(run);
        let record = Record { build: self.build.clone(), command, lines: lines? };
        // The file gets its name once it is complete, so an interrupted run is measured again.
        let partial = file.with_extension("partial");
        fs::write(&partial, serde_json::to_vec(&record)?)?;
        fs::rename(&partial, file)?;
        Ok(record.lines)
    }

    /// The number of rounds of a run in a pass; 0 if the run was not executed.
    pub fn rounds(&self, run: &Run, pass: usize) -> usize {
        self.of_pass(run, pass).iter().map(rounds).max().unwrap_or(0)
    }

    /// The points of a round. A run with fewer rounds than others repeats those that it has; a run
    /// that was not executed has no points.
    ///
    /// # Errors
    ///
    /// If the run's points have an invalid form.
    pub fn points(&self, run: &Run, pass: usize, round: usize) -> anyhow::Result<Vec<Point>> {
        let lines = self.of_pass(run, pass).iter();
        let points = lines.map(|line| read(run, &of_round(line, round)));
        let points: anyhow::Result<Vec<_>> = points.collect();
        Ok(points?.concat())
    }

    fn of_pass(&self, run: &Run, pass: usize) -> &[Value] {
        let pass = if run.repeats { pass } else { 0 };
        self.printed.get(&(pass, command_line(run))).map_or(&[], Vec::as_slice)
    }

    fn lines(&self, run: &Run) -> anyhow::Result<Vec<Value>> {
        if let Program::Script(Some(recorded)) = run.program {
            return parsed(recorded).context("a record of this program");
        }
        let program = self.program(run.program)?;
        let servers = match run.program {
            Program::Servers(names, threads) => Servers::start(&AMALGAM.path()?, names, threads)?,
            Program::Own | Program::Hardware | Program::Script(_) => Servers::default(),
        };
        let mut command = Command::new(&program);
        command.args(&run.arguments);
        if matches!(run.program, Program::Servers(..)) {
            command.args(["--target", &servers.targets(), "--server-pid", &servers.processes()]);
        }
        let output =
            command.stdin(Stdio::null()).output().with_context(|| program.display().to_string())?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().last().unwrap_or("it printed no error").to_owned();
            bail!("{} ended with {}: {last}", command_line(run), output.status);
        }
        let text = String::from_utf8(output.stdout)?;
        let mut lines =
            parsed(&text).with_context(|| format!("the output of {}", command_line(run)))?;
        for line in &mut lines {
            let name = line.get("target").and_then(Value::as_str).and_then(|at| servers.name(at));
            if let Some(name) = name {
                line["engine"] = name.into();
            }
        }
        Ok(lines)
    }

    fn program(&self, program: Program) -> anyhow::Result<PathBuf> {
        match program {
            Program::Own | Program::Servers(..) => Ok(self.own.clone()),
            Program::Hardware => {
                let path = self.own.with_file_name("examples").join("figures");
                if !path.exists() {
                    bail!(
                        "{} is missing, build it: cargo build --release -p amalgam-rtl --features \
                         verilated --example figures (needs Verilator)",
                        path.display()
                    );
                }
                Ok(path)
            }
            Program::Script(_) => Ok(SYNTHESIS.into()),
        }
    }
}

fn parsed(lines: &str) -> serde_json::Result<Vec<Value>> {
    lines.lines().map(serde_json::from_str).collect()
}

impl Progress {
    fn tell(&mut self, figure: &str, run: &Run, pass: usize, passes: usize) {
        let left = self.expected - self.passed;
        // The plan's estimate is used until runs of a few seconds have been measured.
        let pace = if self.measured > 5.0 {
            self.started.elapsed().as_secs_f64() / self.measured
        } else {
            1.0
        };
        eprintln!(
            "[{}/{}] pass {} of {passes}: {figure}, {}; about {} left",
            self.done + 1,
            self.count,
            pass + 1,
            run.place.label,
            duration(left * pace)
        );
    }

    fn pass(&mut self, run: &Run) {
        self.measured += run.seconds;
        self.skip(run);
    }

    fn skip(&mut self, run: &Run) {
        self.passed += run.seconds;
        self.done += 1;
    }
}

/// A text that identifies this build, even of a tree with uncommitted changes.
fn build(program: &Path) -> anyhow::Result<String> {
    let file = fs::metadata(program)?;
    let written = file.modified()?.duration_since(UNIX_EPOCH)?;
    Ok(format!("{}, {} bytes, written at {}", commit(), file.len(), written.as_secs()))
}

/// A duration for people: 90 seconds is `1 min 30 s`.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A hash of the command for the name of its file. The file also has the command itself, so a
/// collision is noticed.
fn key(command: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    command.hash(&mut hasher);
    hasher.finish()
}

/// The prefix of a field that lists the rounds of the field without the prefix.
const ROUNDS: &str = "rounds_";

/// The number of rounds that a line lists.
fn rounds(line: &Value) -> usize {
    let lists = line.as_object().into_iter().flatten().filter(|(field, _)| is_list(field));
    lists.filter_map(|(_, list)| Some(list.as_array()?.len())).max().unwrap_or(1).max(1)
}

fn is_list(field: &str) -> bool {
    field.starts_with(ROUNDS)
}

/// The line with the values of one round in place of the medians.
fn of_round(line: &Value, round: usize) -> Value {
    let mut one = line.clone();
    for (field, list) in line.as_object().into_iter().flatten() {
        let Some(field) = field.strip_prefix(ROUNDS) else { continue };
        let list = list.as_array().map_or(&[][..], Vec::as_slice);
        let Some(value) = list.get(round % list.len().max(1)) else { continue };
        if field == "ops_per_second"
            && let (Some(rate), Some(threads)) = (value.as_f64(), line["threads"].as_f64())
        {
            one["ops_per_second_per_thread"] = (rate / threads).into();
        }
        one[field] = value.clone();
    }
    one
}

/// The points of a line.
fn read(run: &Run, line: &Value) -> anyhow::Result<Vec<Point>> {
    let number = |field: &str| line.get(field).and_then(Value::as_f64);
    let name = || {
        let name =
            ["engine", "structure", "backend"].iter().find_map(|field| line.get(field)?.as_str());
        name.unwrap_or("measured").to_owned()
    };
    let point = |series: String, value: f64| Point::new(series, run.place.clone(), value);
    let one = |series: String, field: &str, unit: f64| {
        number(field).map(|value| point(series, value / unit)).into_iter().collect()
    };
    let points = match &run.reading {
        Reading::Field(field, unit) => one(name(), field, *unit),
        Reading::Named(series, field, unit) => one(series.clone(), field, *unit),
        Reading::Fields(fields) => {
            let of = |(series, field, unit): &(String, &str, f64)| {
                number(field).map(|value| point(series.clone(), value / unit))
            };
            fields.iter().filter_map(of).collect()
        }
        Reading::Timeline(field, step, unit) => {
            let values = line.get(*field).and_then(Value::as_array).cloned().unwrap_or_default();
            let values = values.iter().filter_map(Value::as_f64).enumerate();
            let at = |index: usize| AxisPosition::number((index as f64 * step * 1e6).round() / 1e6);
            values.map(|(index, value)| Point::new(name(), at(index), value / unit)).collect()
        }
        Reading::Points => {
            let points = line.get("points").cloned().unwrap_or_default();
            let points: Vec<(String, f64, f64)> = serde_json::from_value(points)
                .with_context(|| format!("the points of {}", command_line(run)))?;
            let point = |(series, at, value)| Point::new(series, AxisPosition::number(at), value);
            points.into_iter().map(point).collect()
        }
    };
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(reading: Reading) -> Run {
        let place = AxisPosition::number(2.0);
        let arguments = vec!["bench".into()];
        Run { place, program: Program::Own, arguments, reading, seconds: 1.0, repeats: true }
    }

    #[test]
    fn lines_become_points() {
        let line = serde_json::json!({
            "engine": "memc3", "ops_per_second": 5e6, "p50_ns": 70, "timeline": [1e6, 2e6],
            "points": [["six lanes", 24.0, 31.25]],
        });
        let read = |reading| read(&run(reading), &line).unwrap();
        let two = AxisPosition::number(2.0);
        assert_eq!(
            read(Reading::Field("ops_per_second", 1e6)),
            [Point::new("memc3", two.clone(), 5.0)]
        );
        let rates = serde_json::json!({
            "engine": "memc3", "ops_per_second": 5e6, "ops_per_second_per_thread": 25e5,
            "threads": 2, "rounds_ops_per_second": [4e6, 5e6, 6e6], "get_ns": 20,
            "rounds_get_ns": [19, 23], "p50_ns": 7,
        });
        assert_eq!((rounds(&rates), rounds(&line)), (3, 1));
        let of = |round, field| {
            super::read(&run(Reading::Field(field, 1.0)), &of_round(&rates, round)).unwrap()[0]
                .value
        };
        assert_eq!([0, 1, 2].map(|round| of(round, "ops_per_second")), [4e6, 5e6, 6e6]);
        assert_eq!(of(2, "ops_per_second_per_thread"), 3e6);
        // A field with fewer rounds, or with one number for all rounds.
        assert_eq!([0, 1, 2].map(|round| of(round, "get_ns")), [19.0, 23.0, 19.0]);
        assert_eq!([0, 2].map(|round| of(round, "p50_ns")), [7.0, 7.0]);
        assert_eq!(read(Reading::Field("hit_ratio", 1.0)), []);
        let named = Reading::Named("+ tag".into(), "p50_ns", 1.0);
        assert_eq!(read(named), [Point::new("+ tag", two, 70.0)]);
        let timeline = read(Reading::Timeline("timeline", 0.1, 1e6));
        assert_eq!(timeline[1], Point::new("memc3", AxisPosition::number(0.1), 2.0));
        assert_eq!(
            read(Reading::Points),
            [Point::new("six lanes", AxisPosition::number(24.0), 31.25)]
        );
    }

    #[test]
    fn durations_are_as_people_say_them() {
        assert_eq!(duration(12.4), "12 s");
        assert_eq!(duration(90.0), "1 min 30 s");
        assert_eq!(duration(7300.0), "2 h 1 min");
    }
}
