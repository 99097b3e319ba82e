//! The one table of engines that can be measured.

use amalgam_index::hotring::{HotRing, HotRingS, RandomMovementEvery};
use amalgam_index::mercury::{MercuryNoLock, MercuryPthread};
use amalgam_index::{Configuration, Store, for_each_engine};

use crate::baselines::{Chaining, GlobalLock, LruCuckoo, Memc3Printed, Null};
use crate::driver::{Mounted, Runner};
use crate::subject::{EngineSubject, Subject};

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Entry {
    /// As `--engine` takes it.
    pub name: &'static str,
    /// What it is, for `--help`.
    pub about: &'static str,
    /// Carries out no writes beside other threads: loaded by one thread, then read only.
    pub is_read_only: bool,
    /// Builds it, given its row's name.
    pub open: fn(&str, &Configuration) -> anyhow::Result<Box<dyn Runner>>,
}

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

/// A row for `S`.
pub const fn entry<S: Subject + 'static>(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, is_read_only: false, open: open::<S> }
}

/// hotring-r of figure 15b, whose heads follow every `R`th request.
const fn every<const R: u32>(name: &'static str, about: &'static str) -> Entry {
    entry::<EngineSubject<HotRing<RandomMovementEvery<R>>>>(name, about)
}

fn open<S: Subject + 'static>(
    _name: &str,
    configuration: &Configuration,
) -> anyhow::Result<Box<dyn Runner>> {
    Ok(Box::new(Mounted::<S>::open(configuration)?))
}

/// HotRing-s(w/o) of figure 12, for factor analyses beside the engine itself.
fn open_without_predecessor(
    name: &str,
    configuration: &Configuration,
) -> anyhow::Result<Box<dyn Runner>> {
    let mut configuration = configuration.clone();
    configuration.tuning.disabled.push("predecessor".to_owned());
    open::<EngineSubject<HotRingS>>(name, &configuration)
}

/// The row called `name`.
///
/// # Errors
///
/// If there is none; lists those that there are.
pub fn find(engines: &[Entry], name: &str) -> anyhow::Result<Entry> {
    engines.iter().find(|entry| entry.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = engines.iter().map(|entry| entry.name).collect();
        anyhow::anyhow!("there is no engine '{name}': choose among {}", names.join(", "))
    })
}
