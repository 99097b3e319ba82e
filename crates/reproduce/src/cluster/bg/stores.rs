//! The systems that store the objects: chunks of a cluster, Redis, or several memcached among which
//! clients choose. Each request has many keys.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_node::ClusterClient;
use amalgam_node::cluster::chunks::{Action, Response};
use amalgam_node::cluster::ids::ChunkId;
use anyhow::{Context, ensure};

use super::BgArguments;
use super::world::World;
use crate::cluster::{Nodes, end, free_port, pinned};
use amalgam_bench::workload::mix64;

/// Objects that are written with one call while loading.
const BATCH: usize = 512;
/// The memory of a client's cache of chunks' locations, in bytes.
const CACHE_BYTES: usize = 16 << 20;
/// How long Redis or memcached may take to listen, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Values in the order of the objects.
pub type Values = Vec<Vec<u8>>;

/// A client's request for some objects.
pub enum Request {
    /// To read them together.
    Read(Vec<u32>),
    /// To replace them together; there are no values then.
    Write(Vec<(u32, Vec<u8>)>),
}

/// A connection to a store, which has objects by number.
pub trait Store: Send {
    /// Sends all requests, then receives all answers.
    fn execute(&mut self, requests: Vec<Request>) -> anyhow::Result<Vec<Values>>;

    /// Reads objects together, in their order.
    fn read(&mut self, numbers: &[u32]) -> anyhow::Result<Values> {
        let values = self.execute(vec![Request::Read(numbers.to_vec())])?;
        values.into_iter().next().context("an answer")
    }

    /// Replaces objects together.
    fn write(&mut self, objects: Vec<(u32, Vec<u8>)>) -> anyhow::Result<()> {
        self.execute(vec![Request::Write(objects)]).map(drop)
    }
}

/// Servers that store the objects, which are stopped on drop.
pub trait Backend {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// The servers' processes.
    fn pids(&self) -> Vec<u32>;

    /// Connects another client.
    fn connect(&self, place: usize) -> anyhow::Result<Box<dyn Store>>;
}

/// Chunks on one or more nodes. A member's objects are created on one of them, and clients know
/// their ids, as objects that name each other would.
pub struct Chunks {
    nodes: Nodes,
    ids: Arc<Vec<ChunkId>>,
}

impl Chunks {
    /// Starts nodes and creates all objects.
    ///
    /// # Errors
    ///
    /// If a node cannot be started or an object cannot be created.
    pub fn load(arguments: &BgArguments, world: &World, core: usize) -> anyhow::Result<Self> {
        let count = arguments.nodes;
        let megabytes = 64 + 2 * world.bytes() / count as u64 / (1 << 20);
        let nodes = match count {
            1 => Nodes::start(1, &arguments.engine, core, megabytes)?,
            _ => {
                let (engine, core) = (&arguments.engine, core.to_string());
                Nodes::start_apart(&arguments.etcd, count, engine, &core, megabytes, &[], None)?
            }
        };
        let mut ids = vec![None; world.objects() as usize];
        for (place, (address, _)) in nodes.addresses.iter().enumerate() {
            let address = std::slice::from_ref(address);
            let mut client = ClusterClient::connect(address, "", CACHE_BYTES)?;
            let is_here = |number: &u32| world.member_of(*number) as usize % count == place;
            let numbers: Vec<u32> = (0..world.objects()).filter(is_here).collect();
            for batch in numbers.chunks(BATCH) {
                let create = |number: &u32| Action::Create(world.first_value(*number));
                let done = client.call_all(batch.iter().map(create).collect());
                for (number, done) in batch.iter().zip(done) {
                    let Response::Created(id) = done? else { anyhow::bail!("no new chunk") };
                    ids[*number as usize] = Some(id);
                }
            }
        }
        let ids = ids.into_iter().collect::<Option<Vec<_>>>().context("every object has a node")?;
        Ok(Self { nodes, ids: Arc::new(ids) })
    }
}

impl Backend for Chunks {
    fn name(&self) -> &'static str {
        "amalgam"
    }

    fn pids(&self) -> Vec<u32> {
        self.nodes.pids()
    }

    fn connect(&self, place: usize) -> anyhow::Result<Box<dyn Store>> {
        let address = &self.nodes.addresses[place % self.nodes.addresses.len()].0;
        let client = ClusterClient::connect(std::slice::from_ref(address), "", CACHE_BYTES)?;
        Ok(Box::new(ChunkStore { client, ids: Arc::clone(&self.ids) }))
    }
}

struct ChunkStore {
    client: ClusterClient,
    ids: Arc<Vec<ChunkId>>,
}

impl Store for ChunkStore {
    fn execute(&mut self, requests: Vec<Request>) -> anyhow::Result<Vec<Values>> {
        let mut actions = Vec::new();
        let mut reads = Vec::with_capacity(requests.len());
        for request in requests {
            let id = |number: u32| self.ids[number as usize];
            match request {
                Request::Read(numbers) => {
                    reads.push((true, numbers.len()));
                    actions.extend(numbers.into_iter().map(|number| Action::Get(id(number))));
                }
                Request::Write(objects) => {
                    reads.push((false, objects.len()));
                    let put = |(number, value)| Action::Put(id(number), value);
                    actions.extend(objects.into_iter().map(put));
                }
            }
        }
        let mut done = self.client.call_all(actions).into_iter();
        let mut next = |(is_read, count): (bool, usize)| -> anyhow::Result<Values> {
            let mut values = Vec::with_capacity(if is_read { count } else { 0 });
            for done in done.by_ref().take(count) {
                match done? {
                    Response::Value(value) if is_read => values.push(value),
                    Response::Ok if !is_read => {}
                    other => anyhow::bail!("an answer to another question: {other:?}"),
                }
            }
            Ok(values)
        };
        reads.into_iter().map(&mut next).collect()
    }
}

/// Redis on a core, without persistence.
pub struct Redis {
    process: Child,
    address: String,
}

impl Redis {
    /// Starts Redis and writes all objects.
    ///
    /// # Errors
    ///
    /// If Redis cannot be started or refuses a write.
    pub fn load(arguments: &BgArguments, world: &World, core: usize) -> anyhow::Result<Self> {
        let port = free_port()?;
        let process = pinned(core)
            .arg(&arguments.redis)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{} cannot be run", arguments.redis.display()))?;
        let started = Self { process, address: format!("127.0.0.1:{port}") };
        wait_for(&started.address, "Redis")?;
        write_all(&mut started.open()?, world)?;
        Ok(started)
    }

    fn open(&self) -> anyhow::Result<RedisStore> {
        Ok(RedisStore { stream: open(&self.address)?, out: Vec::new() })
    }
}

/// Waits until a server listens at `address`.
fn wait_for(address: &str, name: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        ensure!(Instant::now() < deadline, "{name} does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A connection to a server that answers in time.
pub fn open(address: &str) -> anyhow::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(BufReader::with_capacity(64 << 10, stream))
}

/// Writes the first version of all objects.
pub fn write_all(store: &mut dyn Store, world: &World) -> anyhow::Result<()> {
    let numbers: Vec<u32> = (0..world.objects()).collect();
    for batch in numbers.chunks(BATCH) {
        let objects = batch.iter().map(|number| (*number, world.first_value(*number)));
        store.write(objects.collect())?;
    }
    Ok(())
}

impl Drop for Redis {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

impl Backend for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.process.id()]
    }

    fn connect(&self, _: usize) -> anyhow::Result<Box<dyn Store>> {
        Ok(Box::new(self.open()?))
    }
}

/// The part of RESP that MGET and MSET need.
struct RedisStore {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl RedisStore {
    fn begin(&mut self, command: &str, arguments: usize) {
        self.out.extend(format!("*{}\r\n", arguments + 1).as_bytes());
        self.push(command.as_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        self.out.extend(format!("${}\r\n", bytes.len()).as_bytes());
        self.out.extend(bytes);
        self.out.extend(b"\r\n");
    }

    /// A line of an answer, behind `first`.
    fn line(&mut self, first: char) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let rest = line.trim_end().strip_prefix(first);
        Ok(rest.with_context(|| format!("Redis answers '{}'", line.trim_end()))?.to_owned())
    }
}

fn key(number: u32) -> [u8; 8] {
    let mut key = *b"00000000";
    for (place, byte) in key.iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(number >> (28 - 4 * place)) as usize & 15];
    }
    key
}

impl RedisStore {
    fn ask(&mut self, request: &Request) {
        match request {
            Request::Read(numbers) => {
                self.begin("MGET", numbers.len());
                numbers.iter().for_each(|number| self.push(&key(*number)));
            }
            Request::Write(objects) => {
                self.begin("MSET", 2 * objects.len());
                for (number, value) in objects {
                    self.push(&key(*number));
                    self.push(value);
                }
            }
        }
    }

    fn answer(&mut self, request: &Request) -> anyhow::Result<Values> {
        let Request::Read(numbers) = request else {
            ensure!(self.line('+')? == "OK", "Redis does not write");
            return Ok(Vec::new());
        };
        let count: usize = self.line('*')?.parse()?;
        ensure!(count == numbers.len(), "Redis answers {count} of {} keys", numbers.len());
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            let length: usize = self.line('$')?.parse().context("an object is not there")?;
            let mut value = vec![0; length + 2];
            self.stream.read_exact(&mut value)?;
            value.truncate(length);
            values.push(value);
        }
        Ok(values)
    }
}

impl Store for RedisStore {
    fn execute(&mut self, requests: Vec<Request>) -> anyhow::Result<Vec<Values>> {
        self.out.clear();
        requests.iter().for_each(|request| self.ask(request));
        self.stream.get_mut().write_all(&self.out)?;
        requests.iter().map(|request| self.answer(request)).collect()
    }
}

/// Several memcached on a core. Which of them has a key is for the clients to say, as is usual.
pub struct Memcached {
    processes: Vec<Child>,
    addresses: Vec<String>,
}

impl Memcached {
    /// Starts the processes and writes all objects.
    ///
    /// # Errors
    ///
    /// If a memcached cannot be started or refuses a write.
    pub fn load(arguments: &BgArguments, world: &World, core: usize) -> anyhow::Result<Self> {
        let mut started = Self { processes: Vec::new(), addresses: Vec::new() };
        let count = arguments.nodes;
        let megabytes = 64 + 2 * world.bytes() / count as u64 / (1 << 20);
        for _ in 0..count {
            let port = free_port()?.to_string();
            let process = pinned(core)
                .arg(&arguments.memcached)
                .args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p", &port])
                .args(["-m", &megabytes.to_string()])
                .stdout(Stdio::null())
                .spawn()
                .with_context(|| format!("{} cannot be run", arguments.memcached.display()))?;
            started.processes.push(process);
            started.addresses.push(format!("127.0.0.1:{port}"));
            wait_for(started.addresses.last().context("one was started")?, "memcached")?;
        }
        write_all(&mut started.open()?, world)?;
        Ok(started)
    }

    fn open(&self) -> anyhow::Result<MemcachedStore> {
        let shard = |address: &String| {
            Ok(Shard { stream: open(address)?, out: Vec::new(), asked: Vec::new() })
        };
        let shards = self.addresses.iter().map(shard).collect::<anyhow::Result<_>>()?;
        Ok(MemcachedStore { shards })
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(end);
    }
}

impl Backend for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }

    fn connect(&self, _: usize) -> anyhow::Result<Box<dyn Store>> {
        Ok(Box::new(self.open()?))
    }
}

/// A connection to each server.
struct MemcachedStore {
    shards: Vec<Shard>,
}

/// One of the servers, and what it is asked.
struct Shard {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    /// Places in the answer of what it is asked for, in the order in which it is asked.
    asked: Vec<usize>,
}

/// Which of `count` servers has an object: by a hash of its number, as clients hash keys.
fn shard_of(number: u32, count: usize) -> usize {
    (mix64(u64::from(number)) % count as u64) as usize
}

impl MemcachedStore {
    fn shard(&mut self, number: u32) -> &mut Shard {
        let count = self.shards.len();
        &mut self.shards[shard_of(number, count)]
    }

    /// Sends the requests to all servers before it waits for any answer.
    fn send(&mut self) -> anyhow::Result<()> {
        for shard in self.shards.iter_mut().filter(|shard| !shard.asked.is_empty()) {
            shard.stream.get_mut().write_all(&shard.out)?;
        }
        Ok(())
    }
}

impl Shard {
    /// A line of an answer, without its end.
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line.ends_with("\r\n"), "memcached answers '{line}'");
        line.truncate(line.len() - 2);
        Ok(line)
    }

    /// The answer to `get` of `asked`, in whose order it is.
    fn read_values(&mut self, numbers: &[u32], values: &mut [Vec<u8>]) -> anyhow::Result<()> {
        for place in std::mem::take(&mut self.asked) {
            let line = self.line()?;
            let mut words = line.split(' ');
            let (value, name) = (words.next(), words.next().unwrap_or_default());
            let is_it = value == Some("VALUE") && name.as_bytes() == key(numbers[place]);
            ensure!(is_it, "an object is not there: memcached answers '{line}'");
            let length: usize = words.nth(1).context("a length")?.parse()?;
            let mut bytes = vec![0; length + 2];
            self.stream.read_exact(&mut bytes)?;
            bytes.truncate(length);
            values[place] = bytes;
        }
        let line = self.line()?;
        ensure!(line == "END", "memcached answers '{line}'");
        Ok(())
    }
}

impl MemcachedStore {
    fn read_now(&mut self, numbers: &[u32]) -> anyhow::Result<Values> {
        self.shards.iter_mut().for_each(|shard| shard.out.clear());
        for (place, number) in numbers.iter().enumerate() {
            let shard = self.shard(*number);
            if shard.asked.is_empty() {
                shard.out.extend(b"get");
            }
            shard.out.push(b' ');
            shard.out.extend(key(*number));
            shard.asked.push(place);
        }
        self.shards.iter_mut().for_each(|shard| shard.out.extend(b"\r\n"));
        self.send()?;
        let mut values = vec![Vec::new(); numbers.len()];
        for shard in self.shards.iter_mut().filter(|shard| !shard.asked.is_empty()) {
            shard.read_values(numbers, &mut values)?;
        }
        Ok(values)
    }

    fn write_now(&mut self, objects: &[(u32, Vec<u8>)]) -> anyhow::Result<Values> {
        self.shards.iter_mut().for_each(|shard| shard.out.clear());
        for (place, (number, value)) in objects.iter().enumerate() {
            let shard = self.shard(*number);
            shard.out.extend(b"set ");
            shard.out.extend(key(*number));
            shard.out.extend(format!(" 0 0 {}\r\n", value.len()).as_bytes());
            shard.out.extend(value);
            shard.out.extend(b"\r\n");
            shard.asked.push(place);
        }
        self.send()?;
        for shard in &mut self.shards {
            for _ in std::mem::take(&mut shard.asked) {
                let line = shard.line()?;
                ensure!(line == "STORED", "memcached does not write: it answers '{line}'");
            }
        }
        Ok(Vec::new())
    }
}

/// Executes one request after the other: clients do not share its connections.
impl Store for MemcachedStore {
    fn execute(&mut self, requests: Vec<Request>) -> anyhow::Result<Vec<Values>> {
        let execute = |request: &Request| match request {
            Request::Read(numbers) => self.read_now(numbers),
            Request::Write(objects) => self.write_now(objects),
        };
        requests.iter().map(execute).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says what it is told to, once somebody asked, and what it was asked.
    fn scripted(answer: &'static str) -> (Shard, std::thread::JoinHandle<String>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(answer.as_bytes()).expect("the client listens");
            stream.shutdown(std::net::Shutdown::Write).expect("no more");
            let mut asked = String::new();
            stream.read_to_string(&mut asked).expect("text");
            asked
        });
        let stream = open(&address).expect("the server listens");
        (Shard { stream, out: Vec::new(), asked: Vec::new() }, server)
    }

    #[test]
    fn memcached_gets_each_key_from_its_own_server() {
        let numbers: Vec<u32> = (0..5).collect();
        let shards: Vec<usize> = numbers.iter().map(|number| shard_of(*number, 2)).collect();
        assert!(shards.contains(&0) && shards.contains(&1), "{shards:?}");
        let answer = |of: usize| -> &'static str {
            let values = numbers.iter().filter(|number| shards[**number as usize] == of);
            let value = |number: &u32| format!("VALUE 0000000{number} 0 2\r\nv{number}\r\n");
            Box::leak((values.map(value).collect::<String>() + "END\r\n").into_boxed_str())
        };
        let (first, first_server) = scripted(answer(0));
        let (second, second_server) = scripted(answer(1));
        let mut store = MemcachedStore { shards: vec![first, second] };
        let values = store.read(&numbers).expect("all are there");
        let expected: Vec<Vec<u8>> = (0..5).map(|n| format!("v{n}").into_bytes()).collect();
        assert_eq!(values, expected);
        drop(store);
        let asked = [first_server, second_server].map(|server| server.join().expect("it ends"));
        assert!(asked.iter().all(|asked| asked.starts_with("get ") && asked.ends_with("\r\n")));
        assert_eq!(asked.iter().map(|asked| asked.matches(" 000").count()).sum::<usize>(), 5);
    }

    #[test]
    fn what_memcached_does_not_have_or_write_is_an_error() {
        for (answer, what) in [
            ("END\r\n", "not there"),
            ("VALUE 00000008 0 1\r\nx\r\nEND\r\n", "not there"),
            ("", "answers ''"),
        ] {
            let (shard, server) = scripted(answer);
            let mut store = MemcachedStore { shards: vec![shard] };
            let error = store.read(&[7]).expect_err("no value").to_string();
            assert!(error.contains(what), "{error}");
            drop(store);
            server.join().expect("it ends");
        }
        let (shard, server) = scripted("SERVER_ERROR out of memory storing object\r\n");
        let mut store = MemcachedStore { shards: vec![shard] };
        let error = store.write(vec![(7, b"value".to_vec())]).expect_err("not written");
        assert!(error.to_string().contains("out of memory"), "{error}");
        drop(store);
        assert_eq!(server.join().expect("it ends"), "set 00000007 0 0 5\r\nvalue\r\n");
    }

    #[test]
    fn keys_differ_and_are_numbers() {
        assert_eq!(&key(0x1234_abcd), b"1234abcd");
        assert_eq!(&key(7), b"00000007");
    }
}
