//! A store that cannot answer for some keys: clients see errors, never misses, and what was refused
//! leaves the old value.

use std::ops::ControlFlow;

use amalgam_index::model::ModelWorker;
use amalgam_index::{Sink, Worker};
use amalgam_op::{Key, Now, Op, Outcome, Verb};

use crate::altered::{Alteration, Altered};
use crate::support::{Running, settings};

const REFUSED: &str = "SERVER_ERROR the key's owner is unavailable; nothing was done\r\n";
const UNKNOWN: &str = "SERVER_ERROR unknown outcome: the key's owner did not answer in time\r\n";

/// As if some keys were on other machines: a key that begins with "down" cannot be asked for, a
/// write of a key that begins with "slow" is not answered, and a value of "full" finds no memory.
struct Remote;

impl Alteration for Remote {
    const NAME: &'static str = "remote";
    const FAILED_SETS_REMOVE: bool = false;

    fn get_batch(
        model: &mut ModelWorker<'_>,
        keys: &[Key<'_>],
        now: &Now,
        sink: &mut impl Sink,
    ) -> usize {
        for (position, key) in keys.iter().enumerate() {
            let flow = if key.bytes().starts_with(b"down") {
                sink.unanswered(position)
            } else {
                let mut one = At { position, sink, flow: ControlFlow::Continue(()) };
                model.get_batch(&[*key], now, &mut one);
                one.flow
            };
            if flow.is_break() {
                return position + 1;
            }
        }
        keys.len()
    }

    fn apply(model: &mut ModelWorker<'_>, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        let is_full = matches!(op.verb, Verb::Store(store) if store.value == b"full");
        match op.key.bytes() {
            [b'd', b'o', b'w', b'n', ..] => Outcome::Unavailable,
            [b's', b'l', b'o', b'w', ..] => Outcome::Unknown,
            _ if is_full => Outcome::OutOfMemory,
            _ => model.apply(op, now, sink),
        }
    }
}

/// Passes the answer to a batch of one on, under its position in a larger one.
struct At<'s, S> {
    position: usize,
    sink: &'s mut S,
    flow: ControlFlow<()>,
}

impl<S: Sink> Sink for At<'_, S> {
    fn hit(&mut self, _: usize, found: &amalgam_index::Found<'_>) -> ControlFlow<()> {
        self.flow = self.sink.hit(self.position, found);
        self.flow
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        self.flow = self.sink.miss(self.position);
        self.flow
    }
}

fn start() -> Running {
    Running::start_with::<Altered<Remote>>(settings(1))
}

#[test]
fn what_cannot_be_read_is_an_error_and_no_miss() {
    let server = start();
    let mut client = server.connect();
    client.talk("set a 0 0 1\r\nx\r\nset b 0 0 1\r\ny\r\n", "STORED\r\nSTORED\r\n");
    let (a, b) = ("VALUE a 0 1\r\nx\r\n", "VALUE b 0 1\r\ny\r\n");
    client.talk("get down\r\n", REFUSED);
    client.talk("get a down b none\r\nget a\r\n", format!("{a}{b}{REFUSED}{a}END\r\n"));
    client.talk("gets down\r\nget b a\r\n", format!("{REFUSED}{b}{a}END\r\n"));
    client.talk("mg down v\r\nmg a v\r\nmg none v\r\n", format!("{REFUSED}VA 1\r\nx\r\nEN\r\n"));
    // Also where a miss would be silent.
    client.talk("mg down v q\r\nmn\r\n", format!("{REFUSED}MN\r\n"));
    client.talk("gat 0 a down b\r\nget a\r\n", format!("{a}{REFUSED}{a}END\r\n"));
    client.talk("mg down v T30\r\n", REFUSED);
    // Quiet get of the binary protocol.
    let mut client = server.connect();
    let key = b"down";
    let mut packet = vec![0x80, 0x09, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
    packet.extend_from_slice(&[0; 12]);
    packet.extend_from_slice(key);
    client.send(&packet);
    let text = b"Temporary failure";
    let mut answer = vec![0x81, 0x09, 0, 0, 0, 0, 0, 0x86, 0, 0, 0, text.len() as u8];
    answer.extend_from_slice(&[0; 12]);
    answer.extend_from_slice(text);
    client.expect(&answer);
}

/// The output is full in the midst of a read of which a key has failed already: what follows is cut
/// off, and the answer ends in the error all the same.
#[test]
fn an_answer_that_stalls_after_a_failed_key_ends_in_the_error() {
    const VALUE_BYTES: usize = 12 << 10;
    const KEYS: usize = 400;
    let server = start();
    let mut client = server.connect();
    let value = "v".repeat(VALUE_BYTES);
    client.talk(format!("set k 0 0 {VALUE_BYTES}\r\n{value}\r\n"), "STORED\r\n");
    let keys = " k".repeat(KEYS);
    client.send(format!("get k down{keys}\r\nget none\r\n"));
    let found = format!("VALUE k 0 {VALUE_BYTES}\r\n{value}\r\n");
    let mut values = 0;
    let mut line = [0; 6];
    loop {
        std::io::Read::read_exact(&mut client.0, &mut line).expect("an answer");
        if &line != b"VALUE " {
            break;
        }
        client.expect(&found.as_bytes()[line.len()..]);
        values += 1;
    }
    assert!((1..=KEYS).contains(&values), "{values} values");
    assert_eq!(&line, &REFUSED.as_bytes()[..line.len()], "after {values} values");
    client.expect(&REFUSED.as_bytes()[line.len()..]);
    client.expect("END\r\n");
}

#[test]
fn a_write_that_fails_says_how_and_leaves_the_old_value() {
    let server = start();
    let mut client = server.connect();
    client.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.talk("set a 0 0 4\r\nfull\r\n", "SERVER_ERROR out of memory storing object\r\n");
    client.talk("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    let long = format!("set a 0 0 {}\r\n{}\r\n", 2 << 20, "v".repeat(2 << 20));
    client.talk(long, "SERVER_ERROR object too large for cache\r\n");
    client.talk("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    for write in
        ["set down 0 0 1\r\nx\r\n", "incr down 1\r\n", "delete down\r\n", "ms down 1\r\nx\r\n"]
    {
        client.talk(write, REFUSED);
    }
    for write in ["set slow 0 0 1\r\nx\r\n", "incr slow 1\r\n", "delete slow\r\n", "md slow q\r\n"]
    {
        client.talk(write, UNKNOWN);
    }
}

/// A store without memory for values that begin with "full", which removes what a set that failed
/// meant to replace.
struct Full;

impl Alteration for Full {
    const NAME: &'static str = "full";

    fn apply(model: &mut ModelWorker<'_>, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        match op.verb {
            Verb::Store(store) if store.value.starts_with(b"full") => Outcome::OutOfMemory,
            _ => model.apply(op, now, sink),
        }
    }
}

/// Sets that are executed as one batch: each that fails removes its key, unless a later one of the
/// key has stored a value.
#[test]
fn a_failed_set_in_a_batch_removes_its_key_and_no_later_value() {
    let server = Running::start_with::<Altered<Full>>(settings(1));
    let mut client = server.connect();
    client.talk("set b 0 0 3\r\nold\r\n", "STORED\r\n");
    let sets = ["a full1", "a first", "b full2", "c first", "c full3", "d full4", "d new-1"];
    let sent = sets.map(|set| {
        let (key, value) = set.split_once(' ').expect("two words");
        format!("set {key} 0 0 5\r\n{value}\r\n")
    });
    let expected = sets.map(|set| match set.contains("full") {
        true => "SERVER_ERROR out of memory storing object\r\n",
        false => "STORED\r\n",
    });
    client.talk(sent.concat(), expected.concat());
    client.talk("get a b c d\r\n", "VALUE a 0 5\r\nfirst\r\nVALUE d 0 5\r\nnew-1\r\nEND\r\n");
}
