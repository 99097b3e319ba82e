//! Figure 8: the whole server, over sockets.

use super::super::plan::{Claim, Figure, Panel, Paper, Program, Reading, Run, Shape};
use super::super::point::AxisPosition;
use super::super::scale_profile::ScaleProfile;
use super::super::servers::MEMCACHED;

const SERVERS: [&str; 2] = ["memc3", MEMCACHED];

pub fn figure(profile: &ScaleProfile) -> Figure {
    let keys = profile.choose(2_000u64, 500_000, 8_000_000);
    let (rounds, seconds) = (profile.rounds(), profile.seconds().max(0.1));
    let threads = profile.threads();
    let run = |threads: &usize, field, unit| {
        let arguments = format!(
            "bench server --connections=50 --multi=100 --set=0.05 --keys={keys} \
             --requests=1M --rounds={rounds} --seconds={seconds} --json"
        );
        Run {
            place: AxisPosition::number(*threads as f64),
            program: Program::Servers(&SERVERS, *threads),
            arguments: arguments.split(' ').map(str::to_owned).collect(),
            reading: Reading::Field(field, unit),
            seconds: 2.0 * (keys as f64 / 500e3 + rounds as f64 * seconds) + 1.0,
            repeats: true,
        }
    };
    let panel = |y, field, unit| Panel {
        x: "threads of the server",
        y,
        shape: Shape::Lines,
        runs: threads.iter().map(|threads| run(threads, field, unit)).collect(),
        ..Panel::default()
    };
    let most = threads.last().map_or(String::new(), ToString::to_string);
    let what = format!("keys a second, {most} threads (printed: most, 16), times memcached");
    Figure {
        paper: Paper::MemC3,
        name: "figure-8",
        title: "the server over sockets",
        printed_setting: "50 clients on 10 Gb Ethernet, gets of 100 keys, 95/5, 1 GB: 4.4 million \
                          keys a second against memcached's 1.5.",
        our_setting: format!(
            "{keys} keys; loopback, and the client on the same cores, so the second panel shows \
             what the server alone takes."
        ),
        panels: vec![
            panel("million keys a second", "keys_per_second", 1e6),
            panel("ns of the server's CPU a key", "server_cpu_ns_per_key", 1.0),
        ],
        claims: vec![Claim::ratio(&what, 4.4 / 1.5, "memc3", MEMCACHED, &most)],
    }
}
