//! A server in this process, and its clients.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_index::model::Model;
use amalgam_index::{Configuration, Engine, Store};
use amalgam_server::{Server, ServerError, Settings, Stopper};

/// Longer than any step of a test takes, so that a hang becomes a failure.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running server that is stopped when dropped.
pub struct Running {
    pub port: u16,
    /// The addresses that it listens on, in the order of the settings.
    pub addresses: Vec<String>,
    pub udp_port: u16,
    pub admin: Option<SocketAddr>,
    pub stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

/// Settings for a server on a free port of the loopback interface.
pub fn settings(threads: usize) -> Settings {
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
    Settings { listen, threads, ..Settings::default() }
}

impl Running {
    pub fn start(settings: Settings) -> Self {
        Self::start_with::<Model>(settings)
    }

    /// Starts a server with an engine, which gets the memory limit of the settings.
    pub fn start_with<I: Engine>(settings: Settings) -> Self {
        let configuration =
            Configuration { memory_bytes: settings.memory_bytes, ..Configuration::default() };
        Self::of(Server::<I>::open(settings, configuration).expect("starts"))
    }

    /// Runs an opened server.
    pub fn of<I: Store>(server: Server<I>) -> Self {
        let stopper = server.stopper().expect("a descriptor");
        let addresses = server.addresses();
        let port = server.tcp_port().unwrap_or(0);
        let udp_port = server.udp_port().unwrap_or(0);
        let admin = server.admin_address();
        let thread = Some(std::thread::spawn(|| server.run()));
        Self { port, addresses, udp_port, admin, stopper, thread }
    }

    pub fn connect(&self) -> Client<TcpStream> {
        Client(self.stream(0))
    }

    /// A connection to the address at this position in the settings.
    pub fn stream(&self, position: usize) -> TcpStream {
        let stream = TcpStream::connect(&self.addresses[position]).expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        stream
    }

    /// Waits until the server has stopped by itself.
    pub fn join(mut self) {
        self.thread.take().expect("runs").join().expect("no panic").expect("a clean end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().expect("no panic").expect("a clean end");
        }
    }
}

/// The client's end of a connection.
pub struct Client<S>(pub S);

impl<S: Read + Write> Client<S> {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("sends");
    }

    /// Reads as many bytes as `expected` has, and compares.
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut received = vec![0; expected.len()];
        let mut filled = 0;
        while filled < received.len() {
            match self.0.read(&mut received[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) => panic!(
                    "{error} after {:?} instead of {:?}",
                    String::from_utf8_lossy(&received[..filled.min(500)]),
                    String::from_utf8_lossy(&expected[..expected.len().min(500)])
                ),
            }
            let (got, wanted) = (&received[..filled], &expected[..filled]);
            assert!(
                got == wanted,
                "got {:?} instead of {:?}",
                String::from_utf8_lossy(&got[..filled.min(500)]),
                String::from_utf8_lossy(&expected[..expected.len().min(500)])
            );
        }
        assert_eq!(filled, expected.len(), "the server closed");
    }

    pub fn talk(&mut self, sent: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        self.send(sent);
        self.expect(expected);
    }

    /// Reads up to the end of the stream.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return bytes,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                // The server closed while bytes of the client were still on their way.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return bytes,
                Err(error) => panic!("{error} instead of an end"),
            }
        }
    }

    /// The received text up to and including `end`.
    pub fn until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(end.as_bytes()) {
            self.0.read_exact(&mut byte).expect("an end");
            text.push(byte[0]);
        }
        String::from_utf8(text).expect("text")
    }

    /// The value of a statistic.
    pub fn stat(&mut self, name: &str) -> String {
        self.stat_of("stats", name)
    }

    /// The value of a statistic in the answer to this command.
    pub fn stat_of(&mut self, command: &str, name: &str) -> String {
        self.send(format!("{command}\r\n"));
        let text = self.until("END\r\n");
        let start = format!("STAT {name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The amount of work of a test: `AMALGAM_EFFORT`, or 1 by default.
pub fn effort() -> usize {
    std::env::var("AMALGAM_EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Raises the limit of open files to its maximum, and returns that.
pub fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, most).expect("up to the maximum is always allowed");
    limit.maximum.unwrap_or(u64::MAX)
}
