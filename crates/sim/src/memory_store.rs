//! A chunk store on a map, in place of an engine.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{ChunkStore, StoreError};
use amalgam_cluster::ids::ChunkId;

/// Chunks by id.
#[derive(Debug, Default)]
pub struct MemoryStore(BTreeMap<ChunkId, Vec<u8>>);

impl ChunkStore for MemoryStore {
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool {
        let value = self.0.get(&id);
        if let Some(value) = value {
            read(value);
        }
        value.is_some()
    }

    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError> {
        self.0.insert(id, value.to_vec());
        Ok(())
    }

    fn remove(&mut self, id: ChunkId) -> bool {
        self.0.remove(&id).is_some()
    }
}
