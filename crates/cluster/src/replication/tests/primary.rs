//! Tests of one owner's [`ReplicationPrimary`], without backups behind it.

use super::super::*;
use super::{id, ids, owner};
use crate::chunks::{ChunkStore, ClientState, StoreError};
use crate::ids::{ChunkId, Creator, NodeId};

/// The store of an owner whose chunks nobody reads.
struct Empty;

impl ChunkStore for Empty {
    fn read(&mut self, _: ChunkId, _: &mut dyn FnMut(&[u8])) -> bool {
        false
    }

    fn write(&mut self, _: ChunkId, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove(&mut self, _: ChunkId) -> bool {
        false
    }
}

#[test]
fn the_only_backup_is_dropped_only_when_it_is_no_member() {
    let other = Peer { node: NodeId::new(2).expect("a node"), incarnation: 1 };
    let settings = ReplicationSettings { backups: 3, ..ReplicationSettings::default() };
    let mut primary = ReplicationPrimary::new(owner(), settings);
    assert!(!primary.is_ready(), "it does not know who else there is");
    primary.set_members([owner(), other].into_iter());
    assert!(primary.is_ready());
    primary.set_backups(ids(0, 10), vec![other]);
    assert!(primary.accepts(id(1)));
    primary.replicate(id(1), Mutation::Put(id(1), vec![1]), Vec::new());
    primary.flush(0, &mut Vec::new());
    let tick = |primary: &mut ReplicationPrimary, now_ms| {
        let mut out = Vec::new();
        primary.on_tick(now_ms, &|_| false, &mut Empty, &|_| ClientState::default(), &mut out);
        out
    };
    for now_ms in [10, 100, 1_000, 10_000] {
        assert_eq!(tick(&mut primary, now_ms), [], "perhaps it is this node that is cut off");
        assert!(primary.pending_version(id(1)).is_some());
        primary.take_acknowledged(|version| panic!("{version} has one replica"));
    }
    primary.set_members([owner()].into_iter());
    assert_eq!(tick(&mut primary, 11_000), [ReplicationCommand::Commit(1, ids(0, 10), Vec::new())]);
    primary.on_committed(1, Ok(5));
    let mut done = Vec::new();
    primary.take_acknowledged(|version| done.push(version));
    assert_eq!(done, [1], "it is alone");
}

#[test]
fn a_node_that_is_alone_is_its_own_backup_until_there_is_another() {
    let other = Peer { node: NodeId::new(2).expect("a node"), incarnation: 1 };
    let settings = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let mut primary = ReplicationPrimary::new(owner(), settings);
    primary.set_members([owner()].into_iter());
    primary.set_backups(ids(0, 10), vec![other]);
    assert_eq!(primary.counts().0, 1, "only the log of a member that is gone has them");
    primary.set_first_backups(ids(0, 10), Vec::new());
    assert!(!primary.accepts(id(1)), "its log has nothing of them yet");
    assert_eq!(primary.counts().0, 1);
    let mut now_ms = 0;
    let mut settle = |primary: &mut ReplicationPrimary, peer: Peer| {
        let mut out = Vec::new();
        now_ms += 10;
        for _ in 0..2 {
            primary.on_tick(now_ms, &|_| false, &mut Empty, &|_| ClientState::default(), &mut out);
            primary.flush(now_ms, &mut out);
            for command in std::mem::take(&mut out) {
                match command {
                    ReplicationCommand::Send(to, ReplicationMessage::Append { stream, .. }) => {
                        let appended = ReplicationMessage::Appended { stream, next: u64::MAX };
                        primary.on_message(to, &appended, now_ms);
                    }
                    command => out.push(command),
                }
            }
        }
        let [ReplicationCommand::Commit(number, _, backups)] = &out[..] else {
            panic!("{out:?}");
        };
        assert_eq!(*backups, [peer]);
        primary.on_committed(*number, Ok(5));
    };
    settle(&mut primary, owner());
    assert!(primary.accepts(id(1)) && primary.counts().0 == 0);
    primary.set_members([owner(), other].into_iter());
    assert!(!primary.accepts(id(1)), "its own log is no replica elsewhere");
    assert_eq!(primary.counts().0, 1);
    settle(&mut primary, other);
    assert!(primary.accepts(id(1)));
    assert_eq!(primary.backups(id(1)), Some(&[other][..]));
}

#[test]
fn a_node_that_is_alone_copies_few_items_into_its_log_at_once() {
    let settings = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    // Items of each partition, and changes begun once the first scan has found them.
    for (items, changes) in [(0, 4_095), (3, 4_095), (100, 655), (10_000, 256)] {
        let mut primary = ReplicationPrimary::new(owner(), settings);
        primary.set_members([owner()].into_iter());
        for partition in Creator::partitions() {
            primary.set_backups(partition.ids(), Vec::new());
        }
        let begun = |primary: &mut ReplicationPrimary, now_ms: u64| {
            let mut out = Vec::new();
            primary.on_tick(now_ms, &|_| false, &mut Empty, &|_| ClientState::default(), &mut out);
            primary.pending_item_scans().collect::<Vec<_>>()
        };
        let first = begun(&mut primary, 10);
        assert_eq!(first.len(), 256, "how many items there are is not known");
        for (number, ids) in &first {
            for key in 0..items {
                primary.add_scanned_item(*number, (ids.first(), format!("{key}").into_bytes()));
            }
            primary.finish_item_scan(*number);
        }
        let in_progress = first.len() + begun(&mut primary, 20).len();
        assert_eq!(in_progress, changes, "{items} items a partition");
    }
}

#[test]
fn the_queue_of_a_backup_is_bounded_in_bytes() {
    let [backup, learner] = [2, 3].map(|number| {
        let node = NodeId::new(number).expect("a node");
        Peer { node, incarnation: 1 }
    });
    let settings = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    for learners in [Vec::new(), vec![learner]] {
        let mut primary = ReplicationPrimary::new(owner(), settings);
        primary.set_members([owner(), backup, learner].into_iter());
        primary.set_backups(ids(0, 10), vec![backup]);
        if !learners.is_empty() {
            primary.begin_catch_up(ids(0, 10), vec![backup], learners, true);
        }
        let mut queued = 0;
        while primary.accepts(id(1)) {
            primary.replicate(id(1), Mutation::Put(id(1), vec![0; 1 << 20]), Vec::new());
            queued += 1;
            assert!(queued <= 32, "a backup that takes nothing fills the memory");
        }
        assert!(queued > 16, "only {queued}");
    }
}

#[test]
fn an_owner_resends_what_a_backup_asks_for() {
    let other = Peer { node: NodeId::new(2).expect("a node"), incarnation: 1 };
    let settings = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let mut primary = ReplicationPrimary::new(owner(), settings);
    primary.set_members([owner(), other].into_iter());
    primary.set_backups(ids(0, 10), vec![other]);
    primary.replicate(id(1), Mutation::Put(id(1), vec![1]), Vec::new());
    let sent = |primary: &mut ReplicationPrimary| {
        let mut out = Vec::new();
        primary.flush(0, &mut out);
        let Some(ReplicationCommand::Send(
            to,
            ReplicationMessage::Append { stream, first, entries },
        )) = out.pop()
        else {
            return None;
        };
        assert_eq!(to, other);
        Some((
            stream,
            first,
            entries.to_vec().into_iter().map(|entry| entry.mutation).collect::<Vec<_>>(),
        ))
    };
    let (stream, ..) = sent(&mut primary).expect("the change");
    primary.resend(other, stream, id(1), Mutation::Put(id(1), vec![1]));
    primary.resend(other, stream, id(2), Mutation::Remove(id(2)));
    primary.resend(other, stream + 1, id(3), Mutation::Remove(id(3)));
    primary.resend(other, stream, id(11), Mutation::Remove(id(11)));
    let again = vec![Mutation::Put(id(1), vec![1]), Mutation::Remove(id(2))];
    assert_eq!(sent(&mut primary), Some((stream, 2, again)));
}

#[test]
fn a_backup_is_replaced_by_one_in_another_rack_once_that_has_caught_up() {
    let peers =
        [2, 3].map(|node| Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 });
    let settings = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let mut primary = ReplicationPrimary::new(owner(), settings);
    primary.set_members([owner(), peers[0]].into_iter());
    primary.set_backups(ids(0, 10), vec![peers[0]]);
    let tick = |primary: &mut ReplicationPrimary, now_ms| {
        let mut out = Vec::new();
        primary.on_tick(now_ms, &|_| false, &mut Empty, &|_| ClientState::default(), &mut out);
        primary.flush(now_ms, &mut out);
        out
    };
    let racks = [(owner(), "a"), (peers[0], "a"), (peers[1], "b")];
    primary.set_racks(racks.map(|(peer, rack)| (peer.node, rack.to_owned())).into());
    assert_eq!(tick(&mut primary, 1_000), [], "there is no other");
    primary.set_members([owner(), peers[0], peers[1]].into_iter());
    let sent = tick(&mut primary, 1_010);
    let [ReplicationCommand::Send(to, ReplicationMessage::Append { stream, entries, .. })] =
        &sent[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!(*to, peers[1], "it gets all there is");
    assert_eq!(primary.backups(id(1)), Some(&peers[..1]), "the other stays meanwhile");
    let next = 1 + entries.to_vec().len() as u64;
    primary.on_message(peers[1], &ReplicationMessage::Appended { stream: *stream, next }, 1_020);
    let wanted = tick(&mut primary, 1_020);
    assert_eq!(wanted, [ReplicationCommand::Commit(1, ids(0, 10), vec![peers[1]])]);
    primary.on_committed(1, Ok(5));
    let told = tick(&mut primary, 1_030);
    let [ReplicationCommand::Send(to, ReplicationMessage::Append { entries, .. })] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((*to, &entries.to_vec()[0].mutation), (peers[0], &Mutation::Clear(ids(0, 10))));
    assert_eq!(primary.counts().1, 0, "no set change is left");
}

/// Other nodes would catch up along with it in vain, again and again.
#[test]
fn a_backup_that_refused_is_not_chosen_again_in_that_incarnation() {
    let peers =
        [2, 3].map(|node| Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 });
    let settings = ReplicationSettings { backups: 3, ..ReplicationSettings::default() };
    let mut primary = ReplicationPrimary::new(owner(), settings);
    primary.set_members([owner(), peers[0], peers[1]].into_iter());
    primary.set_backups(ids(0, 10), peers.to_vec());
    primary.replicate(id(1), Mutation::Put(id(1), vec![1]), Vec::new());
    let mut sent = Vec::new();
    primary.flush(1_000, &mut sent);
    let stream = sent.iter().find_map(|wanted| match wanted {
        ReplicationCommand::Send(to, ReplicationMessage::Append { stream, .. })
            if *to == peers[0] =>
        {
            Some(*stream)
        }
        _ => None,
    });
    let refused =
        ReplicationMessage::Refused { stream: stream.expect("it was sent"), is_sealed: false };
    primary.on_message(peers[0], &refused, 1_000);
    let mut out = Vec::new();
    primary.on_tick(1_010, &|_| false, &mut Empty, &|_| ClientState::default(), &mut out);
    assert_eq!(out, [ReplicationCommand::Commit(1, ids(0, 10), vec![peers[1]])]);
    primary.on_committed(1, Ok(5));
    for now_ms in [1_020, 5_000, 500_000] {
        out.clear();
        primary.on_tick(now_ms, &|_| false, &mut Empty, &|_| ClientState::default(), &mut out);
        assert!(primary.choose_missing_backups(ids(0, 10), &peers[1..]).is_empty(), "at {now_ms}");
        assert_eq!(primary.backups(id(1)), Some(&peers[1..]));
    }
    let again = Peer { incarnation: 2, ..peers[0] };
    primary.set_members([owner(), again, peers[1]].into_iter());
    assert_eq!(
        primary.choose_missing_backups(ids(0, 10), &peers[1..]),
        [again],
        "its next incarnation may take it"
    );
}

#[test]
fn writes_that_no_backup_can_have_are_refused_at_once_and_cost_no_scans() {
    let peers =
        [2, 3].map(|node| Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 });
    let settings = ReplicationSettings { backups: 1, ..ReplicationSettings::default() };
    let mut primary = ReplicationPrimary::new(owner(), settings);
    primary.set_members([owner(), peers[0], peers[1]].into_iter());
    primary.set_backups(ids(0, 10), vec![peers[0]]);
    primary.set_backups(ids(10, 10), vec![peers[1]]);
    for counter in [1, 11] {
        primary.replicate(id(counter), Mutation::Put(id(counter), vec![1]), Vec::new());
    }
    let mut sent = Vec::new();
    primary.flush(1_000, &mut sent);
    for command in sent {
        let ReplicationCommand::Send(to, ReplicationMessage::Append { stream, .. }) = command
        else {
            panic!("{command:?}");
        };
        assert!(primary.accepts(id(1)) && !primary.refuses());
        let refused = ReplicationMessage::Refused { stream, is_sealed: false };
        primary.on_message(to, &refused, 1_000);
    }
    assert!(primary.refuses() && !primary.accepts(id(1)) && !primary.accepts(id(11)));
    assert_eq!(primary.counts().0, 2, "neither has a backup that accepts anything");
    // Each scan asks of each set that lacks a backup whether it is leaving.
    let looked_at = std::cell::Cell::new(0);
    let is_leaving = |_| {
        looked_at.set(looked_at.get() + 1);
        false
    };
    let tick = |primary: &mut ReplicationPrimary, now_ms| {
        let mut out = Vec::new();
        primary.on_tick(now_ms, &is_leaving, &mut Empty, &|_| ClientState::default(), &mut out);
        assert_eq!(out, []);
    };
    for now_ms in (1_010..1_900).step_by(10) {
        tick(&mut primary, now_ms);
    }
    assert_eq!(looked_at.get(), 2, "one scan");
    let mut sent = Vec::new();
    primary.flush(1_900, &mut sent);
    assert_eq!(sent, [], "they would refuse again");
    let again = Peer { incarnation: 2, ..peers[0] };
    primary.set_members([owner(), again, peers[1]].into_iter());
    assert!(!primary.refuses(), "its next incarnation may take it");
    tick(&mut primary, 1_900);
    assert_eq!(looked_at.get(), 4);
    assert!(primary.is_changing(ids(0, 20)));
}

#[test]
fn of_many_sets_with_a_silent_backup_those_that_writes_wait_for_change_first() {
    let [silent, other] =
        [2, 3].map(|node| Peer { node: NodeId::new(node).expect("a node"), incarnation: 1 });
    let settings = ReplicationSettings { backups: 2, ..ReplicationSettings::default() };
    let mut primary = ReplicationPrimary::new(owner(), settings);
    primary.set_members([owner(), silent, other].into_iter());
    let partitions: Vec<Creator> = Creator::partitions().collect();
    for partition in &partitions {
        primary.set_backups(partition.ids(), vec![silent, other]);
    }
    let awaited = partitions.last().expect("one").ids();
    primary.replicate(awaited.first(), Mutation::Put(awaited.first(), vec![1]), Vec::new());
    let mut out = Vec::new();
    primary.flush(1_000, &mut out);
    out.clear();
    let now_ms = 1_000 + settings.silent_ms;
    primary.on_message(other, &ReplicationMessage::Appended { stream: 2, next: 2 }, now_ms);
    primary.on_tick(now_ms, &|_| false, &mut Empty, &|_| ClientState::default(), &mut out);
    assert_eq!(out.len(), NAMED_CHANGES_MAX, "the others wait");
    assert_eq!(out[0], ReplicationCommand::Commit(1, awaited, vec![other]));
}
