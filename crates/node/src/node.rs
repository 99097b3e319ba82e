//! A running node: the threads of its event loop, its lease, and the maintenance of its engines.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_cluster::chunks::{ClientId, MAX_CHUNK_BYTES};
use amalgam_cluster::coordinator::CoordinatorError;
use amalgam_cluster::ids::PARTITIONS;
use amalgam_cluster::log::{Durability, LogError, LogSettings, Storage, StorageError};
use amalgam_cluster::node::{Node, NodeSettings};
use amalgam_cluster::overlay::{OverlaySettings, Peer};
use amalgam_cluster::replication::{RecoveredState, ReplicaStore, ReplicationSettings};
use amalgam_cluster::shard::ChunkSettings;
use amalgam_index::{Configuration, Engine, Eviction, OpenError};
use amalgam_op::HashSeed;
use ring::rand::{SecureRandom, SystemRandom};

use crate::client::check_admission_at;
use crate::client_connection::ClientError;
use crate::clock::boot_ms;
use crate::event_loop::EventLoop;
use crate::file_storage::FileStorage;
use crate::gateway::Gateway;
use crate::handshake::{Credentials, HandshakeError, Identity};
use crate::lease_keeper::{FINAL_TARGET, keep_alive_during, keep_alive_pause, keep_lease};
use crate::log_writer::LogWriter;
use crate::membership::{Joined, Membership, MembershipError, Snapshot};
use crate::node_engines::{Engines, NodeEngines, Part};
use crate::node_state::NodeState;
use crate::state_file::{STATE_FILE, StateFile, StateWriter};
use amalgam_tls::{MutualTls, TlsFiles};

#[cfg(test)]
mod client_budget;
#[cfg(test)]
mod hanging_disk;

/// How long a node that stops waits for threads that hang, and how often it looks.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long a start waits for the disk to take the first records of its log.
const OPENING_PATIENCE: Duration = Duration::from_secs(60);
const STOP_TICK: Duration = Duration::from_millis(1);
/// Bits of a CAS id that count; the bits above hold the revision of the join, so that no other node
/// or incarnation hands out the same id.
const CAS_COUNTER_BITS: u32 = 40;
/// Size of the item of the longest chunk, with its key and the engine's header.
const CHUNK_ITEM_BYTES: usize = MAX_CHUNK_BYTES + 64;
/// Interval between two checks whether a sweep is worth it.
const SWEEP_TICK: Duration = Duration::from_millis(20);
/// Interval at which the memory that is kept for other nodes' items is adapted, in milliseconds.
const RESERVE_TICK_MS: u64 = 1_000;
/// How long a node that starts retries while the coordinator does not answer.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two such tries.
const START_PAUSE: Duration = Duration::from_millis(200);
/// Pause between two warnings about the same failure.
const WARNING_PAUSE: Duration = Duration::from_secs(5);
/// Members that a node tries a handshake with before it joins.
const ASKED_MAX: usize = 3;
/// Workers of an engine apart from the gateway's: the event loop, the maintenance, the sweep.
const OWN_WORKERS: usize = 3;

/// Silence after which a backup is removed from the replica set, in milliseconds. Longer than a
/// busy machine keeps a process from running.
const SILENT_MS: u64 = 250;
/// The same if each answer waits for a disk, in milliseconds.
const SILENT_SYNCED_MS: u64 = 2_000;
/// Time after which an unacknowledged record is sent to a backup again, in milliseconds.
/// Connections lose packets only when they are full or break, so sending earlier would only fill
/// them.
const RESEND_MS: u64 = 100;
/// Ids that a node with backups claims at a time. Its chunks then have many sets of backups, which
/// recover them in parallel.
const BACKED_UP_IDS: u64 = 1 << 16;

/// How a node's chunks are backed up on others, and where it keeps those of others.
#[derive(Clone, Debug)]
pub struct BackupConfiguration {
    /// Number of backups of each chunk, at most three.
    pub count: usize,
    /// Number of sets of backups for all chunks of a node; 0 for one set for each range. The same
    /// on all nodes of a cluster.
    pub copy_sets: usize,
    /// Folder for backups of other nodes' chunks.
    pub folder: PathBuf,
    /// What backups survive.
    pub durability: Durability,
    /// Bound on the size of the log of backups, in bytes.
    pub space_bytes: u64,
}

impl BackupConfiguration {
    fn limits(&self) -> ChunkSettings {
        let silent_ms = match self.durability {
            Durability::Buffered => SILENT_MS,
            Durability::Synced => SILENT_SYNCED_MS,
        };
        let (backups, retry_ms, copy_sets) = (self.count, RESEND_MS, self.copy_sets);
        let replication = ReplicationSettings {
            backups,
            silent_ms,
            retry_ms,
            copy_sets,
            ..ReplicationSettings::default()
        };
        let (claim_ids, low_ids) = (BACKED_UP_IDS, BACKED_UP_IDS / 4);
        ChunkSettings { claim_ids, low_ids, replication, ..ChunkSettings::default() }
    }

    /// Opens the log of backups, and returns what earlier incarnations left in it.
    fn replica_store(
        &self,
        storage: Box<dyn Storage>,
        joined: &Joined,
    ) -> Result<(ReplicaStore, RecoveredState), NodeError> {
        let settings = LogSettings::default();
        let segments_max = self.space_bytes / u64::from(settings.segment_bytes);
        let segments_max = u32::try_from(segments_max).unwrap_or(u32::MAX).max(SEGMENTS_MIN);
        let settings = LogSettings { durability: self.durability, segments_max, ..settings };
        let (cluster, me) = (joined.cluster, joined.peer);
        let refused = |error| NodeError::Log(self.folder.clone(), error);
        let (mut replica_store, recovered) =
            ReplicaStore::resume(storage, (cluster, me, boot_number()), settings)
                .map_err(refused)?;
        let end = Instant::now() + OPENING_PATIENCE;
        while !replica_store.is_written().map_err(refused)? {
            if Instant::now() >= end {
                return Err(refused(LogError::Storage(StorageError::Stalled)));
            }
            std::thread::sleep(STOP_TICK);
        }
        // A line for each segment: thousands of damaged places would drown what follows.
        let damages = &replica_store.replay_report().damages;
        for of_segment in damages.chunk_by(|one, next| one.segment == next.segment) {
            let [first, ..] = of_segment else { continue };
            log::warn!(
                segment = first.segment, places = of_segment.len(), first_offset = first.offset;
                "the backup log is damaged"
            );
        }
        let (records, since) = (replica_store.replay_report().records, recovered.since);
        if since < me.incarnation {
            log::info!(records, since; "the log has everything that earlier incarnations kept");
        } else if records > 0 {
            log::warn!(
                records;
                "the backup log is not authoritative: its tail may be missing; the node will be \
                 refilled from its replicas"
            );
        }
        Ok((replica_store, recovered))
    }
}

/// A number that differs after each start of the machine; a random one if the system does not say.
fn boot_number() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or_else(|_| {
        let mut bytes = [0; 8];
        // Without random numbers the node could not open a connection either.
        let _ = SystemRandom::new().fill(&mut bytes);
        u64::from_le_bytes(bytes)
    })
}

/// Segments of the smallest log: one to write, one to clean, one to clean into, and one more.
const SEGMENTS_MIN: u32 = 4;

/// Parameters of a node.
#[derive(Clone, Debug)]
pub struct NodeConfiguration {
    /// Name under which the node keeps its number; if empty, the address at which others reach it.
    /// A start waits until the lease of the previous incarnation has ended.
    pub name: String,
    /// Address to listen at for nodes and clients of chunks; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Address at which others reach the node; None if that is where it listens.
    pub advertise: Option<String>,
    /// What fails together with this node: a rack, a machine or a room. Replicas are placed in
    /// different racks if there are any. Empty for none.
    pub rack: String,
    /// The join token, which all nodes and clients share; empty for none.
    pub token: String,
    /// The operator token, which permits clients to drain nodes and to move chunks; if empty,
    /// clients on the node's machine may.
    pub operator_token: String,
    /// Certificates for connections to nodes and clients of chunks; None if these are not secured.
    /// The same choice on all nodes of a cluster.
    pub tls: Option<TlsFiles>,
    /// Memory for named items, in bytes.
    pub memory_bytes: usize,
    /// Whether items make way for others when their memory is full, as in a cache; if not, new ones
    /// are refused. The same on all nodes of a cluster.
    pub evicts: bool,
    /// How the victims are chosen; nodes may differ in it.
    pub eviction: Eviction,
    /// Memory for chunks, in bytes.
    pub chunk_memory_bytes: usize,
    /// Size of the largest item, in bytes.
    pub max_item_bytes: usize,
    /// Number of the gateway's threads.
    pub threads: usize,
    /// Memory for the cache of ranges that were looked up, in bytes.
    pub cache_bytes: usize,
    /// Percentage of the nodes that are super peers. The same on all nodes of a cluster.
    pub super_share_percent: u8,
    /// Whether this process was a member before: it waits less long for members that do not answer
    /// whether they accept it. Nodes that come back together would wait for each other.
    pub was_member: bool,
    /// None for a cluster without backups. The same choice on all nodes.
    pub backups: Option<BackupConfiguration>,
}

/// Why a node did not start.
#[derive(Debug)]
pub enum NodeError {
    /// The system refused something.
    System(io::Error),
    /// An engine could not be opened.
    Index(OpenError),
    /// The coordinator refused, or cannot be reached.
    Membership(MembershipError),
    /// The log of backups in this folder cannot be used.
    Log(PathBuf, LogError),
    /// The certificates cannot be used; the text says which and why.
    Tls(String),
    /// The coordinator holds no cluster, but this folder is of a node that belonged to one.
    Lost(PathBuf),
    /// A member of the cluster, at this address, and this node refuse each other.
    Unwelcome(String, HandshakeError),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Index(error) => error.fmt(f),
            Self::Membership(error) => error.fmt(f),
            Self::Tls(error) => f.write_str(error),
            Self::Unwelcome(address, error) => {
                write!(f, "the cluster's node at {address} and this one refuse each other: {error}")
            }
            Self::Lost(folder) => write!(
                f,
                "etcd holds no cluster, but {} has backups of one: if etcd lost its data, restore \
                 the cluster by `amalgam cluster restore`; for a new cluster, move the folder away",
                folder.display()
            ),
            Self::Log(folder, LogError::Full | LogError::Storage(StorageError::Full)) => write!(
                f,
                "backups in {}: there is no room: the disk is full, or --backup-space is used up",
                folder.display()
            ),
            Self::Log(folder, error) => write!(f, "backups in {}: {error}", folder.display()),
        }
    }
}

impl std::error::Error for NodeError {}

impl From<io::Error> for NodeError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<OpenError> for NodeError {
    fn from(error: OpenError) -> Self {
        Self::Index(error)
    }
}

impl From<MembershipError> for NodeError {
    fn from(error: MembershipError) -> Self {
        Self::Membership(error)
    }
}

impl Default for NodeConfiguration {
    fn default() -> Self {
        Self {
            name: "node".to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            rack: String::new(),
            token: String::new(),
            operator_token: String::new(),
            tls: None,
            memory_bytes: 64 << 20,
            evicts: false,
            eviction: Eviction::default(),
            chunk_memory_bytes: 64 << 20,
            max_item_bytes: 1 << 20,
            threads: amalgam_server::Settings::default().threads,
            cache_bytes: 4 << 20,
            super_share_percent: OverlaySettings::default().super_share_percent,
            was_member: false,
            backups: None,
        }
    }
}

/// A node that runs. It stops when the value is dropped.
#[derive(Debug)]
pub struct RunningNode {
    state: Arc<NodeState>,
    membership: Arc<dyn Membership>,
    engines: Arc<dyn NodeEngines>,
    joined: Joined,
    address: SocketAddr,
    credentials: Credentials,
    maintenance_stops: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningNode {
    /// Joins a cluster and serves, with engines of type `E`.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub fn start<E: Engine>(
        configuration: &NodeConfiguration,
        membership: Arc<dyn Membership>,
    ) -> Result<Self, NodeError> {
        Self::start_with::<E>(configuration, membership, |storage| Box::new(storage))
    }

    /// As [`Self::start`]; `wrap` gets the log's files.
    fn start_with<E: Engine>(
        configuration: &NodeConfiguration,
        membership: Arc<dyn Membership>,
        wrap: impl FnOnce(FileStorage) -> Box<dyn Storage>,
    ) -> Result<Self, NodeError> {
        let listener = amalgam_server::bind_listener(configuration.listen)?;
        let address = listener.local_addr()?;
        let tls =
            configuration.tls.clone().map(MutualTls::open).transpose().map_err(NodeError::Tls)?;
        let credentials = Credentials {
            token: configuration.token.clone(),
            operator_token: configuration.operator_token.clone(),
            tls: tls.map(Arc::new),
        };
        // Before it joins: a second process must fail without waiting for the lease.
        let backups = configuration.backups.as_ref();
        let storage = backups.map(|backups| FileStorage::open(&backups.folder)).transpose()?;
        let storage = storage.map(wrap);
        let advertised = configuration.advertise.clone().unwrap_or_else(|| address.to_string());
        let own = (&*advertised, configuration.was_member);
        check_admission(membership.as_ref(), &credentials, own)?;
        let name = Some(&configuration.name).filter(|name| !name.is_empty()).unwrap_or(&advertised);
        // A new cluster would take the place of the one that the node can help to restore.
        if let Some(backups) = &configuration.backups
            && backups.folder.join(STATE_FILE).exists()
            && with_retry(|| membership.snapshot())?.cluster == 0
        {
            return Err(NodeError::Lost(backups.folder.clone()));
        }
        let join = || membership.join(name, &advertised, &configuration.rack);
        let (joined, sent_ms) = join_when_free(name, membership.lease_ms(), join)?;
        let started = Self::serve::<E>(
            configuration,
            &membership,
            storage,
            (joined, sent_ms),
            listener,
            credentials,
        );
        if started.is_err() {
            // Otherwise other nodes would rely on it until its lease ends.
            if let Err(error) = membership.leave(joined.peer) {
                log::info!(error:%; "the node could not leave the cluster; its lease will end");
            }
        }
        started
    }

    /// Starts a node that has joined.
    fn serve<E: Engine>(
        configuration: &NodeConfiguration,
        membership: &Arc<dyn Membership>,
        storage: Option<Box<dyn Storage>>,
        (joined, sent_ms): (Joined, u64),
        listener: TcpListener,
        credentials: Credentials,
    ) -> Result<Self, NodeError> {
        let address = listener.local_addr()?;
        // After it joined, so that a first node finds itself.
        let snapshot = with_retry(|| membership.snapshot())?;
        let flushes = snapshot.flushes;
        let state = Arc::new(NodeState::new(snapshot)?);
        state.clock.begin_at(flushes);
        let lease_ms = membership.lease_ms();
        state.set_deadline_ms(sent_ms + lease_ms / 2);
        log::info!(
            node = joined.peer.node.get(), incarnation = joined.peer.incarnation, address:%;
            "the node has joined"
        );
        let items_max = configuration.max_item_bytes;
        let (item_bytes, chunk_bytes) =
            (configuration.memory_bytes, configuration.chunk_memory_bytes);
        let evicts = configuration.evicts;
        let items: E = open(configuration, (item_bytes, evicts), items_max, &joined)?;
        let chunks = open(configuration, (chunk_bytes, false), CHUNK_ITEM_BYTES, &joined)?;
        let takes_over = configuration.backups.as_ref().is_some_and(|backups| backups.count > 0);
        let engines = Engines::new((items, item_bytes), (chunks, chunk_bytes), takes_over, evicts);
        let mut node = Self {
            state,
            membership: Arc::clone(membership),
            engines: Arc::new(engines),
            joined,
            address,
            credentials,
            maintenance_stops: Arc::default(),
            threads: Vec::new(),
        };
        let read = |(backups, storage): (&BackupConfiguration, Box<dyn Storage>)| {
            let read = || {
                let storage = LogWriter::start(storage, Arc::clone(&node.state))?;
                backups.replica_store(Box::new(storage), &joined)
            };
            let pause = keep_alive_pause(lease_ms);
            keep_alive_during(&node.state, membership.as_ref(), joined.peer, pause, read)
        };
        let replica_store = configuration.backups.as_ref().zip(storage).map(read).transpose()?;
        let limits = configuration.backups.as_ref().map(BackupConfiguration::limits);
        let super_share_percent = configuration.super_share_percent;
        let settings = NodeSettings {
            overlay: OverlaySettings {
                lease_ms,
                super_share_percent,
                begins_empty: evicts,
                ..OverlaySettings::default()
            },
            chunks: ChunkSettings { evicts, ..limits.unwrap_or_default() },
            partition_step: 1,
            cache_bytes: configuration.cache_bytes,
        };
        let copy = configuration.backups.as_ref().map(|backups| {
            let is_synced = matches!(backups.durability, Durability::Synced);
            let mut copy = StateFile::new(&backups.folder, is_synced, joined.peer);
            membership.state_copy().iter().for_each(|state| copy.keep(state));
            StateWriter::start(copy)
        });
        let copy = copy.transpose()?;
        node.spawn(listener, settings, replica_store, copy)?;
        Ok(node)
    }

    fn spawn(
        &mut self,
        listener: TcpListener,
        settings: NodeSettings,
        replica_store: Option<(ReplicaStore, RecoveredState)>,
        copy: Option<StateWriter<Arc<Snapshot>>>,
    ) -> io::Result<()> {
        let (sender, receiver) = channel();
        let (state, membership, me) =
            (Arc::clone(&self.state), Arc::clone(&self.membership), self.joined.peer);
        // Before the first renewal, which asks for it.
        state.beat(boot_ms());
        self.thread("lease", move || keep_lease(&state, membership.as_ref(), me, &receiver, copy))?;
        let (state, engines) = (Arc::clone(&self.state), Arc::clone(&self.engines));
        let (joined, credentials) = (self.joined, self.credentials.clone());
        self.thread("node", move || {
            let _ended = LoopEnded(Arc::clone(&state));
            let clock = Arc::clone(&state);
            let store = engines.store(Box::new(move || clock.clock.moment()));
            let supers = state.snapshot().view.supers().collect();
            // Its own client is not used; other clients draw their ids from 64 random bits.
            let client = ClientId(joined.join_revision);
            let mut node = Node::new(joined.peer, settings, supers, client, store);
            if let Some((replica_store, recovered)) = replica_store {
                // The lease is renewed meanwhile, as long as this gets on.
                node.resume(replica_store, &recovered, &mut || state.beat(boot_ms()));
            }
            let identity = Identity::new(joined.cluster, Some(joined.peer), &credentials);
            let event_loop =
                EventLoop::new(Arc::clone(&state), node, joined.peer, identity, listener, sender);
            if let Err(error) = event_loop.and_then(|mut event_loop| event_loop.run()) {
                log::error!(
                    target: FINAL_TARGET, error:%;
                    "the event loop failed: the node stops"
                );
            }
            state.stop();
        })?;
        for part in [Part::Items, Part::Chunks] {
            let (state, engines) = (Arc::clone(&self.state), Arc::clone(&self.engines));
            let stops = Arc::clone(&self.maintenance_stops);
            self.thread("maintenance", move || {
                engines.run_maintenance(part, &|| state.clock.now(), &stops);
            })?;
        }
        let (state, engines) = (Arc::clone(&self.state), Arc::clone(&self.engines));
        self.thread("sweep", move || {
            let mut next_ms = 0;
            while !state.is_stopping() {
                let now_ms = boot_ms();
                if now_ms >= next_ms {
                    next_ms = now_ms + RESERVE_TICK_MS;
                    let members = state.snapshot().members().count();
                    state.set_memory(engines.keep_reserve(now_ms, members));
                }
                if let Some(target) = state.clock.begin_sweep() {
                    engines.sweep(&|| state.clock.now());
                    state.clock.end_sweep(target);
                }
                std::thread::sleep(SWEEP_TICK);
            }
        })
    }

    /// Starts a thread; when it ends, even by a panic, the node stops.
    fn thread(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let ending = StopOnDrop(Arc::clone(&self.state));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ending = ending;
            body();
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The node's number and incarnation.
    pub fn peer(&self) -> Peer {
        self.joined.peer
    }

    /// The address that the node listens at for nodes and clients of chunks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the node has stopped or is stopping.
    pub fn is_stopping(&self) -> bool {
        self.state.is_stopping()
    }

    /// Whether it stops since the coordinator no longer has it as a member: it may join again.
    pub fn has_lost_lease(&self) -> bool {
        self.state.has_lost_lease()
    }

    /// The store of a server that answers memcached's clients for the whole cluster.
    pub fn gateway(&self) -> Gateway {
        let (engines, state) = (Arc::clone(&self.engines), Arc::clone(&self.state));
        let membership = Arc::clone(&self.membership);
        let credentials = self.credentials.without_operator();
        Gateway::new(engines, state, membership, self.joined, credentials)
    }

    /// Hands everything to the other nodes, as far as they accept it within `patience`, and while
    /// it has its lease. Whether they have everything. The node serves meanwhile; stop it
    /// afterwards.
    pub fn leave(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        self.state.start_leaving();
        let may_go_on = || Instant::now() < end && boot_ms() < self.state.deadline_ms();
        while !self.state.has_left() && !self.state.is_stopping() && may_go_on() {
            std::thread::sleep(SWEEP_TICK);
        }
        self.state.has_left()
    }

    /// Stops the node, and waits until its threads have ended; a thread that hangs, as on a disk
    /// that does not answer, is waited for only 10 s.
    pub fn stop(&mut self) {
        self.state.stop();
        self.maintenance_stops.store(true, Ordering::Release);
        self.engines.wake_maintenance();
        let end = Instant::now() + STOP_PATIENCE;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(STOP_TICK);
            }
            if !thread.is_finished() {
                let name = thread.thread().name().unwrap_or("?");
                log::error!(thread = name; "a thread of the node hangs: it is left");
            } else if thread.join().is_err() {
                log::error!("a thread of the node panicked");
            }
        }
    }

    /// Waits until every partition of the named ids has an owner that serves it.
    ///
    /// # Errors
    ///
    /// If that takes longer than `patience`; the text says how many are served.
    pub fn wait_until_ready(&self, patience: Duration) -> io::Result<()> {
        let end = Instant::now() + patience;
        let gateway = self.gateway();
        loop {
            let served = gateway.partitions_served();
            if served == Some(usize::from(PARTITIONS)) {
                return Ok(());
            }
            if Instant::now() >= end {
                let members = self.state.snapshot().members().count();
                return Err(io::Error::other(match served {
                    Some(served) => format!(
                        "{members} nodes share {served} of {PARTITIONS} parts of the keys so far"
                    ),
                    None => format!("not all of {members} nodes answer"),
                }));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        self.state.stop();
        self.maintenance_stops.store(true, Ordering::Release);
    }
}

/// Records that the event loop has ended, even by a panic, when it is dropped.
struct LoopEnded(Arc<NodeState>);

impl Drop for LoopEnded {
    fn drop(&mut self) {
        // Others may take over as soon as it leaves, which is before its lease would end.
        if let Some(served) = self.0.served() {
            served.end();
        }
        self.0.set_loop_ended();
    }
}

/// Stops the node when it is dropped.
struct StopOnDrop(Arc<NodeState>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Joins once the previous incarnation's lease has ended, which a process that was killed held.
/// Returns also when the request was sent, in [`boot_ms`].
fn join_when_free(
    name: &str,
    lease_ms: u64,
    join: impl Fn() -> Result<Joined, MembershipError>,
) -> Result<(Joined, u64), MembershipError> {
    let end = Instant::now() + Duration::from_millis(lease_ms) + START_PATIENCE;
    let mut has_reported = false;
    loop {
        let sent_ms = boot_ms();
        match with_retry(&join) {
            Err(MembershipError::Refused(CoordinatorError::Alive)) if Instant::now() < end => {
                if !has_reported {
                    log::info!(name, lease_ms; "waiting for the end of this name's last lease");
                }
                has_reported = true;
                std::thread::sleep(START_PAUSE);
            }
            joined => return joined.map(|joined| (joined, sent_ms)),
        }
    }
}

/// Retries for at most [`START_PATIENCE`] while the coordinator does not answer: it may be busy, or
/// start at the same time as its nodes.
fn with_retry<T>(
    mut ask: impl FnMut() -> Result<T, MembershipError>,
) -> Result<T, MembershipError> {
    let begin = Instant::now();
    let mut next_warning = begin;
    loop {
        match ask() {
            Err(MembershipError::Unreachable(why)) if begin.elapsed() < START_PATIENCE => {
                if is_due(&mut next_warning, Instant::now()) {
                    log::warn!(error = why.as_str(); "the coordinator does not answer yet");
                }
                std::thread::sleep(START_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// Whether it is time for a warning about a failure that goes on; sets the time of the next one.
fn is_due(next_warning: &mut Instant, now: Instant) -> bool {
    let is_due = now >= *next_warning;
    if is_due {
        *next_warning = now + WARNING_PAUSE;
    }
    is_due
}

/// Tries a handshake with some members before the node joins: a member that the others refuse would
/// never be heard. Members that do not answer are not waited for, and its own address, which its
/// former incarnation may still have there, is not tried: nobody answers yet.
fn check_admission(
    membership: &dyn Membership,
    credentials: &Credentials,
    (own_address, was_member): (&str, bool),
) -> Result<(), NodeError> {
    let identity = Identity::new(0, None, &credentials.without_operator());
    let snapshot = with_retry(|| membership.snapshot())?;
    let others = snapshot.members().map(|(_, address)| address);
    let addresses: Vec<&str> =
        others.filter(|address| *address != own_address).take(ASKED_MAX).collect();
    // Concurrently, since nodes that start together with this one do not answer yet.
    let answers: Vec<Result<(), ClientError>> = std::thread::scope(|scope| {
        let identity = &identity;
        let ask = |address| scope.spawn(move || check_admission_at(address, identity, was_member));
        let asked: Vec<_> = addresses.iter().copied().map(ask).collect();
        let gone = || Err(ClientError::Answer("the thread that asks it panicked".to_owned()));
        asked.into_iter().map(|one| one.join().unwrap_or_else(|_| gone())).collect()
    });
    let mut refusal = Ok(());
    for (address, answer) in addresses.into_iter().zip(answers) {
        match answer {
            Ok(()) => return Ok(()),
            Err(ClientError::Handshake(error)) if error.is_refusal() => {
                refusal = Err(NodeError::Unwelcome(address.to_owned(), error));
            }
            Err(error) => log::info!(address, error:%; "a member does not answer"),
        }
    }
    refusal
}

fn open<I: Engine>(
    configuration: &NodeConfiguration,
    (memory_bytes, evicts): (usize, bool),
    max_item_bytes: usize,
    joined: &Joined,
) -> Result<I, OpenError> {
    I::open(&Configuration {
        memory_bytes,
        evicts,
        eviction: configuration.eviction,
        max_item_bytes,
        // The server's threads too, with its maintenance and sweeps.
        workers: OWN_WORKERS + configuration.threads + 2,
        pins_execute_fence: true,
        seed: HashSeed::new(joined.seed),
        first_cas: (joined.join_revision << CAS_COUNTER_BITS).max(1),
        ..Configuration::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_goes_on_is_told_seldom() {
        let start = Instant::now();
        let mut next_warning = start;
        let tries = (0..50).map(|number| start + number * START_PAUSE);
        let warnings = tries.filter(|now| is_due(&mut next_warning, *now)).count();
        assert_eq!(warnings, 2, "at once, and after five of ten seconds");
    }
}
