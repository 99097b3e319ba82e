//! A server from start to end: opens the index and the sockets, runs the threads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;

use amalgam_index::{Configuration, Engine, OpenError, Store};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::acceptor::{Acceptor, STOP};
use crate::admin::Admin;
use crate::affinity::{allowed_cores, pin_to};
use crate::error::ServerError;
use crate::net::sockets::{
    Listener, ListenerInfo, open_datagram_sockets, open_listeners, write_port_file,
};
use crate::net::sys;
use crate::settings::Settings;
use crate::state::clock::Clock;
use crate::state::engine_controls::EngineControls;
use crate::state::server_state::{OpenedParts, ServerState};
use crate::state::warm_restart::{SavedItems, check_named_file, set_aside};
use crate::threads::{ShutdownGuard, join, spawn};
use crate::watch::sender;
use crate::worker::Worker;

/// Workers of the index that serve no connections: maintenance, the main thread's sweeps, and one
/// that reads for the operator.
const EXTRA_WORKERS: usize = 3;

/// Opens an index with the items that the last graceful stop saved. A file that cannot be trusted
/// is logged and renamed, and the index is empty then.
fn open_warm<E: Engine>(
    configuration: &Configuration,
    path: &Path,
    clock: &Clock,
    threads: usize,
) -> Result<E, OpenError> {
    let refuse = |error: io::Error| {
        let file = path.display();
        log::warn!(file:%, error:%; "saved items are not usable; starting empty");
        match set_aside(path) {
            Ok(name) => log::warn!(file:%, kept_as:% = name.display(); "the file was renamed"),
            Err(error) => log::error!(file:%, error:%; "the file cannot be renamed; the next \
                graceful stop overwrites it"),
        }
    };
    check_named_file(path).map_err(OpenError::Configuration)?;
    match SavedItems::find(path) {
        Ok(None) => {}
        Err(error) => refuse(error),
        Ok(Some(saved)) => {
            let prepared = saved.prepare::<E>(configuration.clone());
            // A table of the size that the file states may not fit; a small one grows.
            let index = E::open(&prepared).or_else(|error| {
                log::warn!(error:%; "the table of the saved items does not fit; it starts small");
                // CAS ids go on where they were, or one that a client holds would be reused.
                let tuning = configuration.tuning.clone();
                E::open(&Configuration { tuning, ..prepared })
            })?;
            match saved.load(&index, clock, threads) {
                Ok(report) => {
                    let file = path.display();
                    log::info!(file:%, report:%; "loaded the items of the last run");
                    return Ok(index);
                }
                Err(error) => refuse(error),
            }
        }
    }
    E::open(configuration)
}

/// A server that listens already, and serves once [`Server::run`] is called.
pub struct Server<S> {
    state: ServerState<S>,
    listeners: Vec<Listener>,
    udp_addresses: Vec<SocketAddr>,
    admin: Option<Admin>,
    /// The end of the pipe that [`ServerState::waker`] writes to.
    wake_receiver: OwnedFd,
    reload_requested: Arc<AtomicBool>,
}

/// Stops a running server from another thread.
pub struct Stopper(OwnedFd);

impl Stopper {
    /// Asks the server to shut down. Does not wait.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.0, STOP);
    }
}

impl<E: Engine> Server<E> {
    /// Opens the index and the sockets. With [`Settings::memory_file`], the index gets the items
    /// that the last graceful stop saved there.
    ///
    /// # Errors
    ///
    /// If the index cannot be opened, a file cannot be used or an address cannot be bound.
    pub fn open(settings: Settings, configuration: Configuration) -> Result<Self, ServerError> {
        let (memory_file, threads) = (settings.memory_file.clone(), settings.threads);
        let open = |configuration: &Configuration, clock: &Clock| match &memory_file {
            Some(path) => open_warm(configuration, path, clock, threads),
            None => E::open(configuration),
        };
        Self::open_with(settings, configuration, Some(EngineControls::new()), open)
    }
}

impl<S: Store> Server<S> {
    /// Opens the sockets around a store that is open already. The opener maintains it.
    ///
    /// # Errors
    ///
    /// If a file cannot be used or an address cannot be bound.
    pub fn open_around(settings: Settings, index: S) -> Result<Self, ServerError> {
        Self::open_with(settings, Configuration::default(), None, |_, _| Ok(index))
    }

    fn open_with(
        settings: Settings,
        configuration: Configuration,
        engine_controls: Option<EngineControls<S>>,
        open: impl FnOnce(&Configuration, &Clock) -> Result<S, OpenError>,
    ) -> Result<Self, ServerError> {
        let (wake_receiver, waker) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| ServerError::System(error.into()))?;
        let listeners = open_listeners(&settings)?;
        let (datagram_sockets, udp_addresses): (Vec<_>, Vec<_>) =
            open_datagram_sockets(&settings)?.into_iter().unzip();
        let admin = settings.admin.map(Admin::open).transpose()?;
        let clock = Clock::new(settings.threads);
        let configuration = Configuration {
            memory_bytes: settings.memory_bytes,
            evicts: settings.evicts,
            eviction: settings.eviction,
            max_item_bytes: settings.max_item_bytes,
            workers: settings.threads + EXTRA_WORKERS,
            ..configuration
        };
        let index = open(&configuration, &clock)?;
        let parts = OpenedParts {
            index,
            engine_controls,
            clock,
            listeners: ListenerInfo::of(&listeners, &datagram_sockets),
            tcp_port: listeners.iter().find_map(|listener| listener.port),
            datagram_sockets,
            waker,
        };
        let state = ServerState::new(settings, parts)?;
        let reload_requested = Arc::default();
        Ok(Self { state, listeners, udp_addresses, admin, wake_receiver, reload_requested })
    }

    pub(crate) fn state(&self) -> &ServerState<S> {
        &self.state
    }

    /// The addresses that the server listens on, for logs.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().map(|listener| listener.name.clone()).collect()
    }

    /// The TCP port; None if the server listens on none.
    pub fn tcp_port(&self) -> Option<u16> {
        self.state.tcp_port.get().copied()
    }

    /// The admin address; None if there is none.
    pub fn admin_address(&self) -> Option<std::net::SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    /// The admin address as a URL; None if there is none.
    pub fn admin_url(&self) -> Option<String> {
        let scheme = if self.state.admin_tls.is_some() { "https" } else { "http" };
        self.admin_address().map(|address| format!("{scheme}://{address}/"))
    }

    /// Writes the ports to a file, in the format of `MEMCACHED_PORT_FILENAME`.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write_port_file(&self, path: &Path) -> io::Result<()> {
        write_port_file(path, &self.listeners, &self.udp_addresses)
    }

    /// The UDP port; None if the server listens on none.
    pub fn udp_port(&self) -> Option<u16> {
        self.udp_addresses.first().map(SocketAddr::port)
    }

    /// A handle that stops the server.
    ///
    /// # Errors
    ///
    /// If the system refuses the file descriptor.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper(self.state.waker.try_clone()?))
    }

    /// Shuts the server down on these signals.
    ///
    /// # Errors
    ///
    /// If a handler cannot be installed.
    pub fn stop_on_signals(&self, signals: &[i32]) -> io::Result<()> {
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, self.state.waker.try_clone()?)?;
        }
        Ok(())
    }

    /// Shuts the server down on this signal, and saves the items if there is a memory file.
    ///
    /// # Errors
    ///
    /// If the handler cannot be installed.
    pub fn save_on_signal(&self, signal: i32) -> io::Result<()> {
        // Handlers run in the order of their registration.
        signal_hook::flag::register(signal, Arc::clone(&self.state.saves_on_stop))?;
        self.stop_on_signals(&[signal])
    }

    /// Reads the file of users and the certificates again on this signal.
    ///
    /// # Errors
    ///
    /// If the handler cannot be installed.
    pub fn reload_on_signal(&self, signal: i32) -> io::Result<()> {
        signal_hook::flag::register(signal, Arc::clone(&self.reload_requested))?;
        Ok(())
    }

    /// Serves until the server is stopped.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started, fails or panics, or if the items cannot be saved.
    pub fn run(self) -> Result<(), ServerError> {
        let maintenance_stops = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            // The admin address ends last, however the others end: it reports the shutdown.
            let _admin_guard = self.admin.as_ref().map(Admin::shutdown_guard);
            if let Some(admin) = &self.admin {
                let body = || admin.serve(&self.state);
                std::thread::Builder::new().name("admin".into()).spawn_scoped(scope, body)?;
            }
            self.run_threads(scope, &maintenance_stops).and_then(|()| self.state.save())
        });
        self.state.has_ended.store(true, Ordering::Relaxed);
        if let Some(path) = &self.state.settings.unix_socket {
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
        let state = &self.state;
        sys::limit_free_memory();
        if state.engine_controls.is_some() {
            sys::limit_arenas(state.settings.memory_bytes);
        }
        // Also if a thread cannot be started or has failed: the scope waits for all of them.
        let shutdown_guard = ShutdownGuard { state, maintenance_stops };
        let maintenance = state.engine_controls.as_ref().map(|controls| {
            spawn(scope, state, "maintenance".into(), move || {
                controls.maintain(&state.index, &state.clock, maintenance_stops);
                Ok(())
            })
        });
        let maintenance = maintenance.transpose()?;
        let mut threads = Vec::new();
        let cores = if state.settings.pins_threads { allowed_cores() } else { Vec::new() };
        for number in 0..state.settings.threads {
            let core = cores.get(number % cores.len().max(1)).copied();
            threads.push(spawn(scope, state, format!("worker {number}"), move || {
                core.into_iter().for_each(pin_to);
                Worker::new(state, number).and_then(|mut worker| worker.run())
            })?);
        }
        threads.push(spawn(scope, state, "watchers".into(), || {
            // Not by the main thread: it takes some milliseconds, and clients may wait already.
            sys::unmap_code();
            let tick = || state.report_evictions();
            sender::run(&state.log, &state.registry, || state.is_stopping(), tick);
            Ok(())
        })?);
        let (wake_receiver, reload_requested) = (&self.wake_receiver, &*self.reload_requested);
        let result = Acceptor::new(state, &self.listeners, wake_receiver, reload_requested).run();
        log::info!(connections = state.counters.connections(); "the server shuts down");
        state.stop();
        threads.into_iter().try_for_each(join)?;
        // Maintenance ends last, so that it frees what the workers left to be freed.
        drop(shutdown_guard);
        maintenance.map_or(Ok(()), join)?;
        result
    }
}

/// The file that memcached's tests expect the ports in, from `MEMCACHED_PORT_FILENAME`.
pub fn port_file() -> Option<PathBuf> {
    std::env::var_os("MEMCACHED_PORT_FILENAME").map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use amalgam_index::mercury::Mercury;

    use super::*;

    /// Else clients that connect and go at once have others rejected.
    #[test]
    fn connections_that_have_closed_do_not_count_against_the_limit() {
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
        let settings = Settings { listen, threads: 1, max_connections: 2, ..Settings::default() };
        let server = Server::<Mercury>::open(settings, Configuration::default()).expect("it opens");
        let (state, reload) = (&server.state, &*server.reload_requested);
        let mut acceptor = Acceptor::new(state, &server.listeners, &server.wake_receiver, reload);
        let address = server.addresses()[0].clone();
        let connect = || TcpStream::connect(&address).expect("it waits to be accepted");
        let clients = [(); 10].map(|()| connect());
        let mut accept = || {
            acceptor.accept_some(&server.listeners[0]);
            state.reactors[0].take_arrivals()
        };
        for _ in 0..4 {
            let accepted = accept();
            assert_eq!(accepted.len(), 2);
            accepted.iter().for_each(|connection| state.registry.remove(&connection.info));
        }
        let rejected = || state.accept_gate.rejected.load(Ordering::Relaxed);
        assert_eq!(rejected(), 0);
        let accepted = accept();
        let late = connect();
        assert_eq!((accepted.len(), accept().len(), rejected()), (2, 0, 1));
        drop((clients, late));
    }
}
