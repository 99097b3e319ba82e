//! Builds the structures one by one, then measures them in turns.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;

use crate::ids::arguments::{IdsArguments, Structure};
use crate::ids::java;
use crate::ids::moves::{Move, Moves};
use crate::ids::result::{IdsResult, Round, Run};
use crate::ids::structures::{OwnerMap, build, expected_bytes};
use amalgam_bench::Usage;
use amalgam_bench::measure::{Machine, allowed_cores, anonymous_bytes, pin_to};
use amalgam_bench::workload::mix64;

/// The number of migrations that are drawn at once, before they are timed.
const BLOCK: u64 = 1 << 16;
/// The memory in bytes that must be left besides the structures.
const SPARE_BYTES: u64 = 256 << 20;

/// Measures all structures.
///
/// # Errors
///
/// If an argument is invalid, memory does not suffice, or two structures disagree.
pub fn run(arguments: &IdsArguments) -> anyhow::Result<Vec<IdsResult>> {
    arguments.check().usage()?;
    let expected = |one: &Structure| expected_bytes(*one, arguments);
    let needed = arguments.structure.iter().map(expected).sum::<u64>() + SPARE_BYTES;
    let available = Machine::available_bytes();
    ensure!(
        needed <= available,
        "this takes about {needed} bytes, but only {available} are available"
    );
    pin_to(&allowed_cores(), 0);
    let mut runs = Vec::new();
    let mut built = Vec::new();
    let gets: Vec<u64> = (0..arguments.gets).map(|number| mix64(!number) % arguments.ids).collect();
    // The block is touched now, or its pages would count as the first structure's.
    let mut block = vec![Moves::new(arguments).get(0); BLOCK as usize];
    for structure in &arguments.structure {
        if *structure == Structure::Java {
            runs.push(java::measure(arguments, expected(structure))?);
            continue;
        }
        let (run, owners) = fill(*structure, arguments, &mut block)?;
        eprintln!("{structure:?}: {} bytes", run.bytes);
        built.push((runs.len(), owners));
        runs.push(run);
    }
    measure_in_turns(arguments, &gets, &mut built, &mut runs)?;
    let reference = runs.iter().find(|run| Some(run.structure) == arguments.ratio_to);
    Ok(runs.iter().map(|run| IdsResult::new(arguments, run, reference)).collect())
}

/// Builds one structure and executes all migrations that come before the rounds.
fn fill(
    structure: Structure,
    arguments: &IdsArguments,
    block: &mut Vec<Move>,
) -> anyhow::Result<(Run, Box<dyn OwnerMap>)> {
    let before = anonymous_bytes()?;
    let mut owners = build(structure, arguments)?;
    let moves = Moves::new(arguments);
    let mut nanoseconds = 0;
    for start in (0..arguments.migrations()).step_by(BLOCK as usize) {
        let end = (start + BLOCK).min(arguments.migrations());
        block.clear();
        block.extend((start..end).map(|number| moves.get(number)));
        let started = Instant::now();
        owners.migrate(block);
        nanoseconds += started.elapsed().as_nanos();
    }
    let bytes = anonymous_bytes()?.saturating_sub(before);
    let mut run = Run::new(structure, owners.ranges());
    run.bytes = bytes;
    run.counted_bytes = owners.counted_bytes();
    let migrations = arguments.migrations();
    run.fill_migrate_ns = (migrations > 0).then(|| nanoseconds as f64 / migrations as f64);
    Ok((run, owners))
}

fn measure_in_turns(
    arguments: &IdsArguments,
    gets: &[u64],
    built: &mut [(usize, Box<dyn OwnerMap>)],
    runs: &mut [Run],
) -> anyhow::Result<()> {
    let source = Moves::new(arguments);
    for round in 0..arguments.rounds as u64 {
        let start = arguments.migrations() + round * arguments.moves;
        let moves: Vec<Move> =
            (start..start + arguments.moves).map(|number| source.get(number)).collect();
        let mut answered = None;
        for (place, owners) in built.iter_mut() {
            let started = Instant::now();
            let sum = black_box(owners.get(black_box(gets)));
            let get_ns = started.elapsed().as_nanos() as f64 / gets.len() as f64;
            let structure = runs[*place].structure;
            ensure!(
                *answered.get_or_insert(sum) == sum,
                "{structure:?} gives other answers than the first structure"
            );
            let started = Instant::now();
            owners.migrate(&moves);
            let migrate_ns = started.elapsed().as_nanos() as f64 / moves.len() as f64;
            runs[*place].rounds.push(Round { get_ns, migrate_ns });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: IdsArguments,
    }

    fn arguments(words: &[&str]) -> IdsArguments {
        Line::parse_from([&["ids"], words].concat()).arguments
    }

    const SMALL: [&str; 6] =
        ["--ids=20k", "--gets=20k", "--moves=500", "--rounds=3", "--nodes=9", "--migrated=0.1"];

    #[test]
    fn all_structures_answer_the_same() {
        let all = ["--structure=cid-tree,b-tree,hash,cuckoo,array", "--ratio-to=cuckoo"];
        let results = run(&arguments(&[&SMALL[..], &all].concat())).expect("they agree");
        assert_eq!(results.len(), 5);
        // Neighbours of one owner are one range in both trees.
        assert_eq!(results[0].ranges, results[1].ranges);
        assert!((3000..4100).contains(&results[0].ranges), "{}", results[0].ranges);
        assert_eq!(results[3].get_ratio, Some(1.0));
        let together = ["--structure=cid-tree,array", "--together=32"];
        run(&arguments(&[&SMALL[..], &together].concat())).expect("they agree");
    }

    #[test]
    fn trees_keep_backups() {
        let words = ["--structure=cid-tree,b-tree", "--backups=3", "--copy-sets=0"];
        let results = run(&arguments(&[&SMALL[..], &words].concat())).expect("they agree");
        assert_eq!(results[0].ranges, results[1].ranges);
        let refused = ["--structure=cuckoo", "--backups=3"];
        assert!(run(&arguments(&[&SMALL[..], &refused].concat())).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for words in [
            &["--ids=100G", "--structure=java,hash,cuckoo,java,java"][..],
            &["--ids=1000", "--migrated=1"],
            &["--ids=0"],
            &["--together=0"],
            &["--migrated=1.5"],
            &["--backups=2"],
            &["--ratio-to=array"],
        ] {
            let refused = run(&arguments(words));
            assert!(refused.is_err(), "{words:?}");
        }
    }
}
