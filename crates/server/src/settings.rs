//! What a server is started with.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::tls::{Security, TlsSettings};

/// The wire protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WireProtocol {
    /// Told by the first byte that a client sends.
    #[default]
    Negotiated,
    /// Text and meta commands.
    Text,
    /// The binary protocol.
    Binary,
}

/// Where to listen for TCP.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    /// The address; port 0 lets the system choose.
    pub address: SocketAddr,
    /// How connections to it are secured.
    pub security: Security,
}

impl From<SocketAddr> for Listening {
    fn from(address: SocketAddr) -> Self {
        Self { address, security: Security::default() }
    }
}

/// Settings of a server, checked by whoever builds them, fixed from then on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen for TCP.
    pub listen: Vec<Listening>,
    /// Where to listen for UDP.
    pub listen_udp: Vec<SocketAddr>,
    /// Certificates, where connections over TCP are to be secured.
    pub tls: Option<TlsSettings>,
    /// A unix socket to listen on.
    pub unix_socket: Option<PathBuf>,
    /// Permissions of the unix socket.
    pub unix_mode: u32,
    /// Where to answer the operator over HTTP (metrics, health). It has no authentication.
    pub admin: Option<SocketAddr>,
    /// Worker threads.
    pub threads: usize,
    /// Bounds items, index and buffers together, in bytes.
    pub memory_bytes: usize,
    /// Whether a full cache evicts or refuses.
    pub evicts: bool,
    /// Connections at once.
    pub max_connections: usize,
    /// Refuse connections above the limit with an answer (or leave them waiting in the backlog).
    pub refuses_fast: bool,
    /// The largest item in bytes.
    pub max_item_bytes: usize,
    /// Requests of one connection that run before others have their turn; none leaves it to the
    /// bytes that one read brings.
    pub requests_per_turn: Option<usize>,
    /// Bytes for what connections receive and are answered, over all threads; none leaves it to the
    /// memory limit.
    pub buffer_bytes: Option<usize>,
    /// The queue of connections that wait to be accepted.
    pub backlog: u32,
    /// Close connections that sent nothing for so long; 0 for never.
    pub idle_timeout_seconds: u32,
    /// How connections speak.
    pub protocol: WireProtocol,
    /// A file of `user:password` lines: connections must then authenticate, in the way of their
    /// protocol, which must not be negotiated.
    pub users_file: Option<PathBuf>,
    /// Whether items have CAS ids.
    pub hands_out_cas: bool,
    /// Whether the `shutdown` command is obeyed.
    pub allows_shutdown: bool,
    /// Whether the `flush_all` command is obeyed.
    pub allows_flush: bool,
    /// Whether keys may be listed (cachedump, metadump).
    pub allows_dump: bool,
    /// Whether clients may watch the log.
    pub allows_watch: bool,
    /// How much is logged, 0 to 3.
    pub verbosity: u8,
    /// What ends the prefix of a key, for `stats detail`.
    pub prefix_delimiter: u8,
    /// Whether `stats detail` counts from the start.
    pub counts_prefixes: bool,
    /// memcached's tunables that mean nothing here: names as in `stats settings`, and values.
    pub knobs: Vec<(String, String)>,
    /// Where items wait for the next start, after an end that was asked for gracefully.
    pub memory_file: Option<PathBuf>,
    /// Whether the commands that a test harness needs are obeyed (`debugtime`).
    pub is_under_test: bool,
    /// Pin worker `i` to CPU `i` of those that the process may use.
    pub pins_threads: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([0, 0, 0, 0], 11211)).into()],
            listen_udp: Vec::new(),
            tls: None,
            unix_socket: None,
            unix_mode: 0o700,
            admin: None,
            threads: 4,
            memory_bytes: 64 << 20,
            evicts: true,
            max_connections: 1024,
            refuses_fast: true,
            max_item_bytes: 1 << 20,
            requests_per_turn: None,
            buffer_bytes: None,
            backlog: 1024,
            idle_timeout_seconds: 0,
            protocol: WireProtocol::Negotiated,
            users_file: None,
            hands_out_cas: true,
            allows_shutdown: false,
            allows_flush: true,
            allows_dump: true,
            allows_watch: true,
            verbosity: 0,
            prefix_delimiter: b':',
            counts_prefixes: false,
            knobs: Vec::new(),
            memory_file: None,
            is_under_test: false,
            pins_threads: false,
        }
    }
}
