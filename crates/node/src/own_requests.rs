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

/// What one side has handed over and the other has not taken yet.
#[derive(Debug)]
pub struct HandoffQueue<T>(Mutex<Vec<T>>);

impl<T> Default for HandoffQueue<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> HandoffQueue<T> {
    /// Hands something over; returns whether the other side has to be woken.
    pub fn push(&self, one: T) -> bool {
        let mut waiting = self.0.lock().ignore_poison();
        waiting.push(one);
        waiting.len() == 1
    }

    /// Takes everything, in the order in which it came.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock().ignore_poison())
    }
}

/// The replies that a worker has not taken yet.
#[derive(Debug)]
pub struct OwnReplies {
    waiting: HandoffQueue<Reply>,
    /// An eventfd that is readable while there are some, and perhaps once more.
    event: OwnedFd,
}

impl OwnReplies {
    /// A worker that waits for no reply.
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { waiting: HandoffQueue::default(), event })
    }

    /// Hands over a reply, and wakes the worker if it has taken all others.
    pub fn push(&self, reply: Reply) {
        if self.waiting.push(reply) {
            // Fails only if the counter is full: the worker is woken already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Takes the replies, in the order in which they came.
    pub fn take(&self) -> Vec<Reply> {
        // First: a reply that comes in between is taken, and one that comes later makes the
        // descriptor readable again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.waiting.take()
    }

    /// Readable while there are replies.
    pub fn event(&self) -> &OwnedFd {
        &self.event
    }
}
