//! Encoded messages round-trip; malformed bytes are refused, in bounded memory.

use amalgam_op::{
    Arithmetic, Compare, Counted, Delete, Expiry, Get, Hit, Outcome, Store, StoreMode, Verb,
    Written,
};
use proptest::prelude::*;

use super::*;
use crate::chunks::{
    Action, ChunkError, ClientId, ClientState, FencedChange, ItemAnswer, ItemOp, ItemRecord,
    ItemVerb, LockGrant, OPERATIONS_MAX, Operation, Request, Response, SessionState,
};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::overlay::{
    Change, Edit, FailoverGrant, LastRequest, Message, Peer, Refusal, ReplicaSet, RequestId,
    RingSegment, Snapshot, Summary, Term, Version,
};
use crate::ranges::{Placement, Range};
use crate::replication::{Mutation, RecordKey, ReplicationEntry, ReplicationMessage};
use crate::shard::MoveMessage;

fn node(number: u16) -> NodeId {
    NodeId::new(number).expect("a node")
}

/// Each operation on a named item.
fn item_actions(id: ChunkId) -> Vec<Action> {
    let get = Get { touch: Some(-1), recache_below_seconds: Some(30), ..Get::default() };
    let mut store = Store::new(StoreMode::Prepend, b"value", 7, 100);
    store.compare = Some(Compare { cas: 5, accepts_older_as_stale: true });
    let verbs = [
        Verb::Get(get),
        Verb::Store(store),
        Verb::Arithmetic(Arithmetic { delta: 9, initial: Some(1), ..Arithmetic::default() }),
        Verb::Delete(Delete { compare: Some(8), marks_stale: true, ..Delete::default() }),
    ];
    let verbs = verbs.into_iter().map(ItemVerb::from).chain([ItemVerb::Read]);
    let action = |verb| Action::Item { id, op: Box::new(ItemOp { key: b"key".to_vec(), verb }) };
    verbs.map(action).collect()
}

/// Each outcome of an operation; the first with an item.
fn item_answers() -> Vec<ItemAnswer> {
    let (expiry, expiry_before, cas) = (Expiry(4), Expiry(0), Some(6));
    let item = ItemRecord {
        value: vec![1, 2],
        flags: 3,
        expiry,
        cas,
        fetched: true,
        stale: false,
        won: true,
        idle_seconds: Some(5),
    };
    let others = [
        Outcome::NotFound,
        Outcome::Stored(Written { cas, value_bytes: 2 }),
        Outcome::NotStored,
        Outcome::Exists,
        Outcome::Deleted,
        Outcome::Invalidated,
        Outcome::Number(Counted { number: 1, created: true, cas, expiry, expiry_before }),
        Outcome::NotANumber,
        Outcome::TooLarge,
        Outcome::OutOfMemory,
        Outcome::Unavailable,
        Outcome::Unknown,
    ];
    let hit = Outcome::Hit(Hit { won: true, expiry_before: expiry, ..Hit::default() });
    let first = ItemAnswer { outcome: hit, item: Some(item) };
    std::iter::once(first).chain(others.map(ItemAnswer::from)).collect()
}

/// Statuses of nodes.
fn controls(peer: Peer, ids: IdRange) -> [Control; 14] {
    let status = NodeStatus {
        peer,
        members: vec![(peer, "host:1".to_owned())],
        supers: vec![peer],
        revision: 1,
        flushes: 2,
        partitions: 3,
        ids: 4,
        spans: 5,
        ranges: (6, 7),
        moves: (8, 9),
        reduced: (10, 11),
        kept: 12,
        lease_left_ms: 13,
        rate: 14,
        hot_moves: 15,
        release: "0.1.0".to_owned(),
        backups: 3,
    };
    [
        Control::GetStatus,
        Control::Status(Box::new(status)),
        Control::Migrate { ids, target: peer.node },
        Control::Migrating(true),
        Control::GetOwnership(ids.first()),
        Control::Ownership(None),
        Control::Ownership(Some(OwnedRange { ids, epoch: 16, replicas: vec![(peer, 17)] })),
        Control::Drain,
        Control::Drained(false),
        Control::Forbidden,
        Control::GetClock,
        Control::Clock(18),
        Control::GetMemory,
        Control::Memory(NodeMemory {
            items: MemoryUse { used: 19, fillable: 20, limit: 21 },
            chunks: MemoryUse { used: 22, fillable: 23, limit: 24 },
            evicts: true,
        }),
    ]
}

/// One of each message, with lists and choices in them.
fn packets() -> Vec<Packet> {
    let peer = Peer { node: node(7), incarnation: 3 };
    let creator = Creator::new(0xF00D).expect("a creator");
    let id = ChunkId::new(creator, 42).expect("an id");
    let ids = IdRange::starting_at(id, 5).expect("a range");
    let placement = Placement::new(node(1), &[node(2), node(9)]).expect("a placement");
    let range = Range { ids, placement };
    let segment = RingSegment { first: 9, last: 2 };
    let term = Term { number: 4, leader: peer };
    let version = Version { term, sequence: 77 };
    let request = RequestId { peer, sequence: 8 };
    let edit = |change| Edit { request, ids, change };
    let placed = ReplicaSet { placement, incarnations: [1, 2, 3, 0] };
    let changes = [
        Change::Claim(placed),
        Change::CompleteFailover(placed, peer),
        Change::Release,
        Change::Fence,
        Change::RemoveDead(peer),
        Change::MarkLost(peer),
        Change::Rejoin(peer, 9),
    ];
    let edits = changes.map(edit).to_vec();
    let inheritance = FailoverGrant { ids, epoch: 6, source: peer, holders: vec![peer, peer] };
    let held = vec![Summary { creator, version, digest: 1 << 63 }];
    let last_requests = vec![
        LastRequest { request, result: Ok(5) },
        LastRequest { request, result: Err(Refusal::NotOwner) },
    ];
    let (incarnations, to_recover) = (vec![peer], vec![(ids, peer)]);
    let snapshot =
        Snapshot { creator, version, ranges: vec![range], last_requests, incarnations, to_recover };
    let overlay = [
        Message::LookUp { origin: peer, token: 1, id, hops: 2 },
        Message::Found { token: 1, id, epoch: 9, found: Some((range, 3)), is_certain: true },
        Message::Found { token: 1, id, epoch: 9, found: None, is_certain: false },
        Message::Change { edit: edit(Change::Migrate(placed)), hops: 0 },
        Message::Changed { request, creator, result: Err(Refusal::TooWide) },
        Message::SuperPeers { revision: 2, super_peers: vec![peer, peer] },
        Message::Seal { segment, term },
        Message::Sealed { segment, term, held: held.clone(), since: 2 },
        Message::Overruled { at: 3, promised: term },
        Message::Fetch { creator },
        Message::Install { snapshot },
        Message::Compare { segment, term, held },
        Message::Matches { segment, term },
        Message::Missing { term, creators: vec![creator] },
        Message::Append { creator, version, edits },
        Message::Appended { creator, version },
        Message::GrantFailover(inheritance),
        Message::QueryReplica { creator, former: peer },
        Message::Probe { revision: 11 },
        Message::Alive { revision: 12 },
        Message::ReplicaStatus { creator, former: peer, is_whole: true },
        Message::QueryNeeded { creator, source: peer, revision: 8 },
        Message::NotNeeded { creator, source: peer },
    ];
    let client = ClientId(5);
    let answers = vec![
        (1, id, Ok(Response::Created(id))),
        (2, id, Err(ChunkError::Locked)),
        (3, id, Ok(Response::Locked(19))),
        (4, id, Err(ChunkError::Fenced)),
    ];
    let session = SessionState { client, lease_ms: 9, answered_below: 1, answers };
    let sessions = vec![session.clone()];
    let lock = LockGrant { client, token: 19, lease_ms: 10 };
    let tail = |token| {
        let locks = vec![(id, LockGrant { token, ..lock })];
        Some(ClientState { locks, sessions: vec![session.clone()] })
    };
    let chunks = vec![(id, Some(vec![1, 2, 3])), (id, None)];
    let moves = [
        MoveMessage::Offer { number: 1, ids, since: 2 },
        MoveMessage::Page { number: 1, page: 2, chunks: chunks.clone(), tail: tail(19) },
        MoveMessage::Page { number: 1, page: 3, chunks: chunks.clone(), tail: tail(0) },
        MoveMessage::Page { number: 1, page: 4, chunks, tail: None },
        MoveMessage::Ack { number: 1, page: 0, backups: vec![peer] },
        MoveMessage::Declined { number: 1 },
        MoveMessage::Transferred { number: 1, ids, epoch: 3 },
        MoveMessage::TransferAck { number: 1 },
        MoveMessage::Cancelled { number: 1 },
    ];
    let mutation = [
        Mutation::Put(id, vec![4]),
        Mutation::Remove(id),
        Mutation::Clear(ids),
        Mutation::RepliesOnly,
        Mutation::DiscardFormer(peer, ids),
        Mutation::PutItem(RecordKey::item(id, b"key"), vec![5]),
        Mutation::RemoveItem(RecordKey::item(id, b"key")),
        Mutation::ChangeOwner(peer, ids),
        Mutation::put_lock(id, &lock),
        Mutation::RemoveLock(id),
    ];
    let entry = |mutation| ReplicationEntry { version: 3, mutation, sessions: sessions.clone() };
    let entries = mutation.map(entry).to_vec().into();
    let backups = [
        ReplicationMessage::Append { stream: 1, first: 2, entries },
        ReplicationMessage::Appended { stream: 1, next: 9 },
        ReplicationMessage::Refused { stream: 1, is_sealed: true },
        ReplicationMessage::Resend {
            stream: 1,
            keys: vec![RecordKey::from(id), RecordKey::item(id, b"key")],
        },
        ReplicationMessage::Seal { source: peer, ids, last: 7 },
        ReplicationMessage::Sealed {
            source: peer,
            ids,
            last: 7,
            beyond: Some(vec![RecordKey::from(id)]),
        },
        ReplicationMessage::Sealed { source: peer, ids, last: 7, beyond: None },
        ReplicationMessage::Fetch { source: peer, ids, keys: vec![RecordKey::from(id)] },
        ReplicationMessage::Fetched {
            source: peer,
            ids,
            found: vec![
                Mutation::Put(id, vec![8; 3]),
                Mutation::Remove(id),
                Mutation::RemoveLock(id),
            ],
            sessions: sessions.clone(),
            lacking: vec![RecordKey::from(id)],
            damaged: Vec::new(),
        },
    ];
    let actions = [
        Action::Open { lease_ms: 5 },
        Action::Close,
        Action::Create(vec![0; 10]),
        Action::Get(id),
        Action::Put(id, vec![]),
        Action::Delete(id),
        Action::Lock { id, lease_ms: 7 },
        Action::Unlock(id),
        Action::Fenced(Box::new(FencedChange { id, token: 19, value: Some(vec![1]) })),
        Action::Fenced(Box::new(FencedChange { id, token: 19, value: None })),
    ];
    let actions = actions.into_iter().chain(item_actions(id));
    let operations = actions.map(|action| Operation { number: 3, epoch: 4, action }).collect();
    let errors = [
        ChunkError::NoChunk,
        ChunkError::TooLarge,
        ChunkError::Full,
        ChunkError::NotLocked,
        ChunkError::Moved(Some(placement)),
        ChunkError::Outdated,
        ChunkError::Retry,
        ChunkError::Unavailable,
        ChunkError::Restarted(4),
        ChunkError::NoSession,
        ChunkError::Forgotten,
        ChunkError::Busy,
        ChunkError::Unknown,
        ChunkError::Fenced,
    ];
    let mut reply: Vec<_> = errors.into_iter().map(|error| (1, Err(error))).collect();
    reply.extend(
        [Response::Ok, Response::Value(vec![9]), Response::Session, Response::Locked(19)]
            .map(|done| (2, Ok(done))),
    );
    reply
        .extend(item_answers().into_iter().map(|answer| (3, Ok(Response::Item(Box::new(answer))))));
    let request = Request { client, incarnation: 2, answered_below: 1, operations };
    let overlay = overlay.into_iter().map(Packet::Overlay);
    let moves = moves.into_iter().map(Packet::Move);
    let controls = controls(peer, ids).map(Packet::Control);
    let backups = backups.into_iter().map(Packet::Replication);
    let timed = Packet::Timed(9, request.clone());
    let requests = [Packet::Request(request), timed, Packet::Reply(reply)];
    let between = overlay.chain(moves).chain(backups);
    between.chain(requests).chain(controls).collect()
}

/// Version 8 knows neither tokens nor replicated locks: a decoder of that version refuses their
/// codes.
#[test]
fn older_versions_are_sent_no_tokens() {
    let (mut changed, mut left_out) = (0, 0);
    for packet in packets() {
        assert_eq!(packet.for_version(WIRE_VERSION).as_deref(), Some(&packet));
        let Some(older) = packet.for_version(8) else {
            left_out += 1;
            continue;
        };
        changed += usize::from(*older != packet);
        let text = format!("{:?}", Packet::decode_all(&bytes_of(&older)).expect("a packet"));
        for word in ["Locked(", "Fenced", "PutLock", "RemoveLock", "token: 19"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        if let Packet::Replication(ReplicationMessage::Append { entries, .. }) = &packet {
            let Packet::Replication(ReplicationMessage::Append { entries: older, .. }) = &*older
            else {
                panic!("{older:?}");
            };
            assert_eq!(older.count(), entries.count(), "entries are numbered by their order");
        }
    }
    // Requests with and without a deadline, and a node's memory with its question; a reply, two
    // pages, entries, and a holder's answer.
    assert_eq!((left_out, changed), (4, 5));
}

fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(&mut bytes);
    bytes
}

#[test]
fn every_message_comes_back_and_no_part_of_one_is_one() {
    for packet in packets() {
        let mut bytes = bytes_of(&packet);
        assert_eq!(Packet::decode_all(&bytes).as_ref(), Ok(&packet));
        for length in 0..bytes.len() {
            assert!(Packet::decode_all(&bytes[..length]).is_err(), "{packet:?} up to {length}");
        }
        bytes.push(0);
        assert_eq!(Packet::decode_all(&bytes), Err(WireError::Long));
    }
}

#[test]
fn frames_come_back_however_they_are_cut() {
    for step in [1, 3, 7, 1 << 20] {
        let mut bytes = Vec::new();
        for (number, packet) in (100..).zip(packets()) {
            encode_frame(number, &packet, &mut bytes).expect("it is short");
        }
        let (mut reader, mut read) = (FrameReader::default(), Vec::new());
        for part in bytes.chunks(step) {
            reader.feed(part);
            while let Some((number, packet)) = reader.next_frame().expect("a frame") {
                assert_eq!(number, 100 + read.len() as u64);
                read.push(packet);
            }
        }
        assert_eq!((read, reader.waiting()), (packets(), 0));
    }
}

#[test]
fn lengths_that_lie_are_refused_at_once() {
    let mut reader = FrameReader::default();
    reader.feed(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes());
    assert_eq!(reader.next_frame(), Err(WireError::TooLarge));
    // A list of 2^32 - 1 super peers in 13 bytes.
    let mut bytes = vec![1, 5];
    bytes.extend_from_slice(&1u64.to_le_bytes());
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Packet::decode_all(&bytes), Err(WireError::Short));
    let huge = Packet::Request(Request {
        client: ClientId(1),
        incarnation: 1,
        answered_below: 0,
        operations: vec![Operation {
            number: 1,
            epoch: 1,
            action: Action::Create(vec![0; FRAME_BYTES_MAX]),
        }],
    });
    let mut frames = vec![7];
    assert_eq!(encode_frame(1, &huge, &mut frames), Err(WireError::TooLarge));
    assert_eq!(frames, [7], "nothing is left of it");
}

/// The first frame that a sender's bytes make.
fn first_of(sender: FrameSource, bytes: &[u8]) -> Result<Option<(u64, Packet)>, WireError> {
    let mut reader = FrameReader::default();
    reader.feed(bytes);
    reader.next_frame_of(sender)
}

#[test]
fn a_client_sends_only_what_clients_may() {
    let is_of_client = |packet: &Packet| match packet {
        Packet::Request(_) | Packet::Timed(..) | Packet::Overlay(Message::LookUp { .. }) => true,
        Packet::Control(control) => matches!(
            control,
            Control::GetStatus
                | Control::Migrate { .. }
                | Control::LocateItem(_)
                | Control::GetOwnership(_)
                | Control::Drain
                | Control::GetClock
                | Control::GetMemory
        ),
        _ => false,
    };
    let mut of_clients = 0;
    for packet in packets() {
        let mut bytes = Vec::new();
        encode_frame(1, &packet, &mut bytes).expect("it is short");
        let wrong = || Err(WireError::WrongSender);
        let whole = || Ok(Some((1, packet.clone())));
        let expected = if is_of_client(&packet) { whole() } else { wrong() };
        of_clients += usize::from(expected.is_ok());
        assert_eq!(first_of(FrameSource::Client, &bytes), expected, "{packet:?}");
        let is_control = matches!(packet, Packet::Control(_));
        let expected = if is_control { wrong() } else { whole() };
        assert_eq!(first_of(FrameSource::Node, &bytes), expected, "{packet:?}");
        // It is refused by its first bytes, whatever follows.
        let head = bytes.len().min(4 + 8 + 2);
        let of_head = first_of(FrameSource::Client, &bytes[..head]);
        assert_eq!(of_head.is_ok(), is_of_client(&packet), "{packet:?}");
    }
    assert!(of_clients > 5, "the messages of clients are among them");
}

#[test]
fn counts_are_bounded_before_anything_is_decoded() {
    let operation = Operation { number: 1, epoch: 1, action: Action::Close };
    let request = |count| {
        let operations = vec![operation.clone(); count];
        Packet::Request(Request {
            client: ClientId(1),
            incarnation: 1,
            answered_below: 0,
            operations,
        })
    };
    for (count, expected) in
        [(OPERATIONS_MAX, None), (OPERATIONS_MAX + 1, Some(WireError::TooLarge))]
    {
        let mut bytes = Vec::new();
        encode_frame(1, &request(count), &mut bytes).expect("it is short");
        for sender in [FrameSource::Client, FrameSource::Node] {
            assert_eq!(first_of(sender, &bytes).err(), expected, "{count}");
        }
    }
    let long = (CLIENT_FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
    assert_eq!(first_of(FrameSource::Client, &long), Err(WireError::TooLarge));
    assert_eq!(first_of(FrameSource::Node, &long), Ok(None));
    // Changes of a byte each, of which a frame has room for millions.
    let list = [&(12_u32 << 20).to_le_bytes()[..], &vec![4; 12 << 20]].concat();
    assert_eq!(Vec::<Mutation>::decode_all(&list), Err(WireError::TooLarge));
}

#[test]
fn strangers_are_told_apart() {
    let own = Hello::new(1, None);
    let mut bytes = Vec::new();
    Hello::new(1, Some(Peer { node: node(3), incarnation: 1 })).encode(&mut bytes);
    let other = Hello::decode_all(&bytes).expect("a hello");
    assert_eq!(own.check(&other), Ok(WIRE_VERSION));
    assert_eq!(own.check(&Hello::new(2, None)), Err(HelloError::Cluster(2)));
    let checked = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        own.check(&Hello::decode_all(&bytes).expect("a hello"))
    };
    assert_eq!(checked(0), Err(HelloError::Foreign));
    // A version without `since`, which names only its own version.
    let mut old = bytes.clone();
    old[4..6].copy_from_slice(&(WIRE_SINCE - 1).to_le_bytes());
    for nonce in [[0; 2], [0xff; 2]] {
        old.truncate(bytes.len() - 2);
        old.extend_from_slice(&nonce);
        let old = Hello::decode_all(&old).expect("a hello");
        assert_eq!(own.check(&old), Err(HelloError::Version(WIRE_SINCE - 1)));
    }
}

#[test]
fn neighbouring_releases_speak_the_older_ones_format() {
    let own = Hello::new(1, None);
    let later = |since| {
        let mut hello = own;
        (hello.version, hello.since) = (WIRE_VERSION + 1, since);
        hello
    };
    assert_eq!(own.check(&later(WIRE_VERSION)), Ok(WIRE_VERSION));
    assert_eq!(later(WIRE_VERSION).check(&own), Ok(WIRE_VERSION));
    // A version that has dropped ours.
    let version = |version| Err(HelloError::Version(version));
    assert_eq!(own.check(&later(WIRE_VERSION + 1)), version(WIRE_VERSION + 1));
    assert_eq!(later(WIRE_VERSION + 1).check(&own), version(WIRE_VERSION));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Changed bytes are refused or decode to another message, which round-trips.
    #[test]
    fn no_bytes_are_too_bad(
        which in 0..1_000usize,
        changes in prop::collection::vec((0..1_000usize, any::<u8>()), 1..6),
    ) {
        let packets = packets();
        let mut bytes = bytes_of(&packets[which % packets.len()]);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Ok(packet) = Packet::decode_all(&bytes) {
            prop_assert_eq!(bytes_of(&packet), bytes);
        }
    }

    #[test]
    fn no_noise_is_too_bad(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = FrameReader::default();
        reader.feed(&bytes);
        while let Ok(Some((_, packet))) = reader.next_frame() {
            let encoded = bytes_of(&packet);
            prop_assert!(encoded.len() <= bytes.len());
        }
    }
}
