//! Requests for files that hold none: memcached's dumps of keys and CacheLib's distributions.

use std::fs;
use std::io::BufRead;
use std::path::Path;

use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::builder::{Builder, each_line, key_number};
use crate::workload::{Popularity, mix64};

/// Requests that are generated where the user does not say.
const DEFAULT_REQUESTS: u64 = 5_000_000;

/// Bytes that memcached's size of an item has on top of key and value: header, CAS, three ends.
const MEMCACHED_ITEM_BYTES: u64 = 48 + 8 + 3;

/// The most items of a dump that are kept.
const MOST_ITEMS: usize = 50_000_000;

/// How requests are generated.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    /// The number of popular keys that CacheLib's distributions are scaled to.
    pub keys: u64,
    /// Skew of the popularity of the keys of a dump, where CacheLib's files say it themselves.
    pub theta: f64,
    /// Seed of the requests.
    pub seed: u64,
}

/// An item of a dump.
pub struct DumpedItem {
    key: u64,
    value_bytes: u32,
    was_fetched: bool,
    last_access: u64,
}

/// Reads the answer to `lru_crawler metadump all`.
///
/// # Errors
///
/// If a line has no key or no size, or is no line of a dump.
pub fn read_metadump(input: &mut dyn BufRead) -> anyhow::Result<Vec<DumpedItem>> {
    let mut items = Vec::new();
    each_line(input, |line| {
        if line == "END" {
            return Ok(false);
        }
        let field = |name: &str| {
            line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let number = |name: &str| -> anyhow::Result<u64> {
            let text = field(name).with_context(|| format!("'{line}' has no field {name}"))?;
            text.parse().with_context(|| format!("'{name}={text}' is not a number"))
        };
        let key = field("key").with_context(|| format!("'{line}' is no line of a key dump"))?;
        ensure!(items.len() < MOST_ITEMS, "the dump has more than {MOST_ITEMS} items");
        let around = MEMCACHED_ITEM_BYTES + decoded_bytes(key);
        items.push(DumpedItem {
            key: key_number(key),
            value_bytes: u32::try_from(number("size")?.saturating_sub(around))?,
            was_fetched: field("fetch") == Some("yes"),
            last_access: number("la")?,
        });
        Ok(true)
    })?;
    Ok(items)
}

/// Length of a key that is written with `%xx` for some bytes.
fn decoded_bytes(key: &str) -> u64 {
    (key.len() - 2 * key.matches('%').count().min(key.len() / 3)) as u64
}

/// CacheLib's distributions of popularity and sizes.
pub struct CachelibModel {
    /// Share of the requests that ask for a key that no other asks for.
    lone_share: f64,
    buckets: Buckets,
    sizes: Vec<u32>,
    /// Running sums of the weights of `sizes`.
    size_sums: Vec<f64>,
}

/// Groups of keys that are equally popular.
#[derive(serde::Deserialize)]
struct Buckets {
    #[serde(rename = "popularityBuckets")]
    keys: Vec<f64>,
    #[serde(rename = "popularityWeights")]
    weights: Vec<f64>,
}

impl CachelibModel {
    /// Reads a configuration of CacheLib's cachebench and the two files that it names, whose names
    /// may have the same beginning as its own.
    ///
    /// # Errors
    ///
    /// If one of the files is missing, no JSON, or lacks a field.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        #[derive(serde::Deserialize)]
        struct Sizes {
            #[serde(rename = "valSizeRange")]
            bytes: Vec<f64>,
            #[serde(rename = "valSizeRangeProbability")]
            weights: Vec<f64>,
        }
        let config: serde_json::Value = serde_json::from_slice(&fs::read(path)?)?;
        let test = &config["test_config"];
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let prefix = name.strip_suffix("config.json").unwrap_or_default();
        let open = |field: &str| -> anyhow::Result<Vec<u8>> {
            let named = test[field].as_str().with_context(|| format!("it has no {field}"))?;
            let file = path.with_file_name(format!("{prefix}{named}"));
            fs::read(&file).with_context(|| format!("{field} {}", file.display()))
        };
        let buckets: Buckets = serde_json::from_slice(&open("popDistFile")?)?;
        let sizes: Sizes = serde_json::from_slice(&open("valSizeDistFile")?)?;
        let alike = buckets.keys.len() == buckets.weights.len() && !buckets.keys.is_empty();
        ensure!(alike, "popularityBuckets and popularityWeights must have the same length");
        let alike = sizes.bytes.len() == sizes.weights.len() && !sizes.bytes.is_empty();
        ensure!(alike, "valSizeRange and valSizeRangeProbability must have the same length");
        let (lone, get) = (test["loneGetRatio"].as_f64(), test["getRatio"].as_f64());
        let (lone, get) = (lone.unwrap_or(0.0), get.unwrap_or(1.0));
        let all = lone + get;
        ensure!(
            all > 0.0 && lone >= 0.0 && get >= 0.0,
            "getRatio or loneGetRatio must be positive"
        );
        Ok(Self {
            lone_share: lone / all,
            buckets,
            sizes: sizes.bytes.iter().map(|bytes| *bytes as u32).collect(),
            size_sums: running_sums(sizes.weights.iter().copied())?,
        })
    }

    /// The length of a key's value in bytes.
    fn value_bytes(&self, key: u64) -> u32 {
        let share = (mix64(key ^ 0x512e) >> 11) as f64 / (1u64 << 53) as f64;
        self.sizes[place_in(&self.size_sums, share)]
    }
}

/// The sums of the weights up to each.
fn running_sums(weights: impl Iterator<Item = f64>) -> anyhow::Result<Vec<f64>> {
    let mut sum = 0.0;
    let mut sums = Vec::new();
    for weight in weights {
        ensure!(
            weight >= 0.0 && weight.is_finite(),
            "a weight must be a number that is not below 0"
        );
        sum += weight;
        sums.push(sum);
    }
    ensure!(sum > 0.0, "all weights are 0");
    Ok(sums)
}

/// Where `share`, from 0 to 1, falls among weights with these running sums.
fn place_in(sums: &[f64], share: f64) -> usize {
    let target = share * sums[sums.len() - 1];
    sums.partition_point(|sum| *sum <= target).min(sums.len() - 1)
}

impl Generator {
    /// Requests for the items of a dump, which says nothing of their order or number: Zipfian over
    /// the items by rank, those that were fetched first, the last used first among them.
    ///
    /// # Errors
    ///
    /// If there is no item, or theta makes no sense.
    pub fn requests_for_items(
        &self,
        items: &[DumpedItem],
        requests: Option<u64>,
        builder: &mut Builder,
    ) -> anyhow::Result<()> {
        ensure!(!items.is_empty(), "the dump has no item");
        let mut ranked: Vec<&DumpedItem> = items.iter().collect();
        ranked.sort_by_key(|item| (!item.was_fetched, u64::MAX - item.last_access));
        let popularity = Popularity::new(ranked.len() as u64, self.theta)?;
        let mut random = SmallRng::seed_from_u64(self.seed);
        for _ in 0..requests.unwrap_or(DEFAULT_REQUESTS) {
            let item = ranked[popularity.draw(&mut random) as usize];
            builder.add(item.key, Some(item.value_bytes));
        }
        Ok(())
    }

    /// Requests that follow CacheLib's distributions, scaled to `keys` keys.
    ///
    /// # Errors
    ///
    /// If the distributions make no sense.
    pub fn requests_for_model(
        &self,
        model: &CachelibModel,
        requests: Option<u64>,
        builder: &mut Builder,
    ) -> anyhow::Result<()> {
        let sums = running_sums(model.buckets.weights.iter().copied())?;
        let ends = running_sums(model.buckets.keys.iter().copied())?;
        // The hottest keys have buckets of their own: every bucket keeps its place in the order of
        // popularity, and its share of the keys.
        let scale = self.keys as f64 / ends[ends.len() - 1];
        let mut random = SmallRng::seed_from_u64(self.seed);
        let mut lone = u64::MAX;
        for _ in 0..requests.unwrap_or(DEFAULT_REQUESTS) {
            let key = if random.random_range(0.0..1.0) < model.lone_share {
                lone -= 1;
                lone
            } else {
                let bucket = place_in(&sums, random.random_range(0.0..1.0));
                let begin = if bucket == 0 { 0.0 } else { ends[bucket - 1] };
                let position = begin + random.random_range(0.0..1.0) * (ends[bucket] - begin);
                (position * scale) as u64
            };
            builder.add(key, Some(model.value_bytes(key)));
        }
        Ok(())
    }
}
