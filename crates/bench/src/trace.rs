//! Traces of synthetic workloads, for testing programs that read traces.

use std::io::Write;

use crate::measure::parse_count;
use crate::workload::{Action, KeySpace, Recipe, SHORTEST_TEXT_KEY_BYTES, Workload, generate};

/// Write a trace of a workload to standard output.
#[derive(Clone, Debug, clap::Args)]
pub struct TraceArguments {
    /// The mix of operations.
    #[arg(long, value_enum, default_value = "c")]
    pub workload: Workload,
    /// Number of keys at the start; 16M is 16 million, 16Mi is 2^24.
    #[arg(long, value_parser = parse_count, default_value = "1M")]
    pub keys: u64,
    /// Length of a key in bytes.
    #[arg(long, default_value_t = 16)]
    pub key_bytes: usize,
    /// Length of a value in bytes.
    #[arg(long, default_value_t = 100)]
    pub value_bytes: usize,
    /// Skew of the popularity of keys; 0 is uniform [default: 0.99 for the YCSB mixes, else 0].
    #[arg(long)]
    pub theta: Option<f64>,
    /// The number of requests.
    #[arg(long, value_parser = parse_count, default_value = "1M")]
    pub requests: u64,
    /// The number of requests per second.
    #[arg(long, default_value_t = 200_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: u64,
    /// Seed of the requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Writes the lines that the command `watch` of a server would print under this workload.
///
/// # Errors
///
/// If an argument is invalid or the lines cannot be written.
pub fn write(arguments: &TraceArguments, target: &mut dyn Write) -> anyhow::Result<()> {
    let key_bytes = arguments.key_bytes;
    anyhow::ensure!(
        key_bytes >= SHORTEST_TEXT_KEY_BYTES && !arguments.workload.reads_latest(),
        "keys of at least {SHORTEST_TEXT_KEY_BYTES} bytes, and any workload but d"
    );
    let key_space = KeySpace::new(key_bytes)?;
    let recipe = Recipe {
        workload: arguments.workload,
        keys: arguments.keys,
        theta: arguments.theta.unwrap_or(arguments.workload.default_theta()),
        requests: usize::try_from(arguments.requests)?,
        seed: arguments.seed,
    };
    let (mut key, mut inserted) = (vec![0; key_bytes], 0);
    for (number, request) in generate(&recipe, 0)?.first.into_iter().enumerate() {
        let micros = number as u64 * 1_000_000 / arguments.rate;
        let head = format!("ts={}.{:06} gid={number}", micros / 1_000_000, micros % 1_000_000);
        let action = request.action();
        let mut id = request.number();
        if action == Action::Insert {
            id = u32::try_from(arguments.keys + inserted)?;
            inserted += 1;
        }
        key_space.write_text(id, &mut key);
        let key = std::str::from_utf8(&key)?;
        let size = arguments.value_bytes;
        if matches!(action, Action::Read | Action::ReadModifyWrite) {
            let (status, size) = if arguments.workload == Workload::Miss {
                ("not_found", 0)
            } else {
                ("found", size)
            };
            writeln!(
                target,
                "{head} type=item_get key={key} status={status} clsid=1 cfd=1 size={size}"
            )?;
        }
        if action != Action::Read {
            writeln!(
                target,
                "{head} type=item_store key={key} status=stored cmd=set ttl=0 clsid=1 cfd=1 \
                 size={size}"
            )?;
        }
    }
    Ok(target.flush()?)
}
