//! The rows of a table of engines: [`Entry`] holds an engine's name and constructor.

use amalgam_index::Configuration;
use anyhow::{bail, ensure};

use crate::driver::{EngineUnderTest, Runner};
use crate::target::Target;

/// A row of the table: an engine.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name, as `--engine` takes it.
    pub name: &'static str,
    /// The description that `--help` prints.
    pub about: &'static str,
    /// The engine cannot write concurrently: one thread loads it, then it is only read.
    pub is_read_only: bool,
    /// Builds the engine, given its row's name.
    pub open: Open,
    /// The variants that `--slots` and `--disable` choose from; `open` builds the first. Empty if
    /// the engine has no variants.
    pub variants: &'static [Variant],
}

/// Builds an engine, given its row's name.
pub type Open = fn(&str, &Configuration) -> anyhow::Result<Box<dyn Runner>>;

/// An engine that is compiled with another number of slots per bucket, or without some features.
#[derive(Clone, Copy)]
pub struct Variant {
    /// The number of slots per bucket; `None` if the engine has no buckets of slots.
    pub slots: Option<usize>,
    /// The disabled features, as `--disable` takes them, in any order.
    pub disabled: &'static [&'static str],
    /// Builds the variant.
    pub open: Open,
}

/// The row of the engine `S`.
pub const fn entry<S: Target + 'static>(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, is_read_only: false, open: open::<S>, variants: &[] }
}

/// The row of the variant `S`.
pub const fn variant<S: Target + 'static>(
    slots: Option<usize>,
    disabled: &'static [&'static str],
) -> Variant {
    Variant { slots, disabled, open: open::<S> }
}

impl Entry {
    /// The constructor of the variant that `--slots` and `--disable` choose. An engine without
    /// buckets of slots ignores `slots`.
    ///
    /// # Errors
    ///
    /// If the engine has no such variant.
    pub fn with(self, slots: Option<usize>, disabled: &[String]) -> anyhow::Result<Self> {
        let name = self.name;
        let features = self.variants.iter().flat_map(|variant| variant.disabled);
        let features: std::collections::BTreeSet<_> = features.copied().collect();
        if let Some(unknown) = disabled.iter().find(|one| !features.contains(one.as_str())) {
            ensure!(
                !features.is_empty(),
                "cannot disable '{unknown}': {name} has no optional features"
            );
            let features: Vec<_> = features.into_iter().collect();
            bail!("cannot disable '{unknown}': the features of {name} are {}", features.join(", "));
        }
        let Some(default) = self.variants.first() else { return Ok(self) };
        let slots = default.slots.and(slots).or(default.slots);
        let is_asked_for = |variant: &&Variant| {
            variant.slots == slots
                && variant.disabled.iter().all(|one| disabled.iter().any(|other| other == one))
                && disabled.iter().all(|one| variant.disabled.contains(&one.as_str()))
        };
        let Some(variant) = self.variants.iter().find(is_asked_for) else {
            let mut known: Vec<_> = self.variants.iter().filter_map(|one| one.slots).collect();
            known.dedup();
            bail!(
                "{name} has no variant with --slots {} and --disable '{}': it has buckets of \
                 {known:?} slots",
                slots.map_or("default".to_owned(), |slots| slots.to_string()),
                disabled.join(",")
            );
        };
        Ok(Self { open: variant.open, ..self })
    }
}

fn open<S: Target + 'static>(
    _name: &str,
    configuration: &Configuration,
) -> anyhow::Result<Box<dyn Runner>> {
    Ok(Box::new(EngineUnderTest::<S>::open(configuration)?))
}

/// The row called `name`.
///
/// # Errors
///
/// If there is no such row; the error lists the existing ones.
pub fn find(engines: &[Entry], name: &str) -> anyhow::Result<Entry> {
    engines.iter().find(|entry| entry.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = engines.iter().map(|entry| entry.name).collect();
        anyhow::anyhow!("there is no engine '{name}': choose among {}", names.join(", "))
    })
}
