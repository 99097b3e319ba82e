//! Figure 5 at 12 threads, predicted by the model.

use super::super::model;
use super::super::plan::{Claim, Figure, IndexRun, Paper};
use super::super::scale_profile::ScaleProfile;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.keys(6_290_000, 300).min(profile.choose(2_000, 780_000, 6_290_000));
    let run = || {
        // The arguments of figure 5, so that both figures share their runs.
        IndexRun::new(profile, &["global-lock", "memc3"], "get", keys)
            .with_all("--key-bytes=16 --value-bytes=8 --prefault=false")
    };
    let mut claims = Vec::new();
    if profile.machine.cores > 1 {
        claims.push(Claim::value(
            "million look-ups a second, 12 threads, predicted",
            35.0,
            "memc3, predicted",
            "12",
        ));
    }
    Figure {
        paper: Paper::MemC3,
        name: "figure-5-model",
        title: "look-ups at thread counts that this machine lacks",
        printed_setting: "16-byte keys, 12 cores: 35 million a second on 12 threads, 5 on one.",
        our_setting: model::about(profile, keys),
        panels: vec![model::panel(profile, run)],
        claims,
    }
}
