//! The one table of engines that can be measured.

use amalgam_bench::driver::engines::{Entry, Variant, entry, variant};
use amalgam_bench::driver::{EngineUnderTest, Runner};
use amalgam_bench::target::EngineTarget;
use amalgam_index::hotring::{
    HotRing, HotRingR, HotRingS, RandomMovement, RandomMovementEvery, StatisticalSampling,
    WithoutMovement, WithoutPredecessor,
};
use amalgam_index::memc3::{Memc3, Memc3Engine, Only, Standard};
use amalgam_index::mercury::{MercuryNoLock, MercuryPthread};
use amalgam_index::model::Model;
use amalgam_index::pipeline::{Pipeline, PipelineEngine};
use amalgam_index::{Configuration, Store, for_each_engine};

use crate::baselines::{Chaining, LruCuckoo, Memc3AsPublished, Memcached14, Null};

/// Lists the engines that serve, from the one table of them, then variants and baselines.
macro_rules! entries {
    ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
        &[
            $(Entry {
                variants: variants_of(<$engine as Store>::NAME),
                ..entry::<EngineTarget<$engine>>(<$engine as Store>::NAME, $about)
            },)+
            entry::<EngineTarget<Model>>("model", "the oracle: one map behind one lock"),
            entry::<EngineTarget<MercuryPthread>>(
                "mercury-pthread",
                "Mercury with a pthread mutex a bucket",
            ),
            Entry {
                is_read_only: true,
                ..entry::<EngineTarget<MercuryNoLock>>(
                    "mercury-nolock",
                    "Mercury whose reads take no locks",
                )
            },
            every::<1>("hotring-r-1", "hotring-r, every request"),
            every::<2>("hotring-r-2", "hotring-r, every second request"),
            every::<10>("hotring-r-10", "hotring-r, every tenth request"),
            every::<50>("hotring-r-50", "hotring-r, every fiftieth request"),
            entry::<EngineTarget<HotRingSWithoutPredecessor>>(
                "hotring-s-wo",
                "hotring-s that counts updates at the item itself",
            ),
            entry::<EngineTarget<Chaining>>(
                "chaining",
                "lock-free chained hashing, as HotRing's baseline",
            ),
            entry::<EngineTarget<Chaining<true>>>(
                "chaining-memcmp",
                "chaining whose reads compare keys byte by byte",
            ),
            Entry {
                variants: GLOBAL_LOCK,
                ..entry::<EngineTarget<Memcached14>>(
                    "global-lock",
                    "chained hashing, one lock, LRU lists: memcached 1.4",
                )
            },
            entry::<LruCuckoo>(
                "lru-cuckoo",
                "MemC3's table, memcached's LRU lists: get and set only",
            ),
            entry::<Memc3AsPublished>(
                "memc3-printed",
                "MemC3 as published: one writer, memory reused at once; get and set only",
            ),
            entry::<Null>("null", "nothing: the driver's own cost"),
        ]
    };
}

/// The engines of this program. Other programs may add theirs.
pub const ENGINES: &[Entry] = for_each_engine!(entries);

/// The hotring-r of figure 15b, whose heads may move at every `R`th request.
const fn every<const R: u32>(name: &'static str, about: &'static str) -> Entry {
    entry::<EngineTarget<HotRing<RandomMovementEvery<R>>>>(name, about)
}

/// The variants of an engine that serves, for factor analyses.
const fn variants_of(name: &str) -> &'static [Variant] {
    match name.as_bytes() {
        b"memc3" => MEMC3,
        b"pipeline" => PIPELINE,
        b"hotring-r" => HOTRING_R,
        b"hotring-s" => HOTRING_S,
        _ => &[],
    }
}

/// Memc3 with `SLOTS` slots per bucket, and with those features that are `true`: tags, optimistic
/// reads, trust in hits.
const fn memc3<const SLOTS: usize, const TAGS: bool, const OPTIMISM: bool, const TRUST: bool>(
    disabled: &'static [&'static str],
) -> Variant {
    variant::<EngineTarget<Memc3Engine<SLOTS, Only<TAGS, OPTIMISM, TRUST>>>>(Some(SLOTS), disabled)
}

/// The features of figure 4. A read that locks needs no trust in its hit.
const MEMC3: &[Variant] = &[
    variant::<EngineTarget<Memc3>>(Some(8), &[]),
    memc3::<8, false, true, true>(&["tag"]),
    memc3::<8, true, false, true>(&["optimistic"]),
    memc3::<8, true, true, false>(&["trust"]),
    memc3::<8, false, false, true>(&["tag", "optimistic"]),
    memc3::<8, true, false, true>(&["optimistic", "trust"]),
    memc3::<8, false, true, false>(&["tag", "trust"]),
    memc3::<8, false, false, true>(&["tag", "optimistic", "trust"]),
    variant::<EngineTarget<Memc3Engine<4, Standard>>>(Some(4), &[]),
    memc3::<4, false, true, true>(&["tag"]),
    memc3::<4, true, false, true>(&["optimistic"]),
    memc3::<4, true, true, false>(&["trust"]),
    memc3::<4, false, false, true>(&["tag", "optimistic"]),
    memc3::<4, true, false, true>(&["optimistic", "trust"]),
    memc3::<4, false, true, false>(&["tag", "trust"]),
    memc3::<4, false, false, true>(&["tag", "optimistic", "trust"]),
];

const PIPELINE: &[Variant] = &[
    variant::<EngineTarget<Pipeline>>(Some(8), &[]),
    variant::<EngineTarget<PipelineEngine<4>>>(Some(4), &[]),
    variant::<EngineTarget<PipelineEngine<16>>>(Some(16), &[]),
];

/// Where heads do not move, it makes no difference for which item an update counts.
const HOTRING_R: &[Variant] = &[
    variant::<EngineTarget<HotRingR>>(None, &[]),
    variant::<EngineTarget<HotRing<WithoutMovement<RandomMovement>>>>(None, &["movement"]),
    variant::<EngineTarget<HotRing<WithoutPredecessor<RandomMovement>>>>(None, &["predecessor"]),
    variant::<EngineTarget<HotRing<WithoutMovement<RandomMovement>>>>(
        None,
        &["movement", "predecessor"],
    ),
];

/// HotRing-s whose heads move for the updated item itself: HotRing-s(w/o) of figure 12.
type HotRingSWithoutPredecessor = HotRing<WithoutPredecessor<StatisticalSampling>>;

const HOTRING_S: &[Variant] = &[
    variant::<EngineTarget<HotRingS>>(None, &[]),
    variant::<EngineTarget<HotRing<WithoutMovement<StatisticalSampling>>>>(None, &["movement"]),
    variant::<EngineTarget<HotRingSWithoutPredecessor>>(None, &["predecessor"]),
    variant::<EngineTarget<HotRing<WithoutMovement<StatisticalSampling>>>>(
        None,
        &["movement", "predecessor"],
    ),
];

const GLOBAL_LOCK: &[Variant] = &[
    variant::<EngineTarget<Memcached14>>(None, &[]),
    Variant { slots: None, disabled: &["lazy-bump"], open: open_without_lazy_bump },
];

fn open_without_lazy_bump(
    _name: &str,
    configuration: &Configuration,
) -> anyhow::Result<Box<dyn Runner>> {
    let target = EngineTarget(Memcached14::without_lazy_bump(configuration)?);
    Ok(Box::new(EngineUnderTest::new(target, configuration)))
}
