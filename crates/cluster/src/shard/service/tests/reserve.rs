//! A node that takes over more than its clients may fill.

use std::cell::Cell;

use amalgam_index::Store as _;

use super::*;
use crate::chunks::StoreHost;

/// Room for two of the source's chunks, and for all of them.
const LIMITS: [usize; 2] = [80, 1 << 20];

struct Host<'t> {
    chunks: &'t Model,
    is_open: &'t Cell<bool>,
}

impl StoreHost for Host<'_> {
    fn use_reserve(&self, does: bool) {
        self.is_open.set(does);
        self.chunks.set_memory_limit(LIMITS[usize::from(does)]);
    }
}

#[test]
fn a_takeover_opens_the_reserve_which_clients_cannot_take() {
    let (chunks, items) = (model(), model());
    chunks.set_memory_limit(LIMITS[0]);
    let is_open = Cell::new(false);
    let host = Host { chunks: &chunks, is_open: &is_open };
    let store = ItemStore::new(&chunks, &items, Box::new(|| ItemTime::FIRST));
    let replication = ReplicationSettings { backups: 2, ..ReplicationSettings::default() };
    let limits = ChunkSettings { replication, ..ChunkSettings::default() };
    let mut service = ChunkService::new(me(), limits, store.with_host(host));
    service.set_members([me(), peer(1), peer(4)].into_iter());
    assert_eq!(service.write(id(1), &value(1)), Ok(Change::Put), "there is room for a client");

    let (holder, mut replica_store) = (peer(1), replica_store_without(&[]));
    let (ids, epoch, source) = (ids(5, 5), 9, source());
    let grant = FailoverGrant { ids, epoch, source, holders: vec![me(), holder] };
    service.start_failover(&grant, &mut replica_store);
    step(&mut service, &mut replica_store, 1_000);
    assert!(is_open.get() && (5..10).all(|counter| service.store.has(id(counter))));
    assert_eq!(service.write(id(2), &value(2)), Err(ChunkError::Full), "it is not for clients");
    let (key, verb) = (b"key".to_vec(), Store::new(StoreMode::Set, b"value", 0, 0));
    let item = service.item_id(&key).expect("an id");
    let set = ItemOp { key: key.clone(), verb: ItemVerb::from(Verb::Store(verb)) };
    let refused = Response::Item(Box::new(Outcome::OutOfMemory.into()));
    assert_eq!(service.item(item, &set), (refused.clone(), None), "backups need not hear of it");
    let read = service.item(item, &ItemOp { key, verb: ItemVerb::Read });
    assert_eq!(read.0, Response::Item(Box::new(Outcome::NotFound.into())), "reads go on");

    let sealed = ReplicationMessage::Sealed { source, ids, last: 9, beyond: Some(Vec::new()) };
    service.on_backup(holder, &sealed, &mut || 1_001, &mut Vec::new());
    step(&mut service, &mut replica_store, 1_001);
    assert!(is_open.get(), "until the failover has ended");
    let number = *service.failovers.committing.keys().next().expect("it waits for its replica set");
    service.on_committed(number, Ok(9), &mut || 1_002, &mut Vec::new());
    step(&mut service, &mut replica_store, 1_002);
    assert!(!is_open.get() && service.store.has(id(9)), "what was taken over stays");
    assert_eq!(service.write(id(2), &value(2)), Err(ChunkError::Full), "there is no room");
    assert_ne!(service.item(item, &set).0, refused, "items have room");
}

#[test]
fn without_backups_there_is_no_reserve() {
    let index = model();
    index.set_memory_limit(LIMITS[0]);
    let mut store = EngineStore::from(&index);
    let mut reserve = Reserve::new(false);
    let large = vec![0; 2 * LIMITS[0]];
    let write = |store: &mut EngineStore<_>| store.write(id(1), &large);
    assert_eq!(reserve.write(&mut store, write), Err(StoreError::Full));
    assert!(!reserve.is_open());
}
