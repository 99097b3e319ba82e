//! The offline policies against libCacheSim, where its Python module is installed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use amalgam_bench::replay::{PolicyName, Simulation, next_requests};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Policies with their names there, and the part that misses may differ by: another order of equal
/// priorities (GDSF), another sketch and admission (W-TinyLFU).
const POLICIES: [(PolicyName, &str, f64); 9] = [
    (PolicyName::Fifo, "FIFO(cap)", 0.0),
    (PolicyName::Lru, "LRU(cap)", 0.0),
    (PolicyName::Clock1, "Clock(cap)", 0.0),
    (PolicyName::Clock2, "Clock(cap, n_bit_counter=2)", 0.0),
    (PolicyName::Sieve, "Sieve(cap)", 0.0),
    (PolicyName::S3Fifo, "S3FIFO(cap)", 0.002),
    (PolicyName::WTinyLfu, "WTinyLFU(cap)", 0.1),
    (PolicyName::Gdsf, "GDSF(cap)", 0.02),
    (PolicyName::Belady, "Belady(cap)", 0.0),
];

/// Prints the misses of each policy for lines of key, size and position of the next request.
const PROGRAM: &str = "
import sys
try:
    from libcachesim import *
except ImportError:
    sys.exit(3)
cap = CAPACITY
rows = [tuple(map(int, line.split())) for line in sys.stdin]
request = Request()
for constructor in [CONSTRUCTORS]:
    cache, misses = eval(constructor), 0
    for now, (key, size, following) in enumerate(rows):
        request.obj_id, request.obj_size, request.clock_time = key, size, now
        request.next_access_vtime = following if following >= 0 else 1 << 62
        misses += not cache.get(request)
    print(misses)
";

const CAPACITY_BYTES: u64 = 200_000;

/// Requests with a skew, between scans of keys that nobody else asks for, and sizes by key.
fn requests() -> (Vec<u32>, Vec<u32>) {
    let mut random = SmallRng::seed_from_u64(7);
    let mut requests = Vec::new();
    for number in 0..60_000u32 {
        let popular = (random.random_range(0.0f64..1.0).powi(4) * 5000.0) as u32;
        requests.push(if number % 10_000 < 2000 { 5000 + number } else { popular });
    }
    let bytes = (0..65_000).map(|_| random.random_range(20..800)).collect();
    (requests, bytes)
}

fn ours(requests: &[u32], bytes: &[u32], policy: PolicyName) -> u64 {
    let keys = bytes.len() as u32;
    let next = next_requests(requests, keys);
    let simulation = Simulation { requests, next: &next, keys, copies: 1, bytes };
    simulation.misses(policy, CAPACITY_BYTES)
}

#[test]
fn policies_are_ordered_as_they_must_be() {
    let (requests, bytes) = requests();
    let misses = |policy| ours(&requests, &bytes, policy);
    let belady = misses(PolicyName::Belady);
    for policy in PolicyName::ALL {
        let own = misses(policy);
        // GDSF drops large items, which Belady's policy does not.
        assert!(own >= belady || policy == PolicyName::Gdsf, "{} {own}", policy.name());
        assert!(own < misses(PolicyName::Fifo) || policy == PolicyName::Fifo, "{}", policy.name());
    }
    // Scans are what these resist.
    assert!(misses(PolicyName::S3Fifo) < misses(PolicyName::Lru));
    assert!(misses(PolicyName::Sieve) < misses(PolicyName::Clock1));
}

#[test]
fn policies_miss_what_libcachesim_misses() {
    let (requests, bytes) = requests();
    let constructors: String = POLICIES.iter().map(|(_, name, _)| format!("'{name}', ")).collect();
    let program = PROGRAM.replace("CAPACITY", &CAPACITY_BYTES.to_string());
    let program = program.replace("CONSTRUCTORS", &constructors);
    let mut python = Command::new("python3");
    python.args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = python.spawn() else { return eprintln!("not run: there is no python3") };
    let mut rows = String::new();
    for (key, next) in requests.iter().zip(next_requests(&requests, bytes.len() as u32)) {
        let next = if next == u32::MAX { -1 } else { i64::from(next) };
        writeln!(rows, "{key} {} {next}", bytes[*key as usize]).expect("room");
    }
    // Fails where the program ended because the module is missing.
    let _ = child.stdin.take().expect("a pipe").write_all(rows.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    if output.status.code() == Some(3) {
        return eprintln!("not run: there is no Python module libcachesim");
    }
    assert!(output.status.success(), "{:?}", output.status);
    let text = String::from_utf8(output.stdout).expect("numbers");
    let theirs: Vec<f64> = text.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(theirs.len(), POLICIES.len(), "{text}");
    for ((policy, _, tolerance), theirs) in POLICIES.into_iter().zip(theirs) {
        let ratio = ours(&requests, &bytes, policy) as f64 / theirs;
        let name = policy.name();
        assert!((ratio - 1.0).abs() <= tolerance, "{name}: {ratio} of libCacheSim's misses");
    }
}
