//! Figure 4: throughput after each step of the design.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Reading, Run};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

const PRINTED_MEMC3: &str = "--slots=4 --writers=1 --paths=1";

/// A step: its name, its engine for one thread and for several, and the engine's switches.
const STEPS: [(&str, &str, &str, &str); 8] = [
    ("chaining", "chaining-memcmp", "global-lock", "--small-pages"),
    ("+ hugepage", "chaining-memcmp", "global-lock", ""),
    ("+ int keycmp", "chaining", "global-lock", ""),
    ("cuckoo", "memc3", "memc3", "--disable=tag,optimistic"),
    ("+ tag", "memc3", "memc3", "--disable=optimistic"),
    ("+ opt locking", "memc3", "memc3", ""),
    ("+ 2path", "memc3", "memc3", "--paths=2"),
    ("ours", "memc3", "memc3", ""),
];

/// The number of slots of the table.
fn slots(profile: &ScaleProfile) -> u64 {
    profile.choose(1 << 12, 1 << 20, 1 << 23)
}

pub fn figure(profile: &ScaleProfile) -> Figure {
    let threads = profile.threads_up_to(6);
    let panel = |title: &str, workload: &'static str, threads: usize| Panel {
        title: title.to_owned(),
        x: "steps, one on top of the other",
        y: "million operations a second",
        runs: (0..STEPS.len()).map(|step| run(profile, step, workload, threads)).collect(),
        ..Panel::default()
    };
    let times = |what, printed, panel| {
        Claim::ratio(what, printed, "+ 2path", "chaining", "1").of_panel(panel)
    };
    let step = |one, before, printed| {
        let what = format!("reads, 1 thread, {one} times {before}");
        Claim::ratio(&what, printed, one, before, "1")
    };
    Figure {
        paper: Paper::MemC3,
        name: "figure-4",
        title: "what each step brings",
        printed_setting: "16-byte keys; one thread without locks (a), 6 threads (b). All steps \
                          together about 3 times chaining on one thread; on 6 about 15 times for \
                          reads and 14 with 10 % inserts, and bare cuckoo hashing 5 to 6 times.",
        our_setting: format!(
            "{} slots, 85 % full (75 % where inserts follow), {threads} threads. On several \
             threads the lock of `global-lock` stands for the first three steps.",
            slots(profile)
        ),
        panels: vec![
            panel("reads, 1 thread", "get", 1),
            panel("90 % reads, 10 % inserts, 1 thread", "insert10", 1),
            panel(&format!("reads, {threads} threads"), "get", threads),
            panel(&format!("90 % reads, 10 % inserts, {threads} threads"), "insert10", threads),
        ],
        claims: vec![
            times("reads, 1 thread, times chaining", 3.0, 0),
            times("10 % inserts, 1 thread, times chaining", 3.0, 1),
            step("+ hugepage", "chaining", 1.24),
            step("+ int keycmp", "+ hugepage", 1.8),
            times(&format!("reads, {threads} threads (printed: 6), times chaining"), 15.0, 2),
            times(
                &format!("10 % inserts, {threads} threads (printed: 6), times chaining"),
                14.0,
                3,
            ),
            Claim::ratio(
                &format!("reads, {threads} threads (printed: 6), cuckoo times chaining"),
                5.0,
                "cuckoo",
                "chaining",
                "1",
            )
            .of_panel(2),
        ],
    }
}

fn run(profile: &ScaleProfile, step: usize, workload: &str, threads: usize) -> Run {
    let (name, one, several, switches) = STEPS[step];
    let engine = if threads == 1 { one } else { several };
    let is_memc3 = engine == "memc3";
    let fill = if workload == "get" { 0.85 } else { 0.75 };
    let slots = slots(profile);
    // `--fill` loads its share of the table that `--keys` would take.
    let keys = if is_memc3 { slots / 2 } else { (slots as f64 * fill) as u64 };
    let mut run = IndexRun::new(profile, &[engine], workload, keys)
        .with_all("--key-bytes=16 --value-bytes=8 --theta=0 --prefault=false")
        .with(format!("--threads={threads}"))
        .with_all(switches);
    if is_memc3 {
        run = run.with(format!("--fill={fill}"));
    }
    if is_memc3 && name != "ours" {
        let paths = switches.contains("--paths");
        run = run.with_all(if paths { "--slots=4 --writers=1" } else { PRINTED_MEMC3 });
    }
    let reading = Reading::Named(name.to_owned(), "ops_per_second", 1e6);
    run.at(AxisPosition::named(0, "1"), reading)
}
