//! Runs rounds of the targets in alternation: A B A B ….

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Usage;
use crate::client::answers::Reader;
use crate::client::arguments::{Protocol, ServerArguments, address_of};
use crate::client::connections::{Connections, Phase, Tally};
use crate::client::load::load;
use crate::client::result::{Round, ServerResult};
use crate::client::script::Script;
use crate::measure::{cpu_of_threads_ns, pin_to};

/// The length of the warm-up, as a share of a round.
const WARM_UP_SHARE: f64 = 0.2;

/// File descriptors for everything but connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// One server under measurement.
struct Target<'a> {
    name: &'a str,
    address: SocketAddr,
    pid: Option<u32>,
    rounds: Vec<Round>,
    refused_at_load: u64,
    /// The idle connections of `--idle`, kept open until the end.
    _idle: Vec<TcpStream>,
}

/// Measures every target of `arguments` and returns one result for each.
///
/// # Errors
///
/// If an argument is invalid, or a server cannot be reached, closes a connection or sends a
/// malformed reply.
pub fn run(arguments: &ServerArguments) -> anyhow::Result<Vec<ServerResult>> {
    arguments.check().usage()?;
    let address = |name: &String| address_of(name).usage();
    let addresses: Vec<_> = arguments.target.iter().map(address).collect::<Result<_, _>>()?;
    allow_descriptors(arguments)?;
    eprintln!("generating {} requests a thread", arguments.request_count());
    let script = |thread| Script::new(arguments, thread);
    let scripts: Vec<Script> = (0..arguments.threads).map(script).collect::<Result<_, _>>()?;
    let mut targets = Vec::new();
    for (number, (name, address)) in arguments.target.iter().zip(addresses).enumerate() {
        let pid = arguments.server_pid.get(number).copied();
        targets.push(prepare(arguments, name, address, pid)?);
    }
    for number in 0..arguments.round_count() {
        for target in &mut targets {
            let round = measure(arguments, &scripts, target)?;
            let (name, rate) = (target.name, round.requests_per_second);
            eprintln!("round {}: {name} {rate:.0} requests/s", number + 1);
            target.rounds.push(round);
        }
    }
    let is_reference = |target: &&Target<'_>| Some(target.name) == arguments.ratio_to.as_deref();
    let reference = targets.iter().find(is_reference).map(|target| target.rounds.as_slice());
    let result = |target: &Target<'_>| {
        let refused = target.refused_at_load;
        ServerResult::new(arguments, target.name, &target.rounds, reference, refused)
    };
    Ok(targets.iter().map(result).collect())
}

/// Raises this process's limit of open files to what the connections need.
fn allow_descriptors(arguments: &ServerArguments) -> anyhow::Result<()> {
    let idle = arguments.idle * arguments.target.len();
    let needed = (arguments.connections + idle) as u64 + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= needed),
        "the connections need {needed} open files; raise the limit (ulimit -n)"
    );
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("raising the limit of open files")
}

fn prepare<'a>(
    arguments: &ServerArguments,
    name: &'a str,
    address: SocketAddr,
    pid: Option<u32>,
) -> anyhow::Result<Target<'a>> {
    if let Some(pid) = pid {
        cpu_of_threads_ns(pid)?;
    }
    let mut refused_at_load = 0;
    if !arguments.no_load {
        eprintln!("{name}: storing {} keys", arguments.keys);
        refused_at_load = load(arguments, address)?;
    }
    let connect = |_| TcpStream::connect(address);
    let idle = (0..arguments.idle).map(connect).collect::<Result<Vec<_>, _>>();
    let idle = idle.with_context(|| format!("idle connections to {name}"))?;
    Ok(Target { name, address, pid, rounds: Vec::new(), refused_at_load, _idle: idle })
}

fn measure(
    arguments: &ServerArguments,
    scripts: &[Script],
    target: &Target<'_>,
) -> anyhow::Result<Round> {
    let phase = Phase::new();
    let reader = Reader::new(
        arguments.protocol,
        arguments.multi,
        arguments.key_bytes,
        arguments.value_bytes,
        arguments.verify,
    );
    let run_thread = |thread: usize, script| -> anyhow::Result<Tally> {
        pin_to(&arguments.cores, thread);
        // The first threads take one connection more where the number does not divide.
        let extra = usize::from(thread < arguments.connections % arguments.threads);
        let count = arguments.connections / arguments.threads + extra;
        let is_udp = arguments.protocol == Protocol::Udp;
        let connections = Connections::open(
            script,
            reader.clone(),
            arguments.depth,
            target.address,
            is_udp,
            count,
        )?;
        connections.run(&phase)
    };
    let cpu = || target.pid.map(cpu_of_threads_ns).transpose();
    std::thread::scope(|scope| {
        let (phase, run_thread) = (&phase, &run_thread);
        let spawn = |(thread, script)| scope.spawn(move || run_thread(thread, script));
        let threads: Vec<_> = scripts.iter().enumerate().map(spawn).collect();
        let _stopper = Stopper(phase);
        // A thread ends early only by an error, which the join below returns.
        let is_over = || threads.iter().any(|thread| thread.is_finished());
        wait(arguments.seconds * WARM_UP_SHARE, is_over);
        let before = cpu()?;
        phase.set(Phase::MEASURE);
        wait(arguments.seconds, is_over);
        let after = cpu()?;
        phase.set(Phase::STOP);
        let mut tally = Tally::new();
        for thread in threads {
            let joined = thread.join();
            tally.merge(&joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        let spent = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(Round::new(&tally, spent))
    })
}

/// Stops the client threads when it is dropped, also on an early return.
struct Stopper<'p>(&'p Phase);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.set(Phase::STOP);
    }
}

/// Sleeps for `seconds`, or until `is_over`.
fn wait(seconds: f64, is_over: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs_f64(seconds);
    while !is_over() {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}
