//! What keeps the objects: chunks of a cluster, or Redis. Both are asked for many keys at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_node::ClusterClient;
use amalgam_node::cluster::chunks::{Action, Done};
use amalgam_node::cluster::ids::ChunkId;
use anyhow::{Context, ensure};

use super::BgArguments;
use super::world::World;
use crate::cluster::{Nodes, end, free_port, pinned};

/// Objects that are written with one call while loading.
const BATCH: usize = 512;
/// Memory of a client for where chunks are.
const CACHE_BYTES: usize = 16 << 20;
/// How long Redis may take to listen, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection of one client. Objects have numbers.
pub trait Store: Send {
    /// Reads objects together, in their order.
    fn read(&mut self, numbers: &[u32]) -> anyhow::Result<Vec<Vec<u8>>>;

    /// Replaces objects together.
    fn write(&mut self, objects: Vec<(u32, Vec<u8>)>) -> anyhow::Result<()>;
}

/// Servers that keep the objects, until this ends.
pub trait Backend {
    /// As the command line has it.
    fn name(&self) -> &'static str;

    /// The servers' processes.
    fn pids(&self) -> Vec<u32>;

    /// Another client.
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
    /// If that fails.
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
                    let Done::Created(id) = done? else { anyhow::bail!("no new chunk") };
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
    fn read(&mut self, numbers: &[u32]) -> anyhow::Result<Vec<Vec<u8>>> {
        let ids: Vec<ChunkId> = numbers.iter().map(|number| self.ids[*number as usize]).collect();
        Ok(self.client.get_all(&ids).into_iter().collect::<Result<_, _>>()?)
    }

    fn write(&mut self, objects: Vec<(u32, Vec<u8>)>) -> anyhow::Result<()> {
        let put = |(number, value): (u32, _)| Action::Put(self.ids[number as usize], value);
        let puts = objects.into_iter().map(put).collect();
        for done in self.client.call_all(puts) {
            done?;
        }
        Ok(())
    }
}

/// Redis on a core, without persistence.
pub struct Redis {
    process: Child,
    address: String,
}

impl Redis {
    /// Starts it and writes all objects.
    ///
    /// # Errors
    ///
    /// If that fails.
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
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(&started.address).is_err() {
            ensure!(Instant::now() < deadline, "Redis does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut store = started.open()?;
        let numbers: Vec<u32> = (0..world.objects()).collect();
        for batch in numbers.chunks(BATCH) {
            let objects = batch.iter().map(|number| (*number, world.first_value(*number)));
            store.write(objects.collect())?;
        }
        Ok(started)
    }

    fn open(&self) -> anyhow::Result<RedisStore> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(RedisStore { stream: BufReader::with_capacity(64 << 10, stream), out: Vec::new() })
    }
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

/// As much of RESP as MGET and MSET take.
struct RedisStore {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl RedisStore {
    fn begin(&mut self, command: &str, arguments: usize) {
        self.out.clear();
        self.out.extend(format!("*{}\r\n", arguments + 1).as_bytes());
        self.push(command.as_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        self.out.extend(format!("${}\r\n", bytes.len()).as_bytes());
        self.out.extend(bytes);
        self.out.extend(b"\r\n");
    }

    fn send(&mut self) -> anyhow::Result<()> {
        Ok(self.stream.get_mut().write_all(&self.out)?)
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

impl Store for RedisStore {
    fn read(&mut self, numbers: &[u32]) -> anyhow::Result<Vec<Vec<u8>>> {
        self.begin("MGET", numbers.len());
        numbers.iter().for_each(|number| self.push(&key(*number)));
        self.send()?;
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

    fn write(&mut self, objects: Vec<(u32, Vec<u8>)>) -> anyhow::Result<()> {
        self.begin("MSET", 2 * objects.len());
        for (number, value) in objects {
            self.push(&key(number));
            self.push(&value);
        }
        self.send()?;
        ensure!(self.line('+')? == "OK", "Redis does not write");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_numbers() {
        assert_eq!(&key(0x1234_abcd), b"1234abcd");
        assert_eq!(&key(7), b"00000007");
    }
}
