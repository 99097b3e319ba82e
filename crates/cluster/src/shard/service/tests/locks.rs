//! Locks: their tokens, and how they survive their owner.

use super::*;
use crate::chunks::{FencedChange, LockGrant, SessionState};
use crate::codec::Wire;

const CAROL: ClientId = ClientId(3);

fn lock(lease_ms: u64) -> Action {
    Action::Lock { id: id(0), lease_ms }
}

fn put(token: u64, value: &[u8]) -> Action {
    Action::Fenced(Box::new(FencedChange { id: id(0), token, value: Some(value.to_vec()) }))
}

fn delete(token: u64) -> Action {
    Action::Fenced(Box::new(FencedChange { id: id(0), token, value: None }))
}

fn token(result: Result<Response, ChunkError>) -> u64 {
    let Ok(Response::Locked(token)) = result else { panic!("not granted: {result:?}") };
    token
}

#[test]
fn a_change_with_the_token_of_an_ended_lock_is_refused() {
    let index = model();
    let mut caller = caller(&index);
    assert_eq!(caller.call(ALICE, put(1, b"")), Err(ChunkError::NoChunk));
    caller.call(ALICE, Action::Create(b"first".into())).expect("created");
    assert_eq!(caller.call(ALICE, put(1, b"")), Err(ChunkError::Fenced), "there was no lock");
    let old = token(caller.call(ALICE, lock(2_000)));
    assert_eq!(caller.call(ALICE, put(old, b"second")), Ok(Response::Ok));
    caller.now_ms += 2_000;
    assert_eq!(caller.call(ALICE, put(old, b"late")), Err(ChunkError::Fenced), "it is over");
    let new = token(caller.call(BOB, lock(60_000)));
    assert!(new > old);
    assert_eq!(caller.call(ALICE, put(old, b"late")), Err(ChunkError::Fenced));
    assert_eq!(caller.call(ALICE, delete(old)), Err(ChunkError::Fenced));
    assert_eq!(caller.call(ALICE, Action::Put(id(0), vec![])), Err(ChunkError::Locked));
    assert_eq!(caller.call(BOB, Action::Get(id(0))), Ok(Response::Value(b"second".into())));
    // The token counts, not the client that presents it.
    assert_eq!(caller.call(ALICE, put(new, b"third")), Ok(Response::Ok));
    let newer = token(caller.call(BOB, lock(60_000)));
    assert!(newer > new, "each grant has a token of its own");
    assert_eq!(caller.call(BOB, put(new, b"")), Err(ChunkError::Fenced));
    assert_eq!(caller.call(ALICE, delete(newer)), Ok(Response::Ok));
    // The id is used again, for a chunk that nobody has locked.
    assert_eq!(caller.call(ALICE, Action::Create(vec![])), Ok(Response::Created(id(0))));
    assert_eq!(caller.call(BOB, put(newer, b"late")), Err(ChunkError::Fenced));
    assert!(token(caller.call(ALICE, lock(1_000))) > newer);
}

#[test]
fn a_repeated_request_gets_the_token_of_the_first() {
    let index = model();
    let mut caller = caller(&index);
    caller.call(ALICE, Action::Create(vec![])).expect("created");
    let first = caller.repeat(ALICE, 50, 5, lock(1_000));
    assert_eq!(caller.repeat(ALICE, 50, 5, lock(1_000)), first);
    assert_eq!(caller.call(ALICE, put(token(first), b"")), Ok(Response::Ok));
}

/// A later owner may know nothing of what earlier ones granted.
#[test]
fn tokens_ascend_with_epochs_whatever_was_granted_before() {
    let mut sessions = Sessions::default();
    let mut grant = |since| sessions.lock(id(0), ALICE, (since, 1_000), 0).map(|lock| lock.token);
    let last = (0..1_000).map(|_| grant(5).expect("granted")).max().expect("some");
    let mut later = Sessions::default();
    let first = later.lock(id(0), BOB, (6, 1_000), 0).expect("granted").token;
    assert!(first > last);
    assert_eq!(grant(1 << 28), Err(ChunkError::Busy), "the epoch does not fit");
}

/// An owner of chunks 0 and more, and their backup.
fn owner_with_backup(index: &Model) -> BackedUp<impl ChunkStore> {
    let replication = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let limits = ChunkSettings { replication, ..ChunkSettings::default() };
    let mut service = ChunkService::new(me(), limits, EngineStore::from(index));
    service.set_deadline(u64::MAX);
    service.set_members([me(), backup()].into_iter());
    service.on_tick(0, &mut Vec::new());
    let all = ids(0, limits.claim_ids);
    service.on_claimed(all, Ok(5));
    let storage = Box::new(MemoryStorage::default());
    let replica_store = ReplicaStore::open(storage, 1, LogSettings::default()).expect("it opens");
    BackedUp { service, replica_store, now_ms: 1_000 }
}

impl<S: ChunkStore> BackedUp<S> {
    /// Executes an operation; the reply to a change must wait for the backup.
    fn call(
        &mut self,
        (client, number): (ClientId, u64),
        action: Action,
    ) -> Result<Response, ChunkError> {
        let operations = vec![Operation { number, epoch: 5, action }];
        let request = Request { client, incarnation: 2, answered_below: 0, operations };
        let now_ms = self.now_ms;
        let mut reply = self.service.execute(ASKER, &request, &mut || now_ms);
        for command in self.exchange() {
            if let ChunkCommand::Reply(_, late) = command {
                reply = Some(late);
            }
        }
        reply.expect("the backup has it").remove(0).1
    }

    /// The backup takes chunk 0 over. Returns the service of the new owner, at time 50.
    fn fail_over(&mut self, index: &Model) -> Caller<impl ChunkStore> {
        // Its answers wait for nobody.
        let replication = ReplicationSettings { backups: 0, ..ReplicationSettings::default() };
        let limits = ChunkSettings { replication, ..ChunkSettings::default() };
        let heir = Peer { incarnation: 2, ..backup() };
        let mut service = ChunkService::new(heir, limits, EngineStore::from(index));
        service.set_deadline(u64::MAX);
        service.set_members([heir].into_iter());
        let (ids, holders) = (ids(0, 1), vec![heir]);
        let grant = FailoverGrant { ids, epoch: 9, source: me(), holders };
        service.start_failover(&grant, &mut self.replica_store);
        let mut out = Vec::new();
        service.load_failovers(50, &mut self.replica_store, &mut out);
        service.flush(50, &mut out);
        let commit = out.iter().find_map(|command| match command {
            ChunkCommand::Replication(ReplicationCommand::Commit(number, ..)) => Some(*number),
            _ => None,
        });
        let number = commit.unwrap_or_else(|| panic!("no commit: {out:?}"));
        service.on_committed(number, Ok(9), &mut || 50, &mut out);
        let mut caller = Caller { service, number: 1_000, now_ms: 50 };
        for client in [ALICE, BOB, CAROL] {
            let open = Action::Open { lease_ms: 60_000 };
            assert_eq!(caller.repeat(client, caller.number, 9, open), Ok(Response::Session));
        }
        caller
    }
}

#[test]
fn a_lock_survives_its_owner_with_its_token() {
    let (index, other) = (model(), model());
    let mut own = owner_with_backup(&index);
    for client in [ALICE, BOB] {
        own.call((client, 1), Action::Open { lease_ms: 60_000 }).expect("a session");
    }
    own.call((ALICE, 2), Action::Create(b"first".into())).expect("created");
    let held = own.call((ALICE, 3), lock(10_000));
    own.now_ms += 9_000;
    let mut caller = own.fail_over(&other);
    let call = |caller: &mut Caller<_>, client, action| {
        caller.number += 1;
        caller.repeat(client, caller.number, 9, action)
    };
    assert_eq!(caller.repeat(ALICE, 3, 9, lock(10_000)), held, "a repetition is answered alike");
    let held = token(held);
    assert_eq!(call(&mut caller, BOB, lock(1_000)), Err(ChunkError::Locked));
    assert_eq!(call(&mut caller, BOB, Action::Put(id(0), vec![])), Err(ChunkError::Locked));
    assert_eq!(call(&mut caller, BOB, put(held - 1, b"late")), Err(ChunkError::Fenced));
    assert_eq!(call(&mut caller, CAROL, put(held, b"second")), Ok(Response::Ok));
    // The new owner cannot know how much of the lease was over.
    caller.now_ms += 9_999;
    assert_eq!(call(&mut caller, BOB, lock(1_000)), Err(ChunkError::Locked));
    caller.now_ms += 1;
    assert!(token(call(&mut caller, BOB, lock(1_000))) > held);
    assert_eq!(call(&mut caller, CAROL, put(held, b"late")), Err(ChunkError::Fenced));
}

#[test]
fn a_lock_that_ended_does_not_come_back_with_a_new_owner() {
    for ending in 0..5 {
        let (index, other) = (model(), model());
        let mut own = owner_with_backup(&index);
        own.call((ALICE, 1), Action::Open { lease_ms: 5_000 }).expect("a session");
        own.call((ALICE, 2), Action::Create(vec![])).expect("created");
        own.call((BOB, 1), Action::Open { lease_ms: 60_000 }).expect("a session");
        let held = token(own.call((ALICE, 3), lock(if ending == 3 { 60_000 } else { 4_000 })));
        match ending {
            0 => drop(own.call((ALICE, 4), Action::Unlock(id(0))).expect("it is held")),
            1 => own.now_ms += 4_000,
            2 => drop(own.call((ALICE, 4), Action::Close)),
            // The session ends.
            3 => own.now_ms += 5_000,
            _ => {
                // The lease is over, and nothing but the request that is refused notices it.
                let late = Operation { number: 2, epoch: 5, action: put(held, b"late") };
                let (client, operations) = (BOB, vec![late]);
                let request = Request { client, incarnation: 2, answered_below: 0, operations };
                let reply = own.service.execute(ASKER, &request, &mut || 5_000);
                assert_eq!(reply, None, "the refusal waits until the backup knows of the end");
            }
        }
        own.exchange();
        let mut caller = own.fail_over(&other);
        caller.number += 1;
        let number = caller.number;
        assert_eq!(
            caller.repeat(ALICE, number, 9, put(held, b"late")),
            Err(ChunkError::Fenced),
            "{ending}"
        );
        assert!(token(caller.repeat(BOB, number, 9, lock(1))) > held, "{ending}");
    }
}

/// A new owner that cannot read the record of a lock asks for it.
#[test]
fn a_holder_sends_the_lock_that_a_new_owner_cannot_read() {
    let index = model();
    let mut own = owner_with_backup(&index);
    own.call((ALICE, 1), Action::Open { lease_ms: 60_000 }).expect("a session");
    own.call((ALICE, 2), Action::Create(vec![7])).expect("created");
    let held = token(own.call((ALICE, 3), lock(10_000)));
    let keys = [RecordKey::from(id(0)), RecordKey::lock(id(0)), RecordKey::lock(id(1))];
    let answer = fetch(&mut own.replica_store, me(), ids(0, 5), &keys);
    let ReplicationMessage::Fetched { found, lacking, .. } = answer else { panic!("{answer:?}") };
    let grant = LockGrant { client: ALICE, token: held, lease_ms: 10_000 };
    assert_eq!(found, [Mutation::Put(id(0), vec![7]), Mutation::put_lock(id(0), &grant)]);
    assert_eq!(lacking, [RecordKey::from(id(1)), RecordKey::lock(id(1))]);
    for key in keys {
        let answer = fetch(&mut own.replica_store, me(), ids(0, 1), &[key]);
        let ReplicationMessage::Fetched { found, .. } = answer else { panic!("{answer:?}") };
        let whole = if key.id == id(0) { 2 } else { 0 };
        assert_eq!(found.len(), whole, "a chunk and its lock come together: {key:?}");
    }
}

/// A client may have spoken only to the former owner for most of its session here.
#[test]
fn a_session_lasts_as_long_as_a_lock_that_came_from_another_owner() {
    let mut sessions = Sessions::default();
    sessions.open(ALICE, 1, 1_000, 0).expect("it opens");
    let grant = LockGrant { client: ALICE, token: 7, lease_ms: 9_000 };
    sessions.restore_lock(id(0), &grant, 500);
    sessions.expire(9_499);
    assert_eq!(sessions.lock_of(id(0), 9_499).map(|lock| lock.token), Some(7));
    sessions.expire(9_500);
    assert!(!sessions.has_locks());
}

/// A change that only one of two holders has, with its reply.
fn entry(
    version: u64,
    mutation: Mutation,
    result: Result<Response, ChunkError>,
) -> ReplicationEntry {
    let (number, answered_below) = (version, 0);
    let answers = vec![(number, id(5), result)];
    let sessions = vec![SessionState { client: ALICE, lease_ms: 60_000, answered_below, answers }];
    ReplicationEntry { version, mutation, sessions }
}

/// A new owner cannot read a chunk or its lock, and the other holder has a change more, or fewer,
/// that nobody was told of. Chunk, lock and replies must be of one holder.
#[test]
fn a_fetched_record_comes_with_all_that_replies_depend_on() {
    let grant = |token| LockGrant { client: ALICE, token, lease_ms: 60_000 };
    let base = || {
        vec![
            entry(5, Mutation::Put(id(5), value(5)), Ok(Response::Created(id(5)))),
            entry(6, Mutation::put_lock(id(5), &grant(6)), Ok(Response::Locked(6))),
        ]
    };
    let put = || entry(7, Mutation::Put(id(5), value(7)), Ok(Response::Ok));
    let relock = || entry(7, Mutation::put_lock(id(5), &grant(7)), Ok(Response::Locked(7)));
    let unlock = || entry(7, Mutation::RemoveLock(id(5)), Ok(Response::Ok));
    let lock_bytes = |token| {
        let mut bytes = Vec::new();
        grant(token).encode(&mut bytes);
        bytes
    };
    for (own_more, other_more, damaged) in [
        (None, Some(put()), lock_bytes(6)),
        (Some(put()), None, lock_bytes(6)),
        (None, Some(relock()), value(5)),
        (Some(relock()), None, value(5)),
        (None, Some(unlock()), value(5)),
        (Some(unlock()), None, value(5)),
    ] {
        let entries = |more: &Option<ReplicationEntry>| {
            base().into_iter().chain(more.clone()).collect::<Vec<_>>()
        };
        let index = model();
        let mut replica_store = replica_store_of(entries(&own_more), &[damaged]);
        let mut other = replica_store_of(entries(&other_more), &[]);
        let mut service = failover(&index, &mut replica_store);
        let (_, unread) = step(&mut service, &mut replica_store, 1_000);
        assert_eq!(unread.asked, BTreeMap::from([(source(), vec![id(5)])]));
        let question = |command: ChunkCommand| match command {
            ChunkCommand::Replication(ReplicationCommand::Send(
                _,
                ReplicationMessage::Fetch { keys, .. },
            )) => Some(keys),
            _ => None,
        };
        let (out, _) = step(&mut service, &mut replica_store, 1_001);
        let keys = out.into_iter().find_map(question).expect("it asks");
        let answer = fetch(&mut other, source(), ids(5, 5), &keys);
        service.on_backup(peer(1), &answer, &mut || 1_002, &mut Vec::new());

        let has_more = other_more.is_some();
        let name = format!("{own_more:?}, {other_more:?}");
        let mut held = None;
        service.store.read(id(5), &mut |bytes| held = Some(bytes.to_vec()));
        let is_put = |one: &ReplicationEntry| matches!(one.mutation, Mutation::Put(..));
        let newest = if other_more.as_ref().is_some_and(is_put) { 7 } else { 5 };
        assert_eq!(held, Some(value(newest)), "{name}");
        let token = match &other_more {
            Some(ReplicationEntry { mutation: Mutation::PutLock(..), .. }) => Some(7),
            Some(ReplicationEntry { mutation: Mutation::RemoveLock(_), .. }) => None,
            _ => Some(6),
        };
        let lock = service.sessions.lock_of(id(5), 1_002);
        assert_eq!(lock.map(|lock| lock.token), token, "{name}");
        let known = service.sessions.cached_response(ALICE, 7);
        assert_eq!(known.is_some(), has_more, "{name}: it is executed again exactly if need be");
    }
}

/// A new owner cannot read a chunk that no other holder has: nobody was told that it was created.
#[test]
fn what_no_other_holder_has_did_not_happen() {
    let index = model();
    let create = entry(5, Mutation::Put(id(5), value(5)), Ok(Response::Created(id(5))));
    let mut replica_store = replica_store_of(vec![create], &[value(5)]);
    let mut service = failover(&index, &mut replica_store);
    step(&mut service, &mut replica_store, 1_000);
    assert!(service.sessions.cached_response(ALICE, 5).is_some());
    let (lacking, found) = (vec![id(5).into()], Vec::new());
    let (sessions, damaged) = (Vec::new(), Vec::new());
    let (source, ids) = (source(), ids(5, 5));
    let answer = ReplicationMessage::Fetched { source, ids, found, sessions, lacking, damaged };
    service.on_backup(peer(1), &answer, &mut || 1_001, &mut Vec::new());
    let (_, unread) = step(&mut service, &mut replica_store, 1_001);
    assert_eq!(unread, UnreadableChunks::default(), "nothing is lost");
    assert_eq!(service.sessions.cached_response(ALICE, 5), None, "it is executed again");
}
