//! Start, threads, and the end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use amalgam_index::mem::Evictions;
use amalgam_index::{ClassStatistics, Configuration, Engine, OpenError, Statistics, Store};
use amalgam_op::ItemView;
use amalgam_protocol::{Limits, item_bytes};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::Settings;
use crate::admin::Admin;
use crate::budget::Budget;
use crate::channel::Channel;
use crate::clock::{Clock, OUTSTANDING_WORTH_A_SWEEP};
use crate::counters::AllCounters;
use crate::desk::Desk;
use crate::engine_controls::EngineControls;
use crate::hot_keys::HotKeys;
use crate::knobs::Knobs;
use crate::latency::Latencies;
use crate::pin::{allowed_cores, pin_to};
use crate::restart::{self, Saved};
use crate::roster::{Badge, Roster, address_name};
use crate::sockets::{
    Listener, accept, local_name, open_datagram_sockets, open_listeners, write_port_file,
};
use crate::statistics::{Geometry, Prefixes};
use crate::sweep::{Crawler, sweep};
use crate::tls::ServerTls;
use crate::users::Users;
use crate::watch::{self, Events, Log};
use crate::worker::Worker;

/// How often the main thread looks after what is nobody's request.
const TICK: Duration = Duration::from_secs(1);

/// How often it looks whether a connection may be accepted again.
const GATE_TICK: Duration = Duration::from_millis(10);

/// The index learns of the buffers' memory in steps of this size.
const MEMORY_STEP_BYTES: usize = 1 << 20;

/// The smallest budget for connection buffers.
const LEAST_BUFFER_BYTES: usize = 8 << 20;

/// How long the server may take to end after a panic. The thread may have held a lock of the index
/// that others wait for: then they never end, and the process has to.
const PANIC_PATIENCE: Duration = Duration::from_secs(5);

/// Workers of the index that serve no connections: maintenance and the sweeps of the main thread.
const EXTRA_WORKERS: usize = 2;

/// Why a server did not start, or stopped.
#[derive(Debug)]
pub enum ServerError {
    /// The index could not be opened.
    Index(OpenError),
    /// The system refused something; the text says what.
    System(io::Error),
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(error) => error.fmt(formatter),
            Self::System(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for ServerError {}

impl From<io::Error> for ServerError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<OpenError> for ServerError {
    fn from(error: OpenError) -> Self {
        Self::Index(error)
    }
}

/// Whether connections are accepted.
pub struct Gate {
    /// Whether they are now.
    pub is_open: AtomicBool,
    /// How often they were not.
    pub closed_count: AtomicU64,
    /// For how long they were not, in microseconds.
    pub closed_micros: AtomicU64,
    /// Connections turned away.
    pub rejected: AtomicU64,
}

/// A socket that waits for others.
pub struct Place {
    /// Its number.
    pub number: i32,
    /// Its address, as `stats conns` names it.
    pub name: String,
    /// Whether datagrams arrive there.
    pub is_udp: bool,
}

/// What all threads of a server share.
pub struct Shared<I> {
    /// Fixed at start.
    pub settings: Settings,
    /// What the protocols accept.
    pub limits: Limits,
    /// The items.
    pub index: I,
    /// None if the index was opened, and is maintained, by somebody else.
    engine_controls: Option<EngineControls<I>>,
    /// Who may use the server, where not everybody may.
    pub users: Option<Users>,
    /// Certificates and keys, where connections are secured.
    pub tls: Option<ServerTls>,
    /// The time.
    pub clock: Clock,
    /// Where the server listens.
    pub places: Vec<Place>,
    /// Who is connected.
    pub roster: Roster,
    /// Tunables that are only kept and shown.
    pub knobs: Knobs,
    /// The class numbers of memcached.
    pub geometry: Geometry,
    /// What was done to keys, by prefix.
    pub prefixes: Prefixes,
    /// Sweeps that operators ask for.
    pub crawler: Crawler,
    /// Lines for watchers.
    pub log: Log,
    /// The index's sums at the last `stats reset`.
    index_before: Mutex<Statistics>,
    /// What workers count.
    pub counters: AllCounters,
    /// Which keys are asked for most.
    pub hot_keys: HotKeys,
    /// How long commands take, by worker.
    pub latencies: Box<[Latencies]>,
    /// Where workers are handed connections.
    pub desks: Vec<Desk>,
    /// Where datagrams arrive, shared by all workers.
    pub datagram_sockets: Vec<OwnedFd>,
    /// What connections may keep.
    pub buffers: Budget,
    /// Whether connections are accepted.
    pub gate: Gate,
    /// How much is logged.
    pub verbosity: AtomicU8,
    /// The TCP port in use.
    pub tcp_port: OnceLock<u16>,
    memory_limit: AtomicUsize,
    is_stopping: AtomicBool,
    /// Whether all threads have ended.
    has_ended: Arc<AtomicBool>,
    /// Items are to be written to a file at the end, where there is one.
    is_to_save: Arc<AtomicBool>,
    /// Written to wake the main thread.
    bell: OwnedFd,
}

impl<I: Store> Shared<I> {
    /// Whether the server is about to end.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Ends the server: workers answer what has arrived and close.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.wake_main();
        self.log.wake();
        self.desks.iter().for_each(Desk::ring);
    }

    /// Ends the server, and keeps the items for the next one where there is a file for them.
    pub fn stop_gracefully(&self) {
        self.is_to_save.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Keeps the items for the next start, if that was asked for. To be called when the workers
    /// have ended.
    fn save(&self) -> io::Result<()> {
        let Some(path) = &self.settings.memory_file else { return Ok(()) };
        if !self.is_to_save.load(Ordering::SeqCst) {
            return Ok(());
        }
        let name = path.display();
        let report = restart::save(&self.index, &self.clock, self.memory_limit(), path)
            .map_err(|error| io::Error::other(format!("items are lost: {name}: {error}")))?;
        log::info!(file:% = name, report:%; "items are kept for the next start");
        Ok(())
    }

    /// The index's record of evicted items, if it keeps one.
    pub fn evictions(&self) -> Option<&Evictions> {
        self.engine_controls.as_ref().and_then(|controls| controls.evictions(&self.index))
    }

    /// Tells watchers which items were evicted.
    fn tell_evictions(&self) {
        let Some(evictions) = self.evictions() else { return };
        evictions.watch(self.log.wanted().meets(Events::EVICTIONS));
        for evicted in evictions.take() {
            let has_cas = self.limits.hands_out_cas;
            let (key, value) = (evicted.key.len(), evicted.value_bytes);
            let bytes = item_bytes(key, value, evicted.flags, has_cas);
            self.log.evicted(&evicted, self.geometry.class(bytes));
        }
    }

    /// memcached's class of an item, and the bytes that it reckons for it.
    pub fn class_of(&self, item: &ItemView<'_>) -> (u32, usize) {
        let has_cas = self.limits.hands_out_cas;
        let bytes = item_bytes(item.key.len(), item.value.len(), item.flags, has_cas);
        (self.geometry.class(bytes), bytes)
    }

    /// The index's statistics; what only grows, since the last reset.
    pub fn index_statistics(&self) -> Statistics {
        let mut index = self.index.statistics();
        let before = self.index_before.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
        less(&mut index.items_total, before.items_total);
        less(&mut index.evictions, before.evictions);
        less(&mut index.reclaimed, before.reclaimed);
        less(&mut index.evicted_unfetched, before.evicted_unfetched);
        less(&mut index.expired_unfetched, before.expired_unfetched);
        for class in &mut index.memory.classes {
            let is_same = |old: &&ClassStatistics| old.class == class.class;
            let old = before.memory.classes.iter().find(is_same);
            less(&mut class.evictions, old.map_or(0, |old| old.evictions));
            less(&mut class.mortal_evictions, old.map_or(0, |old| old.mortal_evictions));
        }
        index
    }

    /// Counts everything from zero again.
    pub fn reset_statistics(&self) {
        self.counters.reset();
        self.prefixes.clear();
        self.crawler.reset();
        let now = self.index.statistics();
        *self.index_before.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = now;
    }

    /// Reads the certificates again, where there are any.
    ///
    /// # Errors
    ///
    /// If that fails; the old ones stay then.
    pub fn refresh_certificates(&self) -> Result<(), String> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.refresh(self.clock.seconds()))
    }

    /// Makes the main thread look around.
    pub fn wake_main(&self) {
        // Fails only when the pipe is full of earlier calls.
        let _ = rustix::io::write(&self.bell, b"!");
    }

    /// The memory limit in bytes.
    pub fn memory_limit(&self) -> usize {
        self.memory_limit.load(Ordering::Relaxed)
    }

    /// Changes the memory limit; items are evicted as needed.
    pub fn set_memory_limit(&self, bytes: usize) {
        self.memory_limit.store(bytes, Ordering::Relaxed);
        self.buffers.set_limit(buffer_limit(bytes, &self.settings));
        self.index.set_memory_limit(bytes.saturating_sub(self.buffers.used_bytes()));
    }
}

/// What connections may keep of the memory: a quarter, or what they were given, or what two large
/// values take.
fn buffer_limit(memory_bytes: usize, settings: &Settings) -> usize {
    let two_values = settings.max_item_bytes.saturating_mul(2);
    let share = (memory_bytes / 4).min(settings.buffer_bytes.unwrap_or(usize::MAX));
    share.max(two_values).max(LEAST_BUFFER_BYTES)
}

/// An index with the items of the last graceful end. A file that cannot be trusted is told of, and
/// the index is empty then.
fn open_warm<I: Engine>(
    configuration: &Configuration,
    path: &Path,
    clock: &Clock,
    threads: usize,
) -> Result<I, OpenError> {
    let refuse = |error: io::Error| {
        log::warn!(file:% = path.display(), error:%; "the items are not used; starting empty");
    };
    restart::check_neighbour(path).map_err(OpenError::Configuration)?;
    match Saved::find(path) {
        Ok(None) => {}
        Err(error) => refuse(error),
        Ok(Some(saved)) => {
            let index = I::open(&saved.prepare::<I>(configuration.clone()))?;
            match saved.load(&index, clock, threads) {
                Ok(report) => {
                    log::info!(file:% = path.display(), report:%; "items of the last run are back");
                    return Ok(index);
                }
                Err(error) => refuse(error),
            }
        }
    }
    I::open(configuration)
}

/// A server that listens, and serves once it [`Server::run`]s.
pub struct Server<I> {
    shared: Shared<I>,
    listeners: Vec<Listener>,
    udp_ports: Vec<u16>,
    admin: Option<Admin>,
    /// Reads what [`Shared::bell`] is told.
    called: OwnedFd,
    is_to_reload: Arc<AtomicBool>,
}

/// Ends a running server from another thread.
pub struct Stopper(OwnedFd);

impl Stopper {
    /// Asks the server to end.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.0, STOP);
    }
}

/// What to write to the bell so that the server ends. Signal handlers write `X` too.
const STOP: &[u8] = b"X";

impl<I: Engine> Server<I> {
    /// Opens the index and the sockets.
    ///
    /// # Errors
    ///
    /// If the index cannot be opened or an address cannot be bound.
    pub fn open(settings: Settings, configuration: Configuration) -> Result<Self, ServerError> {
        let (memory_file, threads) = (settings.memory_file.clone(), settings.threads);
        let controls = Some(EngineControls::new());
        Self::open_with(
            settings,
            configuration,
            controls,
            |configuration, clock| match &memory_file {
                Some(path) => open_warm(configuration, path, clock, threads),
                None => I::open(configuration),
            },
        )
    }
}

impl<I: Store> Server<I> {
    /// Opens the sockets around a store that is open already. Whoever opened it maintains it.
    ///
    /// # Errors
    ///
    /// If an address cannot be bound.
    pub fn open_around(settings: Settings, index: I) -> Result<Self, ServerError> {
        Self::open_with(settings, Configuration::default(), None, |_, _| Ok(index))
    }

    fn open_with(
        settings: Settings,
        configuration: Configuration,
        engine_controls: Option<EngineControls<I>>,
        open: impl FnOnce(&Configuration, &Clock) -> Result<I, OpenError>,
    ) -> Result<Self, ServerError> {
        let (called, bell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| ServerError::System(error.into()))?;
        let listeners = open_listeners(&settings)?;
        let (datagram_sockets, udp_ports): (Vec<_>, Vec<_>) =
            open_datagram_sockets(&settings)?.into_iter().unzip();
        let admin = settings.admin.map(Admin::open).transpose()?;
        let threads = settings.threads;
        let clock = Clock::new(threads);
        let configuration = Configuration {
            memory_bytes: settings.memory_bytes,
            evicts: settings.evicts,
            max_item_bytes: settings.max_item_bytes,
            workers: threads + EXTRA_WORKERS,
            ..configuration
        };
        let index = open(&configuration, &clock)?;
        let users = settings.users_file.as_deref().map(Users::load).transpose()?;
        let limits = Limits {
            max_item_bytes: settings.max_item_bytes,
            hands_out_cas: settings.hands_out_cas,
            ..Limits::default()
        };
        let gate = Gate {
            is_open: AtomicBool::new(true),
            closed_count: AtomicU64::new(0),
            closed_micros: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        };
        let tcp_port = OnceLock::new();
        if let Some(port) = listeners.iter().find_map(|listener| listener.port) {
            tcp_port.get_or_init(|| port);
        }
        let knobs = Knobs::new(&settings.knobs);
        let log = Log::new(
            knobs.number("worker_logbuf_size").saturating_mul(threads),
            knobs.number("watcher_logbuf_size"),
        )?;
        let tls = match settings.tls.clone() {
            None => None,
            Some(tls) => Some(ServerTls::open(tls, clock.seconds()).map_err(io::Error::other)?),
        };
        let growth = knobs.get("growth_factor").parse().unwrap_or(1.25);
        let shared = Shared {
            places: places(&listeners, &datagram_sockets),
            roster: Roster::default(),
            geometry: Geometry::new(knobs.number("chunk_size") as u32, growth),
            knobs,
            prefixes: Prefixes::new(settings.prefix_delimiter, settings.counts_prefixes),
            crawler: Crawler::default(),
            log,
            index_before: Mutex::default(),
            limits,
            index,
            engine_controls,
            users,
            tls,
            clock,
            counters: AllCounters::new(threads),
            hot_keys: HotKeys::new(threads),
            latencies: (0..threads).map(|_| Latencies::default()).collect(),
            desks: (0..threads).map(|_| Desk::new()).collect::<io::Result<_>>()?,
            buffers: Budget::new(buffer_limit(settings.memory_bytes, &settings)),
            gate,
            datagram_sockets,
            verbosity: AtomicU8::new(settings.verbosity),
            tcp_port,
            memory_limit: AtomicUsize::new(settings.memory_bytes),
            is_stopping: AtomicBool::new(false),
            has_ended: Arc::default(),
            is_to_save: Arc::default(),
            bell,
            settings,
        };
        let is_to_reload = Arc::default();
        Ok(Self { shared, listeners, udp_ports, admin, called, is_to_reload })
    }

    pub(crate) fn shared(&self) -> &Shared<I> {
        &self.shared
    }

    /// Where the server listens, for people.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().map(|listener| listener.name.clone()).collect()
    }

    /// The TCP port, where it listens on one.
    pub fn tcp_port(&self) -> Option<u16> {
        self.shared.tcp_port.get().copied()
    }

    /// Where the operator is answered, if anywhere.
    pub fn admin_address(&self) -> Option<std::net::SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Writes the ports where `MEMCACHED_PORT_FILENAME` says.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write_port_file(&self, path: &std::path::Path) -> io::Result<()> {
        write_port_file(path, &self.listeners, &self.udp_ports)
    }

    /// The UDP port, where it listens on one.
    pub fn udp_port(&self) -> Option<u16> {
        self.udp_ports.first().copied()
    }

    /// What ends the server.
    ///
    /// # Errors
    ///
    /// If the system refuses the descriptor.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper(self.shared.bell.try_clone()?))
    }

    /// Ends the server gracefully on these signals.
    ///
    /// # Errors
    ///
    /// If a handler cannot be installed.
    pub fn stop_on_signals(&self, signals: &[i32]) -> io::Result<()> {
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, self.shared.bell.try_clone()?)?;
        }
        Ok(())
    }

    /// Ends the server gracefully on this signal, and keeps the items where there is a file for
    /// them.
    ///
    /// # Errors
    ///
    /// If the handler cannot be installed.
    pub fn save_on_signal(&self, signal: i32) -> io::Result<()> {
        // Handlers run in the order of their registration.
        signal_hook::flag::register(signal, Arc::clone(&self.shared.is_to_save))?;
        self.stop_on_signals(&[signal])
    }

    /// Reads the file of users and the certificates again on this signal.
    ///
    /// # Errors
    ///
    /// If the handler cannot be installed.
    pub fn reload_on_signal(&self, signal: i32) -> io::Result<()> {
        signal_hook::flag::register(signal, Arc::clone(&self.is_to_reload))?;
        Ok(())
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started, panics, or is failed by the system.
    pub fn run(self) -> Result<(), ServerError> {
        let maintenance_stops = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            // Ends the admin address last, in whatever way this ends: it tells how the end goes.
            let _ending = self.admin.as_ref().map(Admin::ending);
            if let Some(admin) = &self.admin {
                let body = || admin.serve(&self.shared);
                std::thread::Builder::new().name("admin".into()).spawn_scoped(scope, body)?;
            }
            self.run_threads(scope, &maintenance_stops).and_then(|()| self.shared.save())
        });
        self.shared.has_ended.store(true, Ordering::Relaxed);
        if let Some(path) = &self.shared.settings.unix_socket {
            let _ = std::fs::remove_file(path);
        }
        result.map_err(ServerError::System)
    }

    /// Runs all threads but the admin address's, until all of them have ended.
    fn run_threads<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        maintenance_stops: &'s AtomicBool,
    ) -> io::Result<()> {
        let shared = &self.shared;
        // Also where a thread cannot be started or has failed: the scope waits for all of them.
        let ending = Ending { shared, maintenance_stops };
        let upkeep = shared.engine_controls.as_ref().map(|controls| {
            spawn(scope, shared, "upkeep".into(), move || {
                controls.maintain(&shared.index, &shared.clock, maintenance_stops);
                Ok(())
            })
        });
        let upkeep = upkeep.transpose()?;
        let mut threads = vec![spawn(scope, shared, "watchers".into(), || {
            let tell = || shared.tell_evictions();
            watch::run(&shared.log, &shared.roster, || shared.is_stopping(), tell);
            Ok(())
        })?];
        let cores = if shared.settings.pins_threads { allowed_cores() } else { Vec::new() };
        for number in 0..shared.settings.threads {
            let core = cores.get(number % cores.len().max(1)).copied();
            threads.push(spawn(scope, shared, format!("worker {number}"), move || {
                core.into_iter().for_each(pin_to);
                Worker::new(shared, number).and_then(|mut worker| worker.run())
            })?);
        }
        let result = self.accept_until_stopped();
        log::info!(connections = shared.counters.connections(); "the server ends");
        shared.stop();
        threads.into_iter().try_for_each(join)?;
        // Last: what the workers left to be freed is freed.
        drop(ending);
        upkeep.map_or(Ok(()), join)?;
        result
    }

    /// Notes for how long connections had to wait, and lets them come again.
    fn reopen(&self, closed_at: &mut Option<Instant>) {
        let gate = &self.shared.gate;
        if let Some(closed_at) = closed_at.take() {
            let micros = closed_at.elapsed().as_micros() as u64;
            gate.closed_micros.fetch_add(micros, Ordering::Relaxed);
        }
        gate.is_open.store(true, Ordering::Relaxed);
    }

    fn accept_until_stopped(&self) -> io::Result<()> {
        let mut closed_at = None;
        let mut next_worker = 0;
        let mut told_bytes = 0;
        while !self.shared.is_stopping() {
            let is_open = self.shared.gate.is_open.load(Ordering::Relaxed);
            let timeout = if is_open { TICK } else { GATE_TICK };
            let ready = self.wait(timeout, is_open)?;
            if self.is_told_to_stop() {
                return Ok(());
            }
            for listener in ready {
                self.accept_all(listener, &mut next_worker);
            }
            if !is_open && self.has_room() {
                self.reopen(&mut closed_at);
            } else if !self.shared.gate.is_open.load(Ordering::Relaxed) {
                closed_at.get_or_insert_with(Instant::now);
            }
            self.look_after_memory(&mut told_bytes);
            if self.is_to_reload.swap(false, Ordering::Relaxed) {
                self.reload();
            }
        }
        Ok(())
    }

    /// Waits until a listener has connections or somebody calls.
    fn wait(&self, timeout: Duration, accepts: bool) -> io::Result<Vec<&Listener>> {
        let mut descriptors = vec![PollFd::new(&self.called, PollFlags::IN)];
        if accepts {
            descriptors
                .extend(self.listeners.iter().map(|one| PollFd::new(&one.socket, PollFlags::IN)));
        }
        let timeout = rustix::time::Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let ready = descriptors[1..].iter().zip(&self.listeners);
        Ok(ready.filter(|(one, _)| is_ready(one)).map(|(_, listener)| listener).collect())
    }

    fn is_told_to_stop(&self) -> bool {
        let mut calls = [0; 64];
        let count = rustix::io::read(self.called.as_fd(), &mut calls).unwrap_or(0);
        self.shared.is_stopping() || calls[..count].contains(&STOP[0])
    }

    fn has_room(&self) -> bool {
        self.shared.roster.count() < self.shared.settings.max_connections
    }

    fn accept_all(&self, listener: &Listener, next_worker: &mut usize) {
        // The workers' counters lag by the connections that they have not taken up yet.
        let max_connections = self.shared.settings.max_connections;
        let mut room = max_connections.saturating_sub(self.shared.roster.count());
        loop {
            let gate = &self.shared.gate;
            if room == 0 && !self.shared.settings.refuses_fast {
                gate.is_open.store(false, Ordering::Relaxed);
                gate.closed_count.fetch_add(1, Ordering::Relaxed);
                return;
            }
            match accept(listener) {
                Ok(None) => return,
                Ok(Some((socket, peer))) if room == 0 => {
                    let limit = self.shared.settings.max_connections;
                    log::warn!(peer:?, limit; "a connection was rejected: there are too many");
                    gate.rejected.fetch_add(1, Ordering::Relaxed);
                    let _ = rustix::io::write(&socket, b"ERROR Too many open connections\r\n");
                }
                Ok(Some((socket, peer))) => {
                    room -= 1;
                    let worker = *next_worker % self.shared.desks.len();
                    *next_worker = worker + 1;
                    let (number, local) = (socket.as_raw_fd(), local_name(&socket, listener));
                    let seconds = self.shared.clock.seconds();
                    log::debug!(peer:?, number, worker; "a connection was accepted");
                    let badge = Badge::new(number, peer, local, seconds);
                    self.shared.roster.insert(&badge);
                    let tls = self.shared.tls.as_ref();
                    let session = tls.and_then(|tls| tls.session(listener.security));
                    let channel = Channel::new(socket, session);
                    self.shared.desks[worker].hand_over(channel, badge);
                }
                Err(error) => {
                    // Too many open files, most likely: wait for some to be closed.
                    log::warn!(error:%; "accepting pauses");
                    gate.is_open.store(false, Ordering::Relaxed);
                    gate.closed_count.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn reload(&self) {
        if let Some(Err(error)) = self.shared.users.as_ref().map(Users::reload) {
            log::warn!(error:%; "the users stay as they were");
        }
        if let Err(error) = self.shared.refresh_certificates() {
            log::warn!(error:%; "the certificates stay as they were");
        }
    }

    /// Lets the index have what the buffers leave, and clears away what many flushes left.
    fn look_after_memory(&self, told_bytes: &mut usize) {
        let used = self.shared.buffers.used_bytes();
        if used.abs_diff(*told_bytes) >= MEMORY_STEP_BYTES {
            *told_bytes = used;
            self.shared.set_memory_limit(self.shared.memory_limit());
        }
        let crawler = &self.shared.crawler;
        let is_worth = self.shared.clock.outstanding() >= OUTSTANDING_WORTH_A_SWEEP;
        if is_worth || crawler.is_wanted.load(Ordering::Acquire) {
            let shared = &self.shared;
            sweep(&shared.index, &shared.clock, crawler, |item| shared.class_of(item).0);
            crawler.is_wanted.store(false, Ordering::Release);
        }
    }
}

/// Tells all threads of a server to end when it goes out of scope.
struct Ending<'s, I: Store> {
    shared: &'s Shared<I>,
    maintenance_stops: &'s AtomicBool,
}

impl<I: Store> Drop for Ending<'_, I> {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(controls) = &self.shared.engine_controls {
            controls.stop(&self.shared.index, self.maintenance_stops);
        }
    }
}

/// Starts a thread whose failure, or panic, ends the server.
fn spawn<'s, I: Store>(
    scope: &'s Scope<'s, '_>,
    shared: &'s Shared<I>,
    name: String,
    body: impl FnOnce() -> io::Result<()> + Send + 's,
) -> io::Result<ScopedJoinHandle<'s, io::Result<()>>> {
    std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
        let _alarm = Alarm(shared);
        body().inspect_err(|_| shared.stop())
    })
}

/// Ends the server when it goes out of scope because of a panic.
struct Alarm<'s, I: Store>(&'s Shared<I>);

impl<I: Store> Drop for Alarm<'_, I> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.0.stop();
        let has_ended = Arc::clone(&self.0.has_ended);
        std::thread::spawn(move || {
            std::thread::sleep(PANIC_PATIENCE);
            if !has_ended.load(Ordering::Relaxed) {
                log::error!("a thread panicked and the others cannot end without it: aborting");
                std::process::abort();
            }
        });
    }
}

/// What came of a thread.
fn join(thread: ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    let name = thread.thread().name().unwrap_or("?").to_owned();
    thread.join().unwrap_or_else(|_| Err(io::Error::other(format!("thread '{name}' panicked"))))
}

fn places(listeners: &[Listener], datagram_sockets: &[OwnedFd]) -> Vec<Place> {
    let udp_name = |socket: &OwnedFd| {
        let address = rustix::net::getsockname(socket).ok()?;
        let address = std::net::SocketAddr::try_from(address).ok()?;
        Some(address_name("udp", &address))
    };
    let tcp = listeners.iter().map(|listener| Place {
        number: listener.socket.as_raw_fd(),
        name: listener.place_name(),
        is_udp: false,
    });
    let udp = datagram_sockets.iter().map(|socket| Place {
        number: socket.as_raw_fd(),
        name: udp_name(socket).unwrap_or_default(),
        is_udp: true,
    });
    tcp.chain(udp).collect()
}

/// Where memcached's users expect the ports to be written.
pub fn port_file() -> Option<PathBuf> {
    std::env::var_os("MEMCACHED_PORT_FILENAME").map(PathBuf::from)
}
