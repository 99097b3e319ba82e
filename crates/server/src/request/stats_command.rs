//! The `stats` command. As in memcached, a prefix of a subcommand's name is enough for those that
//! memcached itself answers.

use std::fmt::Display;

use amalgam_index::Store;
use amalgam_protocol::{Arguments, Problem, Reply};

use crate::compat::slab_classes::CLASSES;
use crate::connections::item_dump::ItemDump;
use crate::report::general::{engine, general, hot_keys, miss_curve};
use crate::report::settings::settings;
use crate::report::slabs::{items, slabs};
use crate::request::context::BatchContext;
use crate::request::slot::RequestSlot;

/// Prefixes in an answer of the binary protocol to `stats detail dump`, which is one packet.
const BINARY_PREFIXES: usize = 1024;

/// Executes and answers `stats` with its arguments.
pub fn run<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    mut arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let state = context.state;
    // The other workers' counts are as of their last batch; these should not be older.
    state.counters.of_worker(context.worker).publish(context.counts);
    let is_dumpable = slot.is_connection() && reply.is_text();
    let out = &mut slot.output.bytes;
    let name = arguments.next();
    let is = |full: &str| name.is_some_and(|name| full.as_bytes().starts_with(name));
    if is("reset") {
        state.reset_statistics();
        return reply.line(out, b"RESET");
    } else if is("detail") {
        return detail(context, slot, arguments.next(), reply);
    } else if is("cachedump") && !is("conns") && reply.is_text() {
        return cachedump(context, slot, arguments, reply);
    }
    let mut stat = |name: &str, value: &dyn Display| {
        reply.stat(out, name.as_bytes(), value.to_string().as_bytes());
    };
    match name {
        None => general(state, &mut stat),
        Some(_) if is("settings") => settings(state, &mut stat),
        Some(_) if is("conns") && reply.is_text() => {
            slot.protocol_state.dump = Some(ItemDump::connections(slot.number));
            return;
        }
        Some(b"items") => items(state, &mut stat),
        Some(b"slabs") => slabs(state, &mut stat),
        Some(b"hotkeys") if state.settings.allows_dump => hot_keys(state, &mut stat),
        Some(b"mrc") if let Some(curve) = &state.miss_curve => miss_curve(curve, &mut stat),
        Some(b"engine") => engine(state, &mut stat),
        Some(b"sizes") if state.tunables.is_on("track_sizes") && is_dumpable => {
            slot.protocol_state.dump = Some(ItemDump::sizes());
            return;
        }
        Some(b"sizes") => stat("sizes_status", &"disabled"),
        Some(_) => return reply.problem(out, Problem::UNKNOWN_STATISTIC),
    }
    reply.end(&mut slot.output.bytes);
}

fn detail<S: Store>(
    context: &BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    word: Option<&[u8]>,
    reply: &Reply<'_>,
) {
    let out = &mut slot.output.bytes;
    let prefixes = &context.state.prefixes;
    let is = |full: &str| word.is_some_and(|word| full.as_bytes().starts_with(word));
    if !context.state.settings.allows_dump {
        return reply.problem(out, Problem::STATS_DETAIL_DISABLED);
    }
    if is("on") || is("off") {
        prefixes.switch(is("on"));
        return if reply.is_text() { reply.ok(out) } else { reply.end(out) };
    }
    if !is("dump") {
        return reply.problem(out, Problem::STATS_DETAIL_USAGE);
    }
    if reply.is_text() {
        slot.protocol_state.dump = Some(ItemDump::prefixes());
        return;
    }
    // The binary protocol sends the text in one packet, including its end.
    let mut text = Vec::new();
    prefixes.dump(None, BINARY_PREFIXES, &mut text);
    text.extend_from_slice(b"END\r\n");
    reply.stat(out, b"detailed", &text);
    reply.end(out);
}

fn cachedump<S: Store>(
    context: &BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let words: Vec<_> = arguments.take(2).collect();
    let number = |span: usize| -> Option<u32> {
        words.get(span).and_then(|word| str::from_utf8(word).ok()?.parse().ok())
    };
    let problem = if !context.state.settings.allows_dump {
        Problem::CACHEDUMP_DISABLED
    } else if words.len() < 2 {
        Problem::BAD_LINE
    } else {
        match (number(0), number(1)) {
            (Some(CLASSES..), Some(_)) => Problem::ILLEGAL_SLAB_CLASS,
            (Some(class), Some(limit)) if slot.is_connection() => {
                slot.protocol_state.dump = Some(ItemDump::cachedump(class, limit));
                return;
            }
            _ => Problem::BAD_FORMAT,
        }
    };
    reply.problem(&mut slot.output.bytes, problem);
}
