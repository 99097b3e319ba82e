//! Servers on the loopback address, on ports that the system chooses, ended by process id.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The memcached that is installed, or the one that `AMALGAM_MEMCACHED` names.
pub fn memcached() -> Server {
    let program = std::env::var_os("AMALGAM_MEMCACHED").unwrap_or("memcached".into());
    let mut command = Command::new(program);
    command.args(["-u", "root", "-l", "127.0.0.1", "-p", "-1", "-U", "0", "-m", "256"]);
    // No threads in the background: while they hold an item, arithmetic drops a number's padding.
    command.args(["-o", "no_modern"]);
    start(command, "memcached is not installed; `make setup` installs it")
}

/// The server under test, with this engine, the one that `AMALGAM_ENGINE` names, or its own choice.
pub fn amalgam(engine: Option<&str>) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amalgam"));
    command.args(["serve", "-u", "root", "-l", "127.0.0.1", "-p", "-1", "-m", "256", "-t", "2"]);
    let named = std::env::var_os("AMALGAM_ENGINE");
    if let Some(engine) = engine.map(OsString::from).or(named) {
        command.arg("--engine").arg(engine);
    }
    start(command, "cargo builds it")
}

fn start(mut command: Command, hint: &str) -> Server {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("amalgam-differential-{}-{number}", std::process::id());
    let file: PathBuf = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&file);
    let child = command
        .env("MEMCACHED_PORT_FILENAME", &file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} does not start ({error}): {hint}"));
    let mut server = Server { child, port: 0 };
    let start = Instant::now();
    while server.port == 0 {
        assert!(start.elapsed() < PATIENCE, "{command:?} names no port");
        if let Ok(Some(status)) = server.child.try_wait() {
            panic!("{command:?} ended: {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("TCP INET: "));
        server.port = line.and_then(|port| port.trim().parse().ok()).unwrap_or(0);
    }
    let _ = std::fs::remove_file(&file);
    server
}

/// The answer of a server.
pub struct Answer {
    /// The bytes, without the answer of the mark that ended them.
    pub bytes: Vec<u8>,
    /// Whether the server closed the connection, or waits for more.
    pub is_closed: bool,
}

/// Stands at the end of an answer to which more was to come.
pub const WAITS: &str = "(waits for more)";

/// Sent behind the commands; its answer shows that theirs are complete.
const MARK: &[u8] = b"mn\r\n";
const MARK_ANSWER: &[u8] = b"MN\r\n";

/// The same in packets: a no-op, told by its opaque.
const BINARY_MARK: &[u8] = b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0";
const BINARY_MARK_ANSWER: &[u8] = b"\x81\x0a\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0";

/// A connection to a server.
pub struct Connection {
    stream: TcpStream,
    /// Where answers are received.
    buffer: Vec<u8>,
}

impl Server {
    /// The version that it tells, as numbers.
    pub fn version(&self) -> Vec<u32> {
        let answer = self.connect().exchange(b"version\r\n").bytes;
        let text = String::from_utf8_lossy(&answer);
        let number = text.trim().strip_prefix("VERSION ").unwrap_or_default();
        number.split('.').map(|part| part.parse().unwrap_or(0)).collect()
    }

    /// Uses up the smallest CAS ids, which the commands give themselves.
    pub fn use_ids(&self) {
        let commands = b"ms unused 1 c\r\n1\r\n".repeat(16);
        self.connect().exchange(&commands);
    }

    /// Opens a connection.
    pub fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server accepts");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_read_timeout(Some(PATIENCE / 4)).expect("an option of sockets");
        Connection { stream, buffer: vec![0; 1 << 16] }
    }
}

impl Connection {
    /// Sends `commands` and reads until they are answered, or the server closes.
    pub fn exchange(&mut self, commands: &[u8]) -> Answer {
        let mark_answer = self.send(commands.to_vec(), 0);
        self.receive(mark_answer)
    }

    /// Sends `commands` and a mark behind them, in two parts if `cut` is not 0; the mark's answer.
    pub fn send(&mut self, mut commands: Vec<u8>, cut: usize) -> &'static [u8] {
        let (mark, mark_answer) = match commands.first() {
            Some(0x80) => (BINARY_MARK, BINARY_MARK_ANSWER),
            _ => (MARK, MARK_ANSWER),
        };
        commands.extend_from_slice(mark);
        // A server that closes early may refuse the rest; what it said before counts.
        for part in [&commands[..cut], &commands[cut..]] {
            let _ = self.stream.write_all(part);
        }
        mark_answer
    }

    /// Reads up to the mark's answer, or until the server closes.
    pub fn receive(&mut self, mark_answer: &[u8]) -> Answer {
        let mut bytes = Vec::new();
        loop {
            if let Some(rest) = bytes.strip_suffix(mark_answer) {
                return Answer { bytes: rest.to_vec(), is_closed: false };
            }
            match self.stream.read(&mut self.buffer) {
                Ok(count) if count > 0 => bytes.extend_from_slice(&self.buffer[..count]),
                // Stopped and continued meanwhile.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => {
                    bytes.extend_from_slice(WAITS.as_bytes());
                    return Answer { bytes, is_closed: true };
                }
                Ok(_) | Err(_) => {
                    let _ = self.stream.shutdown(Shutdown::Both);
                    return Answer { bytes, is_closed: true };
                }
            }
        }
    }
}
