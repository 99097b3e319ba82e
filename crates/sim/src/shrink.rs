//! The smallest scenario in which a seed still fails.

use crate::mutants::Mutant;
use crate::run::Run;
use crate::scenario::Scenario;

/// Scenarios that are smaller in one respect.
fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut smaller = vec![
        Scenario { seconds: scenario.seconds / 2, ..scenario.clone() },
        Scenario { seconds: scenario.seconds * 9 / 10, ..scenario.clone() },
        Scenario { lost_percent: 0, ..scenario.clone() },
        Scenario { twice_percent: 0, ..scenario.clone() },
        Scenario { late_percent: 0, ..scenario.clone() },
        Scenario { crashes: false, ..scenario.clone() },
        Scenario { partitions: false, ..scenario.clone() },
        Scenario { worst: false, ..scenario.clone() },
        Scenario { power: false, ..scenario.clone() },
        Scenario { rot: false, ..scenario.clone() },
        Scenario { hangs: false, ..scenario.clone() },
        Scenario { one_way: false, ..scenario.clone() },
        Scenario { locks: false, ..scenario.clone() },
        Scenario { nodes: (scenario.nodes - 1).max(1), ..scenario.clone() },
    ];
    smaller.retain(|one| one != scenario);
    smaller
}

/// Shrinks a scenario in which a seed fails to one from which nothing can be left out. Returns it
/// with its violations; None if the seed does not fail.
pub fn shrink(scenario: &Scenario, seed: u64, mutant: Mutant) -> Option<(Scenario, Vec<String>)> {
    let wrong = |scenario: &Scenario| {
        let wrong = Run::execute(seed, mutant, scenario).violations;
        (!wrong.is_empty()).then_some(wrong)
    };
    let mut least = (scenario.clone(), wrong(scenario)?);
    while let Some(next) = smaller(&least.0).into_iter().find_map(|one| {
        let wrong = wrong(&one)?;
        Some((one, wrong))
    }) {
        least = next;
    }
    Some(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mutant_does_not_need_is_left_out() {
        // One that loses something without most of the faults; other seeds need more of them.
        const SEED: u64 = 4;
        let (least, wrong) =
            shrink(&Scenario::default(), SEED, Mutant::NoReplication).expect("it is found");
        assert!(!wrong.is_empty() && least.seconds < 50, "{least}");
        let faults = [least.partitions, least.worst, least.crashes, least.power];
        let percents = [least.late_percent, least.twice_percent, least.lost_percent];
        let off = faults.iter().filter(|fault| !**fault).count()
            + percents.iter().filter(|percent| **percent == 0).count();
        let is_needed = |one: Scenario| shrink(&one, SEED, Mutant::NoReplication).is_none();
        assert!(smaller(&least).into_iter().all(is_needed), "less is enough: {least}");
        let kills = least.crashes || least.worst || least.power;
        assert!(off >= 3 && kills, "only deaths lose what has no backup: {least}");
    }
}
