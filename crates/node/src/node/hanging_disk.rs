//! A disk that hangs under the log of one of three nodes.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::log::StorageError;
use amalgam_index::model::Model;
use amalgam_op::IgnorePoison;

use super::*;
use crate::{ClusterClient, Embedded};

/// Longer than anything here takes, apart from what never ends.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hangs {
    #[default]
    Never,
    WhenRead,
    Always,
}

/// A disk that can be made to hang.
#[derive(Debug, Default)]
struct Gate {
    hangs: Mutex<Hangs>,
    opened: Condvar,
    /// Reads that wait.
    waiting: AtomicUsize,
}

impl Gate {
    fn set(&self, hangs: Hangs) {
        *self.hangs.lock().ignore_poison() = hangs;
        self.opened.notify_all();
    }
}

#[derive(Debug)]
struct GatedStorage(FileStorage, Arc<Gate>);

impl GatedStorage {
    fn pass(&mut self) -> &mut FileStorage {
        let mut hangs = self.1.hangs.lock().ignore_poison();
        while *hangs == Hangs::Always {
            hangs = self.1.opened.wait(hangs).ignore_poison();
        }
        &mut self.0
    }
}

impl Storage for GatedStorage {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        self.pass().segments()
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        self.pass().create(segment, bytes)
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        self.pass().write(segment, offset, bytes)
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        self.1.waiting.fetch_add(1, Ordering::Relaxed);
        let mut hangs = self.1.hangs.lock().ignore_poison();
        while *hangs != Hangs::Never {
            hangs = self.1.opened.wait(hangs).ignore_poison();
        }
        drop(hangs);
        self.1.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.read(segment, offset, bytes)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.pass().sync()
    }
}

/// Opens the gate when the test ends, even by a panic: otherwise the log's thread would stay.
struct OpenOnDrop(Arc<Gate>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.set(Hangs::Never);
    }
}

/// The folder of a node of this process; tests that run at once differ in the nodes whose disks
/// hang.
fn folder(gated: &Range<usize>, number: usize) -> PathBuf {
    let (process, first) = (std::process::id(), gated.start);
    std::env::temp_dir().join(format!("amalgam-hangs-{process}-{first}-{number}"))
}

fn connect(node: &RunningNode) -> ClusterClient {
    ClusterClient::connect(&[node.address().to_string()], "", 1 << 20).expect("connects")
}

/// Repeats an operation of a client until it succeeds.
fn with_retry<T, E: std::fmt::Debug>(mut act: impl FnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match act() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < end, "{error:?}"),
        }
        std::thread::sleep(STOP_TICK);
    }
}

/// Three nodes, and one client at each with chunks that are its node's own; the disks of the nodes
/// in `gated` can be made to hang.
fn start(
    membership: &Arc<dyn Membership>,
    gate: &Arc<Gate>,
    gated: Range<usize>,
) -> (Vec<RunningNode>, Vec<ClusterClient>, Vec<Vec<ChunkId>>) {
    let start = |number: usize| {
        let _ = std::fs::remove_dir_all(folder(&gated, number));
        let backups = BackupConfiguration {
            count: 2,
            copy_sets: 0,
            folder: folder(&gated, number),
            durability: Durability::Buffered,
            space_bytes: 256 << 20,
        };
        let configuration = NodeConfiguration {
            name: format!("node-{number}"),
            threads: 1,
            backups: Some(backups),
            ..NodeConfiguration::default()
        };
        RunningNode::start_with::<Model>(&configuration, Arc::clone(membership), |storage| {
            match gated.contains(&number) {
                true => Box::new(GatedStorage(storage, Arc::clone(gate))),
                false => Box::new(storage),
            }
        })
        .expect("it starts")
    };
    let nodes: Vec<RunningNode> = (0..3).map(start).collect();
    nodes.iter().for_each(|node| node.wait_until_ready(PATIENCE).expect("all is served"));
    let mut clients: Vec<ClusterClient> = nodes.iter().map(connect).collect();
    let create = |client: &mut ClusterClient| -> Vec<ChunkId> {
        (0..20).map(|_| with_retry(|| client.create(b"first"))).collect()
    };
    let chunks = clients.iter_mut().map(create).collect();
    (nodes, clients, chunks)
}

/// A new owner reads what it takes over from its disk, which no client of what it has waits for.
#[test]
fn nodes_answer_while_a_takeover_waits_for_their_disks() {
    let gate = Arc::new(Gate::default());
    let _open = OpenOnDrop(Arc::clone(&gate));
    // Longer than the disks hang.
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(3, 4, 60_000));
    let (mut nodes, mut clients, chunks) = start(&membership, &gate, 1..3);
    let read_all = |clients: &mut [ClusterClient]| {
        for id in chunks[1..].iter().flatten() {
            for client in &mut *clients {
                // On a busy machine an owner may seem silent; a disk would hang all the while.
                assert_eq!(with_retry(|| client.get(*id)), b"first");
            }
        }
    };
    // They know the owners from then on.
    read_all(&mut clients[1..]);
    gate.set(Hangs::WhenRead);
    let dead = nodes.remove(0);
    membership.leave(dead.joined.peer).expect("it is a member");
    drop(dead);
    let end = Instant::now() + PATIENCE;
    while gate.waiting.load(Ordering::Relaxed) == 0 {
        read_all(&mut clients[1..]);
        assert!(Instant::now() < end, "nobody takes over");
        std::thread::sleep(STOP_TICK);
    }
    for _ in 0..20 {
        read_all(&mut clients[1..]);
        std::thread::sleep(STOP_TICK);
    }
    assert!(gate.waiting.load(Ordering::Relaxed) > 0, "it still waits");
    gate.set(Hangs::Never);
    for id in &chunks[0] {
        assert_eq!(with_retry(|| clients[1].get(*id)), b"first");
    }
    drop(nodes);
    (0..3).for_each(|number| drop(std::fs::remove_dir_all(folder(&(1..3), number))));
}

#[test]
fn a_node_whose_disk_hangs_answers_and_loses_its_lease() {
    let gate = Arc::new(Gate::default());
    let _open = OpenOnDrop(Arc::clone(&gate));
    // A slow machine keeps a sound node from its lease for seconds.
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(3, 4, 10_000));
    let (nodes, mut clients, chunks) = start(&membership, &gate, 2..3);

    gate.set(Hangs::Always);
    // The disk is asked for something: an owner's entries, which this backup keeps.
    let stuck = std::thread::spawn({
        let (mut client, id) = (connect(&nodes[0]), chunks[0][0]);
        move || with_retry(|| client.put(id, b"second"))
    });
    let hung = &nodes[2].state;
    let end = Instant::now() + PATIENCE;
    while hung.log_stalled_ms(boot_ms()) < 100 {
        assert!(Instant::now() < end, "nothing was written");
        std::thread::sleep(STOP_TICK);
    }
    // Its own chunks and those of others are read, through it and through others; its event loop
    // turns all the while.
    let mut rounds = 0_u64;
    while !nodes[2].is_stopping() {
        assert!(Instant::now() < end, "it keeps its lease");
        for client in &mut clients[..2] {
            assert_eq!(with_retry(|| client.get(chunks[0][1])), b"first");
        }
        let is_certain = hung.deadline_ms() > boot_ms() + 1_000;
        for own in &chunks[2] {
            let value = clients[2].get(*own);
            if is_certain && hung.deadline_ms() > boot_ms() {
                assert_eq!(value.expect("no disk is needed"), b"first");
            }
        }
        rounds += u64::from(is_certain);
        std::thread::sleep(STOP_TICK);
    }
    assert!(rounds > 10, "it answered in only {rounds} rounds");
    // The others have what was its own, and go on writing.
    stuck.join().expect("the write was done without it");
    for (id, value) in chunks.iter().flatten().zip(0_u64..) {
        with_retry(|| clients[0].put(*id, &value.to_le_bytes()));
    }
    for (id, value) in chunks.iter().flatten().zip(0_u64..) {
        assert_eq!(with_retry(|| clients[1].get(*id)), value.to_le_bytes());
    }
    gate.set(Hangs::Never);
    drop(nodes);
    (0..3).for_each(|number| drop(std::fs::remove_dir_all(folder(&(2..3), number))));
}
