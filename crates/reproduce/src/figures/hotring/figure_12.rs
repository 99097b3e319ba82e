//! Figure 12: updates by read-copy-update.

use super::super::plan::{Claim, Figure, IndexRun, Panel, Paper, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;
use super::{FASTER, KEYS, THREADS, keys};

const ENGINES: [&str; 4] = ["hotring-s", "hotring-s-wo", "hotring-r", "chaining"];
const BYTES_A_KEY: u64 = 900;

pub fn figure(profile: &ScaleProfile) -> Figure {
    let threads = profile.threads_up_to(THREADS);
    let keys = keys(profile, BYTES_A_KEY).min(KEYS * 2 / 5);
    let panel = |(workload, title): (&str, &str)| {
        let rates = |ratio: &u32| {
            IndexRun::new(profile, &ENGINES, workload, keys)
                .with_all("--theta=1.22 --value-bytes=100")
                .with(format!("--ratio={ratio}"))
                .with(format!("--threads={threads}"))
                .rates_at(AxisPosition::number(f64::from(*ratio)))
        };
        Panel {
            title: title.to_owned(),
            x: "keys a bucket",
            y: "million operations a second",
            shape: Shape::Bars,
            runs: [2, 8, 16].iter().map(rates).collect(),
            ..Panel::default()
        }
    };
    let claim = |what| Claim::ratio(what, 1.32, "hotring-s", "chaining", "8");
    Figure {
        paper: Paper::HotRing,
        name: "figure-12",
        title: "writes of 100 bytes",
        printed_setting: "100-byte values, theta 1.22, 64 threads. HotRing-s(w/o) counts an \
                          update at the item itself instead of its predecessor.",
        our_setting: profile.about(keys, threads),
        panels: [("a", "50 % writes"), ("set", "writes only")].map(panel).into(),
        claims: vec![
            claim("50 % writes, 8 keys a bucket, times chaining"),
            claim("writes only, 8 keys a bucket, times chaining").of_panel(1),
            Claim::absent("8 keys a bucket, times FASTER", 1.32, FASTER),
        ],
    }
}
