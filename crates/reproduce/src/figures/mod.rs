//! `amalgam-lab reproduce`: every table and figure of the papers, measured on this machine and
//! compared with the numbers that the papers print.
//!
//! Invariants of this module:
//! 1. A point is a number that a command printed or the value of a formula; a missing point is left
//!    out and never filled in.
//! 2. Each command is one that a reader can type, and is printed with its figure.
//! 3. A time is measured in several passes through all figures, minutes apart, and is shown with an
//!    estimate of its error (`rounds`).
//! 4. A number that falls short of the printed one is reported in the same place and size as one
//!    that does not.

mod compare;
mod document;
mod dxram;
mod fpl13;
mod hotring;
pub(crate) mod markdown;
mod memc3;
mod mercury;
mod model;
mod pages;
pub(crate) mod picture;
pub(crate) mod plan;
pub(crate) mod point;
mod report;
mod rounds;
mod runs;
mod scale_profile;
mod servers;

use amalgam_bench::Usage;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use plan::Figure;
use report::Finished;
use rounds::Rounds;
use runs::Runs;
pub use scale_profile::{Scale, ScaleProfile};

/// Reproduces tables and figures of the papers.
#[derive(Clone, Debug, clap::Args)]
pub struct ReproduceArguments {
    /// What to reproduce: PAPER (mercury, hotring, memc3, fpl13, dxram) or PAPER/FIGURE; all if
    /// absent.
    pub what: Vec<String>,
    /// Ten minutes for everything, on two cores and 24 GiB: fewer keys, shorter rounds.
    #[arg(long)]
    pub quick: bool,
    /// The scale of the measurement, including that of tests.
    #[arg(long, value_enum, conflicts_with = "quick", hide = true)]
    pub scale: Option<Scale>,
    /// Where to write pictures, JSON and report.html. Runs that this build has measured before are
    /// not measured again.
    #[arg(long, default_value = "reproduced")]
    pub out: PathBuf,
    /// Only list the figures, and how long each will take.
    #[arg(long)]
    pub list: bool,
    /// Measure nothing: copy the figures of `--out` to FOLDER/reproduce, and write
    /// FOLDER/reproduce.md and the tables of other pages in FOLDER that are made from them.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["quick", "what", "list"])]
    pub docs: Option<PathBuf>,
    /// A remark on the run for the document, such as what else the machine did meanwhile.
    #[arg(long, value_name = "TEXT", requires = "docs")]
    pub remark: Option<String>,
    /// Measure nothing: print how far the numbers of two folders differ, and fail if they do not
    /// agree.
    #[arg(long, value_names = ["ONE", "OTHER"], num_args = 2, conflicts_with_all = ["quick",
        "what", "list", "docs"])]
    pub compare: Vec<PathBuf>,
}

/// Runs `amalgam-lab reproduce`. The table goes to standard output, progress to standard error.
///
/// # Errors
///
/// If there is no such figure, or the folder cannot be written, or a figure could not be measured;
/// in the last case only after all other figures were measured.
pub fn run(arguments: &ReproduceArguments) -> anyhow::Result<()> {
    if let [one, other] = arguments.compare.as_slice() {
        let text = compare::compare(one, other)?;
        return Ok(write!(std::io::stdout().lock(), "{text}")?);
    }
    if let Some(folder) = &arguments.docs {
        return document::write(&arguments.out, folder, arguments.remark.as_deref());
    }
    let quick = if arguments.quick { Scale::Quick } else { Scale::Full };
    let profile = ScaleProfile::of_this_machine(arguments.scale.unwrap_or(quick));
    let mut figures = chosen(all(&profile), &arguments.what).usage()?;
    let passes = profile.passes();
    plan::count_each_command_once(&mut figures);
    if arguments.list {
        return list(&figures, passes);
    }
    let folder = &arguments.out;
    let planned = |pass: usize| figures.iter().flat_map(move |figure| figure.runs_of(pass));
    let count = (0..passes).map(|pass| planned(pass).count()).sum();
    let seconds = (0..passes).flat_map(planned).map(|run| run.seconds).sum();
    let mut runs = Runs::new(&folder.join("runs"), passes, count, seconds)?;
    eprintln!(
        "{} figures, {count} runs, about {}; after an interruption, the same command goes on",
        figures.len(),
        runs::duration(seconds)
    );
    let mut finished: Vec<Finished> = figures.into_iter().map(Finished::planned).collect();
    // Each pass writes every figure, from all passes so far.
    for pass in 0..passes {
        for done in &mut finished {
            measure(&mut runs, done, pass);
            write_figure(folder, &profile, done)?;
        }
    }
    let page = folder.join("report.html");
    fs::write(&page, report::page(&profile, &finished))
        .with_context(|| page.display().to_string())?;
    writeln!(std::io::stdout().lock(), "{}", report::table(&finished))?;
    eprintln!("pictures and tables: {}", page.display());
    let failed: Vec<&str> =
        finished.iter().flat_map(|done| &done.failures).map(String::as_str).collect();
    ensure!(failed.is_empty(), "{} runs failed:\n{}", failed.len(), failed.join("\n"));
    Ok(())
}

/// Every figure, in the order of the papers.
fn all(profile: &ScaleProfile) -> Vec<Figure> {
    [
        mercury::figures(profile),
        hotring::figures(profile),
        memc3::figures(profile),
        fpl13::figures(profile),
        dxram::figures(profile),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The figures that `names` selects, each name being a paper or a single figure.
fn chosen(figures: Vec<Figure>, names: &[String]) -> anyhow::Result<Vec<Figure>> {
    let id = |figure: &Figure| format!("{}/{}", figure.paper.name(), figure.name);
    let is_of = |figure: &Figure, name: &str| name == figure.paper.name() || name == id(figure);
    for name in names {
        if !figures.iter().any(|figure| is_of(figure, name)) {
            let all: Vec<String> = figures.iter().map(id).collect();
            bail!("there is no figure '{name}': choose among\n{}", all.join("\n"));
        }
    }
    let is_chosen =
        |figure: &Figure| names.is_empty() || names.iter().any(|name| is_of(figure, name));
    Ok(figures.into_iter().filter(is_chosen).collect())
}

fn list(figures: &[Figure], passes: usize) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    let mut all = 0.0;
    for figure in figures {
        let runs = (0..passes).flat_map(|pass| figure.runs_of(pass));
        let seconds: f64 = runs.map(|run| run.seconds).sum();
        all += seconds;
        let id = format!("{}/{}", figure.paper.name(), figure.name);
        let time = runs::duration(seconds);
        writeln!(output, "{id:<24} {time:>12}  {}", figure.title)?;
    }
    writeln!(output, "{:<24} {:>12}", "all of these", runs::duration(all))?;
    Ok(())
}

/// Executes a figure's runs of a pass, and sums up all passes so far. A run that fails has no
/// points, and the figure says why.
fn measure(runs: &mut Runs, done: &mut Finished, pass: usize) {
    let name = format!("{}-{}", done.figure.paper.name(), done.figure.name);
    let mut failures = Vec::new();
    for run in done.figure.runs_of(pass) {
        if let Err(error) = runs.execute(&name, run, pass) {
            failures.push(format!("{name}: {error:#}"));
        }
    }
    let all = || done.figure.panels.iter().flat_map(|panel| &panel.runs);
    let mut passes = Vec::new();
    for pass in 0..=pass {
        let count = all().map(|run| runs.rounds(run, pass)).max().unwrap_or(0).max(1);
        let mut rounds = Vec::new();
        for round in 0..count {
            let mut panels = Vec::new();
            for panel in &done.figure.panels {
                let mut points = panel.given.clone();
                for run in &panel.runs {
                    match runs.points(run, pass, round) {
                        Ok(measured) => points.extend(measured),
                        Err(error) => failures.push(format!("{name}: {error:#}")),
                    }
                }
                panels.push(panel.derive.map_or(points.clone(), |derive| derive(&points)));
            }
            rounds.push(panels);
        }
        passes.push(rounds);
    }
    failures.dedup();
    done.sum_up(Rounds(passes), failures);
}

/// Writes a figure's JSON and its picture.
fn write_figure(folder: &Path, profile: &ScaleProfile, done: &Finished) -> anyhow::Result<()> {
    let name = format!("{}-{}", done.figure.paper.name(), done.figure.name);
    let json = folder.join(format!("{name}.json"));
    fs::write(&json, serde_json::to_vec_pretty(&report::object(profile, done))?)
        .with_context(|| json.display().to_string())?;
    let picture = folder.join(format!("{name}.svg"));
    fs::write(&picture, done.picture()?).with_context(|| picture.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn figures_have_names_of_their_own_and_claims_that_can_be_found() {
        for scale in [Scale::Toy, Scale::Quick, Scale::Full] {
            let figures = all(&ScaleProfile::of_this_machine(scale));
            let names: BTreeSet<_> =
                figures.iter().map(|figure| (figure.paper, figure.name)).collect();
            assert_eq!(names.len(), figures.len());
            for figure in &figures {
                assert!(!figure.panels.is_empty() && !figure.our_setting.is_empty());
                let has_points =
                    |panel: &plan::Panel| !panel.runs.is_empty() || !panel.given.is_empty();
                assert!(figure.panels.iter().all(has_points), "{}", figure.name);
                let has_titles =
                    |panel: &plan::Panel| !panel.title.is_empty() || figure.panels.len() < 3;
                assert!(figure.panels.iter().all(has_titles), "{}", figure.name);
            }
        }
    }

    #[test]
    fn papers_and_figures_are_chosen_by_name() {
        let profile = ScaleProfile::of_this_machine(Scale::Toy);
        let names = |what: &[&str]| {
            let what: Vec<String> = what.iter().map(|name| (*name).to_owned()).collect();
            chosen(all(&profile), &what).map(|figures| figures.len())
        };
        assert_eq!(names(&["hotring/figure-16"]).unwrap(), 1);
        assert!(names(&["memc3"]).unwrap() > 4);
        assert!(names(&["memc3", "mercury"]).unwrap() < names(&[]).unwrap());
        assert!(names(&["hotring/figure-99"]).unwrap_err().to_string().contains("figure-16"));
    }
}
