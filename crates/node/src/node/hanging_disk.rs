//! A disk that hangs under the log of one of three nodes.

use std::ops::Range;
use std::sync::{Condvar, Mutex};

use amalgam_cluster::ids::ChunkId;
use amalgam_cluster::log::StorageError;
use amalgam_index::model::Model;
use amalgam_op::IgnorePoison;

use super::*;
use crate::{ClusterClient, Embedded};

/// Longer than anything here takes, apart from what never ends.
const PATIENCE: Duration = Duration::from_secs(90);

/// A disk that can be made to hang.
#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    /// Segments and bytes that were read or written: the system keeps them in memory, so reading
    /// them does not wait.
    cached: Mutex<Vec<(u32, Range<usize>)>>,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().ignore_poison() = is_shut;
        self.opened.notify_all();
    }

    fn cache(&self, segment: u32, offset: u32, length: usize) {
        let bytes = offset as usize..offset as usize + length;
        self.cached.lock().ignore_poison().push((segment, bytes));
    }

    fn has_cached(&self, segment: u32, offset: u32, length: usize) -> bool {
        let (begin, end) = (offset as usize, offset as usize + length);
        let has = |(of, bytes): &(u32, Range<usize>)| {
            *of == segment && bytes.start <= begin && end <= bytes.end
        };
        self.cached.lock().ignore_poison().iter().any(has)
    }
}

#[derive(Debug)]
struct GatedStorage(FileStorage, Arc<Gate>);

impl GatedStorage {
    fn pass(&mut self) -> &mut FileStorage {
        let mut is_shut = self.1.is_shut.lock().ignore_poison();
        while *is_shut {
            is_shut = self.1.opened.wait(is_shut).ignore_poison();
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
        let result = self.pass().write(segment, offset, bytes);
        self.1.cache(segment, offset, bytes.len());
        result
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        if self.1.has_cached(segment, offset, bytes.len()) {
            return self.0.read(segment, offset, bytes);
        }
        let result = self.pass().read(segment, offset, bytes);
        self.1.cache(segment, offset, bytes.len());
        result
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.pass().sync()
    }
}

/// Opens the gate when the test ends, even by a panic: otherwise the log's thread would stay.
struct OpenOnDrop(Arc<Gate>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

fn folder(number: usize) -> PathBuf {
    std::env::temp_dir().join(format!("amalgam-hangs-{}-{number}", std::process::id()))
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

#[test]
fn a_node_whose_disk_hangs_answers_and_loses_its_lease() {
    let gate = Arc::new(Gate::default());
    let _open = OpenOnDrop(Arc::clone(&gate));
    let membership: Arc<dyn Membership> = Arc::new(Embedded::new(3, 4, 2_000));
    let start = |number: usize| {
        let _ = std::fs::remove_dir_all(folder(number));
        let backups = BackupConfiguration {
            count: 2,
            copy_sets: 0,
            folder: folder(number),
            durability: Durability::Buffered,
            space_bytes: 256 << 20,
        };
        let configuration = NodeConfiguration {
            name: format!("node-{number}"),
            threads: 1,
            backups: Some(backups),
            ..NodeConfiguration::default()
        };
        let (membership, gate) = (Arc::clone(&membership), Arc::clone(&gate));
        RunningNode::start_with::<Model>(&configuration, membership, |storage| match number {
            2 => Box::new(GatedStorage(storage, Arc::clone(&gate))),
            _ => Box::new(storage),
        })
        .expect("it starts")
    };
    let nodes: Vec<RunningNode> = (0..3).map(start).collect();
    nodes.iter().for_each(|node| node.wait_until_ready(PATIENCE).expect("all is served"));
    // One client at each node, and chunks that are its node's own.
    let mut clients: Vec<ClusterClient> = nodes.iter().map(connect).collect();
    let create = |client: &mut ClusterClient| -> Vec<ChunkId> {
        (0..20).map(|_| with_retry(|| client.create(b"first"))).collect()
    };
    let chunks: Vec<Vec<ChunkId>> = clients.iter_mut().map(create).collect();

    gate.set(true);
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
            assert_eq!(client.get(chunks[0][1]).expect("its owner is well"), b"first");
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
    gate.set(false);
    drop(nodes);
    (0..3).for_each(|number| drop(std::fs::remove_dir_all(folder(number))));
}
