//! The admin address: metrics, health and a live page over HTTP, beside the sockets that
//! serve clients.
//!
//! Invariants of this room:
//! 1. It runs on threads of its own, reads what workers publish, and takes no lock that a worker
//!    would wait for longer than it takes to copy what stands behind it.
//! 2. It changes nothing: there are only GET and HEAD.
//! 3. A client can hold one of [`MOST_CONNECTIONS`] threads for a few seconds at most.

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
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::server::Shared;
use history::History;
use http::{Request, Response};
use snapshot::Snapshot;

/// Connections that are answered at once; more are closed unanswered.
const MOST_CONNECTIONS: usize = 16;

/// How long to leave connections waiting when the system refuses one.
const RESPITE: Duration = Duration::from_millis(200);

/// Between two points of the history.
const TICK: Duration = Duration::from_secs(1);

/// A listening admin address.
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    history: Mutex<History>,
    is_ending: AtomicBool,
    /// Written to wake the thread that accepts.
    bell: OwnedFd,
}

/// Ends the admin address when dropped.
pub struct Ending<'a>(&'a Admin);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_ending.store(true, Ordering::SeqCst);
        // Fails only when the bell rings already.
        let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
    }
}

impl Admin {
    /// Listens. Whether everybody may reach the address is for the caller to decide.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound; the text names it.
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
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let (history, is_ending) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { listener, address, history, is_ending, bell })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends [`Admin::serve`].
    pub fn ending(&self) -> Ending<'_> {
        Ending(self)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Answers until told to end, on this thread and a few of its own.
    pub fn serve<I: Store>(&self, shared: &Shared<I>) {
        let open = AtomicUsize::new(0);
        let mut next_tick = Instant::now();
        thread::scope(|scope| {
            while !self.is_ending() {
                let now = Instant::now();
                if now >= next_tick {
                    self.history().record(shared);
                    next_tick = now + TICK;
                }
                let stream = match self.accept(next_tick - now) {
                    Ok(Some(stream)) => stream,
                    Ok(None) => continue,
                    Err(_) => {
                        thread::sleep(RESPITE);
                        continue;
                    }
                };
                if open.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
                    open.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let open = &open;
                let body = move || {
                    // A client that went away has nobody to be told.
                    let _ = self.answer(stream, shared);
                    open.fetch_sub(1, Ordering::Relaxed);
                };
                if thread::Builder::new().name("admin".into()).spawn_scoped(scope, body).is_err() {
                    open.fetch_sub(1, Ordering::Relaxed);
                    thread::sleep(RESPITE);
                }
            }
        });
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for a connection or the bell.
    fn accept(&self, timeout: Duration) -> io::Result<Option<TcpStream>> {
        let mut watched =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
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

    fn answer<I: Store>(&self, mut stream: TcpStream, shared: &Shared<I>) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let (response, is_head) = match http::read_request(&mut stream, || self.is_ending())? {
            Err(response) => (response, false),
            Ok(request) if !self.may_ask(&request) => {
                let line = "ask for this machine by its address, or for localhost";
                (Response::line("403 Forbidden", line), request.is_head)
            }
            Ok(request) => (self.route(&request.path, shared), request.is_head),
        };
        http::respond(&mut stream, &response, is_head)
    }

    /// On a loopback address, which has no password, a name that is not this machine's means that
    /// some page has led a browser here.
    fn may_ask(&self, request: &Request) -> bool {
        !self.address.ip().is_loopback() || request.host.as_deref().is_none_or(http::is_local_host)
    }
    fn route<I: Store>(&self, path: &str, shared: &Shared<I>) -> Response {
        match path {
            "/" => Response::ok("text/html; charset=utf-8", include_str!("page/index.html")),
            "/page.css" => Response::ok("text/css; charset=utf-8", include_str!("page/page.css")),
            "/page.js" => {
                Response::ok("text/javascript; charset=utf-8", include_str!("page/page.js"))
            }
            "/icon.svg" => Response::ok("image/svg+xml", include_str!("page/icon.svg")),
            "/metrics" => {
                Response::ok(metrics::CONTENT_TYPE, metrics::render(&Snapshot::take(shared)))
            }
            "/api/status" => Response::json(&status::all(shared, &self.history())),
            "/api/hotkeys" => Response::json(&status::hot_keys(shared)),
            "/healthz" => Response::line("200 OK", "alive"),
            "/readyz" if shared.is_stopping() => {
                Response::line("503 Service Unavailable", "the server is ending")
            }
            "/readyz" => Response::line("200 OK", "ready"),
            _ => Response::line("404 Not Found", "nothing is here; the page is at /"),
        }
    }
}
