//! Requests of this process's workers to the event loop of their own node, and its replies, without
//! a connection between them.
//!
//! Both sides hand over all that a turn of theirs made, and wake the other only if it has taken
//! everything before. What waits is bounded by what a worker has under way (`late`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use amalgam_cluster::chunks::{Reply, Request};
use amalgam_op::IgnorePoison;
use rustix::event::{EventfdFlags, eventfd};

/// A request of a worker.
#[derive(Debug)]
pub struct OwnRequest {
    /// What to execute.
    pub request: Request,
    /// When the worker gives it up, in milliseconds of the node's clock; it is not executed later.
    pub until_ms: Option<u64>,
    /// Where the reply goes.
    pub replies: Arc<OwnReplies>,
}

/// The requests that the event loop has not taken yet.
#[derive(Debug, Default)]
pub struct OwnRequests(Mutex<Vec<OwnRequest>>);

impl OwnRequests {
    /// Hands over a request; whether the event loop has to be woken.
    pub fn push(&self, request: OwnRequest) -> bool {
        let mut waiting = self.0.lock().ignore_poison();
        waiting.push(request);
        waiting.len() == 1
    }

    /// Takes all of them, in the order in which they came.
    pub fn take(&self) -> Vec<OwnRequest> {
        std::mem::take(&mut *self.0.lock().ignore_poison())
    }
}

/// The replies that a worker has not taken yet.
#[derive(Debug)]
pub struct OwnReplies {
    waiting: Mutex<Vec<Reply>>,
    /// An eventfd that is readable while there are some.
    event: OwnedFd,
}

impl OwnReplies {
    /// None so far.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { waiting: Mutex::default(), event })
    }

    /// Hands over a reply, and wakes the worker if it has taken all others.
    pub fn push(&self, reply: Reply) {
        let mut waiting = self.waiting.lock().ignore_poison();
        waiting.push(reply);
        if waiting.len() == 1 {
            // Fails only if the counter is full: the worker is woken already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Takes all of them, in the order in which they came.
    pub fn take(&self) -> Vec<Reply> {
        let mut waiting = self.waiting.lock().ignore_poison();
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *waiting)
    }

    /// Readable while there are some.
    pub fn event(&self) -> &OwnedFd {
        &self.event
    }
}
