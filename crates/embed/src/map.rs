//! A map whose engine is chosen at run time.

use std::time::Duration;

use amalgam_index::{Engine, EngineVisitor, Map, MapBuilder};

use crate::Code;

/// What an [`Open`] opens; 0 stands for the default of the library.
pub(crate) struct Settings {
    pub(crate) memory_bytes: usize,
    pub(crate) max_item_bytes: usize,
}

/// Opens a map of the engine that it visits.
pub(crate) struct Open(pub(crate) Settings);

impl EngineVisitor for Open {
    type Output = Result<Box<dyn AnyMap>, Code>;

    fn visit<E: Engine>(self) -> Self::Output {
        let Settings { memory_bytes, max_item_bytes } = self.0;
        let mut builder = MapBuilder::new();
        if memory_bytes > 0 {
            builder = builder.memory_bytes(memory_bytes);
        }
        if max_item_bytes > 0 {
            builder = builder.max_item_bytes(max_item_bytes);
        }
        Ok(Box::new(builder.open::<E>()?))
    }
}

/// A [`Map`] of any engine, each call with a handle of the map's pool.
pub(crate) trait AnyMap: Send + Sync {
    /// Calls `read` with the position and the value of each key that is found.
    fn get_many(&self, keys: &[&[u8]], read: &mut dyn FnMut(usize, &[u8]));

    /// Stores a value, for ever if `ttl_seconds` is 0.
    fn set(&self, key: &[u8], value: &[u8], ttl_seconds: u64) -> Result<(), Code>;

    /// Removes an item; returns whether there was one.
    fn delete(&self, key: &[u8]) -> bool;

    /// Gives an item a new time to live; returns whether there is one.
    fn expire(&self, key: &[u8], ttl_seconds: u64) -> bool;

    /// Adds to a number, and returns the sum.
    fn increment(&self, key: &[u8], delta: u64) -> Result<u64, Code>;

    /// The number of items.
    fn count(&self) -> u64;
}

impl<E: Engine> AnyMap for Map<E> {
    fn get_many(&self, keys: &[&[u8]], read: &mut dyn FnMut(usize, &[u8])) {
        self.with(|handle| handle.get_many(keys, read));
    }

    fn set(&self, key: &[u8], value: &[u8], ttl_seconds: u64) -> Result<(), Code> {
        Ok(self.with(|handle| match ttl_seconds {
            0 => handle.insert(key, value),
            seconds => handle.insert_for(key, value, Duration::from_secs(seconds)),
        })?)
    }

    fn delete(&self, key: &[u8]) -> bool {
        self.with(|handle| handle.remove(key))
    }

    fn expire(&self, key: &[u8], ttl_seconds: u64) -> bool {
        self.with(|handle| handle.expire_after(key, Duration::from_secs(ttl_seconds)))
    }

    fn increment(&self, key: &[u8], delta: u64) -> Result<u64, Code> {
        Ok(self.with(|handle| handle.increment(key, delta))?)
    }

    fn count(&self) -> u64 {
        self.len()
    }
}
