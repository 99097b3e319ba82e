//! What an heir cannot read in its own log, another holder may.

use std::collections::BTreeSet;

use super::super::record::value_of;
use super::super::{BackupMessage, FETCH_NAMES_MAX, Name, What};
use super::Vault;
use crate::ids::IdRange;
use crate::log::Place;
use crate::overlay::Peer;

/// Bytes of an answer, about: those of one chunk at least.
const ANSWER_BYTES_MAX: usize = 1 << 20;

impl Vault {
    /// An heir of ids asks for some of what a life kept here that is over. What does not fit into
    /// the answer it asks for again. Nothing of that life is taken any more.
    pub fn on_fetch(&mut self, source: Peer, ids: IdRange, names: &[Name]) -> BackupMessage {
        if self.streams.contains_key(&source) {
            self.seal(source);
            self.settle(source, ids);
        }
        let (mut found, mut lacking, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
        let (mut about, mut bytes) = (BTreeSet::new(), 0);
        for name in names.iter().filter(|name| ids.contains(name.id)).take(FETCH_NAMES_MAX) {
            if bytes >= ANSWER_BYTES_MAX {
                break;
            }
            let held = self.streams.get(&source).and_then(|stream| stream.copies.get(name));
            let Some(held) = held else {
                lacking.push(*name);
                continue;
            };
            let is_item = name.id.creator().is_named();
            let what = if held.is_removed {
                if is_item { What::RemoveItem(*name) } else { What::Remove(name.id) }
            } else if let Some(value) = self.value(held.place) {
                bytes += value.len();
                if is_item { What::PutItem(*name, value) } else { What::Put(name.id, value) }
            } else {
                damaged.push(*name);
                continue;
            };
            about.insert(name.id);
            found.push(what);
        }
        let stream = self.streams.get(&source);
        let sessions =
            stream.map_or_else(Vec::new, |stream| stream.answers(|id| about.contains(&id)));
        BackupMessage::Fetched { source, ids, found, sessions, lacking, damaged }
    }

    /// The value of a copy, if it can be read.
    fn value(&mut self, place: Place) -> Option<Vec<u8>> {
        self.log.read(place).ok().as_deref().and_then(value_of)
    }
}
