//! The cost of a put without system calls: an owner of chunks and its backups in one thread, with
//! each message encoded and decoded as on the wire, and logs in memory. For profilers and for
//! counting instructions.
//!
//! usage: replicated_put [BATCHES [BACKUPS [IN_FLIGHT]]]

use std::collections::HashMap;

use amalgam_cluster::chunks::{
    Action, ChunkStore, ClientId, Operation, Reply, Request, Response, StoreError,
};
use amalgam_cluster::ids::{ChunkId, NodeId};
use amalgam_cluster::log::{LogSettings, MemoryStorage};
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::replication::{
    ReplicaStore, ReplicationCommand, ReplicationMessage, ReplicationSettings,
};
use amalgam_cluster::shard::{ChunkCommand, ChunkService, ChunkSettings, Requester};
use amalgam_cluster::wire::{FrameReader, Packet, encode_frame};

const VALUE_BYTES: usize = 64;
const CHUNKS: u64 = 10_000;

#[derive(Default)]
struct Store(HashMap<ChunkId, Vec<u8>>);

impl ChunkStore for Store {
    fn read(&mut self, id: ChunkId, see: &mut dyn FnMut(&[u8])) -> bool {
        self.0.get(&id).map(|value| see(value)).is_some()
    }

    fn write(&mut self, id: ChunkId, value: &[u8]) -> Result<(), StoreError> {
        let kept = self.0.entry(id).or_default();
        kept.clear();
        kept.extend_from_slice(value);
        Ok(())
    }

    fn remove(&mut self, id: ChunkId) -> bool {
        self.0.remove(&id).is_some()
    }
}

/// A connection in one direction.
#[derive(Default)]
struct Wire(Vec<u8>, FrameReader);

impl Wire {
    fn push(&mut self, number: u64, packet: &Packet) {
        encode_frame(number, packet, &mut self.0).expect("it is short enough");
    }

    fn take(&mut self) -> Vec<Packet> {
        self.1.feed(&self.0);
        self.0.clear();
        let mut next = || self.1.next_frame().expect("it was encoded");
        std::iter::from_fn(|| next().map(|(_, packet)| packet)).collect()
    }
}

struct Cluster {
    owner: ChunkService<Store>,
    backups: Vec<(Peer, ReplicaStore, Wire, Wire)>,
    client: (Wire, Wire),
    number: u64,
}

fn peer(node: u16) -> Peer {
    Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 }
}

impl Cluster {
    fn new(backups: u16) -> Self {
        let replication =
            ReplicationSettings { backups: backups.into(), ..ReplicationSettings::default() };
        let limits = ChunkSettings { replication, ..ChunkSettings::default() };
        let mut owner = ChunkService::new(peer(0), limits, Store::default());
        owner.set_deadline(u64::MAX);
        owner.set_members((0..=backups).map(peer));
        let mut commands = Vec::new();
        owner.on_tick(0, &mut commands);
        for command in commands {
            if let ChunkCommand::Claim(ids, _) = command {
                owner.on_claimed(ids, Ok(1));
            }
        }
        let replica_store = |node| {
            let storage = Box::new(MemoryStorage::default());
            let replica_store =
                ReplicaStore::open(storage, 7, LogSettings::default()).expect("it opens");
            (peer(node), replica_store, Wire::default(), Wire::default())
        };
        let backups = (1..=backups).map(replica_store).collect();
        Self { owner, backups, client: Default::default(), number: 0 }
    }

    /// Sends a request and waits for its reply.
    fn call(&mut self, actions: impl Iterator<Item = Action>) -> Reply {
        let operation =
            |(place, action)| Operation { number: self.number + place as u64, epoch: 1, action };
        let operations: Vec<_> = actions.enumerate().map(operation).collect();
        let (client, answered_below) = (ClientId(5), self.number);
        self.number += operations.len() as u64;
        let request = Request { client, incarnation: 1, answered_below, operations };
        self.client.0.push(1, &Packet::Request(request));
        let mut commands = Vec::new();
        for packet in self.client.0.take() {
            let Packet::Request(request) = packet else { unreachable!("it asks nothing else") };
            let reply = self.owner.execute(Requester::Local(1), &request, &mut || 1);
            commands.extend(reply.map(|reply| ChunkCommand::Reply(Requester::Local(1), reply)));
        }
        loop {
            self.owner.flush(1, &mut commands);
            for command in commands.drain(..) {
                match command {
                    ChunkCommand::Replication(ReplicationCommand::Send(to, message)) => {
                        let (.., wire, _) = &mut self.backups[usize::from(to.node.get()) - 1];
                        wire.push(0, &Packet::Replication(message));
                    }
                    ChunkCommand::Reply(_, reply) => self.client.1.push(1, &Packet::Reply(reply)),
                    _ => {}
                }
            }
            if let Some(Packet::Reply(reply)) = self.client.1.take().pop() {
                return reply;
            }
            for (name, replica_store, wire, back) in &mut self.backups {
                for packet in wire.take() {
                    let Packet::Replication(ReplicationMessage::Append { stream, first, entries }) =
                        packet
                    else {
                        unreachable!("an owner sends nothing else")
                    };
                    replica_store.on_append(peer(0), stream, first, entries);
                }
                let mut answers = Vec::new();
                replica_store.flush(&mut answers);
                answers
                    .into_iter()
                    .for_each(|(_, answer)| back.push(0, &Packet::Replication(answer)));
                for packet in back.take() {
                    let Packet::Replication(answer) = packet else { unreachable!("as above") };
                    self.owner.on_backup(*name, &answer, &mut || 1, &mut commands);
                }
            }
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let mut next = |default: u64| arguments.next().unwrap_or(default);
    let (batches, backups, in_flight) = (next(1_000), next(3), next(64));
    let mut cluster = Cluster::new(u16::try_from(backups).expect("fewer backups"));
    cluster.call([Action::Open { lease_ms: 60_000 }].into_iter());
    let mut ids = Vec::new();
    while (ids.len() as u64) < CHUNKS {
        let create = |_| Action::Create(vec![0; VALUE_BYTES]);
        for (_, result) in cluster.call((0..50).map(create)) {
            let Ok(Response::Created(id)) = result else { panic!("not created: {result:?}") };
            ids.push(id);
        }
    }
    let mut at = 0;
    for batch in 0..batches {
        let put = |place: u64| {
            let id = ids[((at + place * 7_919) % CHUNKS) as usize];
            Action::Put(id, vec![batch as u8; VALUE_BYTES])
        };
        let reply = cluster.call((0..in_flight).map(put));
        assert!(reply.iter().all(|(_, result)| *result == Ok(Response::Ok)), "{reply:?}");
        at += in_flight;
    }
    println!("{} puts with {backups} backups", batches * in_flight);
}
