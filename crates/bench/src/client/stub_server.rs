//! A server without a store: it finds the ends of text requests and answers with constants. Its
//! cost is that of the sockets, the floor for any server.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use memchr::memchr;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::client::arguments::StubServerArguments;
use crate::measure::pin_to;

/// The epoll number of the listener; connections have their index.
const LISTENER: u64 = u64::MAX;
/// The size of the receive buffer.
const RECEIVE_BYTES: usize = 256 << 10;
/// The longest incomplete request that is kept; a longer one ends its connection.
const LONGEST_REQUEST_BYTES: usize = 2 << 20;

/// A server with one thread that answers every request with a constant.
pub struct StubServer {
    listener: TcpListener,
    epoll: OwnedFd,
    connections: Vec<Option<Connection>>,
    hits: Vec<u8>,
    /// The length of a set's value with its end of line.
    value_bytes: usize,
    core: Option<usize>,
    is_stopped: Arc<AtomicBool>,
}

struct Connection {
    stream: TcpStream,
    leftover: Vec<u8>,
    unsent: Vec<u8>,
}

impl StubServer {
    /// Listens on the loopback interface.
    ///
    /// # Errors
    ///
    /// If the port is in use.
    pub fn open(arguments: &StubServerArguments) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", arguments.port))
            .with_context(|| format!("port {}", arguments.port))?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let key = "k".repeat(arguments.key_bytes);
        let value = "v".repeat(arguments.value_bytes);
        let hit = format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len());
        let hits = (hit.repeat(arguments.multi) + "END\r\n").into_bytes();
        Ok(Self {
            listener,
            epoll,
            connections: Vec::new(),
            hits,
            value_bytes: arguments.value_bytes + 2,
            core: arguments.core,
            is_stopped: Arc::default(),
        })
    }

    /// The port that the server listens on.
    pub fn port(&self) -> anyhow::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// The flag that ends the server: it returns within a tenth of a second after the flag is set.
    pub fn stopper(&self) -> Arc<AtomicBool> {
        self.is_stopped.clone()
    }

    /// Serves until the flag of [`StubServer::stopper`] is set.
    ///
    /// # Errors
    ///
    /// If a system call on the listener or on epoll fails. A connection that fails is only closed.
    pub fn run(mut self) -> anyhow::Result<()> {
        pin_to(self.core.as_slice(), 0);
        let nap = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut events = Vec::with_capacity(256);
        let (mut buffer, mut answers) = (vec![0; RECEIVE_BYTES], Vec::new());
        while !self.is_stopped.load(Ordering::Relaxed) {
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, Some(&nap)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match { event.data }.u64() {
                    LISTENER => self.accept()?,
                    number => {
                        let number = number as usize;
                        if self.serve(number, &mut buffer, &mut answers).is_err() {
                            self.connections[number] = None;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let free = self.connections.iter().position(Option::is_none);
            let number = free.unwrap_or(self.connections.len());
            if number == self.connections.len() {
                self.connections.push(None);
            }
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            epoll::add(&self.epoll, &stream, EventData::new_u64(number as u64), flags)?;
            let connection = Connection { stream, leftover: Vec::new(), unsent: Vec::new() };
            self.connections[number] = Some(connection);
        }
    }

    /// Answers all whole requests that have arrived. The caller closes the connection on an error.
    fn serve(
        &mut self,
        number: usize,
        buffer: &mut Vec<u8>,
        answers: &mut Vec<u8>,
    ) -> io::Result<()> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        connection.send(&[])?;
        loop {
            let kept = connection.leftover.len();
            if buffer.len() < kept + RECEIVE_BYTES / 2 {
                buffer.resize(kept + RECEIVE_BYTES, 0);
            }
            buffer[..kept].copy_from_slice(&connection.leftover);
            let received = match connection.stream.read(&mut buffer[kept..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let filled = kept + received;
            answers.clear();
            let taken = answer(&buffer[..filled], self.value_bytes, &self.hits, answers);
            connection.leftover.clear();
            connection.leftover.extend_from_slice(&buffer[taken..filled]);
            if connection.leftover.len() > LONGEST_REQUEST_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            connection.send(answers)?;
            if filled < buffer.len() {
                return Ok(());
            }
        }
    }
}

/// Appends the replies to all whole requests in `bytes`; returns the length of those requests.
fn answer(bytes: &[u8], value_bytes: usize, hits: &[u8], answers: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some(end) = memchr(b'\n', &bytes[at..]) {
        let is_get = bytes[at..].starts_with(b"get ");
        let next = at + end + 1 + if is_get { 0 } else { value_bytes };
        if next > bytes.len() {
            break;
        }
        at = next;
        answers.extend_from_slice(if is_get { hits } else { b"STORED\r\n" });
    }
    at
}

impl Connection {
    /// Sends what earlier calls could not send, then `bytes`; keeps what the system does not
    /// accept.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.unsent.is_empty() || bytes.is_empty() {
            self.unsent.extend_from_slice(bytes);
            let sent = send_some(&mut self.stream, &self.unsent)?;
            self.unsent.drain(..sent);
            return Ok(());
        }
        let sent = send_some(&mut self.stream, bytes)?;
        self.unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }
}

fn send_some(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_and_answered() {
        let mut answers = Vec::new();
        let bytes = b"get a b\r\nset k 0 0 4\r\nabcd\r\nget c\r\nset k 0 0 4\r\nab";
        let taken = answer(bytes, 6, b"END\r\n", &mut answers);
        assert_eq!(&bytes[taken..], b"set k 0 0 4\r\nab");
        assert_eq!(answers, b"END\r\nSTORED\r\nEND\r\n");
    }
}
