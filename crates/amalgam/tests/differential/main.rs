//! Random commands, sent to memcached and to `amalgam serve`; every byte of the answers is
//! compared. Differences that are meant are in `docs/compatibility.md`.
//!
//! `AMALGAM_MEMCACHED` names memcached's program, best 1.6.45; without it, Debian's 1.6.18 is
//! taken, which knows fewer flags.
//!
//! `AMALGAM_EFFORT` multiplies the work, `AMALGAM_SEED` repeats a run, `AMALGAM_FIRST` begins it at
//! a later sequence; a failure prints its seed, the commands of its sequence and both answers.

mod answers;
mod commands;
mod packets;
mod servers;

use std::time::{Duration, Instant};

use amalgam_index::{DEFAULT_ENGINE, ENGINES};
use answers::Ids;
use commands::{Command, Generator};
use servers::{Connection, Server, amalgam, memcached};

/// Sequences of one run at effort 1.
const SEQUENCES: usize = 300;
/// No turn takes so long, but where all processes are stopped for a while.
const PAUSE: Duration = Duration::from_secs(1);
/// Turns of a sequence; each sends a few commands in one write.
const TURNS: usize = 15;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn effort() -> usize {
    variable("AMALGAM_EFFORT").map_or(1, |effort| effort.max(1) as usize)
}

/// Where to begin: what came before was compared already.
fn first_sequence() -> u64 {
    variable("AMALGAM_FIRST").unwrap_or(0)
}

fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let seed = variable("AMALGAM_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 16);
    println!("AMALGAM_SEED={seed} repeats this run");
    seed
}

/// One server under test: a connection and the CAS ids that it has shown.
struct Side<'s> {
    server: &'s Server,
    connection: Connection,
    ids: Ids,
}

impl<'s> Side<'s> {
    fn new(server: &'s Server) -> Self {
        Self { server, connection: server.connect(), ids: Ids::default() }
    }

    /// Sends `commands` in one write, or cut in two at a place that `cut` chooses; what will end
    /// their answers.
    fn send(&mut self, commands: &[Command], cut: Option<usize>) -> &'static [u8] {
        let mut bytes = Vec::new();
        for command in commands {
            command.write(&self.ids, &mut bytes);
        }
        let cut = cut.map_or(0, |cut| cut % bytes.len().max(1));
        self.connection.send(bytes, cut)
    }

    /// What came back, with CAS ids made symbolic.
    fn receive(&mut self, end: &[u8]) -> String {
        let answer = self.connection.receive(end);
        if answer.is_closed {
            self.connection = self.server.connect();
        }
        self.ids.normalize(&answer)
    }
}

/// How a sequence ended.
#[derive(PartialEq)]
enum Verdict {
    Alike,
    /// Not told apart from what a pause of all processes does: the clocks of the two, which tick
    /// by timers, do not follow at once.
    Paused,
}

/// Two servers that are sent the same.
struct Comparison {
    kind: commands::Kind,
    seed: u64,
    theirs: Server,
    ours: Server,
    version: Vec<u32>,
    commands_sent: usize,
}

impl Comparison {
    fn sequence(&mut self, sequence: u64) -> Verdict {
        let Self { kind, seed, .. } = *self;
        let reasons_differ = kind == commands::Kind::Malformed && commands::is_old(&self.version);
        let mut begin = Instant::now();
        let mut sides = [Side::new(&self.theirs), Side::new(&self.ours)];
        let mut generator = Generator::new(kind, seed, sequence, &self.version);
        let mut verdict = Verdict::Alike;
        for turn in 0..TURNS {
            let commands = generator.turn();
            self.commands_sent += commands.len();
            let is_cut = kind == commands::Kind::Flags && turn % 4 == 0;
            let cut = is_cut.then_some(sequence as usize * 7 + turn);
            let ends = sides.each_mut().map(|side| side.send(&commands, cut));
            let [expected, answered] = [0, 1].map(|place| {
                let text = sides[place].receive(ends[place]);
                if reasons_differ { answers::without_reasons(&text) } else { text }
            });
            if begin.elapsed() > PAUSE && !expected.contains(servers::WAITS) {
                verdict = Verdict::Paused;
            }
            begin = Instant::now();
            if answers::only_one_forgot(&expected, &answered) {
                // The two have seen other ids from here on.
                return verdict;
            }
            let is_alike = answers::agree(&expected, &answered);
            if verdict == Verdict::Paused && !is_alike {
                let history = self.history(sequence, turn);
                println!(
                    "sequence {sequence}, turn {turn}: after a pause\n{history}\
                     memcached answered:\n{expected}\nwe answered:\n{answered}"
                );
                return verdict;
            }
            assert!(
                is_alike,
                "AMALGAM_SEED={seed}, sequence {sequence}, turn {turn}:\n{}\
                 memcached answered:\n{expected}\nwe answered:\n{answered}",
                self.history(sequence, turn)
            );
        }
        if verdict == Verdict::Paused {
            // The clocks follow before the next sequence.
            std::thread::sleep(2 * PAUSE);
        }
        Verdict::Alike
    }

    /// What was sent in a sequence, up to a turn.
    fn history(&self, sequence: u64, last_turn: usize) -> String {
        let mut generator = Generator::new(self.kind, self.seed, sequence, &self.version);
        let mut history = String::new();
        for turn in 0..=last_turn {
            for command in generator.turn() {
                history.push_str(&format!("  {turn}: {command}\n"));
            }
        }
        history
    }
}

fn compare(kind: commands::Kind, seed: u64, sequences: usize) {
    compare_engine(None, kind, seed, sequences);
}

fn compare_engine(engine: Option<&str>, kind: commands::Kind, seed: u64, sequences: usize) {
    let (theirs, ours) = (memcached(), amalgam(engine));
    let version = theirs.version();
    for server in [&theirs, &ours] {
        server.use_ids();
    }
    let mut comparison = Comparison { kind, seed, theirs, ours, version, commands_sent: 0 };
    let mut paused = 0;
    for sequence in first_sequence()..sequences as u64 {
        if comparison.sequence(sequence) == Verdict::Paused {
            paused += 1;
            std::thread::sleep(2 * PAUSE);
        }
    }
    let Comparison { commands_sent, version, .. } = comparison;
    println!(
        "{kind:?}: {commands_sent} commands answered as by {version:?}, seed {seed}, \
         {paused} sequences cut short by a pause"
    );
    assert!(paused * 100 <= sequences, "the machine is too busy to compare on");
}

#[test]
fn text_commands_are_answered_alike() {
    compare(commands::Kind::Text, seed(), SEQUENCES * effort());
}

#[test]
fn malformed_lines_are_answered_alike() {
    compare(commands::Kind::Malformed, seed(), SEQUENCES * effort());
}

#[test]
fn meta_commands_are_answered_alike() {
    compare(commands::Kind::Meta, seed(), SEQUENCES * effort());
}

/// The first version whose answers to every flag are compared.
const EVERY_FLAG: &[u32] = &[1, 6, 45];

/// Whether memcached knows every flag; if not, that is printed.
fn knows_every_flag() -> bool {
    let version = memcached().version();
    let is_known = version.as_slice() >= EVERY_FLAG;
    if !is_known {
        println!("not compared: {version:?} has other flags; AMALGAM_MEMCACHED names a later one");
    }
    is_known
}

/// Sequences of single commands, and so more of them.
#[test]
fn every_flag_is_answered_alike() {
    if knows_every_flag() {
        compare(commands::Kind::Flags, seed(), 10 * SEQUENCES * effort());
    }
}

/// What a command means is decided once, but each engine finds and exchanges items in its own way.
#[test]
fn other_engines_answer_every_flag_alike() {
    if !knows_every_flag() {
        return;
    }
    let seed = seed();
    for engine in ENGINES.iter().filter(|engine| engine.name != DEFAULT_ENGINE) {
        println!("{}:", engine.name);
        compare_engine(Some(engine.name), commands::Kind::Flags, seed, 5 * SEQUENCES * effort());
    }
}

#[test]
fn packets_are_answered_alike() {
    compare(commands::Kind::Binary, seed(), SEQUENCES * effort());
}

/// The same story with seconds in it: expiry, touch and delayed flush, at rest for three seconds.
#[test]
fn time_passes_alike() {
    let (theirs, ours) = (memcached(), amalgam(None));
    let script: [(&str, u64); 5] = [
        (
            "set a 0 1 1\r\n1\r\nset b 1 10 1\r\n2\r\nset c 2 0 1\r\n3\r\nset d 3 1 1\r\n4\r\n\
             touch d 100\r\nset e 0 100 1\r\n5\r\ntouch e 1\r\nset f 0 100 1\r\n6\r\ngat 1 f\r\n",
            0,
        ),
        ("get a b c d e f\r\n", 3),
        ("add a 0 0 1\r\nx\r\nreplace e 0 0 1\r\ny\r\nappend f 0 0 1\r\nz\r\nincr e 1\r\n", 0),
        ("set g 0 0 1\r\n7\r\nflush_all 2\r\nget a b c d g\r\nset h 0 0 1\r\n8\r\nget h\r\n", 0),
        ("get a b c d e f g h\r\nadd a 0 0 1\r\n9\r\nget a\r\n", 4),
    ];
    let mut connections = [theirs.connect(), ours.connect()];
    for (commands, seconds_before) in script {
        std::thread::sleep(std::time::Duration::from_secs(seconds_before));
        let [expected, answered] = connections.each_mut().map(|connection| {
            String::from_utf8(connection.exchange(commands.as_bytes()).bytes).expect("text")
        });
        assert_eq!(expected, answered, "after {commands}");
    }
}
