//! Mistakes that published systems made, or whose authors warn of them, are found
//! (`docs/mutants.md` names each). Others are in the files of the invariants that they break.

use amalgam_sim::{Mutant, Run, Scenario};

/// Whether a seed finds the mutant.
fn is_noticed(mutant: Mutant, scenario: &Scenario) -> bool {
    Run::seed_that_finds(scenario, mutant).is_some()
}

fn items() -> Scenario {
    Scenario { items: true, seconds: 12, ..Scenario::default() }
}

fn locks() -> Scenario {
    Scenario { locks: true, ..Scenario::default() }
}

#[test]
fn replies_that_are_forgotten_are_noticed() {
    assert!(is_noticed(Mutant::ForgetsRepliesInMoves, &Scenario::default()));
    assert!(is_noticed(Mutant::ForgetsRepliesAtBackups, &Scenario::default()));
    assert!(is_noticed(Mutant::RepeatsUnanswered, &items()));
}

#[test]
fn locks_that_exclude_nobody_are_noticed() {
    assert!(is_noticed(Mutant::ForgetsLocksInMoves, &locks()));
    assert!(is_noticed(Mutant::RestartsTokens, &locks()));
    assert!(is_noticed(Mutant::ShortensLocks, &locks()));
}

#[test]
fn metadata_that_differs_is_noticed() {
    assert!(is_noticed(Mutant::TruncatesSnapshots, &Scenario::default()));
    assert!(is_noticed(Mutant::CountsWithoutApplying, &Scenario::default()));
    assert!(is_noticed(Mutant::RestoresOldView, &Scenario::default()));
}

#[test]
fn logs_that_hold_less_than_promised_are_noticed() {
    assert!(is_noticed(Mutant::AcknowledgesBeforeSync, &Scenario::default()));
    assert!(is_noticed(Mutant::TrustsIncompleteLog, &Scenario::default()));
    assert!(is_noticed(Mutant::ClaimsAllReplicas, &Scenario::default()));
}

#[test]
fn reads_of_former_owners_are_noticed() {
    assert!(is_noticed(Mutant::FormerOwnerAnswers, &Scenario::default()));
    assert!(is_noticed(Mutant::DoubleLease, &items()));
}

/// Each mutant has a row in the document, with whose mistake it was.
#[test]
fn each_mutant_names_its_source() {
    let read = |path: &str| {
        let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("a text")
    };
    let (code, document) = (read("src/mutants.rs"), read("../../docs/mutants.md"));
    let (_, variants) = code.split_once("pub enum Mutant {").expect("the mutants");
    let (variants, _) = variants.split_once("\n}").expect("their end");
    let variants = variants.lines().filter_map(|line| line.trim().strip_suffix(','));
    let mut variants: Vec<&str> = variants.filter(|name| *name != "None").collect();
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, what, source, seed] = cells[..] else { return None };
        let is_row = name.starts_with(char::is_uppercase);
        is_row.then(|| {
            assert!(what.len() > 15 && source.len() > 15 && !seed.is_empty(), "{name}");
            name
        })
    });
    let mut rows: Vec<&str> = rows.collect();
    variants.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, variants);
    assert!(rows.len() >= 30, "{} mutants", rows.len());
}
