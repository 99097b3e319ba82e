//! What a table of engines is made of: [`Entry`] says how an engine is called and opened.

use amalgam_index::Configuration;

use crate::driver::{Mounted, Runner};
use crate::target::Subject;

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

/// A row for `S`.
pub const fn entry<S: Subject + 'static>(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, is_read_only: false, open: open::<S> }
}

fn open<S: Subject + 'static>(
    _name: &str,
    configuration: &Configuration,
) -> anyhow::Result<Box<dyn Runner>> {
    Ok(Box::new(Mounted::<S>::open(configuration)?))
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
