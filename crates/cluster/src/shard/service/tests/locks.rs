//! Locks: their tokens, and how they survive their owner.

use super::*;
use crate::chunks::{FencedChange, LockGrant};

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
        let replication = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
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
    let answer = own.replica_store.on_fetch(me(), ids(0, 5), &keys);
    let ReplicationMessage::Fetched { found, lacking, .. } = answer else { panic!("{answer:?}") };
    let grant = LockGrant { client: ALICE, token: held, lease_ms: 10_000 };
    assert_eq!(found, [Mutation::Put(id(0), vec![7]), Mutation::put_lock(id(0), &grant)]);
    assert_eq!(lacking, [RecordKey::lock(id(1))]);
}
