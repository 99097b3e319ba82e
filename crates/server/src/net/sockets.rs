//! Listening sockets, accepting, receiving and sending.

use std::fs;
use std::io::{self, IoSlice, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use amalgam_tls::Security;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with,
    bind, getsockname, listen, recv, send, socket_with, sockopt,
};

use crate::net::output::Transmit;
use crate::net::registry::address_name;
use crate::settings::{ListenAddress, Settings};

/// The kind of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// A TCP socket.
    Tcp,
    /// A unix socket.
    Unix,
}

/// A socket that connections arrive through.
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// Whether it listens for TCP or on a unix socket.
    pub kind: ListenerKind,
    /// How its connections are secured.
    pub security: Security,
    /// Its address, for logs.
    pub name: String,
    /// Its port; None for a unix socket.
    pub port: Option<u16>,
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Opens the sockets that `settings` ask for.
///
/// # Errors
///
/// If an address cannot be bound; the message names it.
pub fn open_listeners(settings: &Settings) -> io::Result<Vec<Listener>> {
    if let Some(path) = &settings.unix_socket {
        let listener = open_unix(path, settings)
            .map_err(|error| explain(error, &format!("unix socket {}", path.display())))?;
        return Ok(vec![listener]);
    }
    let open = |listening: &ListenAddress| {
        let ListenAddress { address, security } = listening;
        open_tcp(address, *security, settings)
            .map_err(|error| explain(error, &format!("TCP {address}")))
    };
    settings.listen.iter().map(open).collect()
}

/// Opens the datagram sockets that `settings` ask for, and returns them with their ports.
///
/// # Errors
///
/// If an address cannot be bound; the message names it.
pub fn open_datagram_sockets(settings: &Settings) -> io::Result<Vec<(OwnedFd, u16)>> {
    let open = |address: &SocketAddr| -> io::Result<(OwnedFd, u16)> {
        let socket = std::net::UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.port();
        Ok((socket.into(), port))
    };
    let open = |address: &SocketAddr| {
        open(address).map_err(|error| explain(error, &format!("UDP {address}")))
    };
    settings.listen_udp.iter().map(open).collect()
}

fn explain(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {what}: {error}"))
}

fn open_tcp(address: &SocketAddr, security: Security, settings: &Settings) -> io::Result<Listener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, address)?;
    listen(&socket, backlog(settings))?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    let (name, port) = (bound.to_string(), Some(bound.port()));
    Ok(Listener { socket, kind: ListenerKind::Tcp, security, name, port })
}

fn open_unix(path: &Path, settings: &Settings) -> io::Result<Listener> {
    // A socket that an earlier server left behind is replaced; any other file is left alone.
    use std::os::unix::fs::FileTypeExt;
    if fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(settings.unix_mode))?;
    listen(&socket, backlog(settings))?;
    let name = path.display().to_string();
    let (kind, security) = (ListenerKind::Unix, Security::Plain);
    Ok(Listener { socket, kind, security, name, port: None })
}

fn backlog(settings: &Settings) -> i32 {
    i32::try_from(settings.backlog).unwrap_or(i32::MAX)
}

/// Accepts the next connection and configures it. Returns it with the client's address, or None if
/// no more connections wait.
///
/// # Errors
///
/// The error of the system, such as too many open files.
pub fn accept(listener: &Listener) -> io::Result<Option<(OwnedFd, Option<SocketAddr>)>> {
    loop {
        match acceptfrom_with(&listener.socket, FLAGS) {
            Ok((socket, peer)) => {
                if listener.kind == ListenerKind::Tcp {
                    // Failing is harmless: a socket that has died already is noticed when it is
                    // read.
                    let _ = sockopt::set_tcp_nodelay(&socket, true);
                    let _ = sockopt::set_socket_keepalive(&socket, true);
                }
                // The client of a unix socket has no address.
                let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                return Ok(Some((socket, peer)));
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The address that accepted a connection, as `stats conns` shows it.
pub fn local_name(socket: &OwnedFd, listener: &Listener) -> String {
    match getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok()) {
        Some(address) if listener.kind == ListenerKind::Tcp => address_name("tcp", &address),
        _ => listener.stats_name(),
    }
}

impl Listener {
    /// Its address, as `stats conns` shows it.
    pub fn stats_name(&self) -> String {
        match (self.kind, self.name.starts_with('[')) {
            (ListenerKind::Unix, _) => format!("unix:{}", self.name),
            (ListenerKind::Tcp, false) => format!("tcp:{}", self.name),
            (ListenerKind::Tcp, true) => format!("tcp6:{}", self.name),
        }
    }
}

/// A listening socket, as `stats conns` shows it.
pub struct ListenerInfo {
    /// The file descriptor.
    pub number: i32,
    /// The address, with its kind.
    pub name: String,
    /// Whether it receives datagrams.
    pub is_udp: bool,
}

impl ListenerInfo {
    /// All listening sockets of a server.
    pub fn of(listeners: &[Listener], datagram_sockets: &[OwnedFd]) -> Vec<Self> {
        let udp_name = |socket: &OwnedFd| {
            let address = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
            Some(address_name("udp", &address))
        };
        let tcp = listeners.iter().map(|listener| Self {
            number: listener.socket.as_raw_fd(),
            name: listener.stats_name(),
            is_udp: false,
        });
        let udp = datagram_sockets.iter().map(|socket| Self {
            number: socket.as_raw_fd(),
            name: udp_name(socket).unwrap_or_default(),
            is_udp: true,
        });
        tcp.chain(udp).collect()
    }
}

/// Writes the ports to a file, as memcached does for `MEMCACHED_PORT_FILENAME`: under a temporary
/// name first, so that no reader sees half of it.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write_port_file(path: &Path, listeners: &[Listener], udp: &[u16]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".lck");
    let mut file = fs::File::create(&temporary)?;
    for listener in listeners {
        let Some(port) = listener.port else { continue };
        let family = if listener.name.starts_with('[') { "INET6" } else { "INET" };
        writeln!(file, "TCP {family}: {port}")?;
    }
    for port in udp {
        writeln!(file, "UDP INET: {port}")?;
    }
    file.sync_all()?;
    fs::rename(temporary, path)
}

/// Receives into `buffer`. Returns 0 at the end of the stream.
///
/// # Errors
///
/// `WouldBlock` if nothing waits, otherwise the error of the socket.
#[inline]
pub fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(recv(socket, buffer, RecvFlags::empty())?.0)
}

impl Transmit for &OwnedFd {
    fn transmit(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // NOSIGNAL: a closed peer should be an error, not a signal.
        let sent = match pieces {
            [piece] => send(self.as_fd(), piece, SendFlags::NOSIGNAL),
            pieces => rustix::net::sendmsg(
                self.as_fd(),
                pieces,
                &mut rustix::net::SendAncillaryBuffer::default(),
                SendFlags::NOSIGNAL,
            ),
        };
        Ok(sent?)
    }
}
