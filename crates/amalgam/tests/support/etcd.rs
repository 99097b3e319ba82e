//! etcd as a process of a test.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// etcd with its data in a folder of its own.
pub struct EtcdProcess {
    pub child: Child,
    /// Its URL for clients.
    pub endpoint: String,
    folder: PathBuf,
}

/// A port that nobody listens at, given once in this process. It lies below the ports that the
/// system gives to connections and to other tests: one of them could have it before etcd does, and
/// a test would then talk to another's etcd.
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let mut ports = (0..COUNT).map(|_| {
        let number = GIVEN.fetch_add(1, Ordering::Relaxed);
        (FIRST + (std::process::id() * 64 + number) % COUNT) as u16
    });
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port")
}

impl EtcdProcess {
    /// None on machines without it.
    pub fn start() -> Option<Self> {
        Self::start_with(None)
    }

    /// As [`EtcdProcess::start`]; it also listens on a port for https, with the certificate and key
    /// in a file.
    pub fn start_with(secured: Option<(u16, &Path)>) -> Option<Self> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let port = free_port();
        let (endpoint, peers) = (url(port), url(free_port()));
        let mut clients = endpoint.clone();
        // Of its own: one that finds another's folder waits until that ends.
        let folder = format!("amalgam-etcd-{port}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let mut command = Command::new("etcd");
        if let Some((port, certificate)) = secured {
            clients += &format!(",https://127.0.0.1:{port}");
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(certificate);
        }
        let child = command
            .args(["--name", "one", "--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients, "--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("one={peers}"), "--log-level", "error"])
            .arg("--data-dir")
            .arg(&folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut etcd = Self { child, endpoint, folder };
        let begin = Instant::now();
        while !etcd.is_healthy().unwrap_or(false) {
            let ended = etcd.child.try_wait().expect("its child");
            assert!(ended.is_none(), "etcd ended at once: {ended:?}");
            assert!(begin.elapsed() < PATIENCE, "etcd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(etcd)
    }

    /// Whether it has a leader and serves requests. It listens long before, and may reset what
    /// connects meanwhile.
    fn is_healthy(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains(r#""health":"true""#))
    }

    /// The host and port of its URL.
    pub fn address(&self) -> &str {
        self.endpoint.trim_start_matches("http://")
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        // It may have ended by itself, and the folder with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
