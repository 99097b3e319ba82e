//! One node's chunk service, called by clients.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use amalgam_index::model::Model;
use amalgam_index::{Configuration, Engine};
use amalgam_op::{Now, Outcome, Store, StoreMode, Verb};

use super::super::UnreadableChunks;
use super::operations::{COPIED_BYTES_MAX, Change};
use super::*;
use crate::chunks::{
    Action, ClientId, ClientState, EngineStore, ItemOp, ItemStore, ItemVerb, MAX_CHUNK_BYTES,
    Operation, StoreError, value_bytes,
};
use crate::ids::NodeId;
use crate::log::{LogSettings, MemoryStorage};
use crate::overlay::FailoverGrant;
use crate::replication::{RecordKey, ReplicaStore, ReplicationEntry};

mod locks;
mod meta_reads;
mod reserve;

const ALICE: ClientId = ClientId(1);
const BOB: ClientId = ClientId(2);
const ASKER: Requester = Requester::Local(0);

fn me() -> Peer {
    Peer { node: NodeId::new(3).expect("a node"), incarnation: 2 }
}

fn backup() -> Peer {
    Peer { node: NodeId::new(4).expect("a node"), incarnation: 1 }
}

fn ids(start: u64, length: u64) -> IdRange {
    let first = ChunkId::new(Creator::from(me().node), start).expect("an id");
    IdRange::starting_at(first, length).expect("a range")
}

fn id(counter: u64) -> ChunkId {
    ids(counter, 1).first()
}

/// Calls a service that owns ten ids since epoch 5, and numbers the operations of each client.
struct Caller<S> {
    service: ChunkService<S>,
    number: u64,
    now_ms: u64,
}

fn caller(index: &Model) -> Caller<impl ChunkStore> {
    let limits = ChunkSettings { claim_ids: 10, low_ids: 1, ..ChunkSettings::default() };
    let mut service = ChunkService::new(me(), limits, EngineStore::from(index));
    service.set_deadline(100_000);
    let mut out = Vec::new();
    service.on_tick(0, &mut out);
    assert_eq!(out, [ChunkCommand::Claim(ids(0, 10), Vec::new())]);
    service.on_claimed(ids(0, 10), Ok(5));
    let mut caller = Caller { service, number: 0, now_ms: 1_000 };
    for (client, lease_ms) in [(ALICE, 60_000), (BOB, 5_000)] {
        assert_eq!(caller.call(client, Action::Open { lease_ms }), Ok(Response::Session));
    }
    caller
}

impl<S: ChunkStore> Caller<S> {
    fn call(&mut self, client: ClientId, action: Action) -> Result<Response, ChunkError> {
        self.number += 1;
        self.repeat(client, self.number, 5, action)
    }

    fn repeat(
        &mut self,
        client: ClientId,
        number: u64,
        epoch: u64,
        action: Action,
    ) -> Result<Response, ChunkError> {
        let operations = vec![Operation { number, epoch, action }];
        let request = Request { client, incarnation: 2, answered_below: 0, operations };
        let now_ms = self.now_ms;
        let mut reply = self.service.execute(ASKER, &request, &mut || now_ms).expect("no backups");
        assert_eq!(reply[0].0, number);
        reply.remove(0).1
    }
}

fn model() -> Model {
    Model::open(&Configuration { evicts: false, ..Configuration::default() }).expect("it opens")
}

#[test]
fn chunks_are_created_read_replaced_and_deleted() {
    let index = model();
    let mut caller = caller(&index);
    assert_eq!(caller.call(ALICE, Action::Create(b"one".into())), Ok(Response::Created(id(0))));
    assert_eq!(caller.call(BOB, Action::Get(id(0))), Ok(Response::Value(b"one".into())));
    assert_eq!(caller.call(BOB, Action::Put(id(0), b"two".into())), Ok(Response::Ok));
    assert_eq!(caller.call(ALICE, Action::Get(id(0))), Ok(Response::Value(b"two".into())));
    assert_eq!(caller.call(ALICE, Action::Put(id(1), vec![])), Err(ChunkError::NoChunk));
    let large = vec![0; MAX_CHUNK_BYTES + 1];
    assert_eq!(caller.call(ALICE, Action::Create(large)), Err(ChunkError::TooLarge));
    assert_eq!(caller.call(ALICE, Action::Delete(id(0))), Ok(Response::Ok));
    assert_eq!(caller.call(ALICE, Action::Get(id(0))), Err(ChunkError::NoChunk));
    assert_eq!(caller.call(ALICE, Action::Create(vec![])), Ok(Response::Created(id(0))));
    for counter in 1..10 {
        assert_eq!(caller.call(BOB, Action::Create(vec![])), Ok(Response::Created(id(counter))));
    }
    assert_eq!(caller.call(BOB, Action::Create(vec![])), Err(ChunkError::Retry));
}

#[test]
fn reads_of_a_request_see_its_earlier_writes() {
    let index = model();
    let mut caller = caller(&index);
    for value in [b"one", b"two"] {
        caller.call(ALICE, Action::Create(value.to_vec())).expect("created");
    }
    let get = |counter| Action::Get(id(counter));
    let put = Action::Put(id(1), b"new".to_vec());
    let mut actions = vec![get(1), get(7), get(10), get(0), put, get(1)];
    // More than one batch of reads, and one with an outdated epoch.
    actions.extend((0..70).map(|counter| get(counter % 2)));
    let operation = |(place, action)| {
        let (number, epoch) = (100 + place as u64, if place == 6 { 4 } else { 5 });
        Operation { number, epoch, action }
    };
    let operations = actions.into_iter().enumerate().map(operation).collect();
    let request = Request { client: ALICE, incarnation: 2, answered_below: 0, operations };
    let reply = caller.service.execute(ASKER, &request, &mut || 1_000).expect("no backups");
    let value = |value: &[u8]| Ok(Response::Value(value.to_vec()));
    let mut expected = vec![
        value(b"two"),
        Err(ChunkError::NoChunk),
        Err(ChunkError::Moved(None)),
        value(b"one"),
        Ok(Response::Ok),
        value(b"new"),
        Err(ChunkError::Outdated),
    ];
    let later = |counter| if counter % 2 == 0 { value(b"one") } else { value(b"new") };
    expected.extend((1..70).map(later));
    let expected: Reply = (100..).zip(expected).collect();
    assert_eq!(reply, expected);
}

#[test]
fn a_reply_is_bounded_in_bytes() {
    let index = model();
    let mut caller = caller(&index);
    caller.call(ALICE, Action::Create(vec![1; MAX_CHUNK_BYTES / 2])).expect("created");
    let most = 2 * COPIED_BYTES_MAX / MAX_CHUNK_BYTES;
    for is_batch in [true, false] {
        let operation = |place: u64| {
            // A write between two reads keeps them from being one batch.
            let action = match is_batch || place.is_multiple_of(2) {
                true => Action::Get(id(0)),
                false => Action::Put(id(1), Vec::new()),
            };
            Operation { number: 100 + place, epoch: 5, action }
        };
        let operations = (0..1_000).map(operation).collect();
        let request = Request { client: ALICE, incarnation: 2, answered_below: 0, operations };
        let reply = caller.service.execute(ASKER, &request, &mut || 1_000).expect("no backups");
        let values = reply.iter().filter(|(_, result)| value_bytes(result) > 0).count();
        assert_eq!((reply.len(), values), (1_000, most));
        assert_eq!(reply.last(), Some(&(1_099, Err(ChunkError::Retry))), "to be repeated");
    }
}

/// A request of 30 KB would copy a gigabyte.
#[test]
fn a_request_adds_to_a_bounded_number_of_bytes() {
    const VALUE_BYTES: usize = 512 << 10;
    let (chunks, items) = (model(), model());
    let store = ItemStore::new(&chunks, &items, Box::new(|| ItemTime::FIRST));
    let mut service = ChunkService::new(me(), ChunkSettings::default(), store);
    service.set_deadline(u64::MAX);
    let id = service.item_id(b"key").expect("a place");
    service.owned.assign(id.bits()..id.bits() + 1, Some(5));
    let mut numbers = 1..;
    let mut execute = |actions: &mut dyn Iterator<Item = Action>| {
        let operation = |(number, action)| Operation { number, epoch: 5, action };
        let operations = numbers.by_ref().zip(actions).map(operation).collect();
        let request = Request { client: ALICE, incarnation: 2, answered_below: 0, operations };
        let reply = service.execute(ASKER, &request, &mut || 1_000).expect("no backups");
        (reply, service.copied_bytes)
    };
    let store = |mode, value: &[u8]| {
        let verb = ItemVerb::from(Verb::Store(Store::new(mode, value, 0, 0)));
        Action::Item { id, op: Box::new(ItemOp { key: b"key".to_vec(), verb }) }
    };
    let open = Action::Open { lease_ms: 600_000 };
    let set = store(StoreMode::Set, &vec![b'v'; VALUE_BYTES]);
    let (reply, copied) = execute(&mut [open, set].into_iter());
    assert!(reply.iter().all(|(_, result)| result.is_ok()) && copied == 0, "{reply:?}");
    for mode in [StoreMode::Append, StoreMode::Prepend] {
        let (reply, copied) = execute(&mut (0..500).map(|_| store(mode, b"x")));
        let done = reply.iter().filter(|(_, result)| result.is_ok()).count();
        assert_eq!(done, COPIED_BYTES_MAX / VALUE_BYTES, "{copied} bytes are copied");
        assert_eq!((reply.len(), reply[499].1.clone()), (500, Err(ChunkError::Retry)));
        assert!((COPIED_BYTES_MAX..COPIED_BYTES_MAX + VALUE_BYTES).contains(&copied));
    }
    let refused = execute(&mut std::iter::empty());
    assert_eq!(refused, (Vec::new(), 0), "nothing is charged twice");
}

#[test]
fn an_operation_counts_once() {
    let index = model();
    let mut caller = caller(&index);
    let create = |caller: &mut Caller<_>| caller.repeat(ALICE, 9, 0, Action::Create(vec![1]));
    assert_eq!(create(&mut caller), Ok(Response::Created(id(0))));
    assert_eq!(create(&mut caller), Ok(Response::Created(id(0))));
    assert_eq!(caller.repeat(ALICE, 10, 5, Action::Put(id(0), vec![2])), Ok(Response::Ok));
    assert_eq!(caller.repeat(BOB, 1, 5, Action::Delete(id(0))), Err(ChunkError::Forgotten));
    assert_eq!(caller.repeat(BOB, 3, 5, Action::Put(id(0), vec![3])), Ok(Response::Ok));
    assert_eq!(caller.repeat(ALICE, 10, 5, Action::Put(id(0), vec![2])), Ok(Response::Ok));
    assert_eq!(caller.call(ALICE, Action::Get(id(0))), Ok(Response::Value(vec![3])));
}

#[test]
fn a_lock_excludes_others_and_ends_with_lease_and_session() {
    let index = model();
    let mut caller = caller(&index);
    caller.call(ALICE, Action::Create(vec![])).expect("created");
    let lock = |lease_ms| Action::Lock { id: id(0), lease_ms };
    caller.call(ALICE, lock(2_000)).expect("granted");
    assert_eq!(caller.call(BOB, lock(2_000)), Err(ChunkError::Locked));
    assert_eq!(caller.call(BOB, Action::Put(id(0), vec![])), Err(ChunkError::Locked));
    assert_eq!(caller.call(BOB, Action::Unlock(id(0))), Err(ChunkError::Locked));
    assert_eq!(caller.call(BOB, Action::Get(id(0))), Ok(Response::Value(vec![])));
    assert_eq!(caller.call(ALICE, Action::Unlock(id(0))), Ok(Response::Ok));
    assert_eq!(caller.call(ALICE, Action::Unlock(id(0))), Err(ChunkError::NotLocked));
    caller.call(ALICE, lock(2_000)).expect("granted");
    caller.now_ms += 2_000;
    caller.call(BOB, lock(60_000)).expect("granted");
    // Bob dies: his session ends, and his lock with it.
    caller.now_ms += 4_999;
    assert_eq!(caller.call(ALICE, lock(1_000)), Err(ChunkError::Locked));
    caller.now_ms += 1;
    caller.service.on_tick(caller.now_ms, &mut Vec::new());
    caller.call(ALICE, lock(1_000)).expect("granted");
    assert_eq!(caller.call(BOB, Action::Delete(id(0))), Err(ChunkError::NoSession));
}

#[test]
fn an_outdated_client_is_refused() {
    let index = model();
    let mut caller = caller(&index);
    caller.call(ALICE, Action::Create(vec![])).expect("created");
    let get = |caller: &mut Caller<_>, epoch| caller.repeat(ALICE, 50, epoch, Action::Get(id(0)));
    assert_eq!(get(&mut caller, 4), Err(ChunkError::Outdated));
    assert_eq!(get(&mut caller, 6), Ok(Response::Value(vec![])));
    let other = Action::Get(id(10));
    assert_eq!(caller.repeat(ALICE, 51, 9, other), Err(ChunkError::Moved(None)));
    let operations = vec![Operation { number: 1, epoch: 5, action: Action::Get(id(0)) }];
    let request = Request { client: ALICE, incarnation: 1, answered_below: 0, operations };
    let reply = caller.service.execute(ASKER, &request, &mut || 1_000);
    assert_eq!(reply, Some(vec![(1, Err(ChunkError::Restarted(2)))]));
    // The lease ends while the chunk is read.
    let request = Request { incarnation: 2, ..request };
    let mut times = [99_999, 100_000].into_iter();
    let reply = caller.service.execute(ASKER, &request, &mut || times.next().expect("two"));
    assert_eq!(reply, Some(vec![]));
}

/// A node that restarts after it created many chunks has ids soon, not after one claim for each
/// few.
#[test]
fn ids_of_an_earlier_incarnation_are_skipped_in_growing_steps() {
    const USED: u64 = 100_000;
    let index = model();
    let limits = ChunkSettings { claim_ids: 10, low_ids: 1, ..ChunkSettings::default() };
    let mut service = ChunkService::new(me(), limits, EngineStore::from(&index));
    service.set_deadline(100_000);
    let (mut claims, mut epoch) = (0, 5);
    // Once a claim was granted, later claims start over with small steps.
    for used in [USED, 2 * USED + 1_000] {
        let granted = loop {
            let mut out = Vec::new();
            service.on_tick(0, &mut out);
            let [ChunkCommand::Claim(claimed, _)] = out[..] else { panic!("a claim: {out:?}") };
            assert_eq!(claimed.len(), 10, "backups of each few are chosen anew");
            claims += 1;
            assert!(claims < 60, "{claimed:?} is refused");
            let is_free = claimed.first().counter() >= used;
            let result = if is_free { Ok(epoch) } else { Err(Refusal::Owned) };
            service.on_claimed(claimed, result);
            if is_free {
                break claimed;
            }
        };
        epoch += 1;
        let first = granted.first();
        assert!(first.counter() <= 3 * used + 100, "too many were passed over: {first}");
        for _ in 0..granted.len() {
            assert!(granted.contains(service.allocate().expect("an id")));
        }
        assert_eq!(service.allocate(), Err(ChunkError::Retry), "all are in use");
    }
}

/// A service and its backup.
struct BackedUp<S> {
    service: ChunkService<S>,
    replica_store: ReplicaStore,
    now_ms: u64,
}

impl<S: ChunkStore> BackedUp<S> {
    /// Delivers messages between the service and its backup.
    fn exchange(&mut self) -> Vec<ChunkCommand> {
        let now_ms = self.now_ms;
        let (mut out, mut rest) = (Vec::new(), Vec::new());
        self.service.on_tick(now_ms, &mut out);
        self.service.flush(now_ms, &mut out);
        for command in out {
            let ChunkCommand::Replication(ReplicationCommand::Send(
                to,
                ReplicationMessage::Append { stream, first, entries },
            )) = command
            else {
                rest.push(command);
                continue;
            };
            assert_eq!(to, backup());
            self.replica_store.on_append(me(), stream, first, entries);
        }
        let mut answers = Vec::new();
        self.replica_store.flush(&mut answers);
        for (_, answer) in answers {
            self.service.on_backup(backup(), &answer, &mut || now_ms, &mut rest);
        }
        rest
    }
}

/// A read of an expired item would miss anyway; backups are not asked.
#[test]
fn expired_items_are_removed_from_backups_too() {
    let (chunks, items) = (model(), model());
    let seconds = Arc::new(AtomicU32::new(10));
    let clock = Arc::clone(&seconds);
    let wall = move || ItemTime { now: Now::at(clock.load(Ordering::Relaxed)), ..ItemTime::FIRST };
    let replication = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let limits = ChunkSettings { replication, ..ChunkSettings::default() };
    let store = ItemStore::new(&chunks, &items, Box::new(wall));
    let mut service = ChunkService::new(me(), limits, store);
    service.set_deadline(u64::MAX);
    service.set_members([me(), backup()].into_iter());
    let storage = Box::new(MemoryStorage::default());
    let replica_store = ReplicaStore::open(storage, 1, LogSettings::default()).expect("it opens");
    let keys = [&b"ends"[..], b"stays"].map(|key| (key, service.item_id(key).expect("a place")));
    for (_, id) in keys {
        service.owned.assign(id.bits()..id.bits() + 1, Some(5));
        service.replication.set_backups(IdRange::single(id), vec![backup()]);
    }
    let mut own = BackedUp { service, replica_store, now_ms: 1_000 };
    let open = Action::Open { lease_ms: 600_000 };
    let store = keys.iter().zip([60, 0]).map(|((key, id), expiry)| {
        let store = Store::new(StoreMode::Set, b"value", 0, expiry);
        let op = ItemOp { key: key.to_vec(), verb: ItemVerb::from(Verb::Store(store)) };
        Action::Item { id: *id, op: Box::new(op) }
    });
    let operation = |(number, action)| Operation { number, epoch: 5, action };
    let operations = (1..).zip(std::iter::once(open).chain(store)).map(operation).collect();
    let request = Request { client: ALICE, incarnation: 2, answered_below: 0, operations };
    assert_eq!(own.service.execute(ASKER, &request, &mut || 1_000), None, "it waits for backups");
    let rest = own.exchange();
    let is_stored = rest.iter().any(|command| matches!(command, ChunkCommand::Reply(..)));
    assert!(is_stored && own.replica_store.counts().0 == 2, "{rest:?}");
    let keeps = |own: &mut BackedUp<_>| {
        // Enough ticks for a scan over all items, whenever one is due.
        for _ in 0..100 {
            own.now_ms += 1_000;
            own.exchange();
        }
        let replica_store = &mut own.replica_store;
        keys.map(|(_, id)| {
            let slice = replica_store.load_slice(me(), IdRange::single(id), 1);
            replica_store.recover(me(), slice, &mut |_, _| {}).records
        })
    };
    seconds.store(69, Ordering::Relaxed);
    assert_eq!(keeps(&mut own), [1, 1], "it lives");
    seconds.store(70, Ordering::Relaxed);
    assert_eq!(keeps(&mut own), [0, 1], "it has ended");
}

/// An acknowledged write must not be left with one copy.
#[test]
fn a_node_that_would_have_the_only_copy_declines() {
    let index = model();
    let replication = ReplicationSettings { backups: 3, ..ReplicationSettings::default() };
    let limits = ChunkSettings { replication, load_ids: 2, ..ChunkSettings::default() };
    let mut service = ChunkService::new(me(), limits, EngineStore::from(&index));
    let peer = |node| Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 };
    let offer = MoveMessage::Offer { number: 7, ids: IdRange::single(id(0)), since: 1 };
    let answer = |service: &mut ChunkService<_>| {
        let mut out = Vec::new();
        service.on_move(peer(1), offer.clone(), 0, &mut out);
        out
    };
    let declined = ChunkCommand::Send(peer(1), MoveMessage::Declined { number: 7 });
    assert_eq!(answer(&mut service), [declined], "it does not know who could keep backups");
    service.set_members([me(), peer(1)].into_iter());
    let ack = MoveMessage::Ack { number: 7, page: 0, backups: Vec::new() };
    assert_eq!(answer(&mut service), [ChunkCommand::Send(peer(1), ack)]);

    let storage = Box::new(MemoryStorage::default());
    let mut replica_store =
        ReplicaStore::open(storage, 1, LogSettings::default()).expect("it opens");
    let put = |version| {
        let mutation = Mutation::Put(id(version), vec![version as u8]);
        ReplicationEntry { version, mutation, sessions: Vec::new() }
    };
    replica_store.on_append(peer(2), 1, 1, (5..10).map(put).collect::<Vec<_>>());
    let (ids, epoch, source) = (ids(5, 5), 9, peer(2));
    let grant = FailoverGrant { ids, epoch, source, holders: vec![me()] };
    service.set_members([me(), peer(3)].into_iter());
    service.replication.suspect(peer(3), u64::MAX);
    service.start_failover(&grant, &mut replica_store);
    assert_eq!(service.failovers(), 0, "whom it could choose refuses for good");
    service.set_members([me(), peer(1), peer(3)].into_iter());
    service.replication.suspect(peer(1), 1_000_000);
    service.start_failover(&grant, &mut replica_store);
    assert_eq!(service.failovers(), 1, "one that was silent may be busy");
    let before = service.replication().counts().1;
    for changes in [0, 0, 1] {
        assert_eq!(
            (
                service.failovers(),
                service.load_failovers(1_000, &mut replica_store, &mut Vec::new())
            ),
            (1, UnreadableChunks::default())
        );
        assert_eq!(service.replication().counts().1, before + changes, "two ids at a time");
    }
    assert!((5..10).all(|counter| service.store.has(id(counter))));
}

/// Otherwise each move would wait until its source repeats the page.
#[test]
fn the_last_page_of_a_move_is_acknowledged_once_backups_have_it() {
    let index = model();
    let replication = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let limits = ChunkSettings { replication, ..ChunkSettings::default() };
    let mut service = ChunkService::new(me(), limits, EngineStore::from(&index));
    service.set_members([me(), peer(1)].into_iter());
    let mut out = Vec::new();
    let offer = MoveMessage::Offer { number: 7, ids: IdRange::single(id(0)), since: 1 };
    service.on_move(peer(1), offer, 0, &mut out);
    let (chunks, tail) = (vec![(id(0), Some(vec![1]))], Some(ClientState::default()));
    out.clear();
    service.on_move(peer(1), MoveMessage::Page { number: 7, page: 1, chunks, tail }, 0, &mut out);
    assert_eq!(out, [], "its backup has nothing yet");
    service.flush(0, &mut out);
    let Some(ChunkCommand::Replication(ReplicationCommand::Send(
        to,
        ReplicationMessage::Append { stream, first, entries },
    ))) = out.pop()
    else {
        panic!("nothing is sent");
    };
    let appended = ReplicationMessage::Appended { stream, next: first + entries.count() as u64 };
    out.clear();
    service.on_backup(to, &appended, &mut || 0, &mut out);
    let ack = MoveMessage::Ack { number: 7, page: 1, backups: vec![to] };
    assert_eq!(out, [ChunkCommand::Send(peer(1), ack)]);
}

fn peer(node: u16) -> Peer {
    Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 }
}

/// The dead owner of chunks 5 to 9.
fn source() -> Peer {
    peer(2)
}

fn value(counter: u64) -> Vec<u8> {
    vec![0xA0 + counter as u8; 20]
}

/// A replica store that has them, some of them unreadable.
fn replica_store_without(damaged: &[u64]) -> ReplicaStore {
    let put = |version| {
        let mutation = Mutation::Put(id(version), value(version));
        ReplicationEntry { version, mutation, sessions: Vec::new() }
    };
    let damaged: Vec<Vec<u8>> = damaged.iter().map(|counter| value(*counter)).collect();
    replica_store_of((5..10).map(put).collect(), &damaged)
}

/// A replica store that has entries of [`source`]; the first that contains each of `damaged` is
/// unreadable.
fn replica_store_of(entries: Vec<ReplicationEntry>, damaged: &[Vec<u8>]) -> ReplicaStore {
    let disk = Arc::new(Mutex::new(MemoryStorage::default()));
    let storage = Box::new(Arc::clone(&disk));
    let mut replica_store =
        ReplicaStore::open(storage, 1, LogSettings::default()).expect("it opens");
    replica_store.on_append(source(), 1, 1, entries);
    replica_store.flush(&mut Vec::new());
    let mut disk = disk.lock().expect("one thread");
    let bytes = disk.segment(0).expect("it was written");
    for value in damaged {
        let mut places = bytes.windows(value.len());
        let at = places.position(|window| window == value).expect("it is there");
        bytes[at] ^= 1;
    }
    replica_store
}

/// A new owner with a grant that names two holders; a third node could be a backup.
fn failover<'i>(
    index: &'i Model,
    replica_store: &mut ReplicaStore,
) -> ChunkService<impl ChunkStore + use<'i>> {
    let replication = ReplicationSettings { backups: 2, ..ReplicationSettings::default() };
    let limits = ChunkSettings { replication, ..ChunkSettings::default() };
    let mut service = ChunkService::new(me(), limits, EngineStore::from(index));
    service.set_members([me(), peer(1), peer(4)].into_iter());
    let holders = vec![me(), peer(1)];
    service.start_failover(
        &FailoverGrant { ids: ids(5, 5), epoch: 9, source: source(), holders },
        replica_store,
    );
    service
}

/// One step of the failover: its commands, and what it could not read.
fn step(
    service: &mut ChunkService<impl ChunkStore>,
    replica_store: &mut ReplicaStore,
    now_ms: u64,
) -> (Vec<ChunkCommand>, UnreadableChunks) {
    let mut out = Vec::new();
    let unread = service.load_failovers(now_ms, replica_store, &mut out);
    service.on_tick(now_ms, &mut out);
    service.flush(now_ms, &mut out);
    (out, unread)
}

/// The owner's turns end while its log reads, and go on when it has.
#[test]
fn a_failover_does_not_wait_for_the_medium() {
    let (index, disk) = (model(), Arc::new(Mutex::new(MemoryStorage::default())));
    let storage = Box::new(Arc::clone(&disk));
    let mut replica_store =
        ReplicaStore::open(storage, 1, LogSettings::default()).expect("it opens");
    let put = |version| {
        let mutation = Mutation::Put(id(version), value(version));
        ReplicationEntry { version, mutation, sessions: Vec::new() }
    };
    replica_store.on_append(source(), 1, 1, (5..10).map(put).collect::<Vec<_>>());
    replica_store.flush(&mut Vec::new());
    disk.lock().expect("one thread").hang();
    let mut service = failover(&index, &mut replica_store);
    for now_ms in 1_000..1_003 {
        let (_, unread) = step(&mut service, &mut replica_store, now_ms);
        assert_eq!((unread, service.has_loaded()), (UnreadableChunks::default(), false));
        assert!((5..10).all(|counter| !service.store.has(id(counter))));
    }
    disk.lock().expect("one thread").release(usize::MAX);
    assert!(service.has_loaded());
    step(&mut service, &mut replica_store, 1_003);
    assert!((5..10).all(|counter| service.store.has(id(counter))) && !service.has_loaded());
}

/// What another holder sends must not make way for the rest of a slice that comes later.
#[test]
fn other_holders_are_asked_once_a_slice_is_whole() {
    let (index, disk) = (model(), Arc::new(Mutex::new(MemoryStorage::default())));
    let lock = || disk.lock().expect("one thread");
    let settings = LogSettings { segment_bytes: 2_048, segments_max: 8, ..LogSettings::default() };
    let storage = Box::new(Arc::clone(&disk));
    let mut replica_store = ReplicaStore::open(storage, 1, settings).expect("it opens");
    let entry = |version, id, value| {
        let mutation = Mutation::Put(id, value);
        vec![ReplicationEntry { version, mutation, sessions: Vec::new() }]
    };
    replica_store.on_append(source(), 1, 1, entry(1, id(5), value(5)));
    replica_store.on_append(source(), 1, 2, entry(2, id(6), value(6)));
    replica_store.flush(&mut Vec::new());
    let damaged = value(5);
    let mut storage = lock();
    let bytes = storage.segment(0).expect("it was written");
    let at = bytes.windows(damaged.len()).position(|window| window == damaged);
    bytes[at.expect("it is there")] ^= 1;
    storage.reads_late = true;
    drop(storage);
    let mut service = failover(&index, &mut replica_store);
    step(&mut service, &mut replica_store, 1_000);
    lock().reads_late = false;
    // The cleaner moves the other chunk before the medium reads.
    for version in 1..400 {
        let entries = entry(version, id(100 + version % 2), vec![1; 90]);
        replica_store.on_append(peer(3), 1, version, entries);
        replica_store.flush(&mut Vec::new());
    }
    lock().reads_late = true;
    lock().deliver();
    let (_, unread) = step(&mut service, &mut replica_store, 1_001);
    assert_eq!((unread, service.store.has(id(6))), (UnreadableChunks::default(), false));
    lock().deliver();
    let (_, unread) = step(&mut service, &mut replica_store, 1_002);
    assert_eq!(unread.asked, BTreeMap::from([(source(), vec![id(5)])]));
    assert!(service.store.has(id(6)) && !service.store.has(id(5)));
}

/// The replica of a chunk is damaged at one holder, or at both.
#[test]
fn a_new_owner_fetches_what_it_cannot_read() {
    let holder = peer(1);
    for (lacking, is_there) in [(vec![8], true), (vec![7, 8], false)] {
        let (index, mut replica_store, mut other) =
            (model(), replica_store_without(&[7]), replica_store_without(&lacking));
        let mut service = failover(&index, &mut replica_store);
        let ids = ids(5, 5);
        let (_, unread) = step(&mut service, &mut replica_store, 1_000);
        let found = BTreeMap::from([(source(), vec![id(7)])]);
        assert_eq!(
            unread,
            UnreadableChunks { asked: found.clone(), ..UnreadableChunks::default() }
        );
        let sealed = other.on_seal(source(), ids, 9).expect("it seals");
        service.on_backup(holder, &sealed, &mut || 1_001, &mut Vec::new());
        let (out, unread) = step(&mut service, &mut replica_store, 1_001);
        let question =
            ReplicationMessage::Fetch { source: source(), ids, keys: vec![id(7).into()] };
        assert_eq!(
            out,
            [ChunkCommand::Replication(ReplicationCommand::Send(holder, question))],
            "and nothing else yet"
        );
        assert_eq!(unread, UnreadableChunks::default());

        let answer = fetch(&mut other, source(), ids, &[id(7).into()]);
        service.on_backup(holder, &answer, &mut || 1_002, &mut Vec::new());
        let (out, unread) = step(&mut service, &mut replica_store, 1_002);
        let lost = if is_there { BTreeMap::new() } else { found };
        assert_eq!(unread, UnreadableChunks { lost, ..UnreadableChunks::default() });
        assert_eq!(service.store.has(id(7)), is_there);
        // A backup in place is sent a damaged chunk too, whether it can read its own or not.
        let [
            ChunkCommand::Replication(ReplicationCommand::Send(
                to,
                ReplicationMessage::Append { entries, .. },
            )),
        ] = &out[..]
        else {
            panic!("it begins: {out:?}");
        };
        let mutation: Vec<Mutation> =
            entries.to_vec().into_iter().map(|entry| entry.mutation).collect();
        let last = match is_there {
            true => vec![Mutation::Put(id(7), value(7)), Mutation::RemoveLock(id(7))],
            false => vec![Mutation::Remove(id(7))],
        };
        let (first, end) = (Mutation::ChangeOwner(source(), ids), Mutation::RepliesOnly);
        let adopts: Vec<Mutation> = [first].into_iter().chain(last).chain([end]).collect();
        assert_eq!((*to, mutation), (holder, adopts));
    }
}

/// What a holder answers whose storage does not wait.
fn fetch(
    replica_store: &mut ReplicaStore,
    source: Peer,
    ids: IdRange,
    keys: &[RecordKey],
) -> ReplicationMessage {
    let mut out = Vec::new();
    replica_store.on_fetch(me(), source, ids, keys);
    replica_store.flush(&mut out);
    let is_answer =
        |(_, message): &(Peer, _)| matches!(message, ReplicationMessage::Fetched { .. });
    let (to, answer) = out.into_iter().find(is_answer).expect("it answers");
    assert_eq!(to, me());
    answer
}

/// Loading is most of a failover, so a slow backup must not make it start over.
#[test]
fn a_failover_with_a_silent_backup_keeps_what_it_loaded() {
    let index = model();
    let settings = ReplicationSettings::default();
    let (holder, other) = (peer(1), peer(4));
    let mut replica_store = replica_store_without(&[]);
    let mut service = failover(&index, &mut replica_store);
    let step = |service: &mut _, replica_store: &mut ReplicaStore, now_ms| {
        step(service, replica_store, now_ms).0
    };
    let asked = |out: &[ChunkCommand]| {
        let is_question = |command: &&ChunkCommand| {
            matches!(
                command,
                ChunkCommand::Replication(ReplicationCommand::Send(
                    _,
                    ReplicationMessage::Seal { .. }
                ))
            )
        };
        out.iter().filter(is_question).count()
    };
    // The changes sent to the holder, and to the other node.
    let sent = |out: &[ChunkCommand]| {
        [holder, other].map(|to| {
            let entries = out.iter().filter_map(|command| match command {
                ChunkCommand::Replication(ReplicationCommand::Send(
                    peer,
                    ReplicationMessage::Append { entries, .. },
                )) => (*peer == to).then(|| entries.to_vec().len()),
                _ => None,
            });
            entries.sum::<usize>()
        })
    };
    let (source, ids, beyond) = (source(), ids(5, 5), Some(Vec::new()));
    let sealed = ReplicationMessage::Sealed { source, ids, last: 9, beyond };
    assert_eq!(asked(&step(&mut service, &mut replica_store, 1_000)), 1);
    service.on_backup(holder, &sealed, &mut || 1_001, &mut Vec::new());
    assert_eq!(
        sent(&step(&mut service, &mut replica_store, 1_001)),
        [2, 0],
        "it adopts what it has"
    );

    // After this silence it is not waited for any more.
    let later = 1_001 + 4 * settings.silent_ms;
    step(&mut service, &mut replica_store, later);
    assert!((5..10).all(|counter| service.store.has(id(counter))), "they stay");
    assert_eq!((service.failovers(), service.replication().counts().1), (1, 0));
    let again = step(&mut service, &mut replica_store, later + 1);
    assert_eq!((asked(&again), sent(&again)), (1, [0, 0]), "it is asked once more");
    service.on_backup(holder, &sealed, &mut || later + 2, &mut Vec::new());
    let again = step(&mut service, &mut replica_store, later + 2);
    assert_eq!(sent(&again), [2, 0], "it adopts what it has");

    // A silent backup is not waited for for ever.
    let later = later + 2 + 4 * settings.silent_ms;
    step(&mut service, &mut replica_store, later);
    assert_eq!(sent(&step(&mut service, &mut replica_store, later + 1)), [0, 0]);
    assert_eq!(sent(&step(&mut service, &mut replica_store, later + 999)), [0, 0]);
    let full = step(&mut service, &mut replica_store, later + 1_001);
    assert!(matches!(sent(&full), [_, 7]), "all of it, after a clear: {full:?}");
}
