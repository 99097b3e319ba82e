//! Computes what clusters of 10 to 10,000 nodes and 10^9 to 10^13 chunks would need (metadata,
//! lookups, recoveries), by a model that is fitted to measurements. Writes a page and its pictures.
//!
//! Invariants of this module:
//! 1. Every number of the page is computed by the model or is one of its parameters.
//! 2. Points that no machine of today could hold are left out.

mod fit;
mod model;
mod page;

use amalgam_bench::ensure_usage;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::figures::picture;
use crate::figures::plan::{Panel, Shape};
use crate::figures::point::{AxisPosition, Point};
use amalgam_bench::measure::parse_count;
use fit::Fit;
use model::{Cluster, Failure};

/// The numbers of nodes of the modelled clusters.
const NODES: [f64; 7] = [10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0];
/// The numbers of chunks of the modelled clusters.
const CHUNKS: [f64; 5] = [1e9, 1e10, 1e11, 1e12, 1e13];
/// The shares of chunks that moved one by one.
const MOVED: [f64; 3] = [0.001, 0.01, 0.1];
/// The bandwidths of links in bits a second.
const LINKS: [f64; 5] = [1e9, 1e10, 2.5e10, 1e11, 4e11];
/// The number of chunks a second that each node's clients ask for.
const GETS: f64 = 100_000.0;
/// The memory of each node's cache of ranges, in bytes.
const CACHE_BYTES: f64 = 64e6;

/// Parameters of `bench scale`. The recovery is that of docs/results/backups.md.
#[derive(Clone, Debug, clap::Args)]
pub struct ScaleArguments {
    /// Chunks a second that `bench recovery` made readable, all processes together.
    #[arg(long, default_value_t = 1e6)]
    pub readable: f64,
    /// Chunks a second until `bench recovery` had made all their copies again.
    #[arg(long, default_value_t = 1e6)]
    pub full: f64,
    /// Number of cores on which `bench recovery` ran.
    #[arg(long, default_value_t = 2.0)]
    pub cores: f64,
    /// Seconds until the death of a node is detected: the length of a lease.
    #[arg(long, default_value_t = 3.0)]
    pub detect: f64,
    /// Number of ids in the maps whose bytes are counted.
    #[arg(long, value_parser = parse_count, default_value = "10M")]
    pub ids: u64,
    /// Folder for scale.md and its pictures.
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    pub out: PathBuf,
}

/// Computes and writes the page and its pictures.
///
/// # Errors
///
/// If an argument is invalid, or the files cannot be written.
pub fn run(arguments: &ScaleArguments) -> anyhow::Result<()> {
    let rates = [arguments.readable, arguments.full, arguments.cores];
    ensure_usage!(
        rates.iter().all(|rate| rate.is_finite() && *rate > 0.0),
        "rates must be above 0"
    );
    ensure_usage!(arguments.detect >= 0.0, "--detect must not be below 0");
    ensure_usage!(
        (10_000..=1_000_000_000).contains(&arguments.ids),
        "--ids must be 10,000 to a billion, not {}",
        arguments.ids
    );
    let fit = Fit::of_structures(arguments.ids);
    let fit = fit.with_recovery(arguments.readable, arguments.full, arguments.cores);
    let figures = [("metadata", metadata(&fit)), ("lookups", lookups(&fit))];
    for (name, panels) in figures.into_iter().chain([("recovery", recovery(&fit, arguments))]) {
        draw(&arguments.out.join(format!("scale-{name}.svg")), &panels)?;
    }
    let path = arguments.out.join("scale.md");
    fs::write(&path, page::text(&fit, arguments)).with_context(|| path.display().to_string())?;
    eprintln!("{}", path.display());
    Ok(())
}

fn draw(path: &Path, panels: &[(Panel, Vec<Point>)]) -> anyhow::Result<()> {
    let panels: Vec<_> = panels.iter().map(|(panel, points)| (panel, points.as_slice())).collect();
    fs::write(path, picture::draw(&panels)?).with_context(|| path.display().to_string())
}

fn panel(title: &str, x: &'static str, y: &'static str) -> Panel {
    Panel { title: title.to_owned(), x, y, shape: Shape::LogLines, ..Panel::default() }
}

/// A power of ten as text, such as 10^9.
fn power(number: f64) -> String {
    format!("10^{:.0}", number.log10())
}

fn percent(share: f64) -> String {
    format!("{} %", picture::number(share * 100.0))
}

fn metadata(fit: &Fit) -> Vec<(Panel, Vec<Point>)> {
    let panel_of = |moved: f64| {
        let mut points = Vec::new();
        for chunks in CHUNKS {
            for nodes in NODES {
                let cluster = Cluster { nodes, chunks, moved };
                if cluster.is_possible() {
                    let name = format!("{} chunks", power(chunks));
                    let bytes = cluster.super_peer_bytes(fit);
                    points.push(Point::new(name, AxisPosition::number(nodes), bytes));
                }
            }
        }
        let title = format!("metadata of a super peer, {} of the chunks moved", percent(moved));
        (panel(&title, "nodes", "bytes"), points)
    };
    MOVED[1..].iter().map(|moved| panel_of(*moved)).collect()
}

fn lookups(fit: &Fit) -> Vec<(Panel, Vec<Point>)> {
    let mut points = Vec::new();
    for moved in MOVED {
        for tenth in 0..=40 {
            let chunks = 10_f64.powf(9.0 + f64::from(tenth) / 10.0);
            let cluster = Cluster { nodes: 1_000.0, chunks, moved };
            let name = format!("{} moved", percent(moved));
            let lookups = cluster.lookups(GETS, CACHE_BYTES, fit);
            points.push(Point::new(name, AxisPosition::number(chunks), lookups));
        }
    }
    let title =
        "lookups of a super peer, 1,000 nodes, 100,000 gets a second each, all chunks alike";
    vec![(panel(title, "chunks", "lookups a second"), points)]
}

fn recovery(fit: &Fit, arguments: &ScaleArguments) -> Vec<(Panel, Vec<Point>)> {
    let (mut by_link, mut by_nodes) = (Vec::new(), Vec::new());
    for failed in [1.0, 3.0, 10.0, 30.0] {
        for link_bits in LINKS {
            let cluster = Cluster { nodes: 100.0, chunks: 1e11, moved: 0.01 };
            let recovery = Failure { cluster, failed, link_bits }.recovery(fit);
            let name = format!("{failed} of 100 nodes");
            let seconds = arguments.detect + recovery.readable;
            by_link.push(Point::new(name, AxisPosition::number(link_bits / 1e9), seconds));
        }
    }
    for link_bits in LINKS {
        for nodes in NODES {
            let cluster = Cluster { nodes, chunks: nodes * 1e9, moved: 0.01 };
            let recovery = Failure { cluster, failed: 1.0, link_bits }.recovery(fit);
            let name = format!("{} Gb/s", link_bits / 1e9);
            let seconds = arguments.detect + recovery.readable;
            by_nodes.push(Point::new(name, AxisPosition::number(nodes), seconds));
        }
    }
    let first = "seconds until all is readable, a billion chunks a node, by link";
    let second = "the same of one node, by the size of the cluster";
    vec![
        (panel(first, "Gb/s of a link", "seconds"), by_link),
        (panel(second, "nodes", "seconds"), by_nodes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_its_pictures_are_written() {
        let out = std::env::temp_dir().join(format!("amalgam-scale-{}", std::process::id()));
        fs::create_dir_all(&out).expect("a folder");
        let (readable, full, cores) = (2e6, 1e6, 2.0);
        let arguments =
            ScaleArguments { readable, full, cores, detect: 3.0, ids: 100_000, out: out.clone() };
        run(&arguments).expect("it is written");
        let page = fs::read_to_string(out.join("scale.md")).expect("the page");
        for name in ["metadata", "lookups", "recovery"] {
            let picture = format!("scale-{name}.svg");
            assert!(page.contains(&format!("({picture})")), "{picture} is shown");
            assert!(fs::read_to_string(out.join(picture)).expect("it").contains("<svg"));
        }
        assert!(page.lines().all(|line| line.chars().count() <= 100 || line.starts_with('|')));
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        // Each parameter has an error, and the page a machine.
        let (_, table) = page.split_once("| parameter |").expect("parameters");
        let (table, _) = table.split_once("\n\n").expect("its end");
        let is_whole = |line: &str| line.matches('|').count() == 5 && !line.ends_with("|  |");
        assert!(table.lines().skip(1).all(is_whole), "{table}");
        assert!(
            page.contains(&format!(
                "{} cores of",
                amalgam_bench::measure::Machine::describe().cores
            ))
        );
        let error = run(&ScaleArguments { readable: 0.0, ..arguments }).unwrap_err();
        assert!(error.to_string().contains("above 0"));
        fs::remove_dir_all(&out).expect("it was there");
    }
}
