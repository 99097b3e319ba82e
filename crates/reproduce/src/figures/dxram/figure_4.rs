//! Figure 4: look-ups with and without the client's cache.

use super::super::plan::{Claim, Figure, Panel, Paper, Program, Reading, Run};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;

const MIGRATED: [(&str, &str); 3] = [("1 %", "0.01"), ("5 %", "0.05"), ("10 %", "0.1")];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let ids = profile.choose(10_000u64, 1_000_000, 10_000_000);
    let (requests, rounds) = (ids / 10, profile.rounds());
    let uncached = profile.choose(10, 2_000, 20_000);
    let run = |(index, (label, migrated)): (usize, &(&str, &str)), reading| {
        let arguments = format!(
            "bench lookup-cache --ids={ids} --migrated={migrated} --requests={requests} \
             --uncached-requests={uncached} --rounds={rounds} --json"
        );
        Run {
            place: AxisPosition::named(index, *label),
            program: Program::Own,
            arguments: arguments.split(' ').map(str::to_owned).collect(),
            reading,
            seconds: 1.0,
            repeats: true,
        }
    };
    let times = [("without a cache", "uncached_ns"), ("with a cache", "cached_ns")];
    let times = || Reading::Fields(times.map(|(name, field)| (name.to_owned(), field, 1.0)).into());
    let saved = || Reading::Named("saved".to_owned(), "saved", 0.01);
    let panel = |y, reading: &dyn Fn() -> Reading| Panel {
        x: "ids migrated, in ranges of 1 to 100",
        y,
        runs: MIGRATED.iter().enumerate().map(|one| run(one, reading())).collect(),
        ..Panel::default()
    };
    Figure {
        paper: Paper::Dxram,
        name: "figure-4",
        title: "what a client's cache saves",
        printed_setting: "Three nodes on gigabit Ethernet; one asks for all ids in order. Up to \
                          98 % less time.",
        our_setting: format!("{ids} ids; a client and a super peer over loopback, look-ups alone."),
        panels: vec![panel("ns a look-up", &times), panel("% of the time saved", &saved)],
        claims: vec![Claim::value("% saved, 1 % migrated", 98.0, "saved", "1 %").of_panel(1)],
    }
}
