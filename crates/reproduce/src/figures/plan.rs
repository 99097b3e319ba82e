//! The plan of a figure: its panels, the runs that measure their points, and the numbers that the
//! paper prints.

use std::collections::HashSet;

use super::point::{AxisPosition, Point};
use super::rounds::Rounds;
use super::scale_profile::ScaleProfile;

/// A paper that is reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    /// Mercury (SYSTOR 2013).
    Mercury,
    /// HotRing (FAST 2020).
    HotRing,
    /// MemC3 (NSDI 2013).
    MemC3,
    /// The pipelined hash table on FPGAs (FPL 2013).
    Fpl13,
    /// DXRAM's metadata of ranges.
    Dxram,
}

impl Paper {
    /// The name on the command line and in file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mercury => "mercury",
            Self::HotRing => "hotring",
            Self::MemC3 => "memc3",
            Self::Fpl13 => "fpl13",
            Self::Dxram => "dxram",
        }
    }
}

/// A table or figure of a paper, as it is measured here.
pub struct Figure {
    /// The paper that prints it.
    pub paper: Paper,
    /// The name on the command line and in file names, such as `figure-10` or `table-2`.
    pub name: &'static str,
    /// The title: what the figure shows.
    pub title: &'static str,
    /// The setting in which the paper measured it.
    pub printed_setting: &'static str,
    /// How the setting here differs, and why.
    pub our_setting: String,
    /// The parts of the figure.
    pub panels: Vec<Panel>,
    /// The numbers that the paper states, each with where ours is found.
    pub claims: Vec<Claim>,
}

impl Figure {
    /// The runs that a pass measures for this figure; the first pass is 0.
    pub fn runs_of(&self, pass: usize) -> impl Iterator<Item = &Run> {
        let runs = self.panels.iter().flat_map(|panel| &panel.runs);
        runs.filter(move |run| pass == 0 || run.repeats)
    }
}

/// Sets the expected time to 0 for each run whose command an earlier run of any figure has: the
/// output of that run is used again.
pub fn count_each_command_once(figures: &mut [Figure]) {
    let mut seen = HashSet::new();
    let panels = figures.iter_mut().flat_map(|figure| &mut figure.panels);
    for run in panels.flat_map(|panel| &mut panel.runs) {
        if !seen.insert(command_line(run)) {
            run.seconds = 0.0;
        }
    }
}

/// Computes points, such as ratios or shares, from the points of one round.
pub type Derive = fn(&[Point]) -> Vec<Point>;

/// Computes points, such as predictions and their bands, from the points of all rounds.
pub type Predict = fn(&Rounds<Vec<Point>>) -> Vec<Point>;

/// A part of a figure: one pair of axes.
#[derive(Default)]
pub struct Panel {
    /// The heading that distinguishes the panel from the figure's others; empty if there is one.
    pub title: String,
    /// The label of the horizontal axis.
    pub x: &'static str,
    /// The label of the vertical axis, with its unit.
    pub y: &'static str,
    /// How the panel is drawn.
    pub shape: Shape,
    /// The runs that measure the panel's points.
    pub runs: Vec<Run>,
    /// Points that are not measured: from a formula or from the paper.
    pub given: Vec<Point>,
    /// Computes the points that are shown from those that a round measured; None shows them as they
    /// are.
    pub derive: Option<Derive>,
    /// Computes the points that are shown from those of all rounds. None shows the median of each
    /// point, with a spread from how its rounds differ.
    pub predict: Option<Predict>,
}

/// How a panel is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Groups of bars, one for each place on the horizontal axis.
    #[default]
    Bars,
    /// A line for each series.
    Lines,
    /// A line for each series, with both axes logarithmic.
    LogLines,
}

/// The program of a run. Each is looked for in the folder of the running program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The running program itself.
    Own,
    /// The hardware under Verilator: the example `figures` of `amalgam-rtl`.
    Hardware,
    /// The running program, after servers were started: the names of their engines or memcached,
    /// and the number of threads of each.
    Servers(&'static [&'static str], usize),
    /// A script of the source tree: None to run it, or Some with the lines that it printed before
    /// where its tools are missing.
    Script(Option<&'static str>),
}

/// A command, and how the lines of JSON that it prints become points.
pub struct Run {
    /// The position of the points on the horizontal axis.
    pub place: AxisPosition,
    /// The program to run.
    pub program: Program,
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// How the lines become points.
    pub reading: Reading,
    /// The expected time in seconds.
    pub seconds: f64,
    /// Whether every pass measures it; false for a count that never varies, or for a run over time.
    pub repeats: bool,
}

/// The command of a run, as somebody would type it.
pub fn command_line(run: &Run) -> String {
    let arguments = run.arguments.join(" ");
    match run.program {
        Program::Own => format!("amalgam-lab {arguments}"),
        Program::Hardware => format!("figures {arguments}"),
        Program::Script(_) => format!("{SYNTHESIS} {arguments}"),
        Program::Servers(names, threads) => {
            format!("amalgam {arguments} --target {} (of {threads} threads each)", names.join(","))
        }
    }
}

/// The script that maps the hardware to a chip's cells; a path from the source tree's root.
pub const SYNTHESIS: &str = "rtl/scripts/synthesize";

/// The suffix of the name of a predicted series.
pub const PREDICTED: &str = ", predicted";
/// The suffix of the name of a series that is the lower end of another's band.
pub const AT_LEAST: &str = ", at least";
/// The suffix of the name of a series that is the upper end of another's band.
pub const AT_MOST: &str = ", at most";

/// How a line of a result becomes points.
pub enum Reading {
    /// One point per line: its series is the line's engine (or structure), its value a field over a
    /// divisor. Lines without the field have no point.
    Field(&'static str, f64),
    /// One point per line, as for `Field`, but of the named series.
    Named(String, &'static str, f64),
    /// One point per line and field: the series, the field and the divisor of each.
    Fields(Vec<(String, &'static str, f64)>),
    /// One point per element of the list in a field: the field, the distance of two points on the
    /// horizontal axis, and the divisor.
    Timeline(&'static str, f64, f64),
    /// The points that the line itself lists with their places, as the hardware's does.
    Points,
}

/// A number that the paper's text states.
pub struct Claim {
    /// What the number is of.
    pub what: String,
    /// The number in the paper.
    pub printed: f64,
    /// Where our number is found.
    pub ours: Ours,
    /// Which of the two numbers would be better.
    pub better: Better,
}

/// How our number must compare with the printed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Our number must be at least as large.
    More,
    /// Our number must be at most as large.
    Less,
    /// Neither more nor less is better: the number describes what is measured.
    Same,
}

/// Where the counterpart of a printed number is found.
pub enum Ours {
    /// A value: the number of the panel, the series, and the label of the place.
    Value(usize, String, String),
    /// The ratio of two values: panel, series, the other series, and the label of the place.
    Ratio(usize, String, String, String),
    /// The difference of two values: panel, series, the other series (which has more), and the
    /// label of the place.
    Fewer(usize, String, String, String),
    /// There is none, and the reason why.
    Absent(&'static str),
}

impl Claim {
    /// The claim that `series` has `printed` at `place` in the first panel.
    pub fn value(what: &str, printed: f64, series: &str, place: &str) -> Self {
        let ours = Ours::Value(0, series.to_owned(), place.to_owned());
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// The claim that `series` has `printed` times as much as `to` at `place` in the first panel.
    pub fn ratio(what: &str, printed: f64, series: &str, to: &str, place: &str) -> Self {
        let ours = Ours::Ratio(0, series.to_owned(), to.to_owned(), place.to_owned());
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// The claim that `series` has `printed` less than `to` at `place` in the first panel.
    pub fn fewer(what: &str, printed: f64, series: &str, to: &str, place: &str) -> Self {
        let ours = Ours::Fewer(0, series.to_owned(), to.to_owned(), place.to_owned());
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// A claim that has no counterpart here.
    pub fn absent(what: &str, printed: f64, why: &'static str) -> Self {
        let ours = Ours::Absent(why);
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// This claim about the panel with this number.
    #[must_use]
    pub fn of_panel(mut self, number: usize) -> Self {
        match &mut self.ours {
            Ours::Value(panel, ..) | Ours::Ratio(panel, ..) | Ours::Fewer(panel, ..) => {
                *panel = number;
            }
            Ours::Absent(_) => {}
        }
        self
    }

    /// This claim about a number of which less is better.
    #[must_use]
    pub fn less(self) -> Self {
        Self { better: Better::Less, ..self }
    }

    /// This claim about a number of which neither more nor less is better.
    #[must_use]
    pub fn same(self) -> Self {
        Self { better: Better::Same, ..self }
    }

    /// Why the claim has no counterpart here; None if it has one.
    pub fn absence(&self) -> Option<&'static str> {
        match self.ours {
            Ours::Absent(why) => Some(why),
            Ours::Value(..) | Ours::Ratio(..) | Ours::Fewer(..) => None,
        }
    }

    /// The number of the panel that has our number; None if there is none.
    pub fn panel(&self) -> Option<usize> {
        match self.ours {
            Ours::Value(panel, ..) | Ours::Ratio(panel, ..) | Ours::Fewer(panel, ..) => Some(panel),
            Ours::Absent(_) => None,
        }
    }

    /// Whether our number is of a predicted series.
    pub fn names_a_prediction(&self) -> bool {
        match &self.ours {
            Ours::Value(_, series, _) | Ours::Ratio(_, series, ..) | Ours::Fewer(_, series, ..) => {
                series.ends_with(PREDICTED)
            }
            Ours::Absent(_) => false,
        }
    }

    /// Whether our number is made of two measured ones.
    pub fn is_of_two(&self) -> bool {
        matches!(self.ours, Ours::Ratio(..) | Ours::Fewer(..))
    }

    /// Our number and how far it may be off as a part of it; None where it was not measured.
    pub fn ours(&self, panels: &[Vec<Point>]) -> Option<(f64, Option<f64>)> {
        let find = |panel: usize, series: &str, place: &str| {
            let points = panels.get(panel)?;
            let is_it = |point: &&Point| point.series == series && point.place.label == place;
            points.iter().find(is_it)
        };
        let (ours, spread) = match &self.ours {
            Ours::Value(panel, series, place) => {
                let point = find(*panel, series, place)?;
                (point.value, point.spread)
            }
            Ours::Ratio(panel, series, to, place) => {
                let (one, to) = (find(*panel, series, place)?, find(*panel, to, place)?);
                let both = one.spread.zip(to.spread).map(|(one, to)| one + to);
                (one.value / to.value, both)
            }
            Ours::Fewer(panel, series, to, place) => {
                let (one, to) = (find(*panel, series, place)?, find(*panel, to, place)?);
                // The sum of both errors, as a part of the difference.
                let both = one.spread.zip(to.spread);
                let apart = both.map(|(spread, other)| spread * one.value + other * to.value);
                let fewer = to.value - one.value;
                (fewer, apart.map(|apart| (apart / fewer).abs()))
            }
            Ours::Absent(_) => return None,
        };
        // A ratio of two zeros does not count as measured.
        ours.is_finite().then_some((ours, spread))
    }
}

/// Builds a run of `bench index …`, whose points have one place.
pub struct IndexRun {
    engines: Vec<&'static str>,
    arguments: Vec<String>,
    keys: u64,
    seconds: f64,
    warm_up: f64,
    rounds: usize,
    repeats: bool,
}

impl IndexRun {
    /// Begins a run of `workload` on `engines`, with `keys` keys.
    pub fn new(
        setting: &ScaleProfile,
        engines: &[&'static str],
        workload: &str,
        keys: u64,
    ) -> Self {
        Self {
            engines: engines.to_vec(),
            arguments: vec![format!("--workload={workload}")],
            keys,
            seconds: setting.seconds(),
            warm_up: setting.seconds(),
            rounds: setting.rounds(),
            repeats: true,
        }
        .with(format!("--requests={}", setting.requests()))
    }

    /// Adds an argument.
    #[must_use]
    pub fn with(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds several arguments, separated by spaces.
    #[must_use]
    pub fn with_all(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split_whitespace().map(str::to_owned));
        self
    }

    /// Limits the run to one engine.
    #[must_use]
    pub fn only(mut self, engine: &'static str) -> Self {
        self.engines = vec![engine];
        self
    }

    /// Multiplies the usual seconds of a round and of the warm-up.
    #[must_use]
    pub fn lasting(mut self, round: f64, warm_up: f64) -> Self {
        self.seconds *= round;
        self.warm_up *= warm_up;
        self
    }

    /// Limits the run to one round in one pass.
    #[must_use]
    pub fn once(mut self) -> Self {
        (self.rounds, self.repeats) = (1, false);
        self
    }

    /// The finished run, whose points have `place`.
    pub fn at(self, place: AxisPosition, reading: Reading) -> Run {
        let engines = self.engines.len() as f64;
        let mut arguments = vec!["bench".to_owned(), "index".to_owned()];
        arguments.push(format!("--engine={}", self.engines.join(",")));
        arguments.push(format!("--keys={}", self.keys));
        arguments.push(format!("--seconds={:.3}", self.seconds));
        arguments.push(format!("--warm-up={:.3}", self.warm_up));
        arguments.push(format!("--rounds={}", self.rounds));
        let timed = |argument: &String| argument.starts_with("--timed");
        if !self.arguments.iter().any(timed) {
            arguments.push("--timed=1".to_owned());
        }
        arguments.extend(self.arguments);
        arguments.push("--json".to_owned());
        let rounds = self.rounds as f64 * self.seconds + self.warm_up;
        // Loading is about as fast on every engine: two million keys a second.
        let seconds = engines * (rounds + self.keys as f64 / 2e6) + 0.5;
        let repeats = self.repeats;
        Run { place, program: Program::Own, arguments, reading, seconds, repeats }
    }

    /// The finished run, whose points are millions of operations a second at `place`.
    pub fn rates_at(self, place: AxisPosition) -> Run {
        self.at(place, Reading::Field("ops_per_second", 1e6))
    }
}
