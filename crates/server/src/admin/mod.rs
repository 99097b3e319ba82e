//! The admin address: metrics, health and a live page over HTTP, apart from the sockets that serve
//! clients.
//!
//! Invariants:
//! 1. It runs on its own threads, reads what workers publish, and holds a lock that a worker may
//!    wait for only as long as it takes to copy the locked data.
//! 2. It changes nothing: only GET and HEAD are allowed.
//! 3. A client can occupy one of [`MAX_CONNECTIONS`] threads for a few seconds at most.

mod history;
mod http;
mod metrics;
mod snapshot;
mod status;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use amalgam_index::Store;
use amalgam_op::IgnorePoison;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::state::server_state::ServerState;
use history::History;
use http::{Request, Response};
use snapshot::Snapshot;

/// Connections that are answered at once; further ones are closed unanswered.
const MAX_CONNECTIONS: usize = 16;

/// The pause after the system refused a connection or a thread.
const RETRY_DELAY: Duration = Duration::from_millis(200);

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

/// Ends [`Admin::serve`] when dropped.
pub struct AdminShutdownGuard<'a>(&'a Admin);

impl Drop for AdminShutdownGuard<'_> {
    fn drop(&mut self) {
        self.0.is_ending.store(true, Ordering::SeqCst);
        // Fails only if a wake-up is pending already.
        let _ = rustix::io::write(&self.0.waker, &1_u64.to_ne_bytes());
    }
}

impl Admin {
    /// Binds the address and listens. The caller decides whether others may reach it.
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
        let listener = TcpListener::bind(address).map_err(explain)?;
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
        let open = AtomicUsize::new(0);
        let mut next_tick = Instant::now();
        thread::scope(|scope| {
            while !self.is_ending() {
                let now = Instant::now();
                if now >= next_tick {
                    self.history().record(state);
                    next_tick = now + TICK;
                }
                let stream = match self.accept(next_tick - now) {
                    Ok(Some(stream)) => stream,
                    Ok(None) => continue,
                    Err(_) => {
                        thread::sleep(RETRY_DELAY);
                        continue;
                    }
                };
                if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                    open.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let open = &open;
                let body = move || {
                    // An error means that the client has gone; there is nobody to report it to.
                    let _ = self.answer(stream, state);
                    open.fetch_sub(1, Ordering::Relaxed);
                };
                if thread::Builder::new().name("admin".into()).spawn_scoped(scope, body).is_err() {
                    open.fetch_sub(1, Ordering::Relaxed);
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

    fn answer<S: Store>(&self, mut stream: TcpStream, state: &ServerState<S>) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let (response, is_head) = match http::read_request(&mut stream, || self.is_ending())? {
            Err(response) => (response, false),
            Ok(request) if !self.is_host_allowed(&request) => {
                let line = "the Host header must be the address of this machine, or localhost";
                (Response::line("403 Forbidden", line), request.is_head)
            }
            Ok(request) => (self.route(&request.path, state), request.is_head),
        };
        http::respond(&mut stream, &response, is_head)
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
                Response::ok(metrics::CONTENT_TYPE, metrics::render(&Snapshot::take(state)))
            }
            "/api/status" => Response::json(&status::all(state, &self.history())),
            "/api/hotkeys" => Response::json(&status::hot_keys(state)),
            "/healthz" => Response::line("200 OK", "alive"),
            "/readyz" if state.is_stopping() => {
                Response::line("503 Service Unavailable", "the server is shutting down")
            }
            "/readyz" => Response::line("200 OK", "ready"),
            _ => Response::line("404 Not Found", "nothing is here; the page is at /"),
        }
    }
}
