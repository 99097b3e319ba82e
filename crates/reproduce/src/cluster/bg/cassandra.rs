//! Cassandra as a backend: its processes, and as much of its binary protocol (CQL, version 4) as
//! reading and writing objects together takes. Objects are rows of one table by their number, each
//! kept once, so that no backend has more copies than another.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::stores::{Backend, Store, Values, Wish, open, write_all};
use super::world::World;
use super::{BgArguments, CASSANDRA_JARS};
use crate::cluster::{end, free_port, pinned};

/// How long a Java machine may take to load and join, on a busy core.
const PATIENCE: Duration = Duration::from_secs(180);
/// Until a Java machine has compiled what it runs, on its part of a core.
const WARM_UP_SECONDS: f64 = 20.0;
/// Rows of a batch; Cassandra refuses batches above 50 KiB.
const BATCH_ROWS: usize = 32;
/// What Cassandra and its libraries open by reflection.
const OPENED: [&str; 16] = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/sun.nio.ch",
    "java.management/com.sun.jmx.remote.security",
    "java.rmi/sun.rmi.transport.tcp",
];

/// Nodes of Cassandra on a core, at addresses 127.0.0.1 and following.
pub struct Cassandra {
    processes: Vec<Child>,
    addresses: Vec<String>,
    folder: PathBuf,
}

impl Cassandra {
    /// Starts them and writes all objects.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub fn load(arguments: &BgArguments, world: &World, core: usize) -> anyhow::Result<Self> {
        let named = arguments.cassandra.clone();
        let jars = named.or_else(|| std::env::var_os(CASSANDRA_JARS).map(PathBuf::from)).context(
            "--cassandra DIR is missing: a folder with the jars of Maven's \
             org.apache.cassandra:cassandra-all and all that it depends on",
        )?;
        let folder = std::env::temp_dir().join(format!("amalgam-cassandra-{}", std::process::id()));
        let mut started = Self { processes: Vec::new(), addresses: Vec::new(), folder };
        let (ring, clients) = (free_port()?, free_port()?);
        for place in 1..=arguments.nodes {
            let address = format!("127.0.0.{place}");
            let home = started.folder.join(place.to_string());
            std::fs::create_dir_all(&home)?;
            std::fs::write(home.join("cassandra.yaml"), settings(&home, &address, ring, clients))?;
            std::fs::write(home.join("logback.xml"), LOGGING)?;
            started.processes.push(java(&jars, &home, core)?);
            started.addresses.push(format!("{address}:{clients}"));
            started.wait_for_all()?;
        }
        let mut first = Connection::open(&started.addresses[0])?;
        first.query(
            "CREATE KEYSPACE bg WITH replication = \
             {'class': 'SimpleStrategy', 'replication_factor': 1}",
        )?;
        first.query("CREATE TABLE bg.objects (number int PRIMARY KEY, value blob)")?;
        // Once all nodes know the table: until then they refuse each other's rows.
        let open = |address: &String| CassandraStore::open(address);
        let mut stores = started.addresses.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        write_all(&mut stores[0], world)?;
        Ok(started)
    }

    /// Until the newest node is known to each.
    fn wait_for_all(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let others = self.addresses.len() - 1;
        for place in 0..self.addresses.len() {
            loop {
                let peers = Connection::open(&self.addresses[place])
                    .and_then(|mut one| one.query("SELECT peer FROM system.peers"))
                    .and_then(|answer| Rows::of(&answer).map(|rows| rows.count));
                match peers {
                    Ok(count) if count == others => break,
                    _ => std::thread::sleep(Duration::from_millis(200)),
                }
                let has_ended = self.processes[place].try_wait()?.is_some();
                ensure!(!has_ended, "Cassandra ended; it needs Java 17 and its jars");
                ensure!(Instant::now() < deadline, "Cassandra does not serve after {PATIENCE:?}");
            }
        }
        Ok(())
    }
}

impl Drop for Cassandra {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(end);
        // What stays behind is in the system's folder for such.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Backend for Cassandra {
    fn name(&self) -> &'static str {
        "cassandra"
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }

    fn warm_up_seconds(&self) -> f64 {
        WARM_UP_SECONDS * self.processes.len() as f64
    }

    fn connect(&self, place: usize) -> anyhow::Result<Box<dyn Store>> {
        let address = &self.addresses[place % self.addresses.len()];
        Ok(Box::new(CassandraStore::open(address)?))
    }
}

/// Warnings only: what batches of many rows are warned of is how they are meant here.
const LOGGING: &str = "<configuration>\n  <root level=\"ERROR\"/>\n</configuration>\n";

fn settings(home: &Path, address: &str, ring: u16, clients: u16) -> String {
    let home = home.display();
    format!(
        "cluster_name: bg
num_tokens: 16
auto_bootstrap: false
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [ {{ seeds: '127.0.0.1:{ring}' }} ]
listen_address: {address}
rpc_address: {address}
storage_port: {ring}
native_transport_port: {clients}
data_file_directories: [ '{home}/data' ]
commitlog_directory: '{home}/commitlog'
hints_directory: '{home}/hints'
saved_caches_directory: '{home}/caches'
cdc_raw_directory: '{home}/cdc'
commitlog_sync: periodic
commitlog_sync_period: 10000ms
memtable_allocation_type: offheap_objects
"
    )
}

fn java(jars: &Path, home: &Path, core: usize) -> anyhow::Result<Child> {
    let opened = OPENED.iter().flat_map(|package| {
        let option = |option: &str| [format!("--{option}"), format!("{package}=ALL-UNNAMED")];
        [option("add-opens"), option("add-exports")].concat()
    });
    let file = |name: &str| home.join(name).display().to_string();
    pinned(core)
        .arg("java")
        .args(opened)
        .args(["--add-exports", "jdk.unsupported/sun.misc=ALL-UNNAMED", "-Xms1g", "-Xmx2g"])
        .arg("-Djdk.attach.allowAttachSelf=true")
        .arg(format!("-Dcassandra.config=file://{}", file("cassandra.yaml")))
        .arg(format!("-Dlogback.configurationFile={}", file("logback.xml")))
        .arg(format!("-Dcassandra.storagedir={}", home.display()))
        .args(["-Dcassandra-foreground=yes", "-Dcassandra.skip_wait_for_gossip_to_settle=0"])
        .arg("-Dcassandra.ring_delay_ms=1000")
        .arg("-cp")
        .arg(jars.join("*"))
        .arg("org.apache.cassandra.service.CassandraDaemon")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("java cannot be run")
}

/// Kinds of frames.
mod opcode {
    pub const ERROR: u8 = 0x00;
    pub const STARTUP: u8 = 0x01;
    pub const QUERY: u8 = 0x07;
    pub const PREPARE: u8 = 0x09;
    pub const EXECUTE: u8 = 0x0a;
    pub const BATCH: u8 = 0x0d;
}

const REQUEST_VERSION: u8 = 4;
const ANSWER_VERSION: u8 = 0x84;
/// A list of warnings stands before an answer.
const HAS_WARNINGS: u8 = 0x08;
/// Consistency: one copy, of the one there is.
const ONE: [u8; 2] = [0, 1];
/// Flags of an execution: values follow; answers need not describe their columns.
const WITH_VALUES: u8 = 0x01;
const WITHOUT_METADATA: u8 = 0x02;
/// Kinds of results.
const ROWS: u32 = 2;
const PREPARED: u32 = 4;
/// Frames under way have numbers of 15 bits.
const MOST_FRAMES: usize = 1 << 15;
/// An answer is larger than anything that this asks for.
const MOST_BYTES: usize = 64 << 20;

/// A connection. Answers come in any order, with the numbers of their frames.
struct Connection {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl Connection {
    fn open(address: &str) -> anyhow::Result<Self> {
        let mut connection = Self { stream: open(address)?, out: Vec::new() };
        connection.frame(opcode::STARTUP, 0, |out| {
            out.extend(1_u16.to_be_bytes());
            string(out, "CQL_VERSION");
            string(out, "3.0.0");
        });
        connection.ask()?;
        Ok(connection)
    }

    fn query(&mut self, text: &str) -> anyhow::Result<Vec<u8>> {
        self.frame(opcode::QUERY, 0, |out| {
            long_string(out, text);
            out.extend(ONE);
            out.push(0);
        });
        self.ask()
    }

    /// A statement that is to be executed by the name that this returns.
    fn prepare(&mut self, text: &str) -> anyhow::Result<Vec<u8>> {
        self.frame(opcode::PREPARE, 0, |out| long_string(out, text));
        let answer = self.ask()?;
        let mut answer = Reader(&answer);
        ensure!(answer.word()? == PREPARED, "Cassandra does not prepare a statement");
        let length = answer.short()?;
        Ok(answer.take(length.into())?.to_vec())
    }

    /// Appends a request to what is sent next.
    fn frame(&mut self, opcode: u8, stream: u16, body: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend([REQUEST_VERSION, 0]);
        self.out.extend(stream.to_be_bytes());
        self.out.push(opcode);
        let at = self.out.len();
        self.out.extend([0; 4]);
        body(&mut self.out);
        let length = (self.out.len() - at - 4) as u32;
        self.out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Sends one request, and waits for its answer.
    fn ask(&mut self) -> anyhow::Result<Vec<u8>> {
        self.send()?;
        Ok(self.answer()?.1)
    }

    /// Which frame an answer is to, and what it says, without its warnings.
    fn answer(&mut self) -> anyhow::Result<(u16, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        ensure!(head[0] == ANSWER_VERSION, "Cassandra answers in version {:#x}", head[0]);
        let length = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) as usize;
        ensure!(length <= MOST_BYTES, "Cassandra answers {length} bytes");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let mut rest = Reader(&body);
        if head[1] & HAS_WARNINGS != 0 {
            for _ in 0..rest.short()? {
                let length = rest.short()?;
                rest.take(length.into())?;
            }
        }
        if head[4] == opcode::ERROR {
            let code = rest.word()?;
            let length = rest.short()?;
            let text = String::from_utf8_lossy(rest.take(length.into())?);
            bail!("Cassandra answers with error {code:#x}: {text}");
        }
        Ok((u16::from_be_bytes([head[2], head[3]]), rest.0.to_vec()))
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

fn long_string(out: &mut Vec<u8>, text: &str) {
    bytes(out, text.as_bytes());
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_be_bytes());
    out.extend(bytes);
}

fn short_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
}

/// What is left of an answer.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> anyhow::Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(length).context("Cassandra's answer is cut off")?;
        self.0 = rest;
        Ok(taken)
    }

    fn short(&mut self) -> anyhow::Result<u16> {
        let taken = self.take(2)?;
        Ok(u16::from_be_bytes([taken[0], taken[1]]))
    }

    fn word(&mut self) -> anyhow::Result<u32> {
        let taken = self.take(4)?;
        Ok(u32::from_be_bytes([taken[0], taken[1], taken[2], taken[3]]))
    }
}

/// An answer with rows, at its first.
struct Rows<'a> {
    count: usize,
    columns: usize,
    rest: Reader<'a>,
}

impl<'a> Rows<'a> {
    fn of(answer: &'a [u8]) -> anyhow::Result<Self> {
        const HAS_TABLE: u32 = 1;
        const HAS_NO_METADATA: u32 = 4;
        let mut rest = Reader(answer);
        ensure!(rest.word()? == ROWS, "Cassandra answers without rows");
        let (flags, columns) = (rest.word()?, rest.word()? as usize);
        if flags & HAS_NO_METADATA == 0 {
            ensure!(flags & HAS_TABLE != 0 && columns == 1, "columns that nobody asked for");
            for _ in 0..3 {
                let length = rest.short()?;
                rest.take(length.into())?;
            }
            // The column's type, which has no parameters.
            rest.short()?;
        }
        let count = rest.word()? as usize;
        Ok(Self { count, columns, rest })
    }

    fn cell(&mut self) -> anyhow::Result<&'a [u8]> {
        let length = self.rest.word()?;
        ensure!(length <= i32::MAX as u32, "an object without a value");
        self.rest.take(length as usize)
    }
}

/// A connection with its two statements.
struct CassandraStore {
    connection: Connection,
    select: Vec<u8>,
    insert: Vec<u8>,
}

impl CassandraStore {
    /// Waits until the node at `address` knows the table.
    fn open(address: &str) -> anyhow::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        let mut connection = Connection::open(address)?;
        let select = "SELECT number, value FROM bg.objects WHERE number IN ?";
        let select = loop {
            match connection.prepare(select) {
                Ok(select) => break select,
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        let insert = connection.prepare("INSERT INTO bg.objects (number, value) VALUES (?, ?)")?;
        Ok(Self { connection, select, insert })
    }
}

impl CassandraStore {
    fn ask_for(&mut self, stream: u16, numbers: &[u32]) {
        let Self { connection, select, .. } = self;
        connection.frame(opcode::EXECUTE, stream, |out| {
            short_bytes(out, select);
            out.extend(ONE);
            out.push(WITH_VALUES | WITHOUT_METADATA);
            out.extend(1_u16.to_be_bytes());
            // A list: its bytes, its length, and each number's bytes.
            out.extend((4 + 8 * numbers.len() as u32).to_be_bytes());
            out.extend((numbers.len() as u32).to_be_bytes());
            for number in numbers {
                bytes(out, &number.to_be_bytes());
            }
        });
    }

    fn replace(&mut self, stream: u16, objects: &[(u32, Vec<u8>)]) {
        const UNLOGGED: u8 = 1;
        const IS_PREPARED: u8 = 1;
        let Self { connection, insert, .. } = self;
        connection.frame(opcode::BATCH, stream, |out| {
            out.push(UNLOGGED);
            out.extend((objects.len() as u16).to_be_bytes());
            for (number, value) in objects {
                out.push(IS_PREPARED);
                short_bytes(out, insert);
                out.extend(2_u16.to_be_bytes());
                bytes(out, &number.to_be_bytes());
                bytes(out, value);
            }
            out.extend(ONE);
            out.push(0);
        });
    }
}

/// The values of `numbers` in an answer, where each is once, in the order of the partitions.
fn values_of(numbers: &[u32], answer: &[u8]) -> anyhow::Result<Values> {
    let mut rows = Rows::of(answer)?;
    ensure!(rows.columns == 2, "{} columns instead of two", rows.columns);
    let mut found = BTreeMap::new();
    for _ in 0..rows.count {
        let number = <[u8; 4]>::try_from(rows.cell()?).context("a number of four bytes")?;
        found.insert(u32::from_be_bytes(number), rows.cell()?.to_vec());
    }
    let value = |number| found.get(number).cloned().context("an object is not there");
    numbers.iter().map(value).collect()
}

impl Store for CassandraStore {
    fn carry_out(&mut self, wishes: Vec<Wish>) -> anyhow::Result<Vec<Values>> {
        // Which wish each frame is of.
        let mut asked = Vec::with_capacity(wishes.len());
        for (place, wish) in wishes.iter().enumerate() {
            match wish {
                Wish::Read(numbers) => {
                    self.ask_for(asked.len() as u16, numbers);
                    asked.push(place);
                }
                Wish::Write(objects) => {
                    for batch in objects.chunks(BATCH_ROWS) {
                        self.replace(asked.len() as u16, batch);
                        asked.push(place);
                    }
                }
            }
        }
        ensure!(asked.len() <= MOST_FRAMES, "more frames than have numbers");
        self.connection.send()?;
        let mut values = vec![Values::new(); wishes.len()];
        for _ in 0..asked.len() {
            let (stream, answer) = self.connection.answer()?;
            let place = *asked.get(usize::from(stream)).context("an answer to nothing")?;
            if let Wish::Read(numbers) = &wishes[place] {
                values[place] = values_of(numbers, &answer)?;
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(bytes: &'static [u8]) -> Connection {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(bytes).expect("the client listens");
        });
        Connection { stream: open(&address).expect("the server listens"), out: Vec::new() }
    }

    #[test]
    fn objects_come_in_the_order_in_which_they_are_asked_for() {
        let answer = b"\x84\x08\0\x01\x08\0\0\0\x04\0\0\0\x01\
            \x84\x08\0\0\x08\0\0\0\x30\0\x01\0\x02ho\0\0\0\x02\0\0\0\x04\0\0\0\x02\
            \0\0\0\x02\0\0\0\x04\0\0\0\x05\0\0\0\x01a\0\0\0\x04\0\0\0\x07\0\0\0\x01b";
        let (select, insert) = (b"select".to_vec(), Vec::new());
        let mut store = CassandraStore { connection: answers(answer), select, insert };
        let wishes = vec![Wish::Read(vec![7, 5, 7]), Wish::Write(vec![(1, b"c".to_vec())])];
        let values = store.carry_out(wishes).expect("both are there, and one is written");
        assert_eq!(values[0], [b"b", b"a", b"b"]);
        assert!(values[1].is_empty());
    }

    #[test]
    fn errors_are_passed_on_and_lies_are_found() {
        let mut refused = answers(b"\x84\0\0\0\0\0\0\0\x09\0\0\x20\0\0\x03bad");
        assert_eq!(
            refused.answer().expect_err("refused").to_string(),
            "Cassandra answers with error 0x2000: bad"
        );
        for lie in [&b"\x84\0\0\0\x08\x7f\xff\xff\xff"[..], b"\x83\0\0\0\x08\0\0\0\0", b"\x84"] {
            assert!(answers(lie).answer().is_err());
        }
        for lie in [&b""[..], b"\0\0\0\x01", b"\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\x09a"] {
            assert!(Rows::of(lie).is_err());
        }
    }
}
