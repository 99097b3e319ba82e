//! Lists of items: `lru_crawler metadump` and `mgdump`, `stats cachedump` and `stats sizes`; and of
//! what else there may be many, `stats conns` and `stats detail dump`.
//!
//! A dump of items walks the whole store a slice at a time, as fast as its connection takes the
//! output, while other connections are served and writes go on. An item that exists during the
//! whole dump is listed at least once; it may be listed twice if the store grows meanwhile.
//!
//! Invariants:
//! 1. A dump holds a cursor and at most [`DUMP_BYTES`] plus one slice of output; `stats sizes`
//!    holds one count for each 32 bytes up to the largest item.
//! 2. All dumps of an iteration of a worker's loop share its slices ([`TurnBudget`]), the one that
//!    waits for the longest first. The others wait for the next iteration.
//!
//! [`TurnBudget`]: crate::connections::protocol_state::TurnBudget

use std::io::Write;
use std::ops::ControlFlow;

use amalgam_index::{Store, Worker};
use amalgam_op::{ItemView, Now};
use amalgam_protocol::append_decimal;

use crate::connections::item_dump::{DumpFormat, ItemDump};
use crate::report::connections::conns;
use crate::request::context::BatchContext;
use crate::request::slot::RequestSlot;
use crate::state::server_state::ServerState;
use crate::uri::append_uri_encoded;

/// Unsent output from which on a dump waits for its client.
const DUMP_BYTES: usize = 64 << 10;

/// Buckets scanned at once.
const SLICE_BUCKETS: usize = 64;

/// Prefixes listed at once.
const SLICE_PREFIXES: usize = 128;

/// The resolution of `stats sizes`, in bytes.
const SIZE_STEP_BYTES: usize = 32;

/// Appends the end of a dump, and the counts of `stats sizes`.
fn append_end(dump: &ItemDump, out: &mut Vec<u8>) {
    if let DumpFormat::Sizes(sizes) = &dump.format {
        for (size, count) in sizes {
            let _ = write!(out, "STAT {size} {count}\r\n");
        }
    }
    let is_mgdump = matches!(dump.format, DumpFormat::Mgdump(_));
    out.extend_from_slice(if is_mgdump { b"EN\r\n" } else { b"END\r\n" });
}

/// Appends the line of an item; breaks when the dump has reached its limit.
fn append_item<S: Store>(
    dump: &mut ItemDump,
    state: &ServerState<S>,
    now: &Now,
    item: &ItemView<'_>,
    out: &mut Vec<u8>,
) -> ControlFlow<()> {
    if !now.is_live(item.expiry, item.generation) {
        return ControlFlow::Continue(());
    }
    let (class, size) = state.class_of(item);
    match &mut dump.format {
        DumpFormat::Metadump(classes) if classes.has(class) => {
            append_metadump(out, item, now, class, size);
        }
        DumpFormat::Mgdump(classes) if classes.has(class) => append_mgdump(out, item.key),
        DumpFormat::Cachedump { classes, left } if classes.has(class) && is_plain(item.key) => {
            append_cachedump(out, item, now);
            *left -= 1;
            if *left == 0 {
                return ControlFlow::Break(());
            }
        }
        DumpFormat::Sizes(sizes) => {
            *sizes.entry(size.next_multiple_of(SIZE_STEP_BYTES)).or_default() += 1;
        }
        _ => {}
    }
    ControlFlow::Continue(())
}

/// Continues a dump.
pub fn continue_dump<S: Store>(context: &mut BatchContext<'_, '_, S>, slot: &mut RequestSlot) {
    let Some(mut dump) = slot.protocol_state.dump.take() else { return };
    while slot.output.bytes.len() < DUMP_BYTES && context.turn.slices > 0 {
        context.turn.slices -= 1;
        if append_slice(context, &mut dump, &mut slot.output.bytes) {
            return append_end(&dump, &mut slot.output.bytes);
        }
    }
    if slot.is_connection() {
        slot.protocol_state.dump = Some(dump);
    } else {
        // It is too long for a datagram, or there was no time for it.
        slot.output.bytes.resize(slot.output_limit_bytes, b' ');
    }
}

/// Appends the next slice. Returns whether it was the last.
fn append_slice<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    dump: &mut ItemDump,
    out: &mut Vec<u8>,
) -> bool {
    let (state, now) = (context.state, context.now);
    match &mut dump.format {
        DumpFormat::Connections { own, after } => {
            let last = conns(state, *own, *after, out);
            *after = last.unwrap_or(*after);
            return last.is_none();
        }
        DumpFormat::Prefixes { after } => {
            *after = state.prefixes.dump(after.as_deref(), SLICE_PREFIXES, out);
            return after.is_none();
        }
        _ => {}
    }
    let mut is_enough = false;
    let next = context.index.scan(dump.cursor, SLICE_BUCKETS, &mut |item| {
        let flow = append_item(dump, state, &now, item, out);
        is_enough |= flow.is_break();
        flow
    });
    match next.filter(|_| !is_enough) {
        Some(cursor) => {
            dump.cursor = cursor;
            false
        }
        None => true,
    }
}

/// Whether a key can stand in a line unencoded.
fn is_plain(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

fn append_metadump(out: &mut Vec<u8>, item: &ItemView<'_>, now: &Now, class: u32, size: usize) {
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

fn append_mgdump(out: &mut Vec<u8>, key: &[u8]) {
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

fn append_cachedump(out: &mut Vec<u8>, item: &ItemView<'_>, now: &Now) {
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
