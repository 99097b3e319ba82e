//! One client thread: its connections and the loop over them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{Timespec, epoll as event};

use crate::client::answers::{Answers, Reader};
use crate::client::script::{FRAME_BYTES, Script};
use crate::measure::thread_cpu_ns;

/// The size of a receive buffer; a longer reply arrives in pieces.
const RECEIVE_BYTES: usize = 256 << 10;
/// The most events taken from epoll in one call.
const EVENTS: usize = 256;
/// A batch of datagrams that is not answered after this time is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(200);
/// How long the client waits for outstanding replies before it gives the server up.
const LONGEST_DRAIN: Duration = Duration::from_secs(10);
/// The upper end of the latency histogram in nanoseconds; longer latencies count as this one.
const LONGEST_NS: u64 = 100_000_000_000;

/// The phase of a round, which all client threads read.
pub struct Phase(AtomicU8);

impl Phase {
    /// Requests are sent but not counted.
    pub const WARM_UP: u8 = 0;
    /// Requests are sent and counted.
    pub const MEASURE: u8 = 1;
    /// No more requests are sent; connections are drained and closed.
    pub const STOP: u8 = 2;

    /// A phase that starts with [`Phase::WARM_UP`].
    pub fn new() -> Self {
        Self(AtomicU8::new(Self::WARM_UP))
    }

    /// Moves all threads on to `phase`.
    pub fn set(&self, phase: u8) {
        self.0.store(phase, Ordering::Release);
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }
}

/// What a thread counted during [`Phase::MEASURE`].
pub struct Tally {
    /// Counts of replies, hits and errors.
    pub answers: Answers,
    /// Keys in the gets that were answered.
    pub asked: u64,
    /// Sets that were answered.
    pub sets: u64,
    /// The times from the sending of a batch to each reply, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// CPU time of this thread in nanoseconds; after a merge, of the busiest thread.
    pub cpu_ns: u64,
    /// The length of the measured phase in seconds.
    pub seconds: f64,
    /// Datagrams that were sent again.
    pub resent: u64,
}

impl Tally {
    /// An empty tally.
    pub fn new() -> Self {
        Self {
            answers: Answers::default(),
            asked: 0,
            sets: 0,
            latencies: Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds"),
            cpu_ns: 0,
            seconds: 0.0,
            resent: 0,
        }
    }

    /// Adds the tally of another thread.
    pub fn merge(&mut self, other: &Self) {
        self.answers.requests += other.answers.requests;
        self.answers.hits += other.answers.hits;
        self.answers.errors += other.answers.errors;
        self.asked += other.asked;
        self.sets += other.sets;
        // Cannot fail: the bounds are the same.
        let _ = self.latencies.add(&other.latencies);
        self.cpu_ns = self.cpu_ns.max(other.cpu_ns);
        self.seconds = self.seconds.max(other.seconds);
        self.resent += other.resent;
    }
}

enum Socket {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

impl Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stream(stream) => stream.as_fd(),
            Self::Datagrams(socket) => socket.as_fd(),
        }
    }
}

struct Connection {
    socket: Socket,
    /// The index in the script of the next request to send.
    next: usize,
    /// The index of the first request of the batch, and the number of those in flight.
    first: usize,
    in_flight: usize,
    sent_at: Instant,
    /// The number of bytes of the batch that could not be sent yet.
    unsent: usize,
    /// The received start of a reply whose end has not arrived.
    leftover: Vec<u8>,
    /// Keys found so far by the reply that is not complete yet.
    begun_hits: u64,
    /// Which datagrams of the batch were answered, by position.
    answered: Vec<bool>,
}

/// A thread's connections to one server.
pub struct Connections<'s> {
    script: &'s Script,
    reader: Reader,
    depth: usize,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    tally: Tally,
    is_counting: bool,
    is_ending: bool,
}

impl<'s> Connections<'s> {
    /// Opens this thread's connections to the server.
    ///
    /// # Errors
    ///
    /// If the server refuses a connection or the process runs out of file descriptors.
    pub fn open(
        script: &'s Script,
        reader: Reader,
        depth: usize,
        address: SocketAddr,
        is_udp: bool,
        count: usize,
    ) -> anyhow::Result<Self> {
        let epoll = event::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let mut connections = Vec::with_capacity(count);
        for number in 0..count {
            let socket = connect(address, is_udp)
                .with_context(|| format!("connection {number} to {address}"))?;
            // Edge-triggered: a short read or write means that there is nothing more to do now.
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            epoll::add(&epoll, socket.as_fd(), EventData::new_u64(number as u64), flags)?;
            connections.push(Connection {
                socket,
                next: number * script.count() / count,
                first: 0,
                in_flight: 0,
                sent_at: Instant::now(),
                unsent: 0,
                leftover: Vec::new(),
                begun_hits: 0,
                answered: vec![false; depth],
            });
        }
        let buffer = vec![0; RECEIVE_BYTES];
        let tally = Tally::new();
        Ok(Self {
            script,
            reader,
            depth,
            epoll,
            connections,
            buffer,
            tally,
            is_counting: false,
            is_ending: false,
        })
    }

    /// Sends requests and counts replies until the phase is [`Phase::STOP`].
    ///
    /// # Errors
    ///
    /// If a connection ends, or a reply is malformed or does not arrive in time.
    pub fn run(mut self, phase: &Phase) -> anyhow::Result<Tally> {
        for number in 0..self.connections.len() {
            self.send_batch(number)?;
        }
        let mut events = Vec::with_capacity(EVENTS);
        let (mut started, mut cpu) = (Instant::now(), thread_cpu_ns());
        loop {
            match phase.get() {
                Phase::MEASURE if !self.is_counting => {
                    self.is_counting = true;
                    (started, cpu) = (Instant::now(), thread_cpu_ns());
                }
                Phase::STOP => break,
                _ => {}
            }
            self.serve_events(&mut events)?;
        }
        self.tally.cpu_ns = thread_cpu_ns() - cpu;
        self.tally.seconds = started.elapsed().as_secs_f64();
        self.is_counting = false;
        self.drain(&mut events)?;
        Ok(self.tally)
    }

    /// Waits for the outstanding replies. Without this a server could execute requests that it had
    /// received after the connection closed: during another target's turn, over newer values.
    fn drain(&mut self, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
        self.is_ending = true;
        let end = Instant::now() + LONGEST_DRAIN;
        while self.connections.iter().any(|connection| connection.in_flight > 0) {
            anyhow::ensure!(Instant::now() < end, "the server sent no reply for {LONGEST_DRAIN:?}");
            self.serve_events(events)?;
        }
        Ok(())
    }

    fn serve_events(&mut self, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
        let nap = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.iter() {
            let number = { event.data }.u64() as usize;
            self.serve(number, event.flags)?;
        }
        if events.is_empty() {
            self.resend_lost()?;
        }
        Ok(())
    }

    fn serve(&mut self, number: usize, flags: EventFlags) -> anyhow::Result<()> {
        if flags.contains(EventFlags::OUT) && self.connections[number].unsent > 0 {
            self.send_rest(number)?;
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            match self.connections[number].socket {
                Socket::Stream(_) => self.receive(number)?,
                Socket::Datagrams(_) => self.receive_datagrams(number)?,
            }
        }
        Ok(())
    }

    /// Sends a connection's next requests, unless it is time to end.
    fn send_batch(&mut self, number: usize) -> anyhow::Result<()> {
        if self.is_ending {
            return Ok(());
        }
        let connection = &mut self.connections[number];
        if connection.next + self.depth > self.script.count() {
            connection.next = 0;
        }
        connection.first = connection.next;
        connection.next += self.depth;
        connection.in_flight = self.depth;
        connection.unsent = self.script.slice(connection.first, self.depth).len();
        connection.answered.fill(false);
        connection.sent_at = Instant::now();
        self.send_rest(number)
    }

    fn send_rest(&mut self, number: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[number];
        let batch = self.script.slice(connection.first, self.depth);
        match &mut connection.socket {
            Socket::Stream(stream) => {
                while connection.unsent > 0 {
                    match stream.write(&batch[batch.len() - connection.unsent..]) {
                        Ok(sent) => connection.unsent -= sent,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => {
                            return Err(error).context("the server closed the connection");
                        }
                    }
                }
            }
            Socket::Datagrams(socket) => {
                for place in (0..self.depth).filter(|place| !connection.answered[*place]) {
                    // A datagram that the system does not accept now is treated as lost and sent
                    // again later.
                    match socket.send(self.script.slice(connection.first + place, 1)) {
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error).context("nobody listens"),
                    }
                }
                connection.unsent = 0;
            }
        }
        Ok(())
    }

    fn receive(&mut self, number: usize) -> anyhow::Result<()> {
        loop {
            let connection = &mut self.connections[number];
            let Socket::Stream(stream) = &mut connection.socket else { return Ok(()) };
            let kept = connection.leftover.len();
            if self.buffer.len() < kept + RECEIVE_BYTES / 2 {
                self.buffer.resize(kept + RECEIVE_BYTES, 0);
            }
            self.buffer[..kept].copy_from_slice(&connection.leftover);
            let received = match stream.read(&mut self.buffer[kept..]) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let filled = kept + received;
            let is_drained = filled < self.buffer.len();
            let begun_hits = connection.begun_hits;
            let mut answers = Answers { begun_hits, ..Answers::default() };
            let taken = self.reader.read(&self.buffer[..filled], &mut answers)?;
            connection.leftover.clear();
            connection.leftover.extend_from_slice(&self.buffer[taken..filled]);
            self.count(number, &answers)?;
            if self.connections[number].in_flight == 0 {
                self.send_batch(number)?;
            }
            if is_drained {
                return Ok(());
            }
        }
    }

    fn receive_datagrams(&mut self, number: usize) -> anyhow::Result<()> {
        loop {
            let connection = &mut self.connections[number];
            let Socket::Datagrams(socket) = &connection.socket else { return Ok(()) };
            let received = match socket.recv(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("nobody listens"),
            };
            let datagram = &self.buffer[..received];
            anyhow::ensure!(received > FRAME_BYTES, "a datagram of {received} bytes");
            let id = u16::from_be_bytes([datagram[0], datagram[1]]);
            // A reply may arrive after its request was sent again: the second one is ignored.
            let place = usize::from(id.wrapping_sub(connection.first as u16));
            if place >= self.depth || connection.in_flight == 0 || connection.answered[place] {
                continue;
            }
            connection.answered[place] = true;
            let mut answers = Answers::default();
            self.reader.read(datagram, &mut answers)?;
            self.count(number, &answers)?;
            if self.connections[number].in_flight == 0 {
                self.send_batch(number)?;
            }
        }
    }

    /// Counts replies. Over a stream they arrive in order. Over datagrams any order will do,
    /// because every request has at most one key.
    fn count(&mut self, number: usize, answers: &Answers) -> anyhow::Result<()> {
        let connection = &mut self.connections[number];
        let completed = answers.requests as usize;
        anyhow::ensure!(completed <= connection.in_flight, "more answers than requests");
        let from = connection.first + self.depth - connection.in_flight;
        connection.in_flight -= completed;
        connection.begun_hits = answers.begun_hits;
        if !self.is_counting {
            return Ok(());
        }
        self.tally.answers.requests += answers.requests;
        self.tally.answers.hits += answers.hits;
        self.tally.answers.errors += answers.errors;
        if completed > 0 {
            for request in from..from + completed {
                let keys = self.script.keys(request);
                self.tally.asked += keys;
                self.tally.sets += u64::from(keys == 0);
            }
            let waited = connection.sent_at.elapsed().as_nanos() as u64;
            // Cannot fail: the latency is clamped to the histogram's bounds.
            let _ = self.tally.latencies.record_n(waited.clamp(1, LONGEST_NS), completed as u64);
        }
        Ok(())
    }

    /// Sends the unanswered datagrams again of batches older than [`RESEND_AFTER`].
    fn resend_lost(&mut self) -> anyhow::Result<()> {
        for number in 0..self.connections.len() {
            let connection = &mut self.connections[number];
            let is_udp = matches!(connection.socket, Socket::Datagrams(_));
            if is_udp && connection.sent_at.elapsed() > RESEND_AFTER {
                self.tally.resent += connection.in_flight as u64;
                self.send_rest(number)?;
            }
        }
        Ok(())
    }
}

fn connect(address: SocketAddr, is_udp: bool) -> io::Result<Socket> {
    if is_udp {
        let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(local)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        return Ok(Socket::Datagrams(socket));
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Socket::Stream(stream))
}
