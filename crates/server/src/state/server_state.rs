//! What all threads of a server share.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use amalgam_index::mem::Evictions;
use amalgam_index::{ClassStatistics, Statistics, Store};
use amalgam_op::{IgnorePoison, ItemView};
use amalgam_protocol::{Limits, item_bytes};
use amalgam_tls::{ServerTls, TlsSettings};

use crate::auth::users::Users;
use crate::compat::slab_classes::SlabClasses;
use crate::compat::tunables::CompatTunables;
use crate::connections::budget::BufferBudget;
use crate::connections::copy_lanes::CopyLanes;
use crate::connections::reactor::Reactor;
use crate::metrics::counters::AllCounters;
use crate::metrics::hot_keys::HotKeys;
use crate::metrics::latency::Latencies;
use crate::metrics::miss_curve::MissCurve;
use crate::metrics::prefixes::Prefixes;
use crate::net::registry::{Closable, ConnectionRegistry};
use crate::net::sockets::ListenerInfo;
use crate::settings::Settings;
use crate::state::accept_gate::AcceptGate;
use crate::state::clock::Clock;
use crate::state::engine_controls::EngineControls;
use crate::state::sweep::Crawler;
use crate::state::warm_restart;
use crate::watch::events::Events;
use crate::watch::log::WatchLog;

/// The smallest budget for connection buffers.
const MIN_BUFFER_BYTES: usize = 8 << 20;

/// Evictions that are recorded until watchers are sent them, at most.
const EVICTIONS_MAX: usize = 4_096;

/// What all threads of a server share: settings, index, budgets and counts.
pub struct ServerState<S> {
    /// The settings, fixed at start.
    pub settings: Settings,
    /// The limits that the protocols enforce.
    pub limits: Limits,
    /// The items.
    pub index: S,
    /// None if the index is maintained by its opener, not by this server.
    pub engine_controls: Option<EngineControls<S>>,
    /// The users; None if clients need not authenticate.
    pub users: Option<Users>,
    /// The users of the admin address; None if it asks for no password.
    pub admin_users: Option<Users>,
    /// Certificates and keys of clients' ports; None if no connection of theirs is secured.
    pub tls: Option<ServerTls>,
    /// Certificates and keys of the admin address; None if it is not secured. Apart from `tls`, so
    /// that `stats` counts clients' handshakes alone.
    pub admin_tls: Option<ServerTls>,
    /// The time, and the flush generation.
    pub clock: Clock,
    /// The listening sockets, as `stats conns` shows them.
    pub listeners: Vec<ListenerInfo>,
    /// The open connections.
    pub registry: ConnectionRegistry,
    /// memcached's tunables, which are only kept and shown.
    pub tunables: CompatTunables,
    /// memcached's slab class numbers.
    pub slab_classes: SlabClasses,
    /// Counts of requests by key prefix.
    pub prefixes: Prefixes,
    /// Sweeps on an operator's request.
    pub crawler: Crawler,
    /// Lines for watchers.
    pub log: WatchLog,
    /// The index's statistics at the last `stats reset`.
    statistics_baseline: Mutex<Statistics>,
    /// The workers' counters.
    pub counters: AllCounters,
    /// The most accessed keys.
    pub hot_keys: HotKeys,
    /// Held while items are read for the operator: the index has a worker for one thread that does.
    pub operator_reads: Mutex<()>,
    /// The miss ratio with other memory sizes; None if nothing is evicted, the operator does not
    /// want it, or the items are on other machines.
    pub miss_curve: Option<MissCurve>,
    /// How long commands take; one entry for each worker.
    pub latencies: Box<[Latencies]>,
    /// The workers' connections; one reactor for each worker.
    pub reactors: Vec<Reactor>,
    /// The sockets for datagrams, shared by all workers.
    pub datagram_sockets: Vec<OwnedFd>,
    /// The budget for connections' buffers.
    pub buffers: BufferBudget,
    /// Whether connections are accepted.
    pub accept_gate: AcceptGate,
    /// memcached's verbosity level, as last set.
    pub verbosity: AtomicU8,
    /// The TCP port in use; unset without TCP.
    pub tcp_port: OnceLock<u16>,
    /// The workers' turns in copying long values that clients add to or touch.
    pub copy_lanes: CopyLanes,
    /// The second at which connections that make no progress were last looked for.
    relieved_at: AtomicU32,
    memory_limit: AtomicUsize,
    is_stopping: AtomicBool,
    /// Whether all threads have ended.
    pub has_ended: Arc<AtomicBool>,
    /// Whether to write the items to the memory file, if there is one, when the server stops.
    pub saves_on_stop: Arc<AtomicBool>,
    /// The end of a pipe; a byte written to it wakes the main thread.
    pub waker: OwnedFd,
}

/// The parts of a [`ServerState`] that are opened before it.
pub struct OpenedParts<S> {
    /// The items.
    pub index: S,
    /// None if the index is maintained by its opener.
    pub engine_controls: Option<EngineControls<S>>,
    /// The clock under which the index was opened.
    pub clock: Clock,
    /// The listening sockets.
    pub listeners: Vec<ListenerInfo>,
    /// The TCP port in use, if any.
    pub tcp_port: Option<u16>,
    /// The sockets for datagrams.
    pub datagram_sockets: Vec<OwnedFd>,
    /// See [`ServerState::waker`].
    pub waker: OwnedFd,
}

impl<S: Store> ServerState<S> {
    /// Puts the parts together, and reads the users and the certificates.
    ///
    /// # Errors
    ///
    /// If a file cannot be used or the system refuses a file descriptor.
    pub fn new(settings: Settings, parts: OpenedParts<S>) -> io::Result<Self> {
        let OpenedParts { index, engine_controls, clock, listeners, tcp_port, .. } = parts;
        let threads = settings.threads;
        let tunables = CompatTunables::new(&settings.tunables);
        let growth = tunables.get("growth_factor").parse().unwrap_or(1.25);
        let log = WatchLog::new(
            tunables.number("worker_logbuf_size").saturating_mul(threads),
            tunables.number("watcher_logbuf_size"),
        )?;
        let limits = Limits {
            max_item_bytes: settings.max_item_bytes,
            hands_out_cas: settings.hands_out_cas,
            ..Limits::default()
        };
        let users = settings.users_file.as_deref().map(Users::load).transpose()?;
        let admin_users = settings.admin_users_file.as_deref().map(Users::load).transpose()?;
        let open_tls = |tls: &Option<TlsSettings>| {
            tls.clone().map(|tls| ServerTls::open(tls, clock.seconds())).transpose()
        };
        let tls = open_tls(&settings.tls).map_err(io::Error::other)?;
        let admin_tls = open_tls(&settings.admin_tls).map_err(io::Error::other)?;
        let estimates_misses =
            settings.estimates_misses && settings.evicts && engine_controls.is_some();
        let new_miss_curve =
            || MissCurve::new(settings.memory_bytes, settings.eviction, settings.chooses_eviction);
        Ok(Self {
            limits,
            index,
            engine_controls,
            users,
            admin_users,
            tls,
            admin_tls,
            clock,
            listeners,
            registry: ConnectionRegistry::default(),
            slab_classes: SlabClasses::new(tunables.number("chunk_size") as u32, growth),
            tunables,
            prefixes: Prefixes::new(settings.prefix_delimiter, settings.counts_prefixes),
            crawler: Crawler::default(),
            log,
            statistics_baseline: Mutex::default(),
            counters: AllCounters::new(threads),
            hot_keys: HotKeys::new(threads),
            operator_reads: Mutex::default(),
            miss_curve: estimates_misses.then(new_miss_curve),
            latencies: (0..threads).map(|_| Latencies::default()).collect(),
            reactors: (0..threads).map(|_| Reactor::new()).collect::<io::Result<_>>()?,
            datagram_sockets: parts.datagram_sockets,
            buffers: BufferBudget::new(buffer_limit(settings.memory_bytes, &settings)),
            accept_gate: AcceptGate::default(),
            verbosity: AtomicU8::new(settings.verbosity),
            tcp_port: tcp_port.map_or_else(OnceLock::new, OnceLock::from),
            copy_lanes: CopyLanes::default(),
            relieved_at: AtomicU32::new(0),
            memory_limit: AtomicUsize::new(settings.memory_bytes),
            is_stopping: AtomicBool::new(false),
            has_ended: Arc::default(),
            saves_on_stop: Arc::default(),
            waker: parts.waker,
            settings,
        })
    }

    /// Whether the server is shutting down.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Shuts the server down: workers answer what has arrived and close all connections.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.wake_main();
        self.log.wake();
        self.reactors.iter().for_each(Reactor::wake);
    }

    /// Shuts the server down, and saves the items for the next start if there is a memory file.
    pub fn stop_gracefully(&self) {
        self.saves_on_stop.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Saves the items for the next start, if that was asked for. Requires: the workers have ended.
    ///
    /// # Errors
    ///
    /// If the memory file cannot be written.
    pub fn save(&self) -> io::Result<()> {
        let Some(path) = &self.settings.memory_file else { return Ok(()) };
        if !self.saves_on_stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let name = path.display();
        let report = warm_restart::save(&self.index, &self.clock, self.memory_limit(), path)
            .map_err(|error| {
                let text = format!("cannot save the items to {name}, they are lost: {error}");
                io::Error::other(text)
            })?;
        log::info!(file:% = name, report:%; "saved the items for the next start");
        Ok(())
    }

    /// The index's record of evicted items; None if it keeps none.
    pub fn evictions(&self) -> Option<&Evictions> {
        self.engine_controls.as_ref().and_then(|controls| controls.evictions(&self.index))
    }

    /// Has the index record evictions if somebody watches them.
    pub fn watch_evictions(&self) {
        let is_watched = self.log.wanted().meets(Events::EVICTIONS);
        if let Some(evictions) = self.evictions() {
            evictions.watch(if is_watched { EVICTIONS_MAX } else { 0 });
        }
    }

    /// Sends watchers the items that were evicted since the last call.
    pub fn report_evictions(&self) {
        let Some(evictions) = self.evictions() else { return };
        self.watch_evictions();
        for evicted in evictions.take() {
            let has_cas = self.limits.hands_out_cas;
            let (key, value) = (evicted.key.len(), evicted.value_bytes);
            let bytes = item_bytes(key, value, evicted.flags, has_cas);
            self.log.evicted(&evicted, self.slab_classes.class(bytes));
        }
    }

    /// memcached's slab class of an item, and the bytes that memcached would count for it.
    pub fn class_of(&self, item: &ItemView<'_>) -> (u32, usize) {
        let has_cas = self.limits.hands_out_cas;
        let bytes = item_bytes(item.key.len(), item.value.len(), item.flags, has_cas);
        (self.slab_classes.class(bytes), bytes)
    }

    /// The index's statistics; those that only grow are counted from the last `stats reset`.
    pub fn index_statistics(&self) -> Statistics {
        let mut index = self.index.statistics();
        let baseline = self.statistics_baseline.lock();
        let baseline = baseline.ignore_poison();
        let subtract = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
        subtract(&mut index.items_total, baseline.items_total);
        subtract(&mut index.evictions, baseline.evictions);
        subtract(&mut index.reclaimed, baseline.reclaimed);
        subtract(&mut index.evicted_unfetched, baseline.evicted_unfetched);
        subtract(&mut index.expired_unfetched, baseline.expired_unfetched);
        for class in &mut index.memory.classes {
            let is_same = |old: &&ClassStatistics| old.class == class.class;
            let old = baseline.memory.classes.iter().find(is_same);
            subtract(&mut class.evictions, old.map_or(0, |old| old.evictions));
            subtract(&mut class.mortal_evictions, old.map_or(0, |old| old.mortal_evictions));
        }
        index
    }

    /// Makes all statistics that only grow start from zero again.
    pub fn reset_statistics(&self) {
        self.counters.reset();
        self.prefixes.clear();
        self.crawler.reset();
        self.miss_curve.iter().for_each(MissCurve::forget_reads);
        let now = self.index.statistics();
        *self.statistics_baseline.lock().ignore_poison() = now;
    }

    /// Reads the certificates of clients' ports and of the admin address again.
    ///
    /// # Errors
    ///
    /// If a file cannot be used; the old certificates of that port then stay in use.
    pub fn refresh_certificates(&self) -> Result<(), String> {
        let seconds = self.clock.seconds();
        let ports = [&self.tls, &self.admin_tls];
        ports.into_iter().flatten().try_for_each(|tls| tls.refresh(seconds))
    }

    /// Whether there are certificates to read again.
    pub fn has_certificates(&self) -> bool {
        self.tls.is_some() || self.admin_tls.is_some()
    }

    /// Makes the main thread return from waiting.
    pub fn wake_main(&self) {
        // Fails only if the pipe is full of earlier wake-ups.
        let _ = rustix::io::write(&self.waker, b"!");
    }

    /// The memory limit in bytes.
    pub fn memory_limit(&self) -> usize {
        self.memory_limit.load(Ordering::Relaxed)
    }

    /// Changes the memory limit; items above it are evicted over time. A limit above that of the
    /// start does not raise the limit for buffers, as any client may ask for it.
    pub fn set_memory_limit(&self, bytes: usize) {
        self.memory_limit.store(bytes, Ordering::Relaxed);
        let for_buffers = bytes.min(self.settings.memory_bytes);
        self.buffers.set_limit(buffer_limit(for_buffers, &self.settings));
        let for_items = bytes.saturating_sub(self.buffers.reserved_bytes());
        // However small the memory and large the items: a cache of nothing serves nobody.
        self.index.set_memory_limit(for_items.max(bytes / 2));
    }

    /// Changes the charge of a connection's buffers, and resumes a waiting one if memory is free.
    pub fn recharge(&self, before: usize, after: usize) {
        self.buffers.recharge(before, after);
        if after < before && self.buffers.has_waiters() {
            self.wake_first_waiter();
        }
    }

    /// Wakes the reactor of the first waiting connection, if the budget can admit its value.
    pub fn wake_first_waiter(&self) {
        if let Some(first) = self.buffers.first_waiter()
            && self.buffers.has_room(first.bytes)
        {
            self.reactors[first.reactor].wake();
        }
    }

    /// Bytes of connections' buffers and pinned values, without those of connections that are about
    /// to be closed.
    fn held_bytes(&self) -> usize {
        let used = self.buffers.used_bytes() + self.index.pinned_bytes();
        used.saturating_sub(self.registry.closing_bytes())
    }

    /// Closes connections if the buffers lack memory: see [`ConnectionRegistry::close_slowest`].
    ///
    /// 1. Any connection that holds memory, if the buffers exceed their limit, or values that wait
    ///    to be sent take half of the store.
    /// 2. Slow ones, if both together exceed the limit, or a value waits or was just refused for
    ///    lack of memory.
    /// 3. Idle ones, above half of the limit.
    ///
    /// The last two are checked once a second. `seconds` is the current time.
    pub fn relieve_buffers(&self, has_refused: bool, seconds: u32) {
        let shortage = || self.shortage_of_buffers(has_refused, seconds);
        if shortage().is_none() {
            return;
        }
        let held = self.held_bytes();
        // Asked again under the lock: another worker may just have closed connections for it.
        let chosen = self.registry.close_slowest(seconds, || {
            let found = shortage();
            if found.is_some_and(|(_, closable)| closable != Closable::All) {
                self.relieved_at.store(seconds, Ordering::Relaxed);
            }
            found
        });
        if chosen > 0 {
            let limit = self.buffers.limit_bytes();
            log::warn!(connections = chosen, bytes = held, limit; "connections that made the least \
                progress were closed, as clients hold much of the memory for buffers and values \
                on their way; if these are sound clients, raise -m");
        }
    }

    /// The bytes that connections must give back now, and which may be closed for it. See
    /// [`Self::relieve_buffers`].
    fn shortage_of_buffers(&self, has_refused: bool, seconds: u32) -> Option<(usize, Closable)> {
        let has_refused = has_refused || self.buffers.has_waiters();
        let (held, limit) = (self.held_bytes(), self.buffers.limit_bytes());
        let closing = self.registry.closing_bytes();
        let must_go = self.buffers.used_bytes() > limit.saturating_add(closing)
            || self.index.pinned_bytes() > self.memory_limit() / 2 + closing;
        let closable = match () {
            () if must_go => Closable::All,
            () if held <= limit / 2 => return None,
            () if self.relieved_at.load(Ordering::Relaxed) == seconds => return None,
            () if has_refused || held > limit => Closable::Slow,
            () => Closable::Idle,
        };
        let aim = if closable == Closable::Idle { limit / 2 } else { limit / 8 * 7 };
        // A value that was refused needs room even where the limit is not exceeded.
        let bytes = held.saturating_sub(if has_refused { limit / 2 } else { aim }).max(1);
        Some((bytes, closable))
    }
}

/// The share of the memory limit that connections' buffers may take: a quarter or the configured
/// part, but at least two of the largest values and [`MIN_BUFFER_BYTES`].
fn buffer_limit(memory_bytes: usize, settings: &Settings) -> usize {
    let two_values = settings.max_item_bytes.saturating_mul(2);
    let share = (memory_bytes / 4).min(settings.buffer_bytes.unwrap_or(usize::MAX));
    share.max(two_values).max(MIN_BUFFER_BYTES)
}
