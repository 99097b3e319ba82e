//! A cache's backup whose log is full.

use super::*;

/// A log of items that may forget, unlike the one of a store.
fn log_of(
    forgets: bool,
    segments_max: u32,
    incarnation: u32,
    storage: Box<dyn Storage>,
) -> ReplicaStore {
    let settings = LogSettings { segments_max, ..SETTINGS };
    let (mut replica_store, recovered) =
        ReplicaStore::resume(storage, (7, me(incarnation), 3), settings).expect("whole");
    assert_eq!(recovered.since, 1, "all of it counts");
    replica_store.set_forgets(forgets);
    replica_store
}

fn named(at: u64) -> ChunkId {
    ChunkId::from_bits(ChunkId::named(0).creator().ids().start() + at).expect("a named id")
}

fn record(at: u64) -> RecordKey {
    RecordKey { id: named(at), tag: 9 }
}

fn some(at: u64, length: u64) -> IdRange {
    IdRange::from_bits(named(at).bits(), named(at).bits() + length)
}

fn put(version: u64, at: u64, value: u64, bytes: usize) -> ReplicationEntry {
    let mut value = value.to_le_bytes().to_vec();
    value.resize(bytes, 7);
    entry(version, Mutation::PutItem(record(at), value))
}

/// The items of an owner and the numbers of their values, and the replies.
type Handed = (BTreeMap<u64, u64>, Vec<(u64, ChunkId)>);

fn handed(replica_store: &mut ReplicaStore, owner: Peer) -> Handed {
    let mut items = BTreeMap::new();
    let contents = recover(replica_store, owner, some(0, 1 << 20), &mut |key, value| {
        let number = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
        items.insert(key.id.bits() - named(0).bits(), number);
    });
    assert_eq!(contents.damaged, []);
    let answers = contents.export.sessions.into_iter().flat_map(|one| one.answers);
    let mut answers: Vec<_> = answers.map(|(number, id, _)| (number, id)).collect();
    answers.sort_unstable();
    (items, answers)
}

#[test]
fn a_full_log_forgets_the_oldest_items_and_accepts_all_others() {
    let mut replica_store = log_of(true, 8, 1, Box::<MemoryStorage>::default());
    for version in 1..=300 {
        // Each is written twice, the second time much later; one is written again and again.
        let at = if version % 3 == 0 { 500 } else { version % 100 };
        replica_store.on_append(owner(), 1, version, vec![put(version, at, version, 300)]);
        let taken = [ReplicationMessage::Appended { stream: 1, next: version + 1 }];
        assert_eq!(answer(&mut replica_store), taken);
    }
    replica_store.seal(owner());
    let last = |at| (1..=300).rev().find(|one| (if one % 3 == 0 { 500 } else { one % 100 }) == at);
    let (found, _) = handed(&mut replica_store, owner());
    let forgotten = replica_store.forgotten();
    assert!(forgotten > 100 && found.len() > 10, "{forgotten} forgotten, {} left", found.len());
    assert!(found.contains_key(&500), "it was written a moment ago");
    for (at, number) in &found {
        assert_eq!(Some(*number), last(*at), "{at}");
    }
    // The next incarnation has the same, and nothing that was forgotten.
    let mut again = log_of(true, 8, 2, replica_store.into_storage());
    assert_eq!(handed(&mut again, owner()).0, found);
}

#[test]
fn long_items_make_room_as_well() {
    let mut replica_store = log_of(true, 8, 1, Box::<MemoryStorage>::default());
    for version in 1..=100 {
        // Each takes more than half of a segment, and less than what is worth cleaning.
        replica_store.on_append(owner(), 1, version, vec![put(version, version, version, 1_200)]);
        let taken = [ReplicationMessage::Appended { stream: 1, next: version + 1 }];
        assert_eq!(answer(&mut replica_store), taken);
    }
    assert!(handed(&mut replica_store, owner()).0.contains_key(&100));
}

#[test]
fn chunks_are_not_forgotten() {
    let mut replica_store = log_of(true, 8, 1, Box::<MemoryStorage>::default());
    let chunk = |n| entry(n, Mutation::Put(id(n), vec![1; 90]));
    replica_store.on_append(owner(), 1, 1, (1..=30).map(chunk).collect::<Vec<_>>());
    let items = (31..=150).map(|version| put(version, version, version, 300));
    replica_store.on_append(owner(), 1, 31, items.collect::<Vec<_>>());
    assert_eq!(answer(&mut replica_store), [ReplicationMessage::Appended { stream: 1, next: 151 }]);
    assert_eq!(recovered(&mut replica_store).len(), 30);
    // They have no more room than in a store.
    let chunk = |n| entry(n, Mutation::Put(id(n), vec![1; 90]));
    replica_store.on_append(owner(), 1, 151, (151..=350).map(chunk).collect::<Vec<_>>());
    let refused = [ReplicationMessage::Refused { stream: 1, is_sealed: false }];
    assert_eq!(answer(&mut replica_store), refused);
}

/// Only of what was never received may a new owner say that it did not happen.
#[test]
fn what_was_forgotten_is_answered_as_removed() {
    let fetched = |forgets| {
        let mut replica_store = log_of(forgets, 64, 1, Box::<MemoryStorage>::default());
        replica_store.on_append(owner(), 1, 1, vec![put(1, 1, 1, 40)]);
        replica_store.flush(&mut Vec::new());
        replica_store.on_fetch(me(9), owner(), some(0, 9), &[record(1), record(2)]);
        let mut out = Vec::new();
        replica_store.flush(&mut out);
        let Some((_, ReplicationMessage::Fetched { found, lacking, .. })) = out.pop() else {
            panic!("{out:?}")
        };
        let removed = found.contains(&Mutation::RemoveItem(record(2)));
        (found.len(), removed, lacking)
    };
    assert_eq!(fetched(true), (2, true, vec![]));
    assert_eq!(fetched(false), (1, false, vec![record(2)]));
}

/// The record of a former owner may have been appended again behind that of its successor.
#[test]
fn no_value_of_a_former_owner_comes_back() {
    let disk = Arc::new(Mutex::new(MemoryStorage::default()));
    let mut replica_store = log_of(true, 8, 1, Box::new(Arc::clone(&disk)));
    let [former, owner] = owners();
    let mut append = |owner, first, entries: Vec<ReplicationEntry>| {
        replica_store.on_append(owner, 1, first, entries);
        replica_store.flush(&mut Vec::new());
        assert_eq!(replica_store.failure(), None);
        replica_store.forgotten()
    };
    let long = |version, at| put(version, at, version, 250);
    append(former, 1, [vec![put(1, 1, 1, 60)], (2..8).map(|n| long(n, 20 + n)).collect()].concat());
    let taken = entry(1, Mutation::ChangeOwner(former, some(0, 20)));
    let later = (3..12).map(|n| long(n, 100 + n)).collect();
    append(owner, 1, [vec![taken, put(2, 1, 2, 60)], later].concat());
    // Now the first segment is worth cleaning: its first record goes behind the second owner's.
    append(former, 8, (8..14).map(|n| put(n, 14 + n, n, 8)).collect());
    append(owner, 12, (12..16).map(|n| long(n, 100 + n)).collect());
    append(owner, 16, vec![entry(16, Mutation::DiscardFormer(former, some(0, 20)))]);
    let mut values = Vec::new();
    for version in 17..100 {
        append(owner, version, vec![long(version, 100 + version)]);
        let left = disk.lock().expect("one thread").clone();
        let (items, _) = handed(&mut log_of(true, 8, 2, Box::new(left)), owner);
        values.push(items.get(&1).copied());
    }
    values.dedup();
    assert_eq!(values, [Some(2), None], "the last one, and then nothing");
}

/// Two backups of the same owners: one whose log is full again and again, and one with room for
/// everything.
struct Pair {
    stores: [ReplicaStore; 2],
    versions: [u64; 2],
    link: u64,
    firsts: [u64; 2],
    answered_below: [u64; 2],
    /// The second owner has begun to take over from the first, and it has discarded what that had.
    is_over: bool,
    is_buried: bool,
}

impl Pair {
    const SEGMENTS: [u32; 2] = [8, 256];

    fn tell(&mut self, step: u64, (who, kind, at, length): (usize, u8, u64, u64)) {
        let who = if self.is_over { 1 } else { who };
        let version = self.versions[who] + 1;
        let (client, lease_ms, answered_below) = (CLIENT, 9, step.saturating_sub(20));
        let answers = vec![(step, named(at), Ok(Response::Ok))];
        let session = SessionState { client, lease_ms, answered_below, answers };
        let put = put(version, at, step, 100 + 50 * at as usize).mutation;
        let (mutation, sessions) = match kind {
            0..9 => (put, vec![]),
            9..12 => (put, vec![session]),
            12 => (Mutation::RemoveItem(record(at)), vec![session]),
            13 => (Mutation::Clear(some(at, length)), vec![]),
            14 => (Mutation::RepliesOnly, vec![session]),
            _ if who == 1 && (self.is_over || length == 4 && at < 3) => {
                self.is_over = true;
                self.is_buried |= kind == 15;
                (
                    match self.is_buried {
                        // No owner takes over what it has discarded.
                        true => Mutation::DiscardFormer(owner(), some(at, length)),
                        false => Mutation::ChangeOwner(owner(), some(at, length)),
                    },
                    vec![],
                )
            }
            _ => return,
        };
        self.versions[who] = version;
        let belows = sessions.iter().map(|session| session.answered_below);
        self.answered_below[who] = belows.fold(self.answered_below[who], u64::max);
        let entry = ReplicationEntry { version, mutation, sessions };
        for store in &mut self.stores {
            store.on_append(
                owners()[who],
                self.link,
                version - self.firsts[who],
                vec![entry.clone()],
            );
            store.flush(&mut Vec::new());
            assert_eq!(store.failure(), None);
        }
    }

    fn restart(self, incarnation: u32) -> Self {
        let mut is_forgetful = [true, false].into_iter().zip(Self::SEGMENTS);
        let stores = self.stores.map(|store| {
            let (forgets, segments) = is_forgetful.next().expect("two stores");
            log_of(forgets, segments, incarnation, store.into_storage())
        });
        Self { stores, link: self.link + 1, firsts: self.versions, ..self }
    }

    /// What the full log hands out is what the other one does, or nothing.
    fn check(&mut self, is_committed: bool) {
        for (who, owner) in owners().into_iter().enumerate().rev() {
            if who == 1 && !is_committed {
                continue;
            }
            let [(found, answers), (all, all_answers)] =
                [0, 1].map(|place| handed(&mut self.stores[place], owner));
            for (at, number) in &found {
                assert_eq!(Some(number), all.get(at), "item {at} of owner {who}");
            }
            let asked = |answers: Vec<(u64, ChunkId)>| -> Vec<_> {
                let below = self.answered_below[who];
                answers.into_iter().filter(|(number, _)| *number >= below).collect()
            };
            assert_eq!(asked(answers), asked(all_answers), "replies of owner {who}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// However full the log is, however often it restarts and whoever takes over, it hands out
    /// what it received last, or nothing.
    #[test]
    fn a_full_log_hands_out_the_last_state_or_nothing(
        steps in prop::collection::vec((0..2usize, 0..18u8, 0..16u64, 1..5u64), 1..500),
        lives in 60..250_usize,
        is_committed: bool,
    ) {
        let new = |place: usize| {
            log_of(place == 0, Pair::SEGMENTS[place], 1, Box::<MemoryStorage>::default())
        };
        let mut pair = Pair {
            stores: [0, 1].map(new),
            versions: [0, 0],
            link: 1,
            firsts: [0, 0],
            answered_below: [0, 0],
            is_over: false,
            is_buried: false,
        };
        let mut step = 0;
        for (incarnation, steps) in (2..).zip(steps.chunks(lives)) {
            for mutation in steps {
                step += 1;
                pair.tell(step, *mutation);
            }
            pair = pair.restart(incarnation);
        }
        pair.check(is_committed);
    }
}
