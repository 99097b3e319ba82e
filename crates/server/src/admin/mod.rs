//! The admin address: metrics, health and a live page over HTTP, apart from the sockets that serve
//! clients.
//!
//! Invariants:
//! 1. It runs on its own threads, reads what workers publish, and holds a lock that a worker may
//!    wait for only as long as it takes to copy the locked data.
//! 2. If there is a file of users, all but the health is told only to these; a wrong password is
//!    answered after a pause.
//! 3. It changes nothing: only GET and HEAD are allowed.
//! 4. A client can occupy one of [`MAX_CONNECTIONS`] threads for a few seconds at most, and gives
//!    way to new ones while its request is not complete, or its wrong password awaits an answer.
//!    The handshake of TLS is part of that time.
//! 5. If the address has certificates, nothing is read or answered in plaintext.

mod history;
pub mod http;
mod metrics;
mod snapshot;
mod status;
mod stream;

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use amalgam_index::Store;
use amalgam_op::IgnorePoison;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::net::sockets::bind_listener;
use crate::state::server_state::ServerState;
use history::History;
use http::{Request, Response};
use snapshot::Snapshot;
use stream::Stream;

/// Connections that are served at once. For a further one, the oldest whose request is not complete
/// is closed; if there is none, the further one is.
const MAX_CONNECTIONS: usize = 16;

/// Threads at once: those of connections that were closed for others take a moment to end.
const MAX_THREADS: usize = 2 * MAX_CONNECTIONS;

/// How often it is checked whether one of [`MAX_THREADS`] has ended; new connections wait so long.
const CROWDED_DELAY: Duration = Duration::from_millis(5);

/// The pause after the system refused a connection or a thread.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The pause before a wrong password is answered, so that guessing takes time.
const WRONG_PASSWORD_DELAY: Duration = Duration::from_secs(1);

/// How often a pause checks whether it is of no use any more.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The interval of the history.
const TICK: Duration = Duration::from_secs(1);

/// A listening admin address.
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    history: Mutex<History>,
    is_ending: AtomicBool,
    /// An eventfd that wakes the accepting thread.
    waker: OwnedFd,
}

/// A connection that is being served.
struct Client {
    /// Another handle of the connection's socket.
    socket: TcpStream,
    /// Whether its request has arrived and is being answered.
    is_answered: AtomicBool,
    /// Whether it was closed to make room for another.
    is_closed: AtomicBool,
}

/// Whether a request may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Granted,
    /// A user and password are needed.
    Missing,
    /// The user or the password is wrong.
    Wrong,
}

impl Access {
    /// Probes of the health need no password, so that an orchestrator needs none.
    fn of<S: Store>(request: &Request, state: &ServerState<S>) -> Self {
        let Some(users) = &state.admin_users else { return Self::Granted };
        match &request.credentials {
            _ if matches!(request.path.as_str(), "/healthz" | "/readyz") => Self::Granted,
            None => Self::Missing,
            Some((user, password)) if users.verify(user, password) => Self::Granted,
            Some(_) => Self::Wrong,
        }
    }
}

/// The connections that are being served, the oldest first.
type Clients = Mutex<VecDeque<Arc<Client>>>;

/// Ends [`Admin::serve`] when dropped.
pub struct AdminShutdownGuard<'a>(&'a Admin);

impl Drop for AdminShutdownGuard<'_> {
    fn drop(&mut self) {
        self.0.is_ending.store(true, Ordering::SeqCst);
        // Fails only if a wake-up is pending already.
        let _ = rustix::io::write(&self.0.waker, &1_u64.to_ne_bytes());
    }
}

/// Adds a connection, in place of another if there are too many. Returns whether it was added.
fn admit(clients: &Clients, client: &Arc<Client>) -> bool {
    let mut clients = clients.lock().ignore_poison();
    if clients.len() >= MAX_CONNECTIONS {
        let is_waiting = |client: &Arc<Client>| !client.is_answered.load(Ordering::Relaxed);
        let Some(position) = clients.iter().position(is_waiting) else { return false };
        if let Some(oldest) = clients.remove(position) {
            oldest.is_closed.store(true, Ordering::Relaxed);
            // Its thread wakes up and ends. Fails only if the client closed it already.
            let _ = oldest.socket.shutdown(Shutdown::Both);
        }
    }
    clients.push_back(Arc::clone(client));
    true
}

/// Removes a connection, if it is still there.
fn forget(clients: &Clients, client: &Arc<Client>) {
    clients.lock().ignore_poison().retain(|other| !Arc::ptr_eq(other, client));
}

impl Admin {
    /// Binds the address and listens; `[::]` stands for all addresses of both families. The caller
    /// decides whether others may reach it.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound; the message names it.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let explain = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot listen on admin address {address}: {error}"),
            )
        };
        let listener = bind_listener(address).map_err(explain)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let waker = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let (history, is_ending) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { listener, address, history, is_ending, waker })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A guard that ends [`Admin::serve`].
    pub fn shutdown_guard(&self) -> AdminShutdownGuard<'_> {
        AdminShutdownGuard(self)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Answers requests until the guard is dropped, on this thread and a few others.
    pub fn serve<S: Store>(&self, state: &ServerState<S>) {
        let (clients, threads) = (Clients::default(), AtomicUsize::new(0));
        let mut next_tick = Instant::now();
        thread::scope(|scope| {
            while !self.is_ending() {
                let now = Instant::now();
                if now >= next_tick {
                    self.history().record(state);
                    next_tick = now + TICK;
                }
                if threads.load(Ordering::Relaxed) >= MAX_THREADS {
                    thread::sleep(CROWDED_DELAY);
                    continue;
                }
                let stream = match self.accept(next_tick - now) {
                    Ok(Some(stream)) => stream,
                    Ok(None) => continue,
                    Err(_) => {
                        thread::sleep(RETRY_DELAY);
                        continue;
                    }
                };
                let Ok(socket) = stream.try_clone() else { continue };
                let (is_answered, is_closed) = Default::default();
                let client = Arc::new(Client { socket, is_answered, is_closed });
                if !admit(&clients, &client) {
                    continue;
                }
                threads.fetch_add(1, Ordering::Relaxed);
                let (clients, threads) = (&clients, &threads);
                let own = Arc::clone(&client);
                let body = move || {
                    // An error means that the client has gone; there is nobody to report it to.
                    let _ = self.answer(stream, &own, state);
                    forget(clients, &own);
                    threads.fetch_sub(1, Ordering::Relaxed);
                };
                if thread::Builder::new().name("admin".into()).spawn_scoped(scope, body).is_err() {
                    forget(clients, &client);
                    threads.fetch_sub(1, Ordering::Relaxed);
                    thread::sleep(RETRY_DELAY);
                }
            }
        });
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().ignore_poison()
    }

    /// Waits for a connection or the waker; None after a timeout or a wake-up.
    fn accept(&self, timeout: Duration) -> io::Result<Option<TcpStream>> {
        let mut watched =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.waker, PollFlags::IN)];
        let timeout = rustix::time::Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn answer<S: Store>(
        &self,
        socket: TcpStream,
        client: &Client,
        state: &ServerState<S>,
    ) -> io::Result<()> {
        let mut stream = Stream::open(socket, state.admin_tls.as_ref())?;
        let result = http::read_request(&mut stream, || self.is_ending())?;
        if let Ok(request) = &result
            && Access::of(request, state) == Access::Wrong
        {
            self.pause(client, WRONG_PASSWORD_DELAY);
        }
        client.is_answered.store(true, Ordering::Relaxed);
        let (response, is_head) = match result {
            Err(response) => (response, false),
            Ok(request) if !self.is_host_allowed(&request) => {
                let line = "the Host header must be the address of this machine, or localhost";
                (Response::line("403 Forbidden", line), request.is_head)
            }
            Ok(request) if Access::of(&request, state) != Access::Granted => {
                let line = "a user and password of --admin-auth-file are required";
                (Response::line(http::UNAUTHORIZED, line), request.is_head)
            }
            Ok(request) => (self.route(&request.path, state), request.is_head),
        };
        http::respond(&mut stream, &response, is_head, || self.is_ending())?;
        client.is_answered.store(false, Ordering::Relaxed);
        http::drain(&mut stream, || self.is_ending());
        Ok(())
    }

    /// Waits while the client is there and the server does not shut down.
    fn pause(&self, client: &Client, time: Duration) {
        let end = Instant::now() + time;
        let is_over = || self.is_ending() || client.is_closed.load(Ordering::Relaxed);
        while Instant::now() < end && !is_over() {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Protects a loopback address, which has no password, from DNS rebinding: a request under a
    /// name that is not this machine's was sent by a browser on behalf of a foreign page.
    fn is_host_allowed(&self, request: &Request) -> bool {
        !self.address.ip().is_loopback() || request.host.as_deref().is_none_or(http::is_local_host)
    }

    fn route<S: Store>(&self, path: &str, state: &ServerState<S>) -> Response {
        match path {
            "/" => Response::ok("text/html; charset=utf-8", include_str!("page/index.html")),
            "/page.css" => Response::ok("text/css; charset=utf-8", include_str!("page/page.css")),
            "/page.js" => {
                Response::ok("text/javascript; charset=utf-8", include_str!("page/page.js"))
            }
            "/icon.svg" => Response::ok("image/svg+xml", include_str!("page/icon.svg")),
            "/metrics" => {
                let text = metrics::render(&Snapshot::take(state));
                Response::ok(metrics::CONTENT_TYPE, text + &metrics::of_store(&state.index))
            }
            "/api/status" => Response::json(&status::all(state, &self.history())),
            "/api/history" => Response::json(&self.history().day()),
            "/api/hotkeys" => Response::json(&status::hot_keys(state, &self.history())),
            "/api/cluster" => match state.index.cluster() {
                Some(nodes) => Response::ok("application/json", nodes),
                None => Response::line("404 Not Found", "this server is not a node of a cluster"),
            },
            "/healthz" => Response::line("200 OK", "alive"),
            "/readyz" if state.is_stopping() => {
                Response::line("503 Service Unavailable", "the server is shutting down")
            }
            "/readyz" => match state.index.unready() {
                None => Response::line("200 OK", "ready"),
                Some(reason) => Response::line("503 Service Unavailable", reason),
            },
            _ => Response::line("404 Not Found", "nothing is here; the page is at /"),
        }
    }
}
