//! System calls that no crate in use wraps: the only module of the server with unsafe code.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams received by one call.
pub const DATAGRAMS: usize = 32;

/// A datagram: its length and its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes received; those that do not fit into its part of the buffer are lost.
    pub length: usize,
    /// The address to answer to.
    pub sender: SocketAddr,
}

/// Ends both directions of the connection whose socket has this file descriptor: its worker finds
/// it broken. Requires: the caller keeps the descriptor from being closed during the call; no
/// memory depends on that, but another file could be hit.
pub fn shut_down(number: i32) {
    // SAFETY: the call takes numbers only. It fails for anything but a connected socket, and for
    // one that the peer has closed; there is nothing left to do then.
    unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
}

/// Sets the mark of a socket's packets, by which filters and routing can tell them apart.
///
/// # Errors
///
/// The system's, such as a lack of `CAP_NET_ADMIN`.
pub fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_MARK, mark)
}

/// Bounds the bytes that the system takes of a TCP connection before it can send them. Those that a
/// listening socket accepts inherit it.
///
/// # Errors
///
/// The system's.
pub fn set_unsent_limit(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
}

/// Each arena of the allocator holds free pieces between those in use, about a megabyte after
/// bursts of requests, so a server may have one for each part of this length of its memory limit.
/// Threads that share one wait for each other only for buffers that are not kept for reuse.
#[cfg(target_env = "gnu")]
const BYTES_PER_ARENA: usize = 64 << 20;

/// Bounds the allocator's arenas by the memory limit; those that threads have already stay. Does
/// nothing where the C library is not GNU's.
pub fn limit_arenas(limit_bytes: usize) {
    #[cfg(target_env = "gnu")]
    {
        let arenas = (limit_bytes / BYTES_PER_ARENA).clamp(1, i32::MAX as usize) as i32;
        // SAFETY: the call takes numbers only, and sets an option of the allocator under its lock.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = limit_bytes;
}

/// Makes the allocator give long buffers back to the system when they are freed, and the free end
/// of an arena. By itself it raises both limits to twice the longest buffer that was freed, up to
/// 64 MiB in each arena: a few long answers, or what a node sends to another that begins to keep
/// its copies, would stay resident for good.
pub fn limit_free_memory() {
    #[cfg(target_env = "gnu")]
    for option in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: the call takes numbers only, and sets options of the allocator under its lock.
        unsafe { libc::mallopt(option, LONG_BUFFER_BYTES) };
    }
}

/// From this length on a buffer is a mapping of its own. Shorter ones come and go with requests,
/// and to fault their pages in anew would cost more than the copy of their contents.
#[cfg(target_env = "gnu")]
const LONG_BUFFER_BYTES: i32 = 16 << 20;

/// Bytes that the allocator has handed out and that are in use, by its own count; 0 where the C
/// library is not GNU's. It reads the list of all free pieces under each arena's lock: 6 ms for
/// fifty thousand.
pub fn allocated_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call has no arguments, and locks what it reads.
        let counts = unsafe { libc::mallinfo2() };
        counts.uordblks + counts.hblkhd
    }
    #[cfg(not(target_env = "gnu"))]
    0
}

/// Bytes of the process's own memory that are resident: of no file, and shared with nobody. None if
/// the system does not say.
pub fn anonymous_resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split(' ').skip(1).map(|pages| pages.parse::<usize>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared) * rustix::param::page_size())
}

/// Gives the memory that the allocator keeps free back to the system. Does nothing where the C
/// library is not GNU's: musl keeps little.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number only, and locks what it changes.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Code and constants are mapped in pieces of this size, see [`unmap_code`]. Smaller ones would
/// save little more than they cost: the system takes some 220 bytes for a mapping, 0.4 MiB in all.
#[cfg(target_os = "linux")]
const PIECE_BYTES: usize = 8 << 10;

/// Makes each piece of a segment a mapping of its own. If the system refuses, more is mapped at
/// once.
#[cfg(target_os = "linux")]
fn divide(begin: usize, end: usize, page_bytes: usize) {
    if page_bytes > PIECE_BYTES {
        return;
    }
    let second = (begin / PIECE_BYTES + 1) * PIECE_BYTES;
    for piece in (second..end).step_by(2 * PIECE_BYTES) {
        let bytes = PIECE_BYTES.min(end - piece);
        // SAFETY: the advice changes neither the contents nor who may access them.
        unsafe { libc::madvise(piece as *mut _, bytes, libc::MADV_DONTDUMP) };
    }
}

/// Unmaps the program's code and constants. What is used again is mapped again when it is touched,
/// and no file is read for it as long as the system has the pages in memory. The code that only a
/// start needs would stay resident otherwise: a third of an idle server.
///
/// Linux maps the 64 KiB around a touched page, of which little is used, but nothing beyond the end
/// of a mapping. So pieces of [`PIECE_BYTES`] become mappings of their own, as every other one is
/// left out of core dumps, where none of a file's contents are anyway.
#[cfg(target_os = "linux")]
pub fn unmap_code() {
    unsafe extern "C" fn unmap(
        object: *mut libc::dl_phdr_info,
        _bytes: usize,
        _data: *mut libc::c_void,
    ) -> i32 {
        // SAFETY: the loader passes an object that stays loaded during the call.
        let object = unsafe { &*object };
        let count = usize::from(object.dlpi_phnum);
        // SAFETY: as above; the loader says how many headers there are.
        let segments = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, count) };
        let page_bytes = rustix::param::page_size();
        for segment in segments {
            if segment.p_type != libc::PT_LOAD || segment.p_flags & libc::PF_W != 0 {
                continue;
            }
            // Whole pages only; other segments may share the outer ones.
            let begin = object.dlpi_addr as usize + segment.p_vaddr as usize;
            let end = (begin + segment.p_memsz as usize) / page_bytes * page_bytes;
            let begin = begin.next_multiple_of(page_bytes);
            if begin < end {
                divide(begin, end, page_bytes);
                // SAFETY: nobody has ever written to these pages, as the segment is read-only from
                // the start, so that the file has their contents. The system refuses locked pages.
                unsafe { libc::madvise(begin as *mut _, end - begin, libc::MADV_DONTNEED) };
            }
        }
        0
    }
    // SAFETY: the function has the type that the call asks for and uses no data.
    unsafe { libc::dl_iterate_phdr(Some(unmap), std::ptr::null_mut()) };
}

/// Elsewhere code that was used once stays mapped.
#[cfg(not(target_os = "linux"))]
pub fn unmap_code() {}

fn set_option(socket: BorrowedFd<'_>, level: i32, option: i32, value: u32) -> io::Result<()> {
    let length = size_of::<u32>() as libc::socklen_t;
    let number = socket.as_raw_fd();
    // SAFETY: the value is a u32 that lives over the call, and `length` is its length.
    let result =
        unsafe { libc::setsockopt(number, level, option, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives up to [`DATAGRAMS`] datagrams, each into its part of `buffer`, which is divided into
/// that many equal parts. Appends one entry for each datagram to `received`; None for a sender that
/// is not an internet address. Does not wait.
///
/// # Errors
///
/// `WouldBlock` if none waits, otherwise the error of the socket.
pub fn receive_many(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    received: &mut Vec<Option<Datagram>>,
) -> io::Result<()> {
    let part_bytes = buffer.len() / DATAGRAMS;
    let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::zeroed() }; DATAGRAMS];
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; DATAGRAMS];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::zeroed() }; DATAGRAMS];
    for (place, part) in buffer.chunks_exact_mut(part_bytes).take(DATAGRAMS).enumerate() {
        let vector = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part_bytes };
        let vector = vectors[place].write(vector);
        // SAFETY: all zeros are a value of this plain structure of numbers and pointers.
        let header = unsafe { headers[place].assume_init_mut() };
        header.msg_hdr.msg_name = names[place].as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
    }
    // SAFETY: the headers are initialised (the loop ran over all of them), and the names, vectors
    // and buffer parts they point to outlive the call; the parts do not overlap.
    let count = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr().cast(),
            DATAGRAMS as libc::c_uint,
            // C libraries differ in the type's sign.
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    for (header, name) in headers.iter().zip(&names).take(count) {
        // SAFETY: initialised above, and by the system with what it received.
        let (header, name) = unsafe { (header.assume_init_ref(), name.assume_init_ref()) };
        let length = (header.msg_len as usize).min(part_bytes);
        received.push(address(name).map(|sender| Datagram { length, sender }));
    }
    Ok(())
}

/// The internet address that the system wrote; None for other families.
fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let name: *const libc::sockaddr_storage = name;
    // SAFETY: the storage is large and aligned enough for every address, and starts with the
    // family in all of them.
    match i32::from(unsafe { (*name).ss_family }) {
        libc::AF_INET => {
            // SAFETY: the family says which structure the storage holds.
            let name = unsafe { &*name.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some((ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*name.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// Other tests may map code meanwhile, so it is tried more than once.
    #[test]
    #[cfg(target_os = "linux")]
    fn unmapped_code_is_no_longer_resident_and_still_runs() {
        let resident_pages = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(2).unwrap().parse::<u64>().unwrap()
        };
        let is_less = (0..50).any(|_| {
            let before = resident_pages();
            unmap_code();
            resident_pages() < before
        });
        assert!(is_less);
    }

    /// The window of 64 KiB around each touched page would be mapped otherwise. The emulator of
    /// 64-bit Arm, in which these tests run too, ignores the advice.
    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn code_lies_in_mappings_of_a_piece() {
        unmap_code();
        let here = divide as *const () as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let bytes = maps.lines().find_map(|line| {
            let (begin, end) = line.split_once(' ')?.0.split_once('-')?;
            let [begin, end] = [begin, end].map(|text| usize::from_str_radix(text, 16).unwrap());
            (begin..end).contains(&here).then_some(end - begin)
        });
        assert!(bytes.unwrap() <= PIECE_BYTES);
    }

    #[test]
    fn datagrams_come_with_their_senders() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has only the first.
            let Ok(server) = UdpSocket::bind(host) else { continue };
            let clients: Vec<_> = (0..40).map(|_| UdpSocket::bind(host).unwrap()).collect();
            for (number, client) in clients.iter().enumerate() {
                client.send_to(&vec![number as u8; number], server.local_addr().unwrap()).unwrap();
            }
            let mut buffer = vec![0; DATAGRAMS * 20];
            let mut all = Vec::new();
            while all.len() < clients.len() {
                let mut received = Vec::new();
                receive_many(server.as_fd(), &mut buffer, &mut received).unwrap();
                for (datagram, part) in received.iter().zip(buffer.chunks_exact(20)) {
                    let datagram = datagram.unwrap();
                    assert!(part[..datagram.length].iter().all(|byte| *byte == all.len() as u8));
                    assert_eq!(datagram.length, all.len().min(20));
                    assert_eq!(datagram.sender, clients[all.len()].local_addr().unwrap());
                    all.push(datagram);
                }
            }
            let nothing = receive_many(server.as_fd(), &mut buffer, &mut Vec::new());
            assert_eq!(nothing.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }
}
