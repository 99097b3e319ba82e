//! The `stats` command. As in memcached, the beginning of a subcommand's name is enough for those
//! that memcached itself answers.

use std::fmt::Display;

use amalgam_index::Store;
use amalgam_protocol::{Arguments, Problem, Reply};

use super::{CLASSES, conns, engine, general, hot_keys, items, settings, slabs};
use crate::batch::{Seat, Turn};
use crate::dump::Dump;

/// `stats`, with what follows.
pub fn report<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    mut arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let shared = turn.shared;
    // Others' numbers are as of their last turn; ours should not be older.
    shared.counters.of_worker(turn.worker).publish(turn.counts);
    let number = seat.number;
    let is_dumpable = seat.is_connection() && reply.is_text();
    let out = &mut seat.output.bytes;
    let name = arguments.next();
    let is = |full: &str| name.is_some_and(|name| full.as_bytes().starts_with(name));
    if is("reset") {
        shared.reset_statistics();
        return reply.line(out, b"RESET");
    } else if is("detail") {
        return detail(turn, out, arguments.next(), reply);
    } else if is("cachedump") && !is("conns") && reply.is_text() {
        return cachedump(turn, seat, arguments, reply);
    }
    let mut stat = |name: &str, value: &dyn Display| {
        reply.stat(out, name.as_bytes(), value.to_string().as_bytes());
    };
    match name {
        None => general(shared, &mut stat),
        Some(_) if is("settings") => settings(shared, &mut stat),
        Some(_) if is("conns") && reply.is_text() => conns(shared, number, &mut stat),
        Some(b"items") => items(shared, &mut stat),
        Some(b"slabs") => slabs(shared, &mut stat),
        Some(b"hotkeys") if shared.settings.allows_dump => hot_keys(shared, &mut stat),
        Some(b"engine") => engine(shared, &mut stat),
        Some(b"sizes") if shared.knobs.is_on("track_sizes") && is_dumpable => {
            seat.conversation.dump = Some(Dump::sizes());
            return;
        }
        Some(b"sizes") => stat("sizes_status", &"disabled"),
        Some(_) => return reply.problem(out, Problem::UNKNOWN_STATISTIC),
    }
    reply.end(&mut seat.output.bytes);
}

fn detail<I: Store>(
    turn: &Turn<'_, '_, I>,
    out: &mut Vec<u8>,
    word: Option<&[u8]>,
    reply: &Reply<'_>,
) {
    let prefixes = &turn.shared.prefixes;
    let is = |full: &str| word.is_some_and(|word| full.as_bytes().starts_with(word));
    if !turn.shared.settings.allows_dump {
        return reply.problem(out, Problem::STATS_DETAIL_DISABLED);
    }
    if is("on") || is("off") {
        prefixes.switch(is("on"));
        return if reply.is_text() { reply.ok(out) } else { reply.end(out) };
    }
    if !is("dump") {
        return reply.problem(out, Problem::STATS_DETAIL_USAGE);
    }
    let mut text = prefixes.dump();
    if reply.is_text() {
        out.append(&mut text);
    } else {
        // The protocol of packets has it in one, with the end in it.
        text.extend_from_slice(b"END\r\n");
        reply.stat(out, b"detailed", &text);
    }
    reply.end(out);
}

fn cachedump<I: Store>(
    turn: &Turn<'_, '_, I>,
    seat: &mut Seat,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let words: Vec<_> = arguments.take(2).collect();
    let number = |place: usize| -> Option<u32> {
        words.get(place).and_then(|word| str::from_utf8(word).ok()?.parse().ok())
    };
    let problem = if !turn.shared.settings.allows_dump {
        Problem::CACHEDUMP_DISABLED
    } else if words.len() < 2 {
        Problem::BAD_LINE
    } else {
        match (number(0), number(1)) {
            (Some(CLASSES..), Some(_)) => Problem::ILLEGAL_SLAB_CLASS,
            (Some(class), Some(limit)) if seat.is_connection() => {
                seat.conversation.dump = Some(Dump::brief(class, limit));
                return;
            }
            _ => Problem::BAD_FORMAT,
        }
    };
    reply.problem(&mut seat.output.bytes, problem);
}
