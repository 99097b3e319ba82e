//! etcd as a process of a test.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{PATIENCE, temporary};

/// etcd with its data in a folder of its own.
pub struct EtcdProcess {
    pub child: Child,
    pub endpoint: String,
    folder: PathBuf,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port").port()
}

impl EtcdProcess {
    /// None on machines without it.
    pub fn start() -> Option<Self> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let port = free_port();
        let (clients, peers) = (url(port), url(free_port()));
        // Of its own: one that finds another's folder waits until that ends.
        let folder = temporary(&format!("etcd-{port}"));
        let child = Command::new("etcd")
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
        let etcd = Self { child, endpoint: clients, folder };
        let begin = Instant::now();
        let address = etcd.endpoint.trim_start_matches("http://").to_owned();
        while TcpStream::connect(&address).is_err() {
            assert!(begin.elapsed() < PATIENCE, "etcd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(etcd)
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
