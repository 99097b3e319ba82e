//! The one table of engines that can be measured.

use amalgam_bench::driver::Runner;
use amalgam_bench::engines::{Entry, entry};
use amalgam_bench::target::EngineSubject;
use amalgam_index::hotring::{HotRing, HotRingS, RandomMovementEvery};
use amalgam_index::mercury::{MercuryNoLock, MercuryPthread};
use amalgam_index::{Configuration, Store, for_each_engine};

use crate::baselines::{Chaining, GlobalLock, LruCuckoo, Memc3Printed, Null};

/// The engines that serve, from the one table of them, and variants and baselines beside them.
macro_rules! entries {
    ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
        &[
            $(entry::<EngineSubject<$engine>>(<$engine as Store>::NAME, $about),)+
            entry::<EngineSubject<MercuryPthread>>(
                "mercury-pthread",
                "Mercury with a pthread mutex a bucket",
            ),
            Entry {
                is_read_only: true,
                ..entry::<EngineSubject<MercuryNoLock>>(
                    "mercury-nolock",
                    "Mercury whose reads take no locks",
                )
            },
            every::<1>("hotring-r-1", "hotring-r, every request"),
            every::<2>("hotring-r-2", "every second"),
            every::<10>("hotring-r-10", "every tenth"),
            every::<50>("hotring-r-50", "every fiftieth"),
            Entry {
                open: open_without_predecessor,
                ..entry::<EngineSubject<HotRingS>>(
                    "hotring-s-wo",
                    "hotring-s that counts updates at the item itself",
                )
            },
            entry::<EngineSubject<Chaining>>(
                "chaining",
                "lock-free chained hashing, as HotRing's baseline",
            ),
            entry::<EngineSubject<Chaining<true>>>(
                "chaining-memcmp",
                "the same, keys compared byte by byte",
            ),
            entry::<EngineSubject<GlobalLock>>(
                "global-lock",
                "chained hashing, one lock, LRU lists: memcached 1.4",
            ),
            entry::<LruCuckoo>(
                "lru-cuckoo",
                "MemC3's table, memcached's LRU lists: get and set only",
            ),
            entry::<Memc3Printed>(
                "memc3-printed",
                "MemC3 as printed: one writer, memory reused at once, reads validated; get, set only",
            ),
            entry::<Null>("null", "nothing: the driver's own cost"),
        ]
    };
}

/// The engines of this program. Other programs may add theirs.
pub const ENGINES: &[Entry] = for_each_engine!(entries);

/// hotring-r of figure 15b, whose heads follow every `R`th request.
const fn every<const R: u32>(name: &'static str, about: &'static str) -> Entry {
    entry::<EngineSubject<HotRing<RandomMovementEvery<R>>>>(name, about)
}

/// HotRing-s(w/o) of figure 12, for factor analyses beside the engine itself.
fn open_without_predecessor(
    name: &str,
    configuration: &Configuration,
) -> anyhow::Result<Box<dyn Runner>> {
    let mut configuration = configuration.clone();
    configuration.tuning.disabled.push("predecessor".to_owned());
    (entry::<EngineSubject<HotRingS>>("", "").open)(name, &configuration)
}
