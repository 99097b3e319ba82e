//! Reads that may change their item: what of them backups are sent, and what is kept to be answered
//! again.

use amalgam_op::{Delete, Get};

use super::*;

const VALUE_BYTES: usize = 512 << 10;

/// `mg` with a few bytes may name a value of a megabyte: backups are sent it if it was touched, and
/// nobody needs its answer again but the client that is to recache it.
#[test]
fn backups_are_sent_what_a_read_has_changed_and_no_answer_that_may_be_given_anew() {
    let (chunks, items) = (model(), model());
    let replication = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let limits = ChunkSettings { replication, ..ChunkSettings::default() };
    let store = ItemStore::new(&chunks, &items, Box::new(|| ItemTime::FIRST));
    let mut service = ChunkService::new(me(), limits, store);
    service.set_deadline(u64::MAX);
    service.set_members([me(), backup()].into_iter());
    let id = service.item_id(b"key").expect("a place");
    service.owned.assign(id.bits()..id.bits() + 1, Some(5));
    service.replication.set_backups(IdRange::single(id), vec![backup()]);
    let mut numbers = 1..;
    // The bytes that the backup is sent for an action, about, and the number of answers kept.
    let mut execute = |action| {
        let number = numbers.next().expect("endless");
        let operations = vec![Operation { number, epoch: 5, action }];
        let request = Request { client: ALICE, incarnation: 2, answered_below: number, operations };
        let queued = |service: &ChunkService<_>| {
            service.replication.backlogs().iter().map(|backlog| backlog.bytes).sum::<usize>()
        };
        let before = queued(&service);
        service.execute(ASKER, &request, &mut || 1_000);
        let sessions = service.sessions.export(IdRange::single(id), 1_000).sessions;
        let kept: usize = sessions.iter().map(|session| session.answers.len()).sum();
        (queued(&service) - before, kept)
    };
    execute(Action::Open { lease_ms: 600_000 });
    let mut apply = |verb| {
        let op = ItemOp { key: b"key".to_vec(), verb: ItemVerb::from(verb) };
        execute(Action::Item { id, op: Box::new(op) })
    };
    let meta = Get { checks_stale: true, ..Get::default() };
    let (value, once) = (vec![1; VALUE_BYTES], VALUE_BYTES..VALUE_BYTES + 1_000);
    let (sent, kept) = apply(Verb::Store(Store::new(StoreMode::Set, &value, 0, 0)));
    assert!(once.contains(&sent) && kept == 1, "{sent} {kept}");
    for verb in [meta, Get { vivify: Some(30), ..meta }] {
        assert_eq!(apply(Verb::Get(verb)), (0, 0), "it has changed nothing");
    }
    let (sent, kept) = apply(Verb::Get(Get { touch: Some(60), ..meta }));
    assert!(once.contains(&sent) && kept == 0, "{sent} {kept}");
    let stale = Delete { marks_stale: true, ..Delete::default() };
    let (sent, kept) = apply(Verb::Delete(stale));
    assert!(once.contains(&sent) && kept == 1, "{sent} {kept}");
    assert_eq!(apply(Verb::Get(meta)), (0, 1), "this client recaches it");
    assert_eq!(apply(Verb::Get(meta)), (0, 0), "that one does not");
    apply(Verb::Delete(Delete::default()));
    let (sent, kept) = apply(Verb::Get(Get { vivify: Some(30), ..meta }));
    assert!((1..1_000).contains(&sent) && kept == 1, "it was created: {sent} {kept}");
}
