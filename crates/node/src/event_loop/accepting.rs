//! Connections that have proved nothing yet: how they are accepted, and how many are heard in a
//! turn.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsRawFd;

use amalgam_cluster::chunks::ChunkStore;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::{EventLoop, LISTENER, READABLE};
use crate::admission::{is_reserved, network};
use crate::clock::boot_ms;
use crate::connection::{Connection, Role};
use crate::handshake::Handshake;

/// Connections that are accepted in a turn, so that those who connect do not keep the node from
/// its work.
const ACCEPTED_MAX: usize = 64;
/// Steps of handshakes in a turn: those of TLS may take a millisecond for a signature.
pub(super) const HANDSHAKES_A_TURN: usize = 8;
/// Pause of the listener after the system had no descriptor or memory left, in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;
/// How long nothing more is logged of a shortage that lasts, in milliseconds.
const SHORTAGE_LOG_MS: u64 = 5_000;

/// A connection whose descriptor is not reserved.
fn unreserved(socket: TcpStream) -> io::Result<TcpStream> {
    match is_reserved(socket.as_raw_fd()) {
        true => Err(Errno::MFILE.into()),
        false => Ok(socket),
    }
}

impl<S: ChunkStore> EventLoop<S> {
    /// Accepts the connections that wait, but not all of very many.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept() {
                Ok((socket, from)) if is_reserved(socket.as_raw_fd()) => {
                    self.pause_accepting("only reserved descriptors are left");
                    // What was closed has left a descriptor that is not.
                    let moved = socket.try_clone();
                    drop(socket);
                    if let Ok(socket) = moved.and_then(unreserved) {
                        self.greet(socket, from.ip());
                    }
                    return;
                }
                Ok((socket, from)) => self.greet(socket, from.ip()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
                    if Errno::from_io_error(&error).is_some_and(|error| lacks.contains(&error)) {
                        return self.pause_accepting(&error.to_string());
                    }
                    // Otherwise the peer has gone meanwhile.
                }
            }
        }
    }

    /// Stops polling the listener for a while, which would only fail again at once, and closes a
    /// connection that has proved nothing yet, or a client if there is none.
    fn pause_accepting(&mut self, error: &str) {
        let now_ms = boot_ms();
        if now_ms >= self.next_shortage_ms {
            self.next_shortage_ms = now_ms + SHORTAGE_LOG_MS;
            log::warn!(
                error, pause_ms = ACCEPT_PAUSE_MS;
                "no connection is accepted for a moment: raise the limit of open files (ulimit -n)"
            );
        }
        let number = self.unauthenticated.oldest_of_most().or_else(|| self.quietest_client());
        if let Some(number) = number {
            self.close(number);
        }
        if epoll::delete(&self.epoll, &self.listener).is_ok() {
            self.accepts_from_ms = Some(now_ms + ACCEPT_PAUSE_MS);
        }
    }

    /// The client that has been silent for the longest, of those from the address with most.
    fn quietest_client(&self) -> Option<u64> {
        let mut by_address: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (number, connection) in &self.connections {
            if matches!(connection.role, Role::Client { .. })
                && let Ok(from) = connection.socket.peer_addr()
            {
                let own = by_address.entry(network(from.ip())).or_default();
                own.push((connection.heard_ms, *number));
            }
        }
        let most = by_address.into_values().max_by_key(Vec::len)?;
        most.into_iter().min().map(|(_, number)| number)
    }

    /// Polls the listener again.
    pub(super) fn resume_accepting(&mut self) {
        let data = EventData::new_u64(LISTENER);
        // Tried again at the next tick if the system lacks memory.
        if epoll::add(&self.epoll, &self.listener, data, EventFlags::IN).is_ok() {
            self.accepts_from_ms = None;
        }
    }

    /// Begins the handshake of a connection that was accepted.
    fn greet(&mut self, socket: TcpStream, from: IpAddr) {
        let mut out = Vec::new();
        let identity = self.identity.clone();
        let Ok(session) = identity.session(false) else { return };
        let Ok(handshake) = Handshake::start(identity, false, &mut out) else { return };
        if socket.set_nonblocking(true).is_ok() && socket.set_nodelay(true).is_ok() {
            let connection = Connection::new(socket, session, handshake, out, None);
            self.insert(connection, READABLE, Some(from));
        }
    }

    /// Whether to read from a connection in this turn.
    pub(super) fn may_read(&mut self, number: u64) -> bool {
        match self.connections.get(&number).map(|connection| &connection.role) {
            Some(Role::Unauthenticated(_)) => {
                let may_read = self.handshakes_left > 0;
                self.handshakes_left = self.handshakes_left.saturating_sub(1);
                may_read
            }
            // It is heard further once what it sent before is handled.
            Some(Role::Client { .. }) => self.client_share.may_read(number),
            Some(Role::Peer(_)) | None => true,
        }
    }
}
