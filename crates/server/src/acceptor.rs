//! The main thread's loop: accepts connections, balances memory, sweeps and reloads.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amalgam_index::Store;
use amalgam_op::ItemView;
use rustix::event::{PollFd, PollFlags, poll};

use crate::connections::connection::Connection;
use crate::connections::freed_memory::{FreedMemory, ResidentMemory};
use crate::connections::reactor::Reactor;
use crate::net::registry::ConnectionInfo;
use crate::net::sockets::{Listener, accept, local_name};
use crate::net::transport::Transport;
use crate::state::clock::OUTSTANDING_WORTH_A_SWEEP;
use crate::state::server_state::ServerState;
use crate::state::sweep::Sweep;

/// The longest wait for connections.
const TICK: Duration = Duration::from_secs(1);

/// The longest wait while accepting is paused.
const PAUSED_TICK: Duration = Duration::from_millis(10);

/// The index is told of a change of the buffers' memory in steps of this size.
const MEMORY_STEP_BYTES: usize = 1 << 20;

/// Connections that are accepted or rejected before the limit of connections is looked at again,
/// and whatever else the main thread does: those that were accepted may have closed meanwhile.
const ACCEPTS_AT_ONCE: usize = 64;

/// Steps of a sweep after which it is looked for connections: about a millisecond.
const SWEEP_STEPS: usize = 16;

/// What to write to the main thread's pipe to stop the server. Signal handlers write `X` too.
pub const STOP: &[u8] = b"X";

/// Accepts connections and hands them to reactors, on the main thread.
pub struct Acceptor<'s, S: Store> {
    state: &'s ServerState<S>,
    listeners: &'s [Listener],
    /// The end of the pipe that [`ServerState::waker`] writes to.
    wake_receiver: &'s OwnedFd,
    /// Set by a signal handler to have users and certificates read again.
    reload_requested: &'s AtomicBool,
    /// The worker that gets the next connection; modulo the number of workers.
    next_worker: usize,
    /// When accepting was paused; None if it is not.
    paused_at: Option<Instant>,
    /// The buffers' memory in bytes that the index was last told of.
    reported_bytes: usize,
    freed_memory: FreedMemory,
    /// None if the index was opened elsewhere: what else the process holds is not known here.
    resident_memory: Option<ResidentMemory>,
    /// The sweep under way, if one is.
    sweep: Option<Sweep<'s, S>>,
}

impl<'s, S: Store> Acceptor<'s, S> {
    /// An acceptor for the listeners of a server.
    pub fn new(
        state: &'s ServerState<S>,
        listeners: &'s [Listener],
        wake_receiver: &'s OwnedFd,
        reload_requested: &'s AtomicBool,
    ) -> Self {
        let (next_worker, paused_at, reported_bytes) = (0, None, 0);
        let limit_bytes = state.settings.memory_bytes;
        let has_engine = state.engine_controls.is_some();
        Self {
            state,
            listeners,
            wake_receiver,
            reload_requested,
            next_worker,
            paused_at,
            reported_bytes,
            freed_memory: FreedMemory::default(),
            resident_memory: has_engine.then(|| ResidentMemory::of_server(limit_bytes)),
            sweep: None,
        }
    }

    /// Runs until the server is stopped.
    ///
    /// # Errors
    ///
    /// If waiting for connections fails.
    pub fn run(mut self) -> io::Result<()> {
        let gate = &self.state.accept_gate;
        while !self.state.is_stopping() {
            let was_open = gate.is_open();
            let timeout = match () {
                () if self.sweep.is_some() => Duration::ZERO,
                () if was_open => TICK,
                () => PAUSED_TICK,
            };
            let ready = self.wait(timeout, was_open)?;
            if self.is_told_to_stop() {
                return Ok(());
            }
            for listener in ready {
                self.accept_some(listener);
            }
            if !was_open && self.room() > 0 {
                let paused_at = self.paused_at.take();
                gate.reopen(paused_at.map_or(Duration::ZERO, |paused_at| paused_at.elapsed()));
            } else if !gate.is_open() {
                self.paused_at.get_or_insert_with(Instant::now);
            }
            self.balance_memory();
            self.sweep_if_needed();
            if self.reload_requested.swap(false, Ordering::Relaxed) {
                self.reload();
            }
        }
        Ok(())
    }

    /// Waits for a wake-up or, if `accepts`, for connections. Returns the listeners that have some.
    fn wait(&self, timeout: Duration, accepts: bool) -> io::Result<Vec<&'s Listener>> {
        let mut descriptors = vec![PollFd::new(self.wake_receiver, PollFlags::IN)];
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
        let ready = descriptors[1..].iter().zip(self.listeners);
        Ok(ready.filter(|(one, _)| is_ready(one)).map(|(_, listener)| listener).collect())
    }

    fn is_told_to_stop(&self) -> bool {
        let mut wake_ups = [0; 64];
        let count = rustix::io::read(self.wake_receiver.as_fd(), &mut wake_ups).unwrap_or(0);
        self.state.is_stopping() || wake_ups[..count].contains(&STOP[0])
    }

    /// How many more connections the limit allows. Counted by the registry: the workers' counters
    /// lag by the connections that they have not taken over yet.
    fn room(&self) -> usize {
        let limit = self.state.settings.max_connections;
        limit.saturating_sub(self.state.registry.count())
    }

    /// Accepts connections that wait at a listener, as many as there is room for and at most
    /// [`ACCEPTS_AT_ONCE`], and hands them to workers in turn. Rejects as many if there is no room.
    pub(crate) fn accept_some(&mut self, listener: &Listener) {
        let (gate, settings) = (&self.state.accept_gate, &self.state.settings);
        let mut room = self.room();
        let is_full = room == 0;
        for _ in 0..ACCEPTS_AT_ONCE {
            if room == 0 && !settings.refuses_fast {
                gate.close();
                return;
            }
            if room == 0 && !is_full {
                return;
            }
            match accept(listener) {
                Ok(None) => return,
                Ok(Some((socket, peer))) if room == 0 => {
                    let limit = settings.max_connections;
                    let peer = peer_name(peer);
                    log::warn!(
                        peer = peer.as_str(), limit;
                        "rejected a connection: the limit is reached"
                    );
                    gate.rejected.fetch_add(1, Ordering::Relaxed);
                    let _ = rustix::io::write(&socket, b"ERROR Too many open connections\r\n");
                }
                Ok(Some((socket, peer))) => {
                    room -= 1;
                    self.hand_over(socket, peer, listener);
                }
                Err(error) => {
                    // Too many open files, most likely: wait until some are closed.
                    log::warn!(error:%; "accepting failed and is paused");
                    gate.close();
                    return;
                }
            }
        }
    }

    /// Hands a connection to the next worker.
    fn hand_over(
        &mut self,
        socket: OwnedFd,
        peer: Option<std::net::SocketAddr>,
        listener: &Listener,
    ) {
        let state = self.state;
        let worker = self.next_worker % state.reactors.len();
        self.next_worker = worker + 1;
        let (number, local) = (socket.as_raw_fd(), local_name(&socket, listener));
        log::debug!(peer = peer_name(peer).as_str(), number, worker; "accepted a connection");
        let info = ConnectionInfo::new(number, peer, local, state.clock.seconds());
        state.registry.insert(&info);
        let session = state.tls.as_ref().map(|tls| tls.session(listener.security)).transpose();
        match session {
            Ok(session) => {
                let transport = Transport::new(socket, session.flatten());
                let mut connection = Connection::new(transport, info);
                connection.protocol_state.protocol = listener.protocol;
                state.reactors[worker].hand_over(connection);
            }
            Err(error) => {
                // Never in plaintext.
                log::error!(error:%; "closed a connection: there can be no TLS session");
                state.registry.remove(&info);
            }
        }
    }

    /// Reads the file of users and the certificates again.
    fn reload(&self) {
        for users in [&self.state.users, &self.state.admin_users].into_iter().flatten() {
            if let Err(error) = users.reload() {
                log::warn!(error:%; "cannot read the users again; the old ones stay in use");
            }
        }
        if let Err(error) = self.state.refresh_certificates() {
            log::warn!(error:%; "cannot read the certificates again; the old ones stay in use");
        }
    }

    /// Gives the index the part of the memory limit that the buffers do not take, and the system
    /// what they have freed.
    fn balance_memory(&mut self) {
        let now = Instant::now();
        self.freed_memory.give_back(self.state.buffers.total_bytes(), now);
        if let Some(resident) = self.resident_memory.as_mut().filter(|one| one.looks(now)) {
            resident.watch(self.state.index.statistics().memory.used as usize, now);
        }
        let used = self.state.buffers.reserved_bytes();
        if used.abs_diff(self.reported_bytes) >= MEMORY_STEP_BYTES {
            self.reported_bytes = used;
            self.state.set_memory_limit(self.state.memory_limit());
        }
    }

    /// Removes dead items if an operator asked for it or many flushes have left some: a part of
    /// them, since connections wait meanwhile.
    fn sweep_if_needed(&mut self) {
        let (state, crawler) = (self.state, &self.state.crawler);
        let is_worth = state.clock.outstanding() >= OUTSTANDING_WORTH_A_SWEEP;
        if self.sweep.is_none() && (is_worth || crawler.is_requested.load(Ordering::Acquire)) {
            self.sweep = Some(Sweep::begin(&state.index, &state.clock));
        }
        let Some(sweep) = &mut self.sweep else { return };
        let class_of = |item: &ItemView<'_>| state.class_of(item).0;
        let mut step = || sweep.step(&state.index, &state.clock, crawler, class_of);
        if (0..SWEEP_STEPS).any(|_| step()) {
            self.sweep = None;
            crawler.is_requested.store(false, Ordering::Release);
            // Flushes may wait for this.
            state.reactors.iter().for_each(Reactor::wake);
        }
    }
}

/// A client's address for the log; a unix socket's client has none.
fn peer_name(peer: Option<std::net::SocketAddr>) -> String {
    peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_string())
}
