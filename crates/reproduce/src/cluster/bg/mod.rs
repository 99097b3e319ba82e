//! The BG benchmark: a social network's actions (Barahmand and Ghandeharizadeh, CIDR 2013), on
//! chunks of a cluster, on Redis and on memcached, with the same clients.

mod member;
mod shared;
mod stores;
mod world;

use amalgam_bench::ensure_usage;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

pub use member::Mix;
use member::{Client, Tally};
use shared::Shared;
use stores::{Backend, Chunks, Memcached, Redis, Store};
use world::World;

use amalgam_bench::measure::{
    Machine, Spread, Timing, allowed_cores, commit, cpu_of_threads_ns, pin_to,
};

/// The part of the peak rate at which latencies are measured.
const HALF: f64 = 0.5;

/// The system that stores the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    /// Chunks of a cluster.
    Amalgam,
    /// A single Redis process.
    Redis,
    /// Several memcached processes; clients choose the one that has a key.
    Memcached,
}

/// Parameters of `bench bg`.
#[derive(Clone, Debug, clap::Args)]
pub struct BgArguments {
    /// The systems that store the objects; several are measured in turns.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "amalgam")]
    pub backend: Vec<BackendName>,
    /// Node processes of the cluster (from two on they need etcd), or of memcached. Redis
    /// is always one.
    #[arg(long, default_value_t = 1)]
    pub nodes: usize,
    /// Members, with 100 friends and 100 resources each.
    #[arg(long, default_value_t = 10_000)]
    pub profiles: u32,
    /// Percent of the actions that write.
    #[arg(long, value_enum, default_value = "1")]
    pub mix: Mix,
    /// Clients, a thread each.
    #[arg(long, default_value_t = 8)]
    pub clients: u32,
    /// Connections that the clients share, as the threads of an application's server do: what they
    /// ask meanwhile travels together [default: one for each client].
    #[arg(long)]
    pub connections: Option<u32>,
    /// Engine of the nodes.
    #[arg(long, default_value = "mercury")]
    pub engine: String,
    /// The program of Redis.
    #[arg(long, value_name = "FILE", default_value = "redis-server")]
    pub redis: PathBuf,
    /// The program of memcached.
    #[arg(long, value_name = "FILE", default_value = "memcached")]
    pub memcached: PathBuf,
    /// The program of etcd.
    #[arg(long, value_name = "FILE", default_value = "etcd")]
    pub etcd: PathBuf,
    /// Seconds of each part of a round.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Rounds, all backends in turns.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The result of one backend: medians of the rounds.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BgResult {
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    /// The system that stored the objects.
    pub backend: &'static str,
    /// The number of server processes.
    pub nodes: usize,
    /// The number of members.
    pub profiles: u32,
    /// The percentage of actions that write.
    pub mix: Mix,
    /// The number of clients.
    pub clients: u32,
    /// The number of connections that the clients share.
    pub connections: u32,
    /// The peak rate in actions a second, at which every client acts without a pause.
    pub actions_per_second: f64,
    /// CPU time of the servers in nanoseconds an action, at the peak rate.
    pub server_cpu_ns_per_action: f64,
    /// `actions_per_second` of all rounds, in order.
    pub rounds_actions_per_second: Vec<f64>,
    /// `server_cpu_ns_per_action` of all rounds, in order.
    pub rounds_server_cpu_ns_per_action: Vec<f64>,
    /// The peak rate over that of Redis; `None` if Redis was not measured in the same rounds.
    pub ratio: Option<f64>,
    /// Values read, in all rounds, that no acknowledged or overlapping write explains.
    pub unpredictable_reads: u64,
    /// The number of actions that wrote, in all rounds.
    pub writes: u64,
    /// The 95th percentile of the latency in milliseconds at half of the peak rate, from when a
    /// client began the action.
    pub p95_ms: f64,
    /// The 99th percentile of the same latency.
    pub p99_ms: f64,
    /// The 99th percentile from when the action was due, which includes delays of the clients'
    /// core.
    pub due_p99_ms: f64,
    /// The 99th percentile from when a client began, without the time that its thread waited for
    /// the clients' core: the servers', the network's and the client's own part. Where clients
    /// share connections, it includes the time that a client waits for another client's thread.
    pub on_core_p99_ms: f64,
    /// The 99th percentile of the latency in milliseconds at the peak rate.
    pub peak_p99_ms: f64,
}

impl BgResult {
    /// The result as one line for people.
    pub fn summary(&self) -> String {
        let ratio = self.ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2})"));
        format!(
            "{:<9} {} nodes  {:>7.0} actions/s  CPU an action {:>6.2} us{ratio}  at half p95 \
             {:.3} ms, p99 {:.3} ms ({:.3} since due, {:.3} without the core's queue), full p99 \
             {:.3} ms  {} unpredictable, {} writes",
            self.backend,
            self.nodes,
            self.actions_per_second,
            self.server_cpu_ns_per_action / 1e3,
            self.p95_ms,
            self.p99_ms,
            self.due_p99_ms,
            self.on_core_p99_ms,
            self.peak_p99_ms,
            self.unpredictable_reads,
            self.writes
        )
    }
}

struct Round {
    rate: f64,
    cpu_ns: f64,
    quantiles_ms: [f64; 5],
    unpredictable: u64,
    writes: u64,
}

/// A backend, the versions that its objects may show, and the measurements.
struct Target<'w> {
    backend: Box<dyn Backend>,
    clients: Vec<Client<'w>>,
    rounds: Vec<Round>,
}

/// Measures all backends in turns: clients on one core, servers on the other.
///
/// # Errors
///
/// If an argument is invalid, or a server cannot be started or fails.
pub fn run(arguments: &BgArguments) -> anyhow::Result<Vec<BgResult>> {
    ensure_usage!((1..=64).contains(&arguments.nodes), "--nodes must be 1 to 64");
    ensure_usage!(arguments.rounds > 0 && arguments.seconds > 0.0, "no rounds, or no time");
    let connections = arguments.connections.unwrap_or(arguments.clients);
    ensure_usage!(
        (1..=arguments.clients).contains(&connections),
        "--connections must be 1 to --clients"
    );
    let cores = allowed_cores();
    let core = cores.get(1).copied().context("two cores are needed")?;
    pin_to(&cores, 0);
    // Each backend has its own world, because versions differ by backend.
    let world = |_: &BackendName| World::new(arguments.profiles, arguments.clients);
    let worlds: Vec<World> = arguments.backend.iter().map(world).collect::<Result<_, _>>()?;
    let mut targets = Vec::new();
    for (name, world) in arguments.backend.iter().zip(&worlds) {
        let backend: Box<dyn Backend> = match name {
            BackendName::Amalgam => Box::new(Chunks::load(arguments, world, core)?),
            BackendName::Redis => Box::new(Redis::load(arguments, world, core)?),
            BackendName::Memcached => Box::new(Memcached::load(arguments, world, core)?),
        };
        eprintln!("{} objects loaded into {}", world.objects(), backend.name());
        let shares = connect(backend.as_ref(), arguments)?;
        let client = |number: u32| {
            let store: Box<dyn Store> = match &shares[..] {
                [] => backend.connect(number as usize)?,
                shares => Box::new(shares[number as usize % shares.len()].clone()),
            };
            Client::new(world, number, arguments.mix, store)
        };
        let clients = (0..arguments.clients).map(client).collect::<Result<Vec<_>, _>>()?;
        targets.push(Target { backend, clients, rounds: Vec::new() });
    }
    for _ in 0..arguments.rounds {
        for target in &mut targets {
            let round = measure(target, arguments)?;
            target.rounds.push(round);
        }
    }
    let base = targets.iter().find(|target| target.backend.name() == "redis");
    Ok(targets.iter().map(|target| result(target, base, arguments)).collect())
}

/// The connections that clients share; none if each has its own.
fn connect(backend: &dyn Backend, arguments: &BgArguments) -> anyhow::Result<Vec<Shared>> {
    let connections = 0..arguments.connections.unwrap_or(0) as usize;
    connections.map(|place| Ok(Shared::new(backend.connect(place)?))).collect()
}

/// Runs all clients at the same time.
fn together(
    clients: &mut [Client<'_>],
    seconds: f64,
    interval: Option<Duration>,
) -> anyhow::Result<Tally> {
    let tallies: Vec<anyhow::Result<Tally>> = std::thread::scope(|scope| {
        let start = |client| scope.spawn(move || Client::act_for(client, seconds, interval));
        let threads: Vec<_> = clients.iter_mut().map(start).collect();
        let panicked = |_| Err(anyhow::anyhow!("a client panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut all = Tally::default();
    for tally in tallies {
        let tally = tally?;
        all.timing.merge(&tally.timing);
        all.since_due.merge(&tally.since_due);
        all.on_core.merge(&tally.on_core);
        all.unpredictable += tally.unpredictable;
        all.writes += tally.writes;
    }
    Ok(all)
}

/// Measures at the peak rate, then at half of it.
fn measure(target: &mut Target<'_>, arguments: &BgArguments) -> anyhow::Result<Round> {
    let pids = target.backend.pids();
    let cpu_ns = || pids.iter().map(|pid| cpu_of_threads_ns(*pid)).sum::<anyhow::Result<u64>>();
    let seconds = arguments.seconds;
    together(&mut target.clients, seconds / 10.0, None)?;
    let (before, began) = (cpu_ns()?, std::time::Instant::now());
    let peak = together(&mut target.clients, seconds, None)?;
    let elapsed = began.elapsed().as_secs_f64();
    let used_ns = cpu_ns()?.saturating_sub(before);
    let actions = peak.timing.operations() as f64;
    let interval = f64::from(arguments.clients) * elapsed / actions / HALF;
    let half = together(&mut target.clients, seconds, Some(Duration::from_secs_f64(interval)))?;
    let quantile_ms = |timing: &Timing, share| timing.quantile_ns(share) as f64 / 1e6;
    Ok(Round {
        rate: actions / elapsed,
        cpu_ns: used_ns as f64 / actions,
        quantiles_ms: [
            quantile_ms(&half.timing, 0.95),
            quantile_ms(&half.timing, 0.99),
            quantile_ms(&half.since_due, 0.99),
            quantile_ms(&half.on_core, 0.99),
            quantile_ms(&peak.timing, 0.99),
        ],
        unpredictable: peak.unpredictable + half.unpredictable,
        writes: peak.writes + half.writes,
    })
}

fn result(target: &Target<'_>, base: Option<&Target<'_>>, arguments: &BgArguments) -> BgResult {
    let rounds = &target.rounds;
    let median = |numbers: Vec<f64>| Spread::of(&numbers).map_or(f64::NAN, |spread| spread.median);
    let of = |number: fn(&Round) -> f64| median(rounds.iter().map(number).collect());
    let ratio = base.map(|base| {
        median(
            rounds.iter().zip(&base.rounds).map(|(one, base)| one.cpu_ns / base.cpu_ns).collect(),
        )
    });
    BgResult {
        commit: commit(),
        machine: Machine::describe(),
        backend: target.backend.name(),
        nodes: target.backend.pids().len(),
        profiles: arguments.profiles,
        mix: arguments.mix,
        clients: arguments.clients,
        connections: arguments.connections.unwrap_or(arguments.clients),
        actions_per_second: of(|round| round.rate),
        server_cpu_ns_per_action: of(|round| round.cpu_ns),
        rounds_actions_per_second: rounds.iter().map(|round| round.rate).collect(),
        rounds_server_cpu_ns_per_action: rounds.iter().map(|round| round.cpu_ns).collect(),
        ratio,
        unpredictable_reads: rounds.iter().map(|round| round.unpredictable).sum(),
        writes: rounds.iter().map(|round| round.writes).sum(),
        p95_ms: of(|round| round.quantiles_ms[0]),
        p99_ms: of(|round| round.quantiles_ms[1]),
        due_p99_ms: of(|round| round.quantiles_ms[2]),
        on_core_p99_ms: of(|round| round.quantiles_ms[3]),
        peak_p99_ms: of(|round| round.quantiles_ms[4]),
    }
}
