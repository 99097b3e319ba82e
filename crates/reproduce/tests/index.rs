//! `bench index` at toy size: every workload on every engine, and every switch.

use amalgam_bench::driver::{
    CacheArguments, IndexArguments, IndexLine, IndexResult, run, run_caches,
};
use amalgam_bench::workload::Workload;
use amalgam_reproduce::BenchCommand;
use amalgam_reproduce::engines::ENGINES;
use clap::{Parser, ValueEnum};
use serde_json::Value;

#[derive(Parser)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    arguments: IndexArguments,
}

#[derive(Parser)]
struct CacheLine {
    #[command(flatten)]
    arguments: CacheArguments,
}

/// Runs a command line with short rounds.
fn bench(line: &str) -> anyhow::Result<Vec<IndexResult>> {
    let short = "bench --keys 3000 --seconds 0.02 --rounds 3 --requests 20k --timed 2k";
    let words = short.split(' ').chain(line.split(' ').filter(|word| !word.is_empty()));
    let mut results = Vec::new();
    run(&Line::try_parse_from(words)?.arguments, ENGINES, |line| {
        if let IndexLine::Measured(result) = line {
            results.push(result.as_ref().clone());
        }
        Ok(())
    })?;
    Ok(results)
}

fn json(result: &IndexResult) -> Value {
    serde_json::to_value(result).expect("a result serializes")
}

/// All engines that always keep the items they are given. Those of figure 15b are left out, as they
/// are hotring-r with another parameter.
fn names() -> Vec<&'static str> {
    let is_tried = |name: &str| name != "null" && !name.starts_with("hotring-r-");
    let holding = ENGINES.iter().filter(|entry| !entry.is_read_only && is_tried(entry.name));
    holding.map(|entry| entry.name).collect()
}

/// What the measurement contract promises for every line.
const FIELDS: [&str; 12] = [
    "engine",
    "ops_per_second",
    "ops_per_second_per_thread",
    "bytes_per_item",
    "index_bytes_per_item",
    "p50_ns",
    "p99_ns",
    "p999_ns",
    "hit_ratio",
    "expansions",
    "longest_pause_ns",
    "longest_null_ns",
];

fn check_line(result: &IndexResult) {
    let line = json(result);
    for field in FIELDS.iter().chain(&["commit", "machine", "workload", "keys", "min", "max"]) {
        assert!(line.get(field).is_some(), "{field} is missing from {line}");
    }
    assert!(result.min > 0.0 && result.min <= result.ops_per_second, "{line}");
    assert!(result.ops_per_second <= result.max, "{line}");
    assert!(result.p50_ns <= result.p99_ns && result.p99_ns <= result.p999_ns, "{line}");
    assert!(result.timed_operations >= 2000, "{line}");
    assert_eq!(result.rounds_ops_per_second.len(), 3, "{line}");
}

#[test]
fn every_workload_runs_on_every_engine() {
    for engine in names() {
        for workload in Workload::value_variants() {
            let name = workload.to_possible_value().expect("not hidden");
            let name = name.get_name();
            let results = bench(&format!("--engine {engine} --workload {name}")).expect("a result");
            assert_eq!(results.len(), 1);
            let result = &results[0];
            check_line(result);
            if workload.fills_misses() {
                // After a circle of requests everything that they ask for is there.
                assert_eq!(result.hit_ratio, Some(1.0), "{engine} {name}");
                assert!((1000..=3000).contains(&result.items), "{engine} {name}");
                continue;
            }
            let expected = match workload {
                Workload::Set | Workload::Grow => None,
                Workload::Miss => Some(0.0),
                // Present items must never be missed while other items are written.
                _ => Some(1.0),
            };
            assert_eq!(result.hit_ratio, expected, "{engine} {name}");
            let items = result.items;
            assert_eq!(result.refused, 0, "{engine} {name}");
            if workload.inserts() && !workload.starts_empty() {
                assert!(items > 3000, "{engine} {name}: {items}");
            } else {
                assert_eq!(items, 3000, "{engine} {name}");
            }
        }
    }
}

/// The whole list in a long run (`AMALGAM_EFFORT`), otherwise one item, chosen by `number`.
fn all_or_one<T: Copy>(list: &[T], number: usize) -> Vec<T> {
    if std::env::var_os("AMALGAM_EFFORT").is_some() {
        return list.to_vec();
    }
    vec![list[number % list.len()]]
}

#[test]
fn threads_and_batches_read_what_others_insert() {
    for engine in names() {
        let workloads = ["a", "d", "f", "insert50", "grow", "shift"];
        for (number, workload) in workloads.into_iter().enumerate() {
            // Every engine meets each workload, and each size of batch twice.
            for batch in all_or_one(&[1, 7, 64], number) {
                let line = format!(
                    "--engine {engine} --workload {workload} --threads 2 --batch {batch} \
                     --theta 1.22"
                );
                let result = &bench(&line).expect("a result")[0];
                check_line(result);
                if result.hit_ratio.is_some() {
                    assert_eq!(result.hit_ratio, Some(1.0), "{line}");
                }
                if workload == "grow" {
                    assert_eq!(result.items, 3000, "{line}");
                }
            }
        }
    }
}

#[test]
fn engines_are_compared_in_turns() {
    let twice = "--engine model,model --workload c --ratio-to model";
    let results = bench(twice).expect("two results");
    assert_eq!(results.len(), 2);
    assert_eq!(results[0].ratio, Some(1.0), "the first one is compared with itself");
    assert!(results[1].ratio.is_some_and(|ratio| ratio > 0.0));
    assert!(bench("--engine model --ratio-to mercury").is_err());
}

/// The pipelined table does not grow: one with few buckets has no room for many keys.
#[test]
fn an_engine_without_room_does_not_end_the_run() {
    let line = "bench --engine model,pipeline,chaining --keys 3000 --ratio 32 --workload c \
                --then miss --seconds 0.02 --rounds 2 --requests 20k --timed 2k";
    let arguments = Line::try_parse_from(line.split_whitespace()).expect("valid").arguments;
    let mut lines = Vec::new();
    let ended = run(&arguments, ENGINES, |line| {
        lines.push(serde_json::to_value(line)?);
        Ok(())
    });
    let shown = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(shown("engine"), ["pipeline", "model", "chaining", "model", "chaining"]);
    assert_eq!(shown("workload"), ["c", "c", "c", "miss", "miss"]);
    let failure = lines[0]["failure"].as_str().expect("a reason");
    assert!(failure.starts_with("pipeline had no room for ") && failure.contains(" of 3000 keys"));
    assert!(lines[0].get("ops_per_second").is_none() && lines[0].get("commit").is_some());
    assert!(lines[1..].iter().all(|line| line["min"].as_f64() > Some(0.0)), "{lines:?}");
    let error = ended.expect_err("the program fails").to_string();
    assert_eq!(error, format!("not measured: {failure}"));
}

#[test]
fn curves_are_drawn_as_results_come() {
    let file = std::env::temp_dir().join(format!("amalgam-curves-{}.svg", std::process::id()));
    let line = "bench --engine model,pipeline,chaining --keys 3000 --ratio 32 --workload c \
                --then insert50 --seconds 0.3 --rounds 2 --requests 20k --timed 2k --picture";
    let words = line.split_whitespace().chain(file.to_str());
    let command = BenchCommand::Index(Line::try_parse_from(words).expect("valid").arguments);
    amalgam_reproduce::run(&command, ENGINES).expect_err("one engine has no room");
    let drawn = std::fs::read_to_string(&file).expect("a picture");
    std::fs::remove_file(&file).expect("removed");
    for text in ["workload c, theta 0.99; 3000 keys", "workload insert50", "model", "chaining"] {
        assert!(drawn.contains(text), "{text}");
    }
    assert!(!drawn.contains("pipeline") && drawn.contains("seconds of the last round"));
}

#[test]
fn workloads_follow_each_other_on_the_same_items() {
    let line = "--engine hotring-r,chaining --ratio-to chaining --ratio 8 --load-threads 2 \
                --workload c --then a:0.5,miss:0,d";
    let results = bench(line).expect("they follow each other");
    let seen: Vec<Value> = results.iter().map(json).collect();
    let shown = |name: &str| seen.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(shown("workload"), ["c", "c", "a", "a", "miss", "miss", "d", "d"]);
    assert_eq!(shown("theta"), [0.99, 0.99, 0.5, 0.5, 0.0, 0.0, 0.99, 0.99]);
    assert_eq!(shown("hit_ratio"), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    results.iter().for_each(check_line);
    for line in ["--workload grow --then c", "--fill 0.5 --then c", "--then d:x", "--then e"] {
        assert!(bench(&format!("--engine mercury {line}")).is_err(), "{line}");
    }
}

#[test]
fn sizes_of_keys_and_values() {
    for engine in names() {
        for (key_bytes, value_bytes) in [(4, 0), (7, 1), (24, 10), (248, 3000)] {
            let line = format!(
                "--engine {engine} --workload f --key-bytes {key_bytes} --value-bytes {value_bytes}"
            );
            let result = &bench(&line).expect("a result")[0];
            check_line(result);
            assert_eq!(result.hit_ratio, Some(1.0), "{line}");
        }
    }
}

#[test]
fn what_takes_no_locks_is_only_read() {
    let reads = "--engine mercury-nolock --workload get --threads 2 --batch 8";
    assert_eq!(bench(reads).expect("a result")[0].hit_ratio, Some(1.0));
    assert!(bench("--engine mercury-nolock --workload b").is_err());
}

#[test]
fn the_driver_itself_can_be_measured() {
    let result = &bench("--engine null --workload b --batch 32").expect("a result")[0];
    check_line(result);
    assert_eq!((result.hit_ratio, result.items), (Some(0.0), 0));
}

#[test]
fn a_bounded_index_evicts() {
    let result = &bench("--engine model --workload a --memory 64Ki").expect("a result")[0];
    assert!(result.evictions > 0 && result.items < 3000);
    assert!(result.hit_ratio.is_some_and(|ratio| ratio < 1.0));
}

/// MemC3's table 3 in small: the fewer bytes an item takes, the more of them and of the hits.
#[test]
fn caches_of_a_size_are_compared() {
    let line = "caches --sizes 8Mi --keys 400k --requests 1500k";
    let arguments = CacheLine::try_parse_from(line.split(' ')).expect("valid").arguments;
    let mut results = Vec::new();
    let mut keep = |result: &_| {
        results.push(Clone::clone(result));
        Ok(())
    };
    run_caches(&arguments, ENGINES, &mut keep).expect("results");
    let names: Vec<_> = results.iter().map(|result| result.engine.as_str()).collect();
    assert_eq!(names, ["global-lock", "lru-cuckoo", "memc3"]);
    assert!(results.is_sorted_by(|left, right| left.items < right.items), "{results:?}");
    assert!(results.is_sorted_by(|left, right| left.hit_ratio < right.hit_ratio), "{results:?}");
    assert!(results.iter().all(|result| result.evictions > 0), "{results:?}");
    let [list, .., clock] = &results[..] else { panic!("three results") };
    assert!(clock.items as f64 > 1.4 * list.items as f64, "{results:?}");
}

#[test]
fn variants_of_engines_are_measured() {
    for line in [
        "--engine memc3 --slots 4 --disable optimistic,tag --paths 1",
        "--engine memc3 --slots 4 --disable optimistic",
        "--engine memc3 --slots 4",
        "--engine memc3 --disable trust",
        "--engine pipeline --slots 16",
        "--engine hotring-r --disable movement",
        "--engine hotring-s --disable predecessor --slots 4",
        "--engine global-lock --disable lazy-bump",
    ] {
        let results = bench(line).unwrap_or_else(|error| panic!("{line}: {error:#}"));
        assert_eq!(json(&results[0])["hit_ratio"], 1.0, "{line}");
    }
}

#[test]
fn nonsense_is_refused() {
    for line in [
        "--engine nothing",
        "--engine model --batch 0",
        "--engine model --threads 0",
        "--engine model --key-bytes 3",
        "--engine model --theta -1",
        "--engine model --theta NaN",
        "--engine model --fill 1.5",
        "--engine model --ratio 0",
        "--engine model --seconds NaN",
        "--engine model --paths 9",
        "--engine model --writers 2",
        "--engine model --disable flying",
        "--engine memc3 --disable flying",
        "--engine memc3 --slots 16",
        "--engine model --keys 1G",
        "--engine model --keys 0",
    ] {
        assert!(bench(line).is_err(), "{line}");
    }
}
