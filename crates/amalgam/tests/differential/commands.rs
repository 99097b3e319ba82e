//! Random commands. A sequence works on a few keys of its own, so that what one command leaves
//! matters to the next.

use amalgam_conformance::harness::Random;
use std::fmt;

use crate::answers::Ids;
use crate::packets::Packet;

/// What a sequence is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Classic commands, nearly all well formed.
    Text,
    /// Lines that are wrong in one place or many.
    Malformed,
    /// Meta commands among classic ones.
    Meta,
    /// Meta commands with every flag, wrong arguments among them, one a turn.
    Flags,
    /// Packets of the binary protocol.
    Binary,
}

/// A command; `{id KEY N}` in its line stands for the CAS id that was seen for this key
/// N sightings ago. Of the binary protocol it is a packet, and the line describes it.
pub struct Command {
    line: String,
    value: Option<Vec<u8>>,
    packet: Option<Packet>,
}

impl fmt::Display for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(packet) = &self.packet {
            return formatter.write_str(&packet.describe());
        }
        write!(formatter, "{}", self.line.escape_debug())?;
        if let Some(value) = &self.value {
            let head = &value[..value.len().min(60)];
            write!(formatter, " <- {} ({} bytes)", head.escape_ascii(), value.len())?;
        }
        Ok(())
    }
}

impl Command {
    fn line(line: impl Into<String>) -> Self {
        Self { line: line.into(), value: None, packet: None }
    }

    fn with_value(line: impl Into<String>, value: Vec<u8>) -> Self {
        Self { value: Some(value), ..Self::line(line) }
    }

    fn of(packet: Packet) -> Self {
        Self { packet: Some(packet), ..Self::line("") }
    }

    fn starts_with(&self, verbs: &[&str]) -> bool {
        self.line.split(' ').next().is_some_and(|verb| verbs.contains(&verb))
    }

    fn is_arithmetic(&self) -> bool {
        self.starts_with(&["incr", "decr", "ma"])
    }

    /// At too long a key in a get, memcached forgets the answers before it in the same write.
    fn drops_answers(&self) -> bool {
        self.starts_with(&["get", "gets"]) && self.line.contains(&"k".repeat(LONGEST_KEY + 1))
    }

    /// memcached may close the connection at it, and forgets answers that wait then.
    fn is_wrong_packet(&self) -> bool {
        self.packet.as_ref().is_some_and(|packet| packet.is_wrong)
    }

    fn is_read(&self) -> bool {
        self.starts_with(&["get", "gets", "gat", "gats", "mg", "ma"])
    }

    /// Appends the command's bytes, with the ids that this server has shown.
    pub fn write(&self, ids: &Ids, target: &mut Vec<u8>) {
        if let Some(packet) = &self.packet {
            return packet.write(ids, target);
        }
        let mut rest = self.line.as_str();
        while let Some((before, behind)) = rest.split_once("{id ") {
            let (ago, behind) = behind.split_once('}').expect("a closed brace");
            target.extend_from_slice(before.as_bytes());
            let (key, ago) = ago.split_once(' ').expect("a key and a number");
            let id = ids.recent(key, ago.parse().expect("a number"));
            target.extend_from_slice(id.to_string().as_bytes());
            rest = behind;
        }
        target.extend_from_slice(rest.as_bytes());
        target.extend_from_slice(b"\r\n");
        if let Some(value) = &self.value {
            target.extend_from_slice(value);
            target.extend_from_slice(b"\r\n");
        }
    }
}

/// Makes the commands of one sequence.
pub struct Generator {
    kind: Kind,
    random: Random,
    prefix: String,
    /// Packets that were made.
    packets: u32,
    /// Belongs to the next turn.
    held_back: Option<Command>,
    /// Whether the memcached that we compare with lacks what later ones have.
    is_old: bool,
}

const KEYS: usize = 5;

/// Whether this version lacks what later ones have.
pub fn is_old(version: &[u32]) -> bool {
    version < FULL_META
}

const LONGEST_KEY: usize = 250;

/// The longest opaque token that is taken, and one more byte.
const LONGEST_OPAQUE: &str = "O1234567890123456789012345678901";
const LONG_OPAQUE: &str = "O12345678901234567890123456789012";

/// The first version whose meta commands have all flags and modes that are sent here.
const FULL_META: &[u32] = &[1, 6, 40];

impl Generator {
    /// The same seed and sequence make the same commands for the same version of memcached.
    pub fn new(kind: Kind, seed: u64, sequence: u64, version: &[u32]) -> Self {
        let random = Random(seed ^ sequence.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let is_old = is_old(version);
        let prefix = format!("s{sequence}k");
        Self { is_old, kind, random, prefix, packets: 0, held_back: None }
    }

    /// Commands for one write.
    ///
    /// memcached drops a number's padding when an answer that shows the item still waits to be
    /// sent. So a number is changed only in a write of its own or ahead of all reads.
    pub fn turn(&mut self) -> Vec<Command> {
        if self.kind == Kind::Flags {
            return vec![self.command()];
        }
        let mut commands: Vec<Command> = self.held_back.take().into_iter().collect();
        for _ in 0..=self.below(12) {
            if commands.last().is_some_and(Command::is_wrong_packet) {
                break;
            }
            let command = self.command();
            if command.is_wrong_packet() && !commands.is_empty() {
                self.held_back = Some(command);
                break;
            }
            if command.drops_answers() && !commands.is_empty() {
                continue;
            }
            if command.is_arithmetic() && commands.iter().any(Command::is_read) {
                self.held_back = Some(command);
                return commands;
            }
            commands.push(command);
        }
        commands
    }

    pub fn bits(&mut self) -> u64 {
        self.random.bits()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn key(&mut self) -> String {
        self.numbered_key().1
    }

    /// A key and which of them it is.
    pub fn numbered_key(&mut self) -> (u8, String) {
        let number = self.below(KEYS);
        let key = match number {
            0 => format!("{}{:x<30}", self.prefix, number),
            _ => format!("{}{number}", self.prefix),
        };
        (number as u8, key)
    }

    fn command(&mut self) -> Command {
        let is_text = match self.kind {
            Kind::Binary => {
                self.packets += 1;
                return Command::of(self.packet(self.packets));
            }
            Kind::Text => true,
            Kind::Meta => self.chance(25),
            Kind::Flags => self.chance(30),
            Kind::Malformed => self.chance(40),
        };
        match self.kind {
            _ if is_text => self.text(),
            Kind::Malformed => self.malformed(),
            Kind::Flags => self.every_flag(),
            _ => self.meta(),
        }
    }

    pub fn value(&mut self) -> Vec<u8> {
        match self.below(12) {
            0..=3 => self.below(2000).to_string().into_bytes(),
            4 => self.large_number().to_string().into_bytes(),
            5 if !self.is_old => u64::MAX.to_string().into_bytes(),
            6 => Vec::new(),
            7 => {
                let length = self.below(5000);
                (0..length).map(|index| (index * 7 + length) as u8).collect()
            }
            8 => b"12 ".to_vec(),
            9 => self
                .pick(&[&b"\r\nx"[..], b"END\r\n", b"\r\nget x\r\n", b" 5", b"-1", b"007"])
                .to_vec(),
            _ => {
                let length = self.below(30);
                (0..length).map(|_| b'a' + (self.bits() % 26) as u8).collect()
            }
        }
    }

    /// One of the keys, or now and then that of the large values, which are no numbers.
    fn read_key(&mut self) -> String {
        match self.below(40) {
            0 => format!("{}L", self.prefix),
            _ => self.key(),
        }
    }

    /// Expiry times whose outcome does not hang on a second more or less.
    fn expiry(&mut self) -> &'static str {
        self.pick(&["0", "0", "0", "0", "1000", "2592000", "-1", "2592001", "2000000000"])
    }

    fn flags(&mut self) -> String {
        match self.below(3) {
            0 => "0".to_owned(),
            1 => self.below(70_000).to_string(),
            _ => (self.bits() as u32).to_string(),
        }
    }

    fn noreply(&mut self) -> &'static str {
        if self.chance(10) { " noreply" } else { "" }
    }

    /// An old memcached takes a number of 2^63 and more for a negative one if there happens to be
    /// a '-' in memory behind it.
    fn large_number(&mut self) -> u64 {
        if self.is_old { self.bits() >> 16 } else { self.bits() }
    }

    fn store(&mut self) -> Command {
        let verbs = ["set", "set", "set", "add", "replace", "append", "prepend"];
        let (verb, key, value) = (self.pick(&verbs), self.key(), self.value());
        let (flags, expiry, noreply) = (self.flags(), self.expiry(), self.noreply());
        let line = format!("{verb} {key} {flags} {expiry} {}{noreply}", value.len());
        Command::with_value(line, value)
    }

    fn cas(&mut self) -> Command {
        let (key, value, ago) = (self.key(), self.value(), self.below(3));
        let (flags, expiry, noreply) = (self.flags(), self.expiry(), self.noreply());
        let line =
            format!("cas {key} {flags} {expiry} {} {{id {key} {ago}}}{noreply}", value.len());
        Command::with_value(line, value)
    }

    fn keys(&mut self) -> String {
        let keys: Vec<_> = (0..=self.below(4)).map(|_| self.read_key()).collect();
        keys.join(" ")
    }

    fn text(&mut self) -> Command {
        let noreply = self.noreply();
        match self.below(100) {
            0..30 => self.store(),
            30..45 => Command::line(format!("get {}", self.keys())),
            45..58 => Command::line(format!("gets {}", self.keys())),
            58..66 => self.cas(),
            66..78 => {
                let verb = self.pick(&["incr", "decr"]);
                let delta = match self.below(3) {
                    0 => self.large_number(),
                    _ => self.below(300) as u64,
                };
                Command::line(format!("{verb} {} {delta}{noreply}", self.key()))
            }
            78..86 => {
                let words = if self.is_old { &["", " 0"][..] } else { &["", " 0", " x", " 5 x"] };
                Command::line(format!("delete {}{}{noreply}", self.key(), self.pick(words)))
            }
            86..91 => Command::line(format!("touch {} {}{noreply}", self.key(), self.expiry())),
            91..97 => {
                let verb = self.pick(&["gat", "gats"]);
                Command::line(format!("{verb} {} {}", self.expiry(), self.keys()))
            }
            97 => Command::line(format!("flush_all{noreply}")),
            98 => Command::line(format!("verbosity 0{noreply}")),
            // Read as a line, a large value ends the connection, and what was said before is lost.
            _ if self.kind == Kind::Malformed => Command::line("verbosity 1"),
            // A megabyte costs as much as a sequence of other commands.
            _ if self.chance(80) => Command::line("verbosity 1"),
            _ => self.large(),
        }
    }

    /// Values around the largest that are accepted; a refused one takes the old value with it.
    fn large(&mut self) -> Command {
        let length = self.pick(&[1_000_000, 1_048_577, 1_500_000]);
        let verb = self.pick(&["set", "add", "replace", "append"]);
        let line = format!("{verb} {}L 0 0 {length}", self.prefix);
        Command::with_value(line, vec![b'L'; length])
    }

    fn malformed(&mut self) -> Command {
        let key = self.key();
        let long = "k".repeat(251);
        let lines = [
            String::new(),
            " ".to_owned(),
            "nonsense".to_owned(),
            "get".to_owned(),
            "get ".to_owned(),
            "gets".to_owned(),
            format!("GET {key}"),
            format!("get  {key}"),
            format!("get {key} "),
            "set".to_owned(),
            format!("set {key}"),
            format!("set {key} 0 0"),
            format!("set {key} 0 0 x"),
            format!("set {key} 0 0 -1"),
            format!("add {key} 0 0"),
            format!("incr {key}"),
            format!("incr {key} x"),
            format!("incr {key} -1"),
            format!("incr {key} 18446744073709551616"),
            format!("decr {key} 1 2"),
            format!("incr {long} 1"),
            "delete".to_owned(),
            format!("delete {long}"),
            format!("delete {key} 0"),
            format!("delete {key} noreply"),
            format!("delete {key} 0 noreply"),
            "touch".to_owned(),
            format!("touch {key}"),
            format!("touch {key} x"),
            format!("touch {long} 0"),
            "gat".to_owned(),
            format!("gat x {key}"),
            format!("gats {key}"),
            "flush_all x".to_owned(),
            "flush_all 0".to_owned(),
            "flush_all -1".to_owned(),
            "verbosity".to_owned(),
            "verbosity x".to_owned(),
            "quit now".to_owned(),
        ];
        match self.below(10) {
            0 if self.is_old => Command::line(format!("get {long}")),
            1 => {
                // More or fewer bytes than announced: the rest is read as commands.
                let value = self.value();
                let length = (value.len() + self.below(5)).saturating_sub(2);
                let value =
                    if length > value.len() { b"too short\r\nget x".to_vec() } else { value };
                let length = length.min(value.len());
                Command::with_value(format!("set {key} 0 0 {length}"), value)
            }
            2 if !self.is_old => {
                let value = self.value();
                let line = format!("set {long} 0 0 {}", value.len());
                Command::with_value(line, value)
            }
            3 if !self.is_old => {
                // The value may be swallowed or read as a command.
                let line = self.pick(&[
                    format!("set {key} x 0 1"),
                    format!("set {key} 0 x 1"),
                    format!("set {key} -1 0 1"),
                    format!("set {key} 4294967296 0 1"),
                    format!("cas {key} 0 0 1"),
                    format!("cas {key} 0 0 1 x"),
                ]);
                Command::with_value(line, b"1".to_vec())
            }
            4 if !self.is_old => Command::line(self.pick(&[
                "gat 0".into(),
                "shutdown".into(),
                format!(" get {key}"),
            ])),
            _ => Command::line(self.pick(&lines)),
        }
    }

    fn meta(&mut self) -> Command {
        match self.below(100) {
            0..35 => {
                let flags = [
                    "v", "t", "s", "f", "k", "c", "q", "O77", "h", "N0", "N100", "R30", "T0",
                    "T1000", "T-1",
                ];
                self.meta_line("mg", &flags)
            }
            35..70 => {
                let flags = [
                    "F5",
                    "F4294967295",
                    "T0",
                    "T1000",
                    "T-1",
                    "I",
                    "O9",
                    "k",
                    "q",
                    "c",
                    "C0",
                    "C1",
                    "MS",
                    "ME",
                    "MA",
                    "MP",
                    "MR",
                    "N0",
                    "N1000",
                ];
                self.meta_store(&flags)
            }
            70..82 => {
                let flags = ["q", "O3", "k", "I", "T100", "C0", "C1"];
                self.meta_line("md", &flags)
            }
            82..98 => {
                let flags = [
                    "q",
                    "O4",
                    "k",
                    "v",
                    "t",
                    "c",
                    "D7",
                    "D281474976710656",
                    "MI",
                    "MD",
                    "N0",
                    "N100",
                    "J13",
                    "C0",
                ];
                self.meta_line("ma", &flags)
            }
            98 if !self.is_old => Command::line("mg"),
            _ => self.meta_line("mg", &["z", "v", "Ox", "Tx"]),
        }
    }

    /// A meta command with any of its flags in any order. The ids that `E` gives are below those of
    /// the servers; what differs where they are above is in docs/compatibility.md.
    fn every_flag(&mut self) -> Command {
        let bad_arguments =
            ["Tx", "N", "N2147483648", "R1x", "C-1", "E", "Dx", "J", "Fx", "F-5", "T-", "z", "Mx"];
        let mut flags: Vec<&str> = vec!["q", "k", "c", "t", "v", "O7", LONGEST_OPAQUE];
        if self.chance(10) {
            flags.push(self.pick(&bad_arguments));
        }
        let times = ["T0", "T30", "T-1", "T1000", "T2592001"];
        flags.extend(times);
        match self.below(100) {
            0..32 => {
                flags.extend([
                    "s",
                    "f",
                    "h",
                    "u",
                    "C0",
                    "E3",
                    "E0",
                    LONG_OPAQUE,
                    "N0",
                    "N30",
                    "N-1",
                    "N1000",
                    "R0",
                    // Not the time that an item is given: a tick between two commands decides.
                    "R20",
                    "R50",
                    "R-1",
                    "R2000",
                ]);
                self.meta_line("mg", &flags)
            }
            32..62 => {
                flags.extend([
                    "s",
                    "F0",
                    "F5",
                    "F4294967295",
                    "C0",
                    "C1",
                    "I",
                    "MS",
                    "ME",
                    "MA",
                    "MP",
                    "MR",
                    "Mappend",
                    "N0",
                    "N30",
                    "N-1",
                ]);
                // Not both: see docs/compatibility.md.
                let others = [LONG_OPAQUE, "E3", "E7", "E0"];
                flags.push(self.pick(&others));
                self.meta_store(&flags)
            }
            62..76 => {
                flags.extend(["C0", "C1", "I", "x", "F5", "E7", "E0", LONG_OPAQUE]);
                self.meta_line("md", &flags)
            }
            76..95 => {
                flags.extend([
                    "C0",
                    "C1",
                    "E3",
                    "E0",
                    LONG_OPAQUE,
                    "N0",
                    "N30",
                    "N-1",
                    "J13",
                    "J99",
                    "D0",
                    "D7",
                    "D900",
                    "D18446744073709551615",
                    "MI",
                    "MD",
                    "M+",
                    "M-",
                    "Mincr",
                ]);
                self.meta_line("ma", &flags)
            }
            _ => Command::line(format!("me {}", self.key())),
        }
    }

    fn meta_line(&mut self, verb: &str, flags: &[&str]) -> Command {
        let key = self.key();
        let mut line = format!("{verb} {key}");
        self.add_flags(&mut line, &key, flags);
        Command::line(line)
    }

    fn meta_store(&mut self, flags: &[&str]) -> Command {
        let value = self.value();
        let (key, length) = (self.key(), value.len());
        let mut line = format!("ms {key} {length}");
        self.add_flags(&mut line, &key, flags);
        Command::with_value(line, value)
    }

    /// Adds a few flags, none twice. A request for an id also asks for the key, so that the answer
    /// says whose id it is.
    fn add_flags(&mut self, line: &mut String, key: &str, flags: &[&str]) {
        let mut used = String::new();
        for _ in 0..self.below(if self.kind == Kind::Flags { 9 } else { 6 }) {
            let flag = self.pick(flags);
            let appends = line.contains(" MA") || line.contains(" MP");
            let is_missing = self.is_old && line.starts_with("ma") && flag == "q"
                || self.is_old && flag.starts_with('N') && appends
                || self.is_old && matches!(flag, "MA" | "MP") && used.contains('N');
            // The kind that sends single commands has these two.
            let is_different = self.kind != Kind::Flags
                && line.starts_with("mg")
                && (flag.starts_with('T') && used.contains('N')
                    || flag.starts_with('N') && used.contains('T'));
            if used.contains(&flag[..1]) || is_missing || is_different {
                continue;
            }
            used.push_str(&flag[..1]);
            match flag {
                "C0" | "C1" => line.push_str(&format!(" C{{id {key} {}}}", &flag[1..])),
                flag => line.push_str(&format!(" {flag}")),
            }
        }
        if used.contains('c') && !used.contains('k') {
            line.push_str(" k");
        }
    }
}
