//! The table of engines: serve, cluster, advise, the laboratory and the conformance suite read it.
//!
//! To add an engine, write a folder next to this file, a line in [`for_each_engine!`] and a page in
//! `docs/`. A line is a module name for tests, the type, what the engine is, and what to choose it
//! for. The name that `--engine` takes is the type's [`Store::NAME`]. CONTRIBUTING.md
//! ("Where things go") has the lists that need its name too.
//!
//! The oracle, [`crate::model`], is none of them: it serves nobody, and is not part of the product.

use crate::{Engine, Store};

/// The name of the engine to use if none is asked for.
pub const DEFAULT_ENGINE: &str = <crate::mercury::Mercury as Store>::NAME;

/// What people read of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// The name of the engine, as `--engine` takes it.
    pub name: &'static str,
    /// What it is, in half a line.
    pub about: &'static str,
    /// What to choose it for, in half a line.
    pub choose_for: &'static str,
}

/// Expands to `$callback! { … }` with the table of engines, each as
/// `module: Type, "what it is", "what to choose it for";`.
#[macro_export]
macro_rules! for_each_engine {
    ($callback:ident) => {
        $callback! {
            mercury: $crate::mercury::Mercury,
                "a lock, a moved bit and a chain in each bucket's word",
                "the default: reads and writes that scale alike";
            memc3: $crate::memc3::Memc3,
                "optimistic cuckoo hashing",
                "many small items, mostly read; the smallest index";
            hotring_r: $crate::hotring::HotRingR,
                "rings whose heads follow every fifth request",
                "a few keys that get most of the requests";
            hotring_s: $crate::hotring::HotRingS,
                "rings whose heads follow sampled accesses",
                "as hotring-r, where what is hot stays so: it counts before it moves";
            pipeline: $crate::pipeline::Pipeline,
                "fixed buckets, keys striped over lines, as in hardware",
                "the same work for every request; trusted clients, short keys";
        }
    };
}

macro_rules! infos {
    ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
        &[$(EngineInfo {
            name: <$engine as Store>::NAME,
            about: $about,
            choose_for: $choose_for,
        }),+]
    };
}

/// The engines, the default first.
pub const ENGINES: &[EngineInfo] = for_each_engine!(infos);

/// A computation that is generic over the engine, for [`with_engine`].
pub trait EngineVisitor {
    /// What it returns.
    type Output;

    /// Runs it for engine `E`.
    fn visit<E: Engine>(self) -> Self::Output;
}

/// Runs `visitor` for the engine called `name`; None if there is no such engine. The choice costs a
/// few string comparisons, once: all that `visitor` does is compiled for its engine.
pub fn with_engine<V: EngineVisitor>(name: &str, visitor: V) -> Option<V::Output> {
    macro_rules! visit {
        ($($module:ident: $engine:ty, $about:literal, $choose_for:literal;)+) => {
            match name {
                $(<$engine as Store>::NAME => Some(visitor.visit::<$engine>()),)+
                _ => None,
            }
        };
    }
    for_each_engine!(visit)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Name;

    impl EngineVisitor for Name {
        type Output = &'static str;

        fn visit<E: Engine>(self) -> &'static str {
            E::NAME
        }
    }

    #[test]
    fn each_engine_is_found_by_its_name() {
        for info in ENGINES {
            assert_eq!(with_engine(info.name, Name), Some(info.name));
            assert_eq!(ENGINES.iter().filter(|other| other.name == info.name).count(), 1);
        }
        assert_eq!(with_engine("mercury ", Name), None);
        assert_eq!(ENGINES[0].name, DEFAULT_ENGINE);
    }
}
