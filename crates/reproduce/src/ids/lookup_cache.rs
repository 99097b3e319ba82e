//! Measures how much time a client's cache of ranges saves (DXRAM, figure 4), by lookups of owners
//! for consecutive ids, after ranges of 1 to 100 ids migrated.

use std::time::Instant;

use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::ranges::{MapLimits, Placement, RangeCache, RangeMap};
use anyhow::ensure;

use crate::ids::arguments::LookupCacheArguments;
use crate::ids::moves::{CREATOR, id_of, ids_of, node};
use crate::ids::super_peer::{Client, SuperPeer};
use amalgam_bench::Usage;
use amalgam_bench::measure::{Machine, Spread, allowed_cores, commit, pin_to};
use amalgam_bench::workload::mix64;

/// The longest range that migrates.
const LENGTH_MAX: u64 = 100;
const NODES: u64 = 999;

/// A result: the parameters, then the measurements.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LookupCacheResult {
    /// The commit that this program was built from; see [`commit`].
    pub commit: &'static str,
    /// The machine that was measured; see [`Machine`].
    pub machine: Machine,
    ids: u64,
    migrated: f64,
    requests: u64,
    uncached_requests: u64,
    cache_limit_bytes: u64,
    rounds: usize,
    seed: u64,
    /// Time of a lookup with the cache in nanoseconds, including those that asked a super peer; the
    /// median of the rounds.
    pub cached_ns: f64,
    /// Time in nanoseconds of a lookup that asks a super peer over a loopback connection; the
    /// median of the rounds.
    pub uncached_ns: f64,
    /// The share of the time that the cache saves, 1 - cached / uncached; the median of the rounds.
    pub saved: f64,
    /// The smallest and the largest `saved` of the rounds.
    pub saved_min_max: [f64; 2],
    /// `saved` of all rounds, in order.
    pub rounds_saved: Vec<f64>,
    /// `cached_ns` of all rounds, in order.
    pub rounds_cached_ns: Vec<f64>,
    /// `uncached_ns` of all rounds, in order.
    pub rounds_uncached_ns: Vec<f64>,
    /// The share of lookups that the cache did not answer.
    pub miss_ratio: f64,
    /// The size of the cache in bytes at the end.
    pub cache_bytes: u64,
    /// The number of ranges that the super peer keeps.
    pub ranges: u64,
}

impl LookupCacheResult {
    /// The result as one line for people.
    pub fn summary(&self) -> String {
        format!(
            "{} ids, {} % migrated  cached {} ns  uncached {} ns  saved {:.2} %  misses {:.3} %",
            self.ids,
            self.migrated * 100.0,
            self.cached_ns,
            self.uncached_ns,
            self.saved * 100.0,
            self.miss_ratio * 100.0,
        )
    }
}

/// Measures lookups with and without a cache in turns.
///
/// # Errors
///
/// If an argument is invalid, a socket fails, or the cache answers wrongly.
pub fn run(arguments: &LookupCacheArguments) -> anyhow::Result<LookupCacheResult> {
    arguments.check().usage()?;
    let map = migrated_map(arguments)?;
    let ranges = map.ranges().count() as u64;
    let super_peer = SuperPeer::start(map)?;
    pin_to(&allowed_cores(), 0);
    let mut client = Client::connect(super_peer.address)?;
    let mut cache = RangeCache::new(usize::try_from(arguments.cache_bytes)?);
    let mut figures = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..arguments.rounds as u64 {
        let first = round * arguments.requests;
        let asked = |count: u64| (first..first + count).map(id_of);
        let started = Instant::now();
        let uncached_sum =
            sum(asked(arguments.uncached_requests), |id| Ok(client.ask(id)?.placement))?;
        let uncached = per_request(started, arguments.uncached_requests);
        let started = Instant::now();
        sum(asked(arguments.requests), |id| {
            if let Some(range) = cache.find(id) {
                return Ok(range.placement);
            }
            let range = client.ask(id)?;
            cache.learn(range);
            Ok(range.placement)
        })?;
        let cached = per_request(started, arguments.requests);
        let again = sum(asked(arguments.uncached_requests), |id| match cache.find(id) {
            Some(range) => Ok(range.placement),
            None => Ok(client.ask(id)?.placement),
        })?;
        ensure!(again == uncached_sum, "the cache answers otherwise than the super peer");
        let saved = 1.0 - cached / uncached;
        figures.iter_mut().zip([cached, uncached, saved]).for_each(|(all, one)| all.push(one));
    }
    drop(client);
    super_peer.join()?;
    Ok(result(arguments, &figures, &cache, ranges))
}

/// The sum of the owners of ids, on which both ways of lookup must agree.
fn sum(
    ids: impl Iterator<Item = ChunkId>,
    mut find: impl FnMut(ChunkId) -> anyhow::Result<Placement>,
) -> anyhow::Result<u64> {
    ids.map(|id| Ok(u64::from(find(id)?.owner().get()))).sum()
}

fn per_request(started: Instant, requests: u64) -> f64 {
    started.elapsed().as_nanos() as f64 / requests as f64
}

fn migrated_map(arguments: &LookupCacheArguments) -> anyhow::Result<RangeMap> {
    let mut map = RangeMap::new(MapLimits::default());
    map.insert(ids_of(0, arguments.ids), Placement::of_owner(node(CREATOR)))?;
    let wanted = (arguments.ids as f64 * arguments.migrated) as u64;
    let (mut moved, mut number) = (0, mix64(arguments.seed));
    while moved < wanted {
        let drawn = mix64(number);
        let length = (1 + drawn % LENGTH_MAX).min(wanted - moved);
        let start = mix64(!number) % (arguments.ids - length);
        let owner = 2 + ((drawn >> 32) % NODES) as u16;
        map.migrate(ids_of(start, start + length), Placement::of_owner(node(owner)))?;
        moved += length;
        number = number.wrapping_add(1);
    }
    Ok(map)
}

fn result(
    arguments: &LookupCacheArguments,
    figures: &[Vec<f64>; 3],
    cache: &RangeCache,
    ranges: u64,
) -> LookupCacheResult {
    let spread = |numbers: &Vec<f64>| {
        Spread::of(numbers).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 })
    };
    let [cached, uncached, saved] = [0, 1, 2].map(|place| spread(&figures[place]));
    let rounded = |number: f64| (number * 1e5).round() / 1e5;
    let statistics = cache.statistics();
    let asked = statistics.hits + statistics.misses;
    LookupCacheResult {
        commit: commit(),
        machine: Machine::describe(),
        ids: arguments.ids,
        migrated: arguments.migrated,
        requests: arguments.requests,
        uncached_requests: arguments.uncached_requests,
        cache_limit_bytes: arguments.cache_bytes,
        rounds: arguments.rounds,
        seed: arguments.seed,
        cached_ns: (cached.median * 10.0).round() / 10.0,
        uncached_ns: uncached.median.round(),
        saved: rounded(saved.median),
        saved_min_max: [rounded(saved.min), rounded(saved.max)],
        rounds_saved: figures[2].iter().map(|one| rounded(*one)).collect(),
        rounds_cached_ns: figures[0].iter().map(|one| (one * 10.0).round() / 10.0).collect(),
        rounds_uncached_ns: figures[1].iter().map(|one| one.round()).collect(),
        miss_ratio: statistics.misses as f64 / asked.max(1) as f64,
        cache_bytes: cache.bytes() as u64,
        ranges,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(cache_bytes: u64) -> LookupCacheArguments {
        LookupCacheArguments {
            ids: 30_000,
            migrated: 0.1,
            requests: 10_000,
            uncached_requests: 500,
            cache_bytes,
            rounds: 3,
            seed: 3,
            json: false,
        }
    }

    #[test]
    fn the_cache_answers_what_the_super_peer_would() {
        let result = run(&arguments(64 << 20)).expect("measured");
        assert!(result.ranges > 60 && result.miss_ratio < 0.02, "{result:?}");
        assert!(result.cached_ns > 0.0 && result.uncached_ns > 0.0);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            LookupCacheArguments { ids: 10, ..arguments(0) },
            LookupCacheArguments { requests: 20_000, ..arguments(0) },
            LookupCacheArguments { uncached_requests: 20_000, ..arguments(0) },
            LookupCacheArguments { migrated: f64::NAN, ..arguments(0) },
            LookupCacheArguments { rounds: 0, ..arguments(0) },
        ] {
            assert!(run(&wrong).is_err(), "{wrong:?}");
        }
    }
}
