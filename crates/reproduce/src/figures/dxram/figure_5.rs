//! Figure 5: BG, a social network's actions, by storage nodes.

use super::super::plan::{Claim, Figure, Panel, Paper, Program, Reading, Run, Shape};
use super::super::point::{AxisPosition, Point};
use super::super::scale_profile::ScaleProfile;
use super::is_installed;
use amalgam_bench::measure::Machine;

/// Actions per second that the paper's text prints, by number of nodes. For Cassandra it has the
/// smallest and the largest cluster, for MongoDB one number for all.
const DXRAM: [(usize, f64); 3] = [(1, 6_000.0), (2, 12_000.0), (4, 19_000.0)];
const CASSANDRA: [(usize, f64); 2] = [(1, 1_800.0), (8, 3_700.0)];
const MONGODB: f64 = 3_500.0;
const NO_MONGODB: &str = "MongoDB is not available here";
const NO_CASSANDRA: &str = "Cassandra is not measured: no client of it is kept here";

/// The number of a member's objects, and about how many objects are loaded per second.
const OBJECTS_A_MEMBER: f64 = 104.0;
const OBJECTS_PER_SECOND: f64 = 150_000.0;

/// The members of the paper's larger network, the nodes that it was on, and the smallest printed
/// throughput.
const LARGE: u32 = 500_000;
const LARGE_NODES: usize = 4;
const LARGE_ACTIONS: [(usize, f64); 1] = [(LARGE_NODES, 17_000.0)];
/// With more members than this, each backend is measured alone.
const MOST_TOGETHER: u32 = 10_000;
/// Resident bytes of nodes and clients for a member: 50,000 of them took 1.95 GB, 5,000 took 0.28.
const BYTES_A_MEMBER: u64 = 37_000;

pub fn figure(profile: &ScaleProfile) -> Figure {
    // A client's share must have more members than a member has friends.
    let (members, clients) = profile.choose((110, 1), (500, 4), (10_000, 4));
    let most_nodes = if can_run("etcd") { profile.choose(1, 4, 8) } else { 1 };
    let counts = [1, 2, 4, 8].into_iter().filter(|nodes| *nodes <= most_nodes);
    let run = |nodes: usize, members: u32, field| {
        let mut backends = vec!["amalgam"];
        // The large network takes all available memory.
        let is_large = members > MOST_TOGETHER;
        if !is_large && can_run("memcached") {
            backends.push("memcached");
        }
        if !is_large && nodes == 1 && can_run("redis-server") {
            backends.push("redis");
        }
        let begin = 2.0;
        let seconds = profile.choose(0.05, 0.25, 5.0);
        let rounds = profile.choose(1, 2, 3);
        let arguments = format!(
            "bench bg --backend={} --nodes={nodes} --profiles={members} --clients={clients} \
             --mix=0.1 --seconds={seconds} --rounds={rounds} --json",
            backends.join(",")
        );
        let subjects = backends.len() as f64;
        let load = f64::from(members) * OBJECTS_A_MEMBER / OBJECTS_PER_SECOND;
        Run {
            place: AxisPosition::named(nodes.ilog2() as usize, nodes.to_string()),
            program: Program::Own,
            arguments: arguments.split(' ').map(str::to_owned).collect(),
            reading: Reading::Field(field, 1.0),
            seconds: subjects * (load + 2.1 * seconds * f64::from(rounds)) + begin,
            // The large network is measured once, as it takes minutes to load.
            repeats: !is_large,
        }
    };
    let printed = |name: &str, points: &[(usize, f64)]| -> Vec<Point> {
        let point = |(nodes, actions): &(usize, f64)| {
            let place = AxisPosition::named(nodes.ilog2() as usize, nodes.to_string());
            Point::new(format!("{name}, printed"), place, *actions)
        };
        points.iter().map(point).collect()
    };
    let panel = |title: &str, y, field, given| Panel {
        title: title.to_owned(),
        x: "storage nodes",
        y,
        shape: Shape::Bars,
        runs: counts.clone().map(|nodes| run(nodes, members, field)).collect(),
        given,
        ..Panel::default()
    };
    let mongodb = [1, 2, 4, 8].map(|nodes| (nodes, MONGODB));
    let given =
        [printed("DXRAM", &DXRAM), printed("Cassandra", &CASSANDRA), printed("MongoDB", &mongodb)];
    let mut panels = vec![
        panel("actions a second", "actions a second", "actions_per_second", given.concat()),
        panel("CPU time of the servers", "ns an action", "server_cpu_ns_per_action", Vec::new()),
        panel("values that no write explains", "reads", "unpredictable_reads", Vec::new()),
    ];
    if profile.choose(false, false, true) && most_nodes >= LARGE_NODES {
        let members = large(profile);
        let title = format!("{members} members, {LARGE_NODES} nodes");
        panels.push(Panel {
            runs: vec![run(LARGE_NODES, members, "actions_per_second")],
            ..panel(&title, "actions a second", "", printed("DXRAM, 500,000", &LARGE_ACTIONS))
        });
    }
    let claim = |(nodes, printed): (usize, f64)| {
        let what = format!("actions a second, {}, all on one core", counted(nodes));
        Claim::value(&what, printed, "amalgam", &nodes.to_string())
    };
    let mut claims: Vec<Claim> =
        DXRAM.into_iter().filter(|one| one.0 <= most_nodes).map(claim).collect();
    claims.extend(over_others());
    Figure {
        paper: Paper::Dxram,
        name: "figure-5",
        title: "BG, a social network's actions, by storage nodes",
        printed_setting: "10,000 and 500,000 members with 100 friends and 100 resources each, \
                          0.1 % of the actions write; nodes of 4 cores on gigabit Ethernet, as \
                          many clients. With 8 nodes the clients were the limit.",
        our_setting: format!(
            "{members} members; all nodes on one core, all clients on another, so rates do not \
             grow with nodes here: CPU time an action says what each costs. Every value that is \
             read is checked. Clients of memcached choose the server by a hash of the key; Redis \
             is one process. Neither Cassandra nor MongoDB is run: their printed numbers are of \
             the paper's machines.{}",
            if most_nodes == 1 { " More than one node needs etcd." } else { "" }
        ),
        panels,
        claims,
    }
}

/// The number of members of the large network that fit into memory.
fn large(profile: &ScaleProfile) -> u32 {
    let fit = profile.available_bytes / 10 * 9 / BYTES_A_MEMBER;
    (u64::from(LARGE).min(fit) / 1_000 * 1_000) as u32
}

/// Whether a program is on the path and the machine has the two cores that the benchmark needs.
fn can_run(program: &str) -> bool {
    Machine::describe().cores > 1 && is_installed(program)
}

/// DXRAM's actions over those of the other systems, from the numbers that the text prints.
fn over_others() -> Vec<Claim> {
    let mut claims = Vec::new();
    for (nodes, actions) in DXRAM {
        let what = format!("times MongoDB's actions, {}", counted(nodes));
        claims.push(Claim::absent(&what, actions / MONGODB, NO_MONGODB));
    }
    // The text prints both Cassandra and DXRAM for only one number of nodes.
    let ((nodes, actions), (_, of_cassandra)) = (DXRAM[0], CASSANDRA[0]);
    let what = format!("times Cassandra's actions, {}", counted(nodes));
    claims.push(Claim::absent(&what, actions / of_cassandra, NO_CASSANDRA));
    claims
}

fn counted(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}
