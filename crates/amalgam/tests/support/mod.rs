//! A server as a process, for tests of the binary.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod chunks;
pub mod etcd;
pub mod hostile;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd::EtcdProcess;

/// How long an answer may take: as long as a machine that does much else may need.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A server process, killed at the end of its test.
pub struct Process {
    pub child: Child,
    pub port: u16,
}

/// The program that is tested.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_amalgam");

/// The program with these arguments.
pub fn command(arguments: &[&str]) -> Command {
    command_of(PROGRAM, arguments)
}

/// A build of the program, perhaps another one than is tested, with these arguments.
pub fn command_of(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("MEMCACHED_PORT_FILENAME");
    command
}

impl Process {
    /// Starts a server, and waits until it listens.
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ").expect("an address");
        let (_, port) = address.rsplit_once(':').expect("a port");
        Self { port: port.parse().expect("a number"), child }
    }

    /// Sends and expects; gives the connection back.
    pub fn talk(&self, sent: &str, expected: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(sent.as_bytes()).expect("sends");
        let mut received = vec![0; expected.len()];
        stream.read_exact(&mut received).expect("answers");
        assert_eq!(String::from_utf8_lossy(&received), expected);
        stream
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cluster or a node as a process that ends with the test.
pub struct Running {
    pub child: Child,
    /// Where nodes listen for nodes, and for memcached's clients.
    pub nodes: Vec<(String, String)>,
    /// The admin address, if it was asked for.
    pub admin: Option<String>,
}

impl Running {
    /// Starts a cluster or a node, and waits until it serves.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(&mut command(arguments))
    }

    pub fn start_with(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let output = child.stdout.take().expect("output");
        let (mut nodes, mut admin) = (Vec::new(), None);
        for line in BufReader::new(output).lines() {
            let line = line.expect("text");
            if let Some((_, rest)) = line.split_once(" at ")
                && let Some((node, clients)) = rest.split_once(", clients at ")
            {
                nodes.push((node.to_owned(), clients.to_owned()));
            }
            if let Some(address) = line.strip_prefix("admin on http://") {
                admin = Some(address.trim_end_matches('/').to_owned());
            }
            if line == "the cluster serves" {
                return Self { child, nodes, admin };
            }
        }
        panic!("it ended: {:?}", child.wait());
    }

    /// What the admin address answers for a path.
    pub fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin.as_ref().expect("one")).expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("runs");
        self.child.wait().expect("ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node with backups, and where it keeps those of others.
pub fn backed_up(etcd: &EtcdProcess, folder: &Path, name: &str) -> Running {
    backed_up_at(PROGRAM, etcd, folder, name, ("127.0.0.1:0", "127.0.0.1:0"))
}

/// The same, of this build of the program, at addresses for nodes and for memcached's clients.
pub fn backed_up_at(
    program: &str,
    etcd: &EtcdProcess,
    folder: &Path,
    name: &str,
    (listen, clients): (&str, &str),
) -> Running {
    std::fs::create_dir_all(folder).expect("a folder");
    let folder = folder.join(name);
    let folder = folder.to_str().expect("text");
    let mut arguments = vec!["cluster", "node", "--etcd", &etcd.endpoint, "--name", name];
    arguments.extend(["--listen", listen, "--clients", clients, "-t", "1"]);
    arguments.extend(["--lease-seconds", "3", "--log-level", "warn", "--engine", "memc3"]);
    arguments.extend(["--admin", "127.0.0.1:0"]);
    arguments.extend(["--backups", "3", "--backup-dir", folder, "--backup-space", "256M"]);
    let complaints = File::options().create(true).append(true).open(format!("{folder}.log"));
    Running::start_with(command_of(program, &arguments).stderr(complaints.expect("a file")))
}

/// Sends requests and reads as many bytes as are expected; fewer if the connection ends.
pub fn talk(address: &str, sent: &str, expected: &str) -> String {
    try_talk(address, sent, expected).expect("it listens")
}

/// The same; an error if nobody listens.
pub fn try_talk(address: &str, sent: &str, expected: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(sent.as_bytes())?;
    let mut answer = vec![0; expected.len()];
    let mut filled = 0;
    while filled < answer.len() {
        match stream.read(&mut answer[filled..]) {
            Ok(0) | Err(_) => break,
            Ok(count) => filled += count,
        }
    }
    Ok(String::from_utf8_lossy(&answer[..filled]).into_owned())
}

/// Sends requests until they are answered as expected. Any other answer than an error is wrong at
/// once; an error is none of a busy machine, on which an operation may exceed its second.
pub fn expect(address: &str, sent: &str, expected: &str) {
    let begin = Instant::now();
    let mut answer = talk(address, sent, expected);
    while answer.contains("SERVER_E") && begin.elapsed() < 2 * PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
        answer = talk(address, sent, expected);
    }
    // With the reason, if it is an error.
    let whole = if answer == expected { answer } else { talk(address, sent, &" ".repeat(200)) };
    assert_eq!(whole, expected, "{sent:?} at {address}");
}

/// A path of this process's own.
pub fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("amalgam-{name}-{}", std::process::id()))
}

/// Arguments of a server on a port that the system chooses.
pub const ANY_PORT: &[&str] = &["serve", "-u", "root", "-l", "127.0.0.1", "-p", "0"];
