//! The settings of a server. [`Settings::default`] has their default values; what the command line
//! leaves out is taken from there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use amalgam_index::Eviction;
use amalgam_protocol::Protocol;
use amalgam_tls::{Security, TlsSettings};

/// The wire protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WireProtocol {
    /// Detected from the first byte that a client sends.
    #[default]
    Negotiated,
    /// Text and meta commands.
    Text,
    /// The binary protocol.
    Binary,
}

impl WireProtocol {
    /// The protocol; None if the first byte of each connection tells it.
    pub fn fixed(self) -> Option<Protocol> {
        match self {
            Self::Negotiated => None,
            Self::Text => Some(Protocol::Text),
            Self::Binary => Some(Protocol::Binary),
        }
    }
}

/// An address to listen on for TCP.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddress {
    /// The address; port 0 lets the system choose.
    pub address: SocketAddr,
    /// How connections to it are secured.
    pub security: Security,
    /// The wire protocol of its connections; None for that of the server.
    pub protocol: Option<WireProtocol>,
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self { address, security: Security::default(), protocol: None }
    }
}

/// All addresses of both families. IPv6's is left out where the system has none.
pub const ALL_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// The settings of a server. The caller has validated them; they are fixed after start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// TCP addresses to listen on.
    pub listen: Vec<ListenAddress>,
    /// UDP addresses to listen on.
    pub listen_udp: Vec<SocketAddr>,
    /// Certificates for TLS over TCP; None for plain connections.
    pub tls: Option<TlsSettings>,
    /// A unix socket to listen on, in place of TCP.
    pub unix_socket: Option<PathBuf>,
    /// Permissions of the unix socket.
    pub unix_mode: u32,
    /// The admin address: metrics, health and the live page over HTTP.
    pub admin: Option<SocketAddr>,
    /// A file of `user:password` lines; who asks the admin address for more than its health must be
    /// one of these users. None if everybody may.
    pub admin_users_file: Option<PathBuf>,
    /// Certificates for TLS at the admin address, whose clients are not asked for their own; None
    /// for plaintext.
    pub admin_tls: Option<TlsSettings>,
    /// Worker threads.
    pub threads: usize,
    /// The limit of items, index and buffers together, in bytes.
    pub memory_bytes: usize,
    /// Whether a full cache evicts items; otherwise it refuses stores.
    pub evicts: bool,
    /// How the victims of eviction are chosen, at first if `chooses_eviction`.
    pub eviction: Eviction,
    /// Whether the policy of eviction follows the load. Requires: `estimates_misses`.
    pub chooses_eviction: bool,
    /// Whether the miss ratio with other memory sizes is estimated.
    pub estimates_misses: bool,
    /// Open connections, at most.
    pub max_connections: usize,
    /// Whether connections above the limit are refused with an error; otherwise they wait in the
    /// backlog.
    pub refuses_fast: bool,
    /// The largest item in bytes.
    pub max_item_bytes: usize,
    /// Requests of one connection in one batch, at most; None for as many as one read brings.
    pub requests_per_batch: Option<usize>,
    /// Bytes for all connections' buffers; None for a quarter of the memory limit. In either case
    /// at least 8 MiB and two of the largest items.
    pub buffer_bytes: Option<usize>,
    /// The length of the queue of connections that wait to be accepted.
    pub backlog: u32,
    /// Seconds without a request after which a connection is closed; 0 for never.
    pub idle_timeout_seconds: u32,
    /// Seconds without progress after which a connection with unsent answers is closed; 0 for
    /// never.
    pub send_timeout_seconds: u32,
    /// The wire protocol of connections whose listener has none of its own.
    pub protocol: WireProtocol,
    /// The mark (`SO_MARK`) of the sockets that listen, for filters of packets; None for none.
    pub socket_mark: Option<u32>,
    /// A file of `user:password` lines; None if clients need not authenticate. Requires that no
    /// protocol is negotiated, because each authenticates in its own way.
    pub users_file: Option<PathBuf>,
    /// Whether items get CAS ids.
    pub hands_out_cas: bool,
    /// Whether the `shutdown` command is obeyed.
    pub allows_shutdown: bool,
    /// Whether the `flush_all` command is obeyed.
    pub allows_flush: bool,
    /// Whether keys may be listed (cachedump, metadump).
    pub allows_dump: bool,
    /// Whether clients may watch the log.
    pub allows_watch: bool,
    /// memcached's verbosity level, 0 to 3.
    pub verbosity: u8,
    /// The byte that ends the prefix of a key, for `stats detail`.
    pub prefix_delimiter: u8,
    /// Whether `stats detail` is on from the start.
    pub counts_prefixes: bool,
    /// memcached's tunables that have no effect here: names as in `stats settings`, and values.
    pub tunables: Vec<(String, String)>,
    /// The file that keeps items over a graceful restart; None to start empty.
    pub memory_file: Option<PathBuf>,
    /// Whether commands for test harnesses (`debugtime`) are obeyed.
    pub is_under_test: bool,
    /// Whether to pin worker `i` to the `i`-th of the cores that the process may use.
    pub pins_threads: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: ALL_ADDRESSES.map(|ip| SocketAddr::new(ip, 11211).into()).to_vec(),
            listen_udp: Vec::new(),
            tls: None,
            unix_socket: None,
            unix_mode: 0o700,
            admin: None,
            admin_users_file: None,
            admin_tls: None,
            threads: 4,
            memory_bytes: 64 << 20,
            evicts: true,
            eviction: Eviction::default(),
            chooses_eviction: false,
            estimates_misses: true,
            max_connections: 1024,
            refuses_fast: true,
            max_item_bytes: 1 << 20,
            requests_per_batch: None,
            buffer_bytes: None,
            backlog: 1024,
            idle_timeout_seconds: 0,
            send_timeout_seconds: 60,
            protocol: WireProtocol::Negotiated,
            socket_mark: None,
            users_file: None,
            hands_out_cas: true,
            allows_shutdown: false,
            allows_flush: true,
            allows_dump: true,
            allows_watch: true,
            verbosity: 0,
            prefix_delimiter: b':',
            counts_prefixes: false,
            tunables: Vec::new(),
            memory_file: None,
            is_under_test: false,
            pins_threads: false,
        }
    }
}
