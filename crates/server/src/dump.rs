//! Lists of items: `lru_crawler metadump` and `mgdump`, `stats cachedump` and `stats sizes`.
//!
//! A dump walks the whole index a slice at a time, as its connection takes what was found, while
//! everybody else is served and writes go on. An item that is there all the time is listed at least
//! once; it may be listed twice where the index grows meanwhile.
//!
//! Invariants of this room:
//! 1. A dump holds a cursor and no more than [`DUMP_BYTES`] (and one slice) of what it found; the
//!    sizes, one number for each 32 bytes up to the largest item.
//! 2. A turn looks at [`SLICES`] slices at most.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;

use amalgam_index::{Cursor, Store, Worker};
use amalgam_op::{ItemView, Now};
use amalgam_protocol::append_decimal;

use crate::batch::{Seat, Turn};
use crate::hot_keys::append_uri_encoded;
use crate::server::Shared;
use crate::statistics::CLASSES;

/// Output of a dump that waits for its client, about.
const DUMP_BYTES: usize = 64 << 10;

/// Buckets of a slice.
const SLICE_BUCKETS: usize = 64;

/// Slices of one turn.
const SLICES: usize = 16;

/// `stats sizes` counts in steps of so many bytes.
const SIZE_STEP_BYTES: usize = 32;

/// What a dump shows of each item.
#[derive(Clone, Debug)]
enum Show {
    /// A line of names and values.
    Facts(Classes),
    /// A meta get that fetches it.
    Get(Classes),
    /// Key, length and end; so many more.
    Brief { classes: Classes, left: u32 },
    /// How many there are of each size.
    Sizes(BTreeMap<usize, u64>),
}

/// The classes asked for, one bit each.
#[derive(Clone, Copy, Debug)]
pub struct Classes(u64);

impl Classes {
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);

    /// Reads `all`, `hash`, or numbers with commas between; none if one is no class.
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

    /// One of them.
    pub fn one(number: u32) -> Self {
        Self(1_u64.checked_shl(number).unwrap_or(0))
    }

    fn has(self, number: u32) -> bool {
        self.0 >> number & 1 == 1
    }
}

/// A dump under way.
#[derive(Clone, Debug)]
pub struct Dump {
    show: Show,
    cursor: Cursor,
}

impl Dump {
    fn new(show: Show) -> Box<Self> {
        Box::new(Self { show, cursor: Cursor::START })
    }

    /// `lru_crawler metadump`.
    pub fn facts(classes: Classes) -> Box<Self> {
        Self::new(Show::Facts(classes))
    }

    /// `lru_crawler mgdump`.
    pub fn gets(classes: Classes) -> Box<Self> {
        Self::new(Show::Get(classes))
    }

    /// `stats cachedump`; a limit of 0 is none.
    pub fn brief(class: u32, limit: u32) -> Box<Self> {
        let left = if limit == 0 { u32::MAX } else { limit };
        Self::new(Show::Brief { classes: Classes::one(class), left })
    }

    /// `stats sizes`.
    pub fn sizes() -> Box<Self> {
        Self::new(Show::Sizes(BTreeMap::new()))
    }

    fn end(&self, out: &mut Vec<u8>) {
        if let Show::Sizes(sizes) = &self.show {
            for (size, count) in sizes {
                let _ = write!(out, "STAT {size} {count}\r\n");
            }
        }
        let is_gets = matches!(self.show, Show::Get(_));
        out.extend_from_slice(if is_gets { b"EN\r\n" } else { b"END\r\n" });
    }

    fn visit<I: Store>(
        &mut self,
        shared: &Shared<I>,
        now: &Now,
        item: &ItemView<'_>,
        out: &mut Vec<u8>,
    ) -> ControlFlow<()> {
        if !now.is_live(item.expiry, item.generation) {
            return ControlFlow::Continue(());
        }
        let (class, size) = shared.class_of(item);
        match &mut self.show {
            Show::Facts(classes) if classes.has(class) => append_facts(out, item, now, class, size),
            Show::Get(classes) if classes.has(class) => append_get(out, item.key),
            Show::Brief { classes, left } if classes.has(class) && is_plain(item.key) => {
                append_brief(out, item, now);
                *left -= 1;
                if *left == 0 {
                    return ControlFlow::Break(());
                }
            }
            Show::Sizes(sizes) => {
                *sizes.entry(size.next_multiple_of(SIZE_STEP_BYTES)).or_default() += 1;
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Goes on with the dump of a connection, if it has one.
pub fn go_on<I: Store>(turn: &mut Turn<'_, '_, I>, seat: &mut Seat) {
    let Some(mut dump) = seat.conversation.dump.take() else { return };
    let (shared, now) = (turn.shared, turn.now);
    let out = &mut seat.output.bytes;
    for _ in 0..SLICES {
        if out.len() >= DUMP_BYTES {
            break;
        }
        let from = dump.cursor;
        let mut is_enough = false;
        let next = turn.index.scan(from, SLICE_BUCKETS, &mut |item| {
            let flow = dump.visit(shared, &now, item, out);
            is_enough |= flow.is_break();
            flow
        });
        match next.filter(|_| !is_enough) {
            Some(cursor) => dump.cursor = cursor,
            None => return dump.end(out),
        }
    }
    seat.conversation.dump = Some(dump);
}

/// Whether a key can stand in a line as it is.
fn is_plain(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

fn append_facts(out: &mut Vec<u8>, item: &ItemView<'_>, now: &Now, class: u32, size: usize) {
    out.extend_from_slice(b"key=");
    append_uri_encoded(out, item.key);
    let unix = |seconds: u32| now.epoch_unix_seconds + i64::from(seconds);
    let end = if item.expiry.0 == 0 { -1 } else { unix(item.expiry.0) };
    let access = unix(item.last_access_seconds.unwrap_or(now.seconds));
    let (cas, flags) = (item.cas.unwrap_or(0), item.flags);
    let fetched = if item.fetched { "yes" } else { "no" };
    // Writing to memory does not fail.
    let _ = writeln!(
        out,
        " exp={end} la={access} cas={cas} fetch={fetched} cls={class} size={size} flags={flags} "
    );
}

fn append_get(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"mg ");
    match is_plain(key) {
        true => out.extend_from_slice(key),
        false => {
            amalgam_protocol::append_base64(out, key);
            out.extend_from_slice(b" b");
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn append_brief(out: &mut Vec<u8>, item: &ItemView<'_>, now: &Now) {
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(item.key);
    out.extend_from_slice(b" [");
    append_decimal(out, item.value.len() as u64);
    let end = if item.expiry.0 == 0 {
        0
    } else {
        now.epoch_unix_seconds.saturating_add(item.expiry.0.into())
    };
    let _ = write!(out, " b; {end} s]\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_as_memcached_reads_them() {
        assert!(Classes::parse(b"all").is_some_and(|classes| classes.has(1) && classes.has(63)));
        assert!(Classes::parse(b"hash").is_some());
        let some = Classes::parse(b"1,3,63").unwrap();
        assert!(some.has(1) && !some.has(2) && some.has(3) && some.has(63));
        for list in [&b""[..], b"0", b"64", b"1,", b"x", b"1,x"] {
            assert!(Classes::parse(list).is_none(), "{list:?}");
        }
    }

    #[test]
    fn keys_are_escaped() {
        let mut out = Vec::new();
        append_uri_encoded(&mut out, b"a-Z_9.~ %/\xff");
        assert_eq!(out, b"a-Z_9.~%20%25%2F%FF");
    }
}
