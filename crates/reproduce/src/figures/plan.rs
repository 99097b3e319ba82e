//! What a figure is made of: panels, the runs behind their points, and what the paper prints.

use std::collections::HashSet;

use super::point::{Place, Point};
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
    /// As the command line and file names have it.
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
    /// Whose it is.
    pub paper: Paper,
    /// `figure-10`, `table-2`: as the command line and file names have it.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What the paper measured it with.
    pub printed_setting: &'static str,
    /// How ours differs, and why.
    pub our_setting: String,
    /// Its parts.
    pub panels: Vec<Panel>,
    /// Numbers that the paper's text states, beside ours.
    pub claims: Vec<Claim>,
}

impl Figure {
    /// What is measured for it in a pass, the first of which is 0.
    pub fn runs_of(&self, pass: usize) -> impl Iterator<Item = &Run> {
        let runs = self.panels.iter().flat_map(|panel| &panel.runs);
        runs.filter(move |run| pass == 0 || run.repeats)
    }
}

/// Of runs with the same command, of whichever figures, the first takes its time and the others
/// none: what it printed is kept.
pub fn count_each_command_once(figures: &mut [Figure]) {
    let mut seen = HashSet::new();
    let panels = figures.iter_mut().flat_map(|figure| &mut figure.panels);
    for run in panels.flat_map(|panel| &mut panel.runs) {
        if !seen.insert(command_line(run)) {
            run.seconds = 0.0;
        }
    }
}

/// Makes points of those of one round, as ratios or shares.
pub type Derive = fn(&[Point]) -> Vec<Point>;

/// Makes points of those of all rounds, as predictions and their bands.
pub type Predict = fn(&Rounds<Vec<Point>>) -> Vec<Point>;

/// A part of a figure: one pair of axes.
#[derive(Default)]
pub struct Panel {
    /// What tells it from the other parts.
    pub title: String,
    /// The horizontal axis.
    pub x: &'static str,
    /// The vertical axis, with its unit.
    pub y: &'static str,
    /// How it is drawn.
    pub shape: Shape,
    /// What is measured for it.
    pub runs: Vec<Run>,
    /// Points that follow from a formula or from the paper.
    pub given: Vec<Point>,
    /// Turns what was measured in a round into what is shown of it.
    pub derive: Option<Derive>,
    /// Turns what was measured in all rounds into what is shown, in place of the middle of each
    /// point and what its rounds differ by.
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
    /// The same, both axes by powers of ten.
    LogLines,
}

/// Which program a run is of. All are looked for beside the one that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// This one.
    Own,
    /// The hardware under Verilator: the example `figures` of `amalgam-rtl`.
    Hardware,
    /// This one, after servers were started: engines or memcached, with so many threads each.
    Servers(&'static [&'static str], usize),
    /// A script of the source tree where its tools are there, and otherwise what it printed before,
    /// line by line.
    Script(Option<&'static str>),
}

/// A command, and what becomes of the lines of JSON that it prints.
pub struct Run {
    /// Where its points stand.
    pub place: Place,
    /// What is run.
    pub program: Program,
    /// With what.
    pub arguments: Vec<String>,
    /// What its lines say.
    pub reading: Reading,
    /// How long it is expected to take.
    pub seconds: f64,
    /// Whether each pass measures it: not where it counts what is always the same, or shows one
    /// stretch of time.
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

/// What ends the names of series that are predicted.
pub const PREDICTED: &str = ", predicted";
/// What ends the names of series that are the ends of another's band.
pub const AT_LEAST: &str = ", at least";
/// See [`AT_LEAST`].
pub const AT_MOST: &str = ", at most";

/// How a line of a result becomes points.
pub enum Reading {
    /// A point a line: its series is the line's engine (or structure), its value a field over a
    /// divisor. Lines without the field have no point.
    Field(&'static str, f64),
    /// The same, with a series of the figure's own.
    Named(String, &'static str, f64),
    /// A point a line and field, whose series is what stands beside the field.
    Fields(Vec<(String, &'static str, f64)>),
    /// A list in a field: a point each, so many units of the horizontal axis apart.
    Timeline(&'static str, f64, f64),
    /// All points of a line: the hardware's say where they stand.
    Points,
}

/// A number that the paper's text states.
pub struct Claim {
    /// What it is of.
    pub what: String,
    /// The number.
    pub printed: f64,
    /// Ours.
    pub ours: Ours,
    /// Which is better.
    pub better: Better,
}

/// What we want beside a printed number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// At least as much.
    More,
    /// At most as much.
    Less,
    /// About the same: it is a property of what is measured.
    Same,
}

/// Where our number beside a printed one comes from.
pub enum Ours {
    /// The value of a series of a panel at a place, by its label.
    Value(usize, String, String),
    /// The same over that of another series.
    Ratio(usize, String, String, String),
    /// How much less it is than that of another series.
    Fewer(usize, String, String, String),
    /// Nowhere: what it takes is not to be had here, and why.
    Absent(&'static str),
}

impl Claim {
    /// `printed` of `series` at `place` in the first panel.
    pub fn value(what: &str, printed: f64, series: &str, place: &str) -> Self {
        let ours = Ours::Value(0, series.to_owned(), place.to_owned());
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// `printed` times `to` by `series` at `place` in the first panel.
    pub fn ratio(what: &str, printed: f64, series: &str, to: &str, place: &str) -> Self {
        let ours = Ours::Ratio(0, series.to_owned(), to.to_owned(), place.to_owned());
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// `printed` less than `to` by `series` at `place` in the first panel.
    pub fn fewer(what: &str, printed: f64, series: &str, to: &str, place: &str) -> Self {
        let ours = Ours::Fewer(0, series.to_owned(), to.to_owned(), place.to_owned());
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// `printed`, beside which nothing of ours can stand.
    pub fn absent(what: &str, printed: f64, why: &'static str) -> Self {
        let ours = Ours::Absent(why);
        Self { what: what.to_owned(), printed, ours, better: Better::More }
    }

    /// The same number, of another panel.
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

    /// The same of which less is wanted.
    #[must_use]
    pub fn less(self) -> Self {
        Self { better: Better::Less, ..self }
    }

    /// The same of which neither more nor less is wanted.
    #[must_use]
    pub fn same(self) -> Self {
        Self { better: Better::Same, ..self }
    }

    /// Why nothing of ours can stand beside it, where that is so.
    pub fn absence(&self) -> Option<&'static str> {
        match self.ours {
            Ours::Absent(why) => Some(why),
            Ours::Value(..) | Ours::Ratio(..) | Ours::Fewer(..) => None,
        }
    }

    /// Of which panel it is.
    pub fn panel(&self) -> Option<usize> {
        match self.ours {
            Ours::Value(panel, ..) | Ours::Ratio(panel, ..) | Ours::Fewer(panel, ..) => Some(panel),
            Ours::Absent(_) => None,
        }
    }

    /// Whether ours is of a series that is predicted.
    pub fn names_a_prediction(&self) -> bool {
        match &self.ours {
            Ours::Value(_, series, _) | Ours::Ratio(_, series, ..) | Ours::Fewer(_, series, ..) => {
                series.ends_with(PREDICTED)
            }
            Ours::Absent(_) => false,
        }
    }

    /// Whether it is made of two numbers.
    pub fn is_of_two(&self) -> bool {
        matches!(self.ours, Ours::Ratio(..) | Ours::Fewer(..))
    }

    /// Our number and how far it may be off, where it was measured.
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
                // Those of both, over what is left of them.
                let both = one.spread.zip(to.spread);
                let apart = both.map(|(spread, other)| spread * one.value + other * to.value);
                let fewer = to.value - one.value;
                (fewer, apart.map(|apart| (apart / fewer).abs()))
            }
            Ours::Absent(_) => return None,
        };
        // Nothing over nothing was not measured.
        ours.is_finite().then_some((ours, spread))
    }
}

/// `bench index …` of one place, in the making.
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
    /// `workload` on `engines`, with `keys` keys.
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

    /// One more argument.
    #[must_use]
    pub fn with(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Several more, as they would be typed.
    #[must_use]
    pub fn with_all(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split_whitespace().map(str::to_owned));
        self
    }

    /// Of one engine alone.
    #[must_use]
    pub fn only(mut self, engine: &'static str) -> Self {
        self.engines = vec![engine];
        self
    }

    /// So many times the usual seconds of a round, and of the warm-up.
    #[must_use]
    pub fn lasting(mut self, round: f64, warm_up: f64) -> Self {
        self.seconds *= round;
        self.warm_up *= warm_up;
        self
    }

    /// One round only, in one pass.
    #[must_use]
    pub fn once(mut self) -> Self {
        (self.rounds, self.repeats) = (1, false);
        self
    }

    /// The run, whose points stand at `place`.
    pub fn at(self, place: Place, reading: Reading) -> Run {
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

    /// The run, whose points are millions of operations a second.
    pub fn rates_at(self, place: Place) -> Run {
        self.at(place, Reading::Field("ops_per_second", 1e6))
    }
}
