//! Listening sockets and the calls on connections, over thin system calls.

use std::fs;
use std::io::{self, IoSlice, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with,
    bind, getsockname, listen, recv, send, socket_with, sockopt,
};

use crate::Settings;
use crate::output::Transmit;
use crate::roster::address_name;
use crate::settings::Listening;
use crate::tls::Security;

/// What a connection arrived through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// A unix socket.
    Unix,
}

/// A socket that connections arrive through.
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// Its kind.
    pub transport: Transport,
    /// How its connections are secured.
    pub security: Security,
    /// Its address, for people.
    pub name: String,
    /// Its port.
    pub port: Option<u16>,
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Opens the sockets that `settings` ask for.
///
/// # Errors
///
/// If an address cannot be bound; the text says which.
pub fn open_listeners(settings: &Settings) -> io::Result<Vec<Listener>> {
    if let Some(path) = &settings.unix_socket {
        let listener = open_unix(path, settings)
            .map_err(|error| explain(error, &format!("unix socket {}", path.display())))?;
        return Ok(vec![listener]);
    }
    let open = |listening: &Listening| {
        let Listening { address, security } = listening;
        open_tcp(address, *security, settings)
            .map_err(|error| explain(error, &format!("TCP {address}")))
    };
    settings.listen.iter().map(open).collect()
}

/// Opens the datagram sockets that `settings` ask for, and tells their ports.
///
/// # Errors
///
/// If an address cannot be bound; the text says which.
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
    Ok(Listener { socket, transport: Transport::Tcp, security, name, port })
}

fn open_unix(path: &Path, settings: &Settings) -> io::Result<Listener> {
    // A socket that an earlier server left behind is replaced, anything else is not.
    use std::os::unix::fs::FileTypeExt;
    if fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(settings.unix_mode))?;
    listen(&socket, backlog(settings))?;
    let name = path.display().to_string();
    let (transport, security) = (Transport::Unix, Security::Plain);
    Ok(Listener { socket, transport, security, name, port: None })
}

fn backlog(settings: &Settings) -> i32 {
    i32::try_from(settings.backlog).unwrap_or(i32::MAX)
}

/// Takes the next connection, ready for use, and its other end; none if no more wait.
///
/// # Errors
///
/// What the system says, such as too many open files.
pub fn accept(listener: &Listener) -> io::Result<Option<(OwnedFd, Option<SocketAddr>)>> {
    loop {
        match acceptfrom_with(&listener.socket, FLAGS) {
            Ok((socket, peer)) => {
                if listener.transport == Transport::Tcp {
                    // Both only save time; a socket that died at once is noticed when it is read.
                    let _ = sockopt::set_tcp_nodelay(&socket, true);
                    let _ = sockopt::set_socket_keepalive(&socket, true);
                }
                // The other end of a unix socket has no address.
                let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                return Ok(Some((socket, peer)));
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Where a connection was accepted, as `stats conns` names it.
pub fn local_name(socket: &OwnedFd, listener: &Listener) -> String {
    match getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok()) {
        Some(address) if listener.transport == Transport::Tcp => address_name("tcp", &address),
        _ => listener.place_name(),
    }
}

impl Listener {
    /// Its address, as `stats conns` names it.
    pub fn place_name(&self) -> String {
        match (self.transport, self.name.starts_with('[')) {
            (Transport::Unix, _) => format!("unix:{}", self.name),
            (Transport::Tcp, false) => format!("tcp:{}", self.name),
            (Transport::Tcp, true) => format!("tcp6:{}", self.name),
        }
    }
}

/// Writes the ports to the file that `MEMCACHED_PORT_FILENAME` names, as memcached does: under
/// another name first, so that nobody reads half of it.
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

/// Receives into `buffer`. 0 is the end of the stream.
///
/// # Errors
///
/// `WouldBlock` if nothing waits, else what the socket says.
#[inline]
pub fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(recv(socket, buffer, RecvFlags::empty())?.0)
}

impl Transmit for &OwnedFd {
    fn transmit(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // NOSIGNAL: a peer that is gone is an error, not a signal.
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
