//! A list under way, of items or of what else there may be many: what it lists, in what format, and
//! how far it has come.

use std::collections::BTreeMap;

use amalgam_index::Cursor;

use crate::compat::slab_classes::CLASSES;

/// What a dump writes about each item.
#[derive(Clone, Debug)]
pub enum DumpFormat {
    /// `lru_crawler metadump`: a line of names and values.
    Metadump(ClassSet),
    /// `lru_crawler mgdump`: a meta get that fetches the item.
    Mgdump(ClassSet),
    /// `stats cachedump`: key, length and expiry.
    Cachedump {
        /// The class to list.
        classes: ClassSet,
        /// Items still to list, at most.
        left: u32,
    },
    /// `stats sizes`: counts by size, rounded up.
    Sizes(BTreeMap<usize, u64>),
    /// `stats conns`: sockets, not items.
    Connections {
        /// The file descriptor of the connection that asks.
        own: i32,
        /// That of the socket that was listed last; -1 at the start.
        after: i32,
    },
    /// `stats detail dump`: prefixes of keys.
    Prefixes {
        /// The prefix that was listed last; None at the start.
        after: Option<Vec<u8>>,
    },
}

/// A set of memcached's slab classes, one bit each.
#[derive(Clone, Copy, Debug)]
pub struct ClassSet(u64);

impl ClassSet {
    /// All classes.
    pub const ALL: Self = Self(u64::MAX);

    /// Parses `all`, `hash`, or numbers separated by commas. None if one is not a class.
    pub fn parse(list: &[u8]) -> Option<Self> {
        if list == b"all" || list == b"hash" {
            return Some(Self::ALL);
        }
        let mut bits = 0;
        for number in list.split(|byte| *byte == b',') {
            let number: u32 = str::from_utf8(number).ok()?.parse().ok()?;
            bits |= 1 << (1..CLASSES).contains(&number).then_some(number)?;
        }
        Some(Self(bits))
    }

    /// The set of one class.
    pub fn one(number: u32) -> Self {
        Self(1_u64.checked_shl(number).unwrap_or(0))
    }

    /// Whether the set contains a class.
    pub fn has(self, number: u32) -> bool {
        self.0 >> number & 1 == 1
    }
}

/// Bytes of an entry of [`DumpFormat::Sizes`], about.
const SIZE_ENTRY_BYTES: usize = 32;

/// The progress of one connection's dump.
#[derive(Clone, Debug)]
pub struct ItemDump {
    /// What it writes about each item.
    pub format: DumpFormat,
    /// Where the scan of items goes on.
    pub cursor: Cursor,
}

impl ItemDump {
    fn new(format: DumpFormat) -> Box<Self> {
        Box::new(Self { format, cursor: Cursor::START })
    }

    /// `lru_crawler metadump`.
    pub fn metadump(classes: ClassSet) -> Box<Self> {
        Self::new(DumpFormat::Metadump(classes))
    }

    /// `lru_crawler mgdump`.
    pub fn mgdump(classes: ClassSet) -> Box<Self> {
        Self::new(DumpFormat::Mgdump(classes))
    }

    /// `stats cachedump`; a limit of 0 means no limit.
    pub fn cachedump(class: u32, limit: u32) -> Box<Self> {
        let left = if limit == 0 { u32::MAX } else { limit };
        Self::new(DumpFormat::Cachedump { classes: ClassSet::one(class), left })
    }

    /// `stats sizes`.
    pub fn sizes() -> Box<Self> {
        Self::new(DumpFormat::Sizes(BTreeMap::new()))
    }

    /// `stats conns`, for the connection with this file descriptor.
    pub fn connections(own: i32) -> Box<Self> {
        Self::new(DumpFormat::Connections { own, after: -1 })
    }

    /// `stats detail dump`.
    pub fn prefixes() -> Box<Self> {
        Self::new(DumpFormat::Prefixes { after: None })
    }

    /// Bytes that it keeps, about.
    pub fn kept_bytes(&self) -> usize {
        let own = match &self.format {
            DumpFormat::Sizes(sizes) => sizes.len() * SIZE_ENTRY_BYTES,
            _ => 0,
        };
        size_of::<Self>() + own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_as_memcached_reads_them() {
        assert!(ClassSet::parse(b"all").is_some_and(|classes| classes.has(1) && classes.has(63)));
        assert!(ClassSet::parse(b"hash").is_some());
        let some = ClassSet::parse(b"1,3,63").unwrap();
        assert!(some.has(1) && !some.has(2) && some.has(3) && some.has(63));
        for list in [&b""[..], b"0", b"64", b"1,", b"x", b"1,x"] {
            assert!(ClassSet::parse(list).is_none(), "{list:?}");
        }
    }
}
