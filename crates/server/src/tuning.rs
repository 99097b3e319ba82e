//! Commands that tune or ask for what this server does by itself: `lru_crawler`, `lru`, `slabs`.
//! They are answered as memcached answers them, and what they set is kept and shown.

use std::sync::atomic::Ordering;

use amalgam_index::Store;
use amalgam_protocol::{Arguments, Problem, Reply};

use crate::batch::{Seat, Turn};
use crate::dump::{Classes, Dump};

const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format";
const BAD_CLASS: &[u8] = b"BADCLASS invalid class id";

/// The first words of a command; missing ones are empty, and how many there are.
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

    /// Whether the first word is a beginning of `name`: memcached asks for no more.
    fn is(&self, name: &str) -> bool {
        self.count > 0 && name.as_bytes().starts_with(self.words[0])
    }

    fn text(&self, place: usize) -> &'a str {
        str::from_utf8(self.words[place]).unwrap_or_default()
    }

    fn number(&self, place: usize) -> Option<u32> {
        self.text(place).parse().ok()
    }

    fn ratio(&self, place: usize) -> Option<f64> {
        self.text(place).parse().ok().filter(|ratio: &f64| ratio.is_finite())
    }
}

/// What to say: done, or why not.
type Answer = Result<(), &'static [u8]>;

fn answer(out: &mut Vec<u8>, reply: &Reply<'_>, answer: Answer) {
    match answer {
        Ok(()) => reply.ok(out),
        Err(line) => reply.line(out, line),
    }
}

/// `lru_crawler`.
pub fn lru_crawler<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let shared = turn.shared;
    let knobs = &shared.knobs;
    let words = Words::new(arguments);
    let is_off = !knobs.is_on("lru_crawler");
    let result = match words.count {
        2 if ["crawl", "metadump", "mgdump"].iter().any(|name| words.is(name)) && is_off => {
            Err(&b"CLIENT_ERROR lru crawler disabled"[..])
        }
        2 if words.is("crawl") => match Classes::parse(words.words[1]) {
            None => Err(BAD_CLASS),
            Some(_) => {
                shared.crawler.starts.fetch_add(1, Ordering::Relaxed);
                shared.crawler.is_wanted.store(true, Ordering::Release);
                shared.wake_main();
                Ok(())
            }
        },
        2 if words.is("metadump") => return begin_dump(turn, seat, &words, reply, Listing::Facts),
        2 if words.is("mgdump") => return begin_dump(turn, seat, &words, reply, Listing::Gets),
        2 if words.is("tocrawl") => match words.number(1) {
            Some(_) => {
                knobs.set("lru_crawler_tocrawl", words.text(1));
                Ok(())
            }
            None => Err(BAD_FORMAT),
        },
        2 if words.is("sleep") => match words.number(1) {
            None => Err(BAD_FORMAT),
            Some(1_000_001..) => Err(&b"CLIENT_ERROR sleep must be one second or less"[..]),
            Some(_) => {
                knobs.set("lru_crawler_sleep", words.text(1));
                Ok(())
            }
        },
        1 if words.is("enable") => {
            knobs.set("lru_crawler", "yes");
            Ok(())
        }
        1 if words.is("disable") => {
            knobs.set("lru_crawler", "no");
            Ok(())
        }
        _ => Err(Problem::UNKNOWN.line.as_bytes()),
    };
    answer(&mut seat.output.bytes, reply, result);
}

#[derive(Clone, Copy, PartialEq)]
enum Listing {
    Facts,
    Gets,
}

fn begin_dump<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    words: &Words<'_>,
    reply: &Reply<'_>,
    listing: Listing,
) {
    let is_facts = listing == Listing::Facts;
    let problem: &[u8] = if !turn.shared.settings.allows_dump {
        if is_facts { b"ERROR metadump not allowed" } else { b"ERROR key dump not allowed" }
    } else if !seat.output.is_empty() || !seat.is_connection() {
        match is_facts {
            true => b"ERROR cannot pipeline other commands before metadump",
            false => b"ERROR cannot pipeline other commands before mgdump",
        }
    } else if let Some(classes) = Classes::parse(words.words[1]) {
        seat.output.bytes.extend_from_slice(b"OK\r\n");
        let dump = if is_facts { Dump::facts(classes) } else { Dump::gets(classes) };
        seat.conversation.dump = Some(dump);
        return;
    } else {
        BAD_CLASS
    };
    reply.line(&mut seat.output.bytes, problem);
}

/// `lru`.
pub fn lru<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let words = Words::new(arguments);
    let result = change_lru(turn, &words);
    answer(&mut seat.output.bytes, reply, result);
}

fn change_lru<I: Store>(turn: &mut Turn<'_, '_, I>, words: &Words<'_>) -> Answer {
    let knobs = &turn.shared.knobs;
    let has_maintainer = knobs.is_on("lru_maintainer_thread");
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
        knobs.set("hot_lru_pct", &hot.to_string());
        knobs.set("warm_lru_pct", &warm.to_string());
        knobs.set("hot_max_factor", &format!("{hot_age:.2}"));
        knobs.set("warm_max_factor", &format!("{warm_age:.2}"));
        Ok(())
    } else if words.is("mode") && words.count >= 2 && has_maintainer {
        match words.words[1] {
            b"flat" => knobs.set("lru_segmented", "no"),
            b"segmented" => knobs.set("lru_segmented", "yes"),
            _ => return Err(unknown),
        }
        Ok(())
    } else if words.is("temp_ttl") && words.count >= 2 && has_maintainer {
        let seconds: i32 = words.text(1).parse().map_err(|_| unknown)?;
        knobs.set("temp_lru", if seconds < 0 { "no" } else { "yes" });
        if seconds >= 0 {
            knobs.set("temporary_ttl", &seconds.to_string());
        }
        Ok(())
    } else {
        Err(unknown)
    }
}

/// `slabs`.
pub fn slabs<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let words = Words::new(arguments);
    let result = change_slabs(turn, &words);
    answer(&mut seat.output.bytes, reply, result);
}

fn change_slabs<I: Store>(turn: &mut Turn<'_, '_, I>, words: &Words<'_>) -> Answer {
    let knobs = &turn.shared.knobs;
    let unknown = Problem::UNKNOWN.line.as_bytes();
    if words.is("reassign") && words.count == 3 {
        if !knobs.is_on("slab_reassign") {
            return Err(b"CLIENT_ERROR slab reassignment disabled");
        }
        let number = |place: usize| words.text(place).parse::<i32>().map_err(|_| BAD_FORMAT);
        let (source, target) = (number(1)?, number(2)?);
        let is_class = |number: i32| (0..64).contains(&number);
        return match () {
            () if source == target => Err(b"SAME src and dst class are identical"),
            () if !is_class(source.max(0)) || !is_class(target) => {
                Err(b"BADCLASS invalid src or dst class id")
            }
            // Pages move by themselves, to whoever needs them.
            () => Ok(()),
        };
    }
    if !words.is("automove") || words.count < 2 {
        return Err(unknown);
    }
    match words.words[1] {
        name if b"ratio".starts_with(name) => {
            let ratio = words.ratio(2).ok_or(unknown)?;
            knobs.set("slab_automove_ratio", &format!("{ratio:.2}"));
        }
        name if b"freeratio".starts_with(name) => drop(words.ratio(2).ok_or(unknown)?),
        name if b"window".starts_with(name) => match words.number(2) {
            None => return Err(BAD_FORMAT),
            Some(3..=1800) => knobs.set("slab_automove_window", words.text(2)),
            Some(_) => return Err(b"CLIENT_ERROR automove window too low or too high"),
        },
        _ => match words.number(1) {
            None => return Err(BAD_FORMAT),
            Some(0..=2) => knobs.set("slab_automove", words.text(1)),
            Some(_) => return Err(unknown),
        },
    }
    Ok(())
}
