//! How servers shut down.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use amalgam_index::maintenance::Signal;
use amalgam_index::mem::ItemRef;
use amalgam_index::model::Model;
use amalgam_index::{Configuration, Cursor, Engine, OpenError, Sink, Statistics, Store, Worker};
use amalgam_op::{HashSeed, ItemView, Key, Now, Op, Outcome};
use amalgam_server::{Server, Settings};
use support::{Client, PATIENCE, Running, settings};

#[test]
fn requests_that_have_arrived_are_answered_before_the_end() {
    let server = Running::start(settings(2));
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    }
    for client in &mut clients {
        client.send("get a\r\n");
    }
    server.stopper.stop();
    for client in &mut clients {
        assert_eq!(client.rest(), b"VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    server.join();
}

#[test]
fn shutdown_stops_the_server_if_it_is_allowed() {
    let server = Running::start(Settings { allows_shutdown: true, ..settings(2) });
    let mut other = server.connect();
    other.talk("mn\r\n", "MN\r\n");
    let mut client = server.connect();
    client.talk("shutdown nonsense\r\n", "CLIENT_ERROR invalid shutdown mode\r\n");
    client.send("shutdown\r\n");
    assert_eq!(client.rest(), b"");
    assert_eq!(other.rest(), b"");
    server.join();
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    let path = std::env::temp_dir().join(format!("amalgam-socket-{}", std::process::id()));
    let server = Running::start(Settings {
        unix_socket: Some(path.clone()),
        unix_mode: 0o600,
        ..settings(1)
    });
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = Client(UnixStream::connect(&path).unwrap());
    client.talk("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    server.stopper.stop();
    server.join();
    assert!(!path.exists());
}

/// The model engine, whose workers panic when they read a certain key.
struct Fragile(Model);

struct FragileWorker<'i>(<Model as Store>::Worker<'i>);

impl Store for Fragile {
    const NAME: &'static str = "fragile";
    type Worker<'i> = FragileWorker<'i>;

    fn worker(&self) -> FragileWorker<'_> {
        FragileWorker(self.0.worker())
    }

    fn seed(&self) -> &HashSeed {
        self.0.seed()
    }

    fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.0.set_memory_limit(bytes);
    }
}

impl Engine for Fragile {
    fn open(configuration: &Configuration) -> Result<Self, OpenError> {
        Model::open(configuration).map(Self)
    }

    fn maintenance_signal(&self) -> &Signal {
        self.0.maintenance_signal()
    }

    fn maintain(worker: &mut FragileWorker<'_>, now: &Now) -> bool {
        Model::maintain(&mut worker.0, now)
    }

    fn compare_exchange_item(
        worker: &mut FragileWorker<'_>,
        hash: u64,
        old: ItemRef,
        new: Option<ItemRef>,
    ) -> bool {
        Model::compare_exchange_item(&mut worker.0, hash, old, new)
    }
}

impl Worker for FragileWorker<'_> {
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        assert!(keys.iter().all(|key| key.bytes() != b"boom"), "a panic on purpose");
        self.0.get_batch(keys, now, sink)
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        self.0.apply(op, now, sink)
    }

    fn prefetch(&self, key: &Key<'_>) {
        self.0.prefetch(key);
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        self.0.scan(from, budget, visit)
    }

    fn quiesce(&mut self) {
        self.0.quiesce();
    }
}

#[test]
fn a_worker_that_panics_ends_the_server_with_an_error() {
    let configuration = Configuration::default();
    let server = Server::<Fragile>::open(settings(3), configuration).unwrap();
    let port = server.tcp_port().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(server.run()));
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"get boom\r\n").unwrap();
    let result = receiver.recv_timeout(PATIENCE).expect("the server ends");
    let error = result.expect_err("a panic is an error").to_string();
    assert!(error.starts_with("thread 'worker ") && error.ends_with("' panicked"), "{error}");
    thread.join().unwrap().unwrap();
}
