//! Listening sockets, accepting, receiving and sending.

use std::fs;
use std::io::{self, IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use amalgam_protocol::Protocol;
use amalgam_tls::Security;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with,
    bind, getsockname, listen, recv, send, socket_with, sockopt,
};

use crate::net::output::Transmit;
use crate::net::registry::address_name;
use crate::net::sys;
use crate::settings::{ListenAddress, Settings};

/// Bytes of a connection that the system takes before it can send them. Otherwise it takes four
/// megabytes for each client that does not read, and with some hundred of these others wait for
/// half a second. What a client that reads has under way on the network is not counted.
const UNSENT_BYTES: u32 = 512 << 10;

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
    /// The wire protocol of its connections; None if their first byte tells it.
    pub protocol: Option<Protocol>,
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
    until_both_families_have_it(|| open_tcp_listeners(settings))
}

/// How often the system is asked for a port until it is free for both families.
const PORT_ATTEMPTS: usize = 16;

/// Opens sockets, again if an address was in use: the port that the system chose for IPv4 may be
/// taken for IPv6.
fn until_both_families_have_it<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut result = open();
    for _ in 1..PORT_ATTEMPTS {
        match &result {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => result = open(),
            _ => break,
        }
    }
    result
}

fn open_tcp_listeners(settings: &Settings) -> io::Result<Vec<Listener>> {
    let addresses: Vec<_> = settings.listen.iter().map(|listening| listening.address).collect();
    let mut listeners: Vec<Listener> = Vec::new();
    for (position, listening) in settings.listen.iter().enumerate() {
        // Where the system chooses the port, it is the same for both families.
        let mut address = listening.address;
        if address.port() == 0 && is_other_family(&addresses, position) {
            let ipv4 = counterpart(&address);
            let chosen = addresses.iter().zip(&listeners).find(|(asked, _)| Some(**asked) == ipv4);
            address.set_port(chosen.and_then(|(_, listener)| listener.port).unwrap_or(0));
        }
        match open_tcp(&ListenAddress { address, ..*listening }, settings) {
            Ok(listener) => listeners.push(listener),
            Err(error) if is_other_family(&addresses, position) && has_no_ipv6(&error) => {}
            Err(error) => return Err(explain(error, &format!("TCP {address}"))),
        }
    }
    Ok(listeners)
}

/// IPv4's address of the same meaning and port, if `address` is "all addresses" or the loopback
/// address of IPv6. Next to that one it is left out where the system has no IPv6.
fn counterpart(address: &SocketAddr) -> Option<SocketAddr> {
    let ip = match address.ip() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv4Addr::UNSPECIFIED,
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv4Addr::LOCALHOST,
        _ => return None,
    };
    Some((ip, address.port()).into())
}

/// Whether the [`counterpart`] of the address at `position` is there too.
fn is_other_family(addresses: &[SocketAddr], position: usize) -> bool {
    counterpart(&addresses[position]).is_some_and(|ipv4| addresses.contains(&ipv4))
}

/// A listener at an address; `[::]` stands for all addresses of both families, also on a system
/// that has one of them.
///
/// # Errors
///
/// If the address cannot be bound.
pub fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && has_no_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        result => result,
    }
}

/// Whether a socket could not be opened because the system has no IPv6, or it is switched off.
fn has_no_ipv6(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].iter().any(|no| Some(no.raw_os_error()) == code)
}

/// Opens the datagram sockets that `settings` ask for, and returns them with their addresses.
///
/// # Errors
///
/// If an address cannot be bound; the message names it.
pub fn open_datagram_sockets(settings: &Settings) -> io::Result<Vec<(OwnedFd, SocketAddr)>> {
    until_both_families_have_it(|| open_datagram_sockets_once(settings))
}

fn open_datagram_sockets_once(settings: &Settings) -> io::Result<Vec<(OwnedFd, SocketAddr)>> {
    let mut sockets: Vec<(OwnedFd, SocketAddr)> = Vec::new();
    for (position, address) in settings.listen_udp.iter().enumerate() {
        let is_other_family = is_other_family(&settings.listen_udp, position);
        let mut address = *address;
        if address.port() == 0 && is_other_family {
            let mut asked = settings.listen_udp.iter().zip(&sockets);
            let ipv4 = counterpart(&address);
            let chosen = asked.find(|(asked, _)| Some(**asked) == ipv4);
            address.set_port(chosen.map_or(0, |(_, (_, bound))| bound.port()));
        }
        match open_bound(&address, SocketType::DGRAM) {
            Ok(socket) => {
                set_mark(&socket, settings);
                let bound = SocketAddr::try_from(getsockname(&socket)?)?;
                sockets.push((socket, bound));
            }
            Err(error) if is_other_family && has_no_ipv6(&error) => {}
            Err(error) => return Err(explain(error, &format!("UDP {address}"))),
        }
    }
    Ok(sockets)
}

fn explain(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {what}: {error}"))
}

/// A socket bound to an address. One of IPv6 takes only that.
fn open_bound(address: &SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, kind, FLAGS, None)?;
    if kind == SocketType::STREAM {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, address)?;
    Ok(socket)
}

fn open_tcp(listening: &ListenAddress, settings: &Settings) -> io::Result<Listener> {
    let ListenAddress { address, security, protocol } = *listening;
    let socket = open_bound(&address, SocketType::STREAM)?;
    set_mark(&socket, settings);
    // The system knows this option since Linux 3.12; without it clients that do not read may take
    // more of its memory.
    let _ = sys::set_unsent_limit(socket.as_fd(), UNSENT_BYTES);
    listen(&socket, backlog(settings))?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    let (name, port) = (bound.to_string(), Some(bound.port()));
    let protocol = protocol.unwrap_or(settings.protocol).fixed();
    Ok(Listener { socket, kind: ListenerKind::Tcp, security, protocol, name, port })
}

/// Gives a socket the mark of the settings. As in memcached, the server runs without it where the
/// system refuses it: it is for processes with `CAP_NET_ADMIN`.
fn set_mark(socket: &OwnedFd, settings: &Settings) {
    let Some(mark) = settings.socket_mark else { return };
    if let Err(error) = sys::set_mark(socket.as_fd(), mark) {
        log::warn!(mark, error:%; "the mark of a socket (-o sock_cookie_id) could not be set");
    }
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
    let protocol = settings.protocol.fixed();
    Ok(Listener { socket, kind, security, protocol, name, port: None })
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
pub fn write_port_file(path: &Path, listeners: &[Listener], udp: &[SocketAddr]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".lck");
    let mut file = fs::File::create(&temporary)?;
    for listener in listeners {
        let Some(port) = listener.port else { continue };
        let family = if listener.name.starts_with('[') { "INET6" } else { "INET" };
        writeln!(file, "TCP {family}: {port}")?;
    }
    for address in udp {
        let family = if address.is_ipv6() { "INET6" } else { "INET" };
        writeln!(file, "UDP {family}: {}", address.port())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_one_family_lacks_is_given_up() {
        let taken = || io::Error::from(io::ErrorKind::AddrInUse);
        let mut tries = 0;
        let opened = until_both_families_have_it(|| {
            tries += 1;
            if tries < 3 { Err(taken()) } else { Ok(tries) }
        });
        assert_eq!(opened.expect("the third port is free"), 3);
        let mut tries = 0;
        let refused = until_both_families_have_it(|| -> io::Result<()> {
            tries += 1;
            Err(taken())
        });
        assert_eq!((refused.expect_err("all are taken").kind(), tries), (taken().kind(), 16));
        let mut tries = 0;
        let denied = until_both_families_have_it(|| -> io::Result<()> {
            tries += 1;
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert!(denied.is_err() && tries == 1, "another port would be refused too");
    }
}
