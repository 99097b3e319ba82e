//! A whole cluster is killed or loses power, and starts again from its logs: acknowledged writes
//! are there. The nodes run in memory, in one thread; the crash is the only fault.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use amalgam_cluster::chunks::{Action, ChunkError, ChunkStore, ClientId, Response, StoreError};
use amalgam_cluster::coordinator::Coordinator;
use amalgam_cluster::ids::{ChunkId, IdRange};
use amalgam_cluster::log::{
    Crash, Durability, LogError, LogSettings, MemoryStorage, Storage, StorageError,
};
use amalgam_cluster::node::{Node, NodeCommand, NodeSettings};
use amalgam_cluster::overlay::{OverlayEvent, OverlaySettings, Peer, position};
use amalgam_cluster::ranges::LIMIT_BYTES_MIN;
use amalgam_cluster::replication::{ReplicaStore, ReplicationSettings};
use amalgam_cluster::shard::ChunkSettings;
use amalgam_cluster::wire::Packet;
use proptest::prelude::*;

const LEASE_MS: u64 = 400;
const TICK_MS: u64 = 10;
/// Longer than any wait in these tests.
const PATIENCE_MS: u64 = 40_000;

/// A disk that outlives the node that uses it.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<MemoryStorage>>);

impl Disk {
    fn with<T>(&self, act: impl FnOnce(&mut MemoryStorage) -> T) -> T {
        act(&mut self.0.lock().expect("nobody panicked"))
    }
}

impl Storage for Disk {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        self.with(Storage::segments)
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        self.with(|disk| disk.create(segment, bytes))
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        self.with(|disk| disk.write(segment, offset, bytes))
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        self.with(|disk| disk.read(segment, offset, bytes))
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.with(Storage::sync)
    }
}

#[derive(Debug, Default)]
struct Chunks(BTreeMap<ChunkId, Vec<u8>>);

impl ChunkStore for Chunks {
    fn read(&mut self, id: ChunkId, read: &mut dyn FnMut(&[u8])) -> bool {
        self.0.get(&id).map(|value| read(value)).is_some()
    }

    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError> {
        self.0.insert(id, value.to_vec());
        Ok(())
    }

    fn remove(&mut self, id: ChunkId) -> bool {
        self.0.remove(&id).is_some()
    }
}

/// A chunk's last acknowledged value, and the last one whose write was started.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    acknowledged: u64,
    tried: u64,
}

/// The purpose of an operation.
#[derive(Clone, Copy, Debug)]
enum About {
    Creation,
    Put(ChunkId, u64),
    Get(ChunkId),
}

struct World {
    settings: OverlaySettings,
    coordinator: Coordinator,
    durability: Durability,
    disks: Vec<Disk>,
    nodes: BTreeMap<usize, (Peer, Node<Chunks>)>,
    revisions: BTreeMap<Peer, u64>,
    mail: VecDeque<(Peer, Peer, Packet)>,
    doing: BTreeMap<(Peer, u64), About>,
    written: BTreeMap<ChunkId, Written>,
    read: BTreeMap<ChunkId, Result<Vec<u8>, ChunkError>>,
    now_ms: u64,
    /// Number of starts of the machines.
    boot: u64,
    /// Packets to deliver before everything stops.
    left: u64,
    is_metadata_lost: bool,
    /// A dead incarnation whose lease is renewed until this time, as when the coordinator was away.
    late_lease: Option<(Peer, u64)>,
}

impl World {
    fn new(nodes: usize, durability: Durability) -> Self {
        Self::with(OverlaySettings::default(), nodes, durability)
    }

    fn with(settings: OverlaySettings, nodes: usize, durability: Durability) -> Self {
        let settings = OverlaySettings { lease_ms: LEASE_MS, ..settings };
        let mut world = Self {
            settings,
            coordinator: Coordinator::new(settings, LEASE_MS),
            durability,
            disks: (0..nodes).map(|_| Disk::default()).collect(),
            nodes: BTreeMap::new(),
            revisions: BTreeMap::new(),
            mail: VecDeque::new(),
            doing: BTreeMap::new(),
            written: BTreeMap::new(),
            read: BTreeMap::new(),
            now_ms: 1_000,
            boot: 1,
            left: u64::MAX,
            is_metadata_lost: false,
            late_lease: None,
        };
        (0..nodes).for_each(|number| world.start(number).expect("an empty log"));
        world.wait_for("everybody has backups", Self::are_replicated);
        world
    }

    fn start(&mut self, number: usize) -> Result<(), LogError> {
        let name = format!("node-{number}");
        if let Some(last) = self.coordinator.names().get(&name).copied() {
            // A lease ends before its name joins again.
            self.coordinator.end(last);
        }
        let peer = self.coordinator.join(&name, self.now_ms).expect("there is room");
        let log =
            LogSettings { segment_bytes: 8 << 10, segments_max: 200, durability: self.durability };
        let disk = Box::new(self.disks[number].clone());
        let (replica_store, recovered) = ReplicaStore::resume(disk, (7, peer, self.boot), log)?;
        let replication =
            ReplicationSettings { backups: 3, silent_ms: 120, ..ReplicationSettings::default() };
        let settings = NodeSettings {
            overlay: self.settings,
            chunks: ChunkSettings {
                claim_ids: 40,
                low_ids: 10,
                replication,
                ..ChunkSettings::default()
            },
            partition_step: 0,
            cache_bytes: LIMIT_BYTES_MIN,
        };
        let supers = self.coordinator.view().supers().collect();
        let client = ClientId(u64::from(peer.node.get()) << 32 | u64::from(peer.incarnation));
        let mut node = Node::new(peer, settings, supers, client, Chunks::default());
        node.resume(replica_store, &recovered, &mut || ());
        self.nodes.insert(number, (peer, node));
        Ok(())
    }

    /// Stops all processes. In a power loss, `power` unsynced writes survive on each disk.
    fn crash(&mut self, power: Option<usize>) {
        self.nodes.clear();
        (self.mail, self.doing) = Default::default();
        self.left = u64::MAX;
        for disk in &self.disks {
            disk.with(|disk| {
                disk.crash(match power {
                    Some(writes) => Crash::Power { writes, bytes: 7 },
                    None => Crash::Process,
                });
            });
        }
        self.boot += u64::from(power.is_some());
    }

    fn execute(&mut self, from: Peer, effects: Vec<NodeCommand>) {
        for effect in effects {
            match effect {
                NodeCommand::Send(to, packet) => self.mail.push_back((from, to, packet)),
                NodeCommand::Propose(proposal) => {
                    let _ = self.coordinator.propose(&proposal, self.now_ms);
                }
                NodeCommand::Completed(number, result) => self.on_completed(from, number, result),
                NodeCommand::Stop(error) => panic!("{from:?} stops: {error}"),
                NodeCommand::Log(OverlayEvent::MetadataLost(..)) => self.is_metadata_lost = true,
                NodeCommand::Log(_) | NodeCommand::Reply(..) => {}
            }
        }
    }

    fn on_completed(&mut self, from: Peer, number: u64, result: Result<Response, ChunkError>) {
        match (self.doing.remove(&(from, number)), result) {
            (Some(About::Creation), Ok(Response::Created(id))) => {
                self.written.entry(id).or_default();
            }
            (Some(About::Put(id, value)), Ok(_)) => {
                let written = self.written.entry(id).or_default();
                written.acknowledged = written.acknowledged.max(value);
            }
            (Some(About::Get(id)), result) => {
                let value = result.map(|done| match done {
                    Response::Value(value) => value,
                    other => panic!("{id}: {other:?}"),
                });
                self.read.insert(id, value);
            }
            _ => {}
        }
    }

    fn deliver(&mut self) {
        while self.left > 0
            && let Some((from, to, packet)) = self.mail.pop_front()
        {
            self.left -= 1;
            let now_ms = self.now_ms;
            let found = self.nodes.values_mut().find(|(peer, _)| *peer == to);
            let Some((_, node)) = found else { continue };
            let mut out = Vec::new();
            node.on_packet(from, packet, &mut || now_ms, &mut out);
            node.flush(now_ms, &mut out);
            self.execute(to, out);
        }
    }

    fn tick(&mut self) {
        self.now_ms += TICK_MS;
        let now_ms = self.now_ms;
        for number in 0..self.disks.len() {
            let Some(peer) = self.nodes.get(&number).map(|(peer, _)| *peer) else { continue };
            // Keep the lease: a node that is cut off from the coordinator is not tested here.
            self.coordinator.keep_alive(peer, now_ms).expect("it is a member");
            let view = self.coordinator.view().clone();
            let (_, node) = self.nodes.get_mut(&number).expect("it runs");
            let mut out = Vec::new();
            node.set_deadline(now_ms + LEASE_MS);
            if self.revisions.insert(peer, view.revision) != Some(view.revision) {
                node.on_view(&view, &mut out);
            }
            node.on_tick(now_ms, &mut out);
            node.flush(now_ms, &mut out);
            self.execute(peer, out);
            self.deliver();
        }
        if let Some((peer, _)) = self.late_lease.filter(|(_, until_ms)| now_ms < *until_ms) {
            self.coordinator.prolong(&[peer], now_ms);
        }
        self.coordinator.expire(now_ms);
    }

    fn submit(&mut self, number: usize, action: Action, about: About) {
        let now_ms = self.now_ms;
        let Some((peer, node)) = self.nodes.get_mut(&number) else { return };
        let (peer, mut out) = (*peer, Vec::new());
        let named = node.submit(action, now_ms, &mut out);
        node.flush(now_ms, &mut out);
        self.doing.insert((peer, named), about);
        self.execute(peer, out);
        self.deliver();
    }

    fn wait_for(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end_ms = self.now_ms + PATIENCE_MS;
        while !is_so(self) {
            assert!(self.now_ms < end_ms, "{what}: still not so");
            self.tick();
        }
    }

    /// Writes to existing chunks; every third time creates one.
    fn write(&mut self, count: u64) {
        for step in 0..count {
            let number = (step % self.disks.len() as u64) as usize;
            let ids: Vec<ChunkId> = self.written.keys().copied().collect();
            if step % 3 == 0 || ids.is_empty() {
                self.submit(number, Action::Create(0_u64.to_le_bytes().into()), About::Creation);
            } else {
                let id = ids[(step as usize * 7) % ids.len()];
                let written = self.written.get_mut(&id).expect("it is listed");
                written.tried += 1;
                let value = written.tried;
                let put = Action::Put(id, value.to_le_bytes().into());
                self.submit(number, put, About::Put(id, value));
            }
            if step % 4 == 0 {
                self.tick();
            }
        }
    }

    fn is_asked_for(&self, id: ChunkId) -> bool {
        self.doing.values().any(|about| matches!(about, About::Get(own) if *own == id))
    }

    /// Reads all acknowledged values through a node, until they are there.
    fn check(&mut self, number: usize) {
        self.read.clear();
        let end_ms = self.now_ms + PATIENCE_MS;
        for id in self.written.keys().copied().collect::<Vec<_>>() {
            let value = loop {
                match self.read.remove(&id) {
                    Some(Ok(value)) => break value,
                    Some(Err(ChunkError::NoChunk)) => panic!("{id} is lost\n{}", self.state()),
                    Some(Err(_)) | None if self.now_ms < end_ms => {}
                    other => panic!("{id} cannot be read: {other:?}\n{}", self.state()),
                }
                if !self.is_asked_for(id) {
                    self.submit(number, Action::Get(id), About::Get(id));
                }
                if !matches!(self.read.get(&id), Some(Ok(_))) {
                    self.tick();
                }
            };
            let value = u64::from_le_bytes(value.try_into().expect("eight bytes"));
            let Written { acknowledged, tried } = self.written[&id];
            assert!((acknowledged..=tried).contains(&value), "{id}: {value}, not {acknowledged}");
            // A value that was read once must stay.
            self.written.insert(id, Written { acknowledged: value, tried });
        }
    }

    /// The state of all nodes, for failure messages.
    fn state(&self) -> String {
        let mut text = format!("{:?}\n", self.coordinator.view());
        for (peer, node) in self.nodes.values() {
            let (replication, failovers) =
                (node.chunks().replication().counts(), node.chunks().failovers());
            let kept = node.replica_store().map(ReplicaStore::counts);
            text += &format!("{peer:?}: {replication:?} {failovers} failovers, keeps {kept:?}\n");
            let catalog = node.super_peer().catalog();
            for summary in catalog.summaries() {
                let leads = node.super_peer().leads(position(summary.creator)).is_some();
                let peers: Vec<Peer> = catalog.named_peers(summary.creator).collect();
                let grants = catalog.failover_grants(summary.creator);
                text += &format!("  {summary:?} {leads} {peers:?} {grants:?}\n");
            }
            for range in catalog.all_ranges() {
                text += &format!("  {:?} {:?}\n", range.ids, range.placement);
            }
        }
        text
    }

    fn are_replicated(&self) -> bool {
        let is_whole = |node: &Node<Chunks>| {
            let chunks = node.chunks();
            chunks.replication().counts().0 == 0
                && chunks.failovers() == 0
                && chunks.holdings().1 > 0
        };
        self.nodes.values().all(|(_, node)| is_whole(node))
    }
}

#[test]
fn a_restarted_cluster_has_all_acknowledged_writes() {
    for durability in [Durability::Buffered, Durability::Synced] {
        let mut world = World::new(4, durability);
        world.write(200);
        assert!(world.written.len() > 40, "only {}", world.written.len());
        // Twice: the logs of the second incarnation count, too.
        for _ in 0..2 {
            world.crash((durability == Durability::Synced).then_some(0));
            (0..4).for_each(|number| world.start(number).expect("its own log"));
            world.check(1);
            world.wait_for("everybody has backups again", World::are_replicated);
            world.write(100);
        }
        world.check(2);
    }
}

#[test]
fn an_incomplete_log_is_not_authoritative() {
    let mut world = World::new(4, Durability::Buffered);
    world.write(60);
    // Power loss without synced disks: the metadata is given up, and this is reported.
    world.crash(Some(3));
    (0..4).for_each(|number| world.start(number).expect("its own log"));
    world.wait_for("it is said that metadata is lost", |world| world.is_metadata_lost);
    let first = *world.written.keys().next().expect("one");
    world.submit(0, Action::Get(first), About::Get(first));
    world.wait_for("it is known", |world| world.read.contains_key(&first));
    let answer = world.read[&first].clone().expect_err("nobody has it");
    assert_ne!(answer, ChunkError::NoChunk, "it is not as if it had never been");
    // A log of another node is refused.
    let (taken, own) = (world.disks[1].clone(), world.disks[2].clone());
    world.crash(None);
    world.disks[2] = taken;
    assert_eq!(world.start(2).err(), Some(LogError::Node(1)));
    world.disks[2] = own;
    world.start(2).expect("its own log");
}

/// Nobody has to start a cache anew by hand, once all of its nodes are back.
#[test]
fn a_cache_begins_empty_when_all_of_its_metadata_is_lost() {
    let settings = OverlaySettings { begins_empty: true, ..OverlaySettings::default() };
    let mut world = World::with(settings, 4, Durability::Buffered);
    world.write(60);
    world.crash(None);
    for disk in &mut world.disks {
        *disk = Disk::default();
    }
    let first = *world.written.keys().next().expect("one");
    world.written.clear();
    // The last one could still have what the others lack.
    (0..3).for_each(|number| world.start(number).expect("an empty log"));
    (0..300).for_each(|_| world.tick());
    assert!(!world.is_metadata_lost && !world.are_replicated());
    world.start(3).expect("an empty log");
    world.wait_for("it begins anew", World::are_replicated);
    world.submit(0, Action::Get(first), About::Get(first));
    world.wait_for("it is known", |world| world.read.contains_key(&first));
    assert_eq!(world.read[&first], Err(ChunkError::NoChunk));
    world.write(60);
    assert!(world.written.len() > 10, "only {}", world.written.len());
    world.check(2);
}

/// An id has one owner: while the one of before the loss goes on, there is no other.
#[test]
fn nothing_begins_empty_while_an_earlier_owner_lives() {
    let settings = OverlaySettings { begins_empty: true, ..OverlaySettings::default() };
    let mut world = World::with(settings, 6, Durability::Buffered);
    world.write(90);
    // An id whose metadata a group of five holds moves to the sixth node.
    let group_of = |world: &World, id: ChunkId| {
        world.coordinator.view().groups.get(position(id.creator())).expect("a group").clone()
    };
    let id = *world.written.keys().next().expect("one");
    let group = group_of(&world, id);
    let is_holder = |peer: Peer| group.members.contains(&peer);
    let (outsider, to) = {
        let mut nodes = world.nodes.iter().filter(|(_, (peer, _))| !is_holder(*peer));
        nodes.next().map(|(number, (peer, _))| (*number, *peer)).expect("five of six hold it")
    };
    let mut nodes = world.nodes.iter();
    let owner = nodes.find(|(_, (_, node))| node.chunks().serves(id)).expect("an owner");
    let owner = *owner.0;
    let serves = |world: &World| world.nodes[&outsider].1.chunks().serves(id);
    while !serves(&world) {
        let (peer, node) = world.nodes.get_mut(&owner).expect("it runs");
        let (peer, mut out) = (*peer, Vec::new());
        node.migrate(IdRange::single(id), to, world.now_ms, &mut out);
        world.execute(peer, out);
        world.tick();
    }
    let dead: Vec<usize> = (0..6).filter(|number| *number != outsider).collect();
    let restart = |world: &mut World, numbers: &[usize]| {
        for number in numbers {
            world.nodes.remove(number);
            world.disks[*number] = Disk::default();
        }
        numbers.iter().for_each(|number| world.start(*number).expect("an empty log"));
    };
    restart(&mut world, &dead);
    world.wait_for("it is said that metadata is lost", |world| world.is_metadata_lost);
    (0..500).for_each(|_| world.tick());
    assert!(serves(&world) && group_of(&world, id).members == group.members, "it waits");
    restart(&mut world, &[outsider]);
    world.wait_for("it begins anew", |world| group_of(world, id).members != group.members);
    world.written.clear();
    world.write(60);
    world.wait_for("it is as ever", World::are_replicated);
    world.check(2);
}

#[test]
fn a_node_without_its_disk_does_not_remove_the_other_holders() {
    let mut world = World::new(4, Durability::Buffered);
    world.write(20);
    world.crash(None);
    world.disks[0] = Disk::default();
    // The first node leads, and has no log that lists the earlier members.
    (0..3).for_each(|number| world.start(number).expect("its own log"));
    world.tick();
    world.tick();
    // Until now its former incarnation looked alive.
    world.start(3).expect("its own log");
    world.check(3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Everything stops at any packet. Nodes come back one after the other, one of them perhaps
    /// without its disk, and the last one looks alive until then or for a while.
    #[test]
    fn nothing_acknowledged_is_lost(
        (writes, left, power) in (20..120_u64, 0..400_u64, prop::option::of(0..4_usize)),
        pauses in prop::collection::vec(0..120_u64, 4),
        order in Just(vec![0_usize, 1, 2, 3]).prop_shuffle(),
        without in prop::option::of(0..4_usize),
        outlasts_ms in 0..3_000_u64,
    ) {
        let durability = if power.is_some() { Durability::Synced } else { Durability::Buffered };
        let mut world = World::new(4, durability);
        world.write(writes);
        world.left = left;
        world.write(writes);
        let last = world.nodes[&order[3]].0;
        world.crash(power);
        world.late_lease = Some((last, world.now_ms + outlasts_ms));
        for (number, pause) in order.iter().zip(&pauses) {
            if without == Some(*number) {
                world.disks[*number] = Disk::default();
            }
            world.start(*number).expect("its own log");
            (0..*pause).for_each(|_| world.tick());
        }
        world.check(order[3]);
    }
}
