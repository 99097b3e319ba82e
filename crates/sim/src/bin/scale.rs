//! `scale [NODES] [CHUNKS] [RACKS] [SEED]` runs a large cluster in one process: clients create the
//! chunks, a tenth of the nodes die at once (two of twenty racks), come back, another rack fails,
//! and every node is restarted, rack by rack, while clients read and write. At the end all chunks
//! are read. Each line shows a phase: simulated and real seconds, packets, and resident memory.
//!
//! The exit code is 1 if anything was lost, stale or unanswered.

use std::process::ExitCode;
use std::time::Instant;

use amalgam_sim::{ScaleNode, World};

/// Copies of each chunk: the owner's and its backups'.
const COPIES: usize = 3;
/// Simulated seconds that a phase may take.
const PHASE_MAX_S: u64 = 120;

/// A run, and what its lines show.
struct Scale {
    world: World<ScaleNode>,
    began: Instant,
    began_ms: u64,
    packets: u64,
    nodes: usize,
    failed: bool,
}

impl Scale {
    /// Ends a phase and prints its line.
    fn phase(&mut self, name: &str, what: &str) {
        let simulated_ms = self.world.now_ms() - self.began_ms;
        let packets = self.world.observed.scale.packets - self.packets;
        println!(
            "{name:<20} {:>6.1} s simulated {:>6.1} s real {:>9} packets {:>5} MiB; {what}",
            simulated_ms as f64 / 1e3,
            self.began.elapsed().as_secs_f64(),
            packets,
            resident_bytes() >> 20,
        );
        (self.began, self.began_ms) = (Instant::now(), self.world.now_ms());
        self.packets += packets;
    }

    /// Runs until something holds; a failure if it does not within [`PHASE_MAX_S`].
    fn until(&mut self, name: &str, step_ms: u64, holds: impl Fn(&World<ScaleNode>) -> bool) {
        let until_ms = self.world.now_ms() + PHASE_MAX_S * 1_000;
        while !holds(&self.world) {
            if self.world.now_ms() >= until_ms {
                println!("{name}: not within {PHASE_MAX_S} s");
                self.failed = true;
                return;
            }
            self.world.run(step_ms);
        }
    }

    /// Runs until all chunks are served, and says how many were not after `after_ms`.
    fn until_served(&mut self, name: &str, after_ms: u64) {
        self.world.run(after_ms);
        let at_first = self.world.unserved();
        self.until(name, 500, |world| world.unserved() == 0);
        let what = format!("{at_first} chunks unserved after {after_ms} ms");
        self.phase(name, &what);
    }
}

/// Resident memory of this process; 0 if the system does not say.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4_096
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (nodes, chunks, racks, seed) = (next(1_000)?, next(1_000_000)?, next(20)?, next(0)?);
    let all = Instant::now();
    let world = World::large(seed as u64, nodes, COPIES - 1);
    let (began, began_ms, packets) = (Instant::now(), 0, 0);
    let mut scale = Scale { world, began, began_ms, packets, nodes, failed: false };

    scale.until("start", 500, |world| world.view().members.len() == nodes);
    scale.world.set_racks(racks);
    scale.world.run(10_000);
    let supers = scale.world.view().supers().count();
    scale.phase("start", &format!("{nodes} nodes, {supers} super peers"));

    scale.world.create_chunks(chunks / nodes);
    scale.until("create", 100, |world| world.unfinished() == 0);
    let created = scale.world.observed.chunks.len();
    scale.phase("create", &format!("{created} chunks, {COPIES} copies"));

    scale.world.observed.scale.operations_percent = 5;
    scale.world.run(5_000);
    scale.phase("calm", &format!("{} reads", scale.world.observed.history.reads()));

    let dead: Vec<_> = [0, 1].iter().flat_map(|rack| scale.world.rack(*rack)).collect();
    scale.world.kill(&dead, false, None);
    let lost = scale.world.groups_without_majority();
    println!("{} nodes die at once; {lost} groups of super peers without a majority", dead.len());
    scale.until_served("two racks die", 4_000);
    scale.world.start_again(&dead);
    scale.until("two racks return", 500, |world| world.view().members.len() == nodes);
    scale.world.run(10_000);
    scale.phase("two racks return", "");

    let dead = scale.world.rack(2);
    scale.world.kill(&dead, false, Some(6_000));
    scale.until_served("a rack loses power", 4_000);
    scale.until("the rack returns", 500, |world| world.view().members.len() == nodes);
    scale.world.run(5_000);
    scale.phase("the rack returns", "");

    for rack in 0..racks {
        let restarted = scale.world.rack(rack);
        scale.world.kill(&restarted, true, Some(1_000));
        scale.until("rolling restart", 500, |world| {
            restarted.iter().all(|peer| !world.view().has(*peer))
        });
        scale.until("rolling restart", 500, |world| world.view().members.len() == nodes);
        scale.until("rolling restart", 500, |world| world.unserved() == 0);
        scale.world.run(5_000);
    }
    scale.phase("rolling restart", "all nodes, rack by rack");

    scale.world.observed.is_settling = true;
    scale.until("settle", 500, |world| world.waiting() == 0);
    if !scale.world.read_each(60_000) {
        println!("{} reads are not answered", scale.world.waiting());
        scale.failed = true;
    }
    scale.phase("read all", &format!("{} reads so far", scale.world.observed.history.reads()));

    let violations = scale.world.violations();
    violations.iter().take(10).for_each(|wrong| println!("violation: {wrong}"));
    println!(
        "{} nodes, {} writes acknowledged, {} crashes, {} violations, {:.0} s real, {} KiB a node, \
         fingerprint {:016x}",
        scale.nodes,
        scale.world.observed.history.acknowledged(),
        scale.world.crashes,
        violations.len(),
        all.elapsed().as_secs_f64(),
        (resident_bytes() >> 10) / nodes as u64,
        scale.world.fingerprint(),
    );
    let is_well = violations.is_empty() && !scale.failed;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
