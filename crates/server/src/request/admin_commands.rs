//! The administrative commands `lru_crawler`, `lru` and `slabs`. What they tune in memcached this
//! server does by itself: they are answered as memcached answers them, and the settings are kept
//! and shown in `stats settings`.

use std::sync::atomic::Ordering;

use amalgam_index::Store;
use amalgam_protocol::{Arguments, Problem, Reply};

use crate::connections::item_dump::{ClassSet, ItemDump};
use crate::request::context::BatchContext;
use crate::request::slot::RequestSlot;

const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format";
const BAD_CLASS: &[u8] = b"BADCLASS invalid class id";

/// The first words of a command, empty where missing, and the number of all words.
struct Words<'a> {
    words: [&'a [u8]; 5],
    count: usize,
}

impl<'a> Words<'a> {
    fn new(arguments: Arguments<'a>) -> Self {
        let mut words = [&[][..]; 5];
        let count = { arguments }.count();
        words.iter_mut().zip(arguments).for_each(|(word, argument)| *word = argument);
        Self { words, count }
    }

    /// Whether the first word is a prefix of `name`, which is enough for memcached.
    fn is(&self, name: &str) -> bool {
        self.count > 0 && name.as_bytes().starts_with(self.words[0])
    }

    fn text(&self, span: usize) -> &'a str {
        str::from_utf8(self.words[span]).unwrap_or_default()
    }

    fn number(&self, span: usize) -> Option<u32> {
        self.text(span).parse().ok()
    }

    fn ratio(&self, span: usize) -> Option<f64> {
        self.text(span).parse().ok().filter(|ratio: &f64| ratio.is_finite())
    }
}

/// Ok is answered `OK`, an error with its line.
type Answer = Result<(), &'static [u8]>;

fn answer(out: &mut Vec<u8>, reply: &Reply<'_>, answer: Answer) {
    match answer {
        Ok(()) => reply.ok(out),
        Err(line) => reply.line(out, line),
    }
}

/// `lru_crawler`.
pub fn lru_crawler<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let state = context.state;
    let tunables = &state.tunables;
    let words = Words::new(arguments);
    let is_off = !tunables.is_on("lru_crawler");
    let result = match words.count {
        2 if ["crawl", "metadump", "mgdump"].iter().any(|name| words.is(name)) && is_off => {
            Err(&b"CLIENT_ERROR lru crawler disabled"[..])
        }
        2 if words.is("crawl") => match ClassSet::parse(words.words[1]) {
            None => Err(BAD_CLASS),
            Some(_) => {
                state.crawler.starts.fetch_add(1, Ordering::Relaxed);
                state.crawler.is_requested.store(true, Ordering::Release);
                state.wake_main();
                Ok(())
            }
        },
        2 if words.is("metadump") => {
            return begin_dump(context, slot, &words, reply, DumpCommand::Metadump);
        }
        2 if words.is("mgdump") => {
            return begin_dump(context, slot, &words, reply, DumpCommand::Mgdump);
        }
        2 if words.is("tocrawl") => match words.number(1) {
            Some(_) => {
                tunables.set("lru_crawler_tocrawl", words.text(1));
                Ok(())
            }
            None => Err(BAD_FORMAT),
        },
        2 if words.is("sleep") => match words.number(1) {
            None => Err(BAD_FORMAT),
            Some(1_000_001..) => Err(&b"CLIENT_ERROR sleep must be one second or less"[..]),
            Some(_) => {
                tunables.set("lru_crawler_sleep", words.text(1));
                Ok(())
            }
        },
        1 if words.is("enable") => {
            tunables.set("lru_crawler", "yes");
            Ok(())
        }
        1 if words.is("disable") => {
            tunables.set("lru_crawler", "no");
            Ok(())
        }
        _ => Err(Problem::UNKNOWN.line.as_bytes()),
    };
    answer(&mut slot.output.bytes, reply, result);
}

/// Which dump a command asks for.
#[derive(Clone, Copy, PartialEq)]
enum DumpCommand {
    Metadump,
    Mgdump,
}

fn begin_dump<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    words: &Words<'_>,
    reply: &Reply<'_>,
    command: DumpCommand,
) {
    let is_metadump = command == DumpCommand::Metadump;
    let problem: &[u8] = if !context.state.settings.allows_dump {
        if is_metadump { b"ERROR metadump not allowed" } else { b"ERROR key dump not allowed" }
    } else if !slot.output.is_empty() || !slot.is_connection() {
        match is_metadump {
            true => b"ERROR cannot pipeline other commands before metadump",
            false => b"ERROR cannot pipeline other commands before mgdump",
        }
    } else if let Some(classes) = ClassSet::parse(words.words[1]) {
        slot.output.bytes.extend_from_slice(b"OK\r\n");
        let dump =
            if is_metadump { ItemDump::metadump(classes) } else { ItemDump::mgdump(classes) };
        slot.protocol_state.dump = Some(dump);
        return;
    } else {
        BAD_CLASS
    };
    reply.line(&mut slot.output.bytes, problem);
}

/// `lru`.
pub fn lru<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let words = Words::new(arguments);
    let result = change_lru(context, &words);
    answer(&mut slot.output.bytes, reply, result);
}

fn change_lru<S: Store>(context: &mut BatchContext<'_, '_, S>, words: &Words<'_>) -> Answer {
    let tunables = &context.state.tunables;
    let has_maintainer = tunables.is_on("lru_maintainer_thread");
    let unknown = Problem::UNKNOWN.line.as_bytes();
    if words.is("tune") && words.count >= 5 {
        let (hot, warm) = (words.number(1).ok_or(unknown)?, words.number(2).ok_or(unknown)?);
        let (hot_age, warm_age) = (words.ratio(3).ok_or(unknown)?, words.ratio(4).ok_or(unknown)?);
        if u64::from(hot) + u64::from(warm) > 80 {
            return Err(b"ERROR hot and warm pcts must not exceed 80");
        }
        if hot_age <= 0.0 || warm_age <= 0.0 {
            return Err(b"ERROR hot/warm age factors must be greater than 0");
        }
        tunables.set("hot_lru_pct", &hot.to_string());
        tunables.set("warm_lru_pct", &warm.to_string());
        tunables.set("hot_max_factor", &format!("{hot_age:.2}"));
        tunables.set("warm_max_factor", &format!("{warm_age:.2}"));
        Ok(())
    } else if words.is("mode") && words.count >= 2 && has_maintainer {
        match words.words[1] {
            b"flat" => tunables.set("lru_segmented", "no"),
            b"segmented" => tunables.set("lru_segmented", "yes"),
            _ => return Err(unknown),
        }
        Ok(())
    } else if words.is("temp_ttl") && words.count >= 2 && has_maintainer {
        let seconds: i32 = words.text(1).parse().map_err(|_| unknown)?;
        tunables.set("temp_lru", if seconds < 0 { "no" } else { "yes" });
        if seconds >= 0 {
            tunables.set("temporary_ttl", &seconds.to_string());
        }
        Ok(())
    } else {
        Err(unknown)
    }
}

/// `slabs`.
pub fn slabs<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let words = Words::new(arguments);
    let result = change_slabs(context, &words);
    answer(&mut slot.output.bytes, reply, result);
}

fn change_slabs<S: Store>(context: &mut BatchContext<'_, '_, S>, words: &Words<'_>) -> Answer {
    let tunables = &context.state.tunables;
    let unknown = Problem::UNKNOWN.line.as_bytes();
    if words.is("reassign") && words.count == 3 {
        if !tunables.is_on("slab_reassign") {
            return Err(b"CLIENT_ERROR slab reassignment disabled");
        }
        let number = |span: usize| words.text(span).parse::<i32>().map_err(|_| BAD_FORMAT);
        let (source, target) = (number(1)?, number(2)?);
        let is_class = |number: i32| (0..64).contains(&number);
        return match () {
            () if source == target => Err(b"SAME src and dst class are identical"),
            () if !is_class(source.max(0)) || !is_class(target) => {
                Err(b"BADCLASS invalid src or dst class id")
            }
            // Nothing to do: the arena moves pages by itself to the classes that need them.
            () => Ok(()),
        };
    }
    if !words.is("automove") || words.count < 2 {
        return Err(unknown);
    }
    match words.words[1] {
        name if b"ratio".starts_with(name) => {
            let ratio = words.ratio(2).ok_or(unknown)?;
            tunables.set("slab_automove_ratio", &format!("{ratio:.2}"));
        }
        name if b"freeratio".starts_with(name) => drop(words.ratio(2).ok_or(unknown)?),
        name if b"window".starts_with(name) => match words.number(2) {
            None => return Err(BAD_FORMAT),
            Some(3..=1800) => tunables.set("slab_automove_window", words.text(2)),
            Some(_) => return Err(b"CLIENT_ERROR automove window too low or too high"),
        },
        _ => match words.number(1) {
            None => return Err(BAD_FORMAT),
            Some(0..=2) => tunables.set("slab_automove", words.text(1)),
            Some(_) => return Err(unknown),
        },
    }
    Ok(())
}
