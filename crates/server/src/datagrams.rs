//! Requests that come as datagrams: received many at a time, answered many at a time.
//!
//! Each datagram is a conversation of its own that ends with its answer. Off by default: a small
//! request with a forged sender draws a large answer to somebody else.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use amalgam_protocol::datagram::{FRAME_HEADER_BYTES, decode_request, split_answer};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};

use crate::batch::{Conversation, Seat};
use crate::output::Output;
use crate::sys::{DATAGRAMS, Datagram, receive_many};

/// The largest request, as in memcached. The buffer is only touched as far as datagrams reach.
const LONGEST_BYTES: usize = 64 << 10;

/// Datagrams handed over by one call.
const SENT_AT_ONCE: usize = 64;

/// One worker's end of a datagram socket, which all workers share.
pub struct Datagrams {
    socket: OwnedFd,
    buffer: Vec<u8>,
    received: Vec<Option<Datagram>>,
    outputs: Vec<Vec<u8>>,
}

impl Datagrams {
    /// Takes a worker's descriptor of the socket.
    pub fn new(socket: OwnedFd) -> Self {
        let buffer = vec![0; DATAGRAMS * LONGEST_BYTES];
        Self { socket, buffer, received: Vec::new(), outputs: Vec::new() }
    }

    /// The socket, to be watched.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Receives what waits, a batch at most, and makes a seat for each datagram. Returns how many
    /// bytes came.
    pub fn receive(&mut self, seats: &mut Vec<Seat>) -> u64 {
        self.received.clear();
        if receive_many(self.socket.as_fd(), &mut self.buffer, &mut self.received).is_err() {
            // Nothing waits, or the error of an earlier answer, which nobody can be told.
            return 0;
        }
        for _ in &self.received {
            let mut output = Output::default();
            output.bytes = self.outputs.pop().unwrap_or_default();
            seats.push(Seat::without_pins(Conversation::default(), output));
        }
        self.received.iter().flatten().map(|datagram| datagram.length as u64).sum()
    }

    /// The requests, one for each seat; empty where a datagram is dropped.
    pub fn inputs(&self) -> impl Iterator<Item = &[u8]> {
        let parts = self.buffer.chunks_exact(LONGEST_BYTES);
        self.received.iter().zip(parts).map(|(datagram, part)| request(datagram, part).1)
    }

    /// Sends the answers. Returns how many bytes went out.
    pub fn send(&mut self, seats: &mut Vec<Seat>) -> u64 {
        let mut pieces = Vec::new();
        let parts = self.buffer.chunks_exact(LONGEST_BYTES);
        for ((datagram, part), seat) in self.received.iter().zip(parts).zip(seats.iter()) {
            let Some(Datagram { sender, .. }) = datagram else { continue };
            let (id, _) = request(datagram, part);
            let answer = split_answer(id, &seat.output.bytes);
            let sender = SocketAddrAny::from(*sender);
            pieces.extend(answer.map(|(header, body)| (sender.clone(), header, body)));
        }
        let sent = pieces.chunks(SENT_AT_ONCE).map(|pieces| send_some(&self.socket, pieces)).sum();
        drop(pieces);
        for seat in seats.drain(..) {
            let mut bytes = seat.output.bytes;
            bytes.clear();
            self.outputs.push(bytes);
        }
        self.outputs.truncate(DATAGRAMS);
        sent
    }
}

/// The id and bytes of a request; empty if it has to be dropped.
fn request<'p>(datagram: &Option<Datagram>, part: &'p [u8]) -> (u16, &'p [u8]) {
    let length = datagram.map_or(0, |datagram| datagram.length);
    decode_request(&part[..length]).unwrap_or_default()
}

type Piece<'p> = (SocketAddrAny, [u8; FRAME_HEADER_BYTES], &'p [u8]);

/// Sends datagrams; those that the socket has no room for are lost, as datagrams may be.
fn send_some(socket: &OwnedFd, pieces: &[Piece<'_>]) -> u64 {
    let slices: Vec<_> =
        pieces.iter().map(|(_, head, body)| [IoSlice::new(head), IoSlice::new(body)]).collect();
    let mut controls: Vec<_> = pieces.iter().map(|_| SendAncillaryBuffer::default()).collect();
    let messages = pieces.iter().zip(&slices).zip(&mut controls);
    let mut messages: Vec<_> = messages
        .map(|(((sender, ..), slices), control)| MMsgHdr::new_with_addr(sender, slices, control))
        .collect();
    let mut done = 0;
    while done < messages.len() {
        match sendmmsg(socket, &mut messages[done..], SendFlags::DONTWAIT) {
            Ok(count) if count > 0 => done += count,
            Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
            // The first of them cannot be sent, the others perhaps can.
            _ => done += 1,
        }
    }
    messages.iter().map(|message| message.bytes_sent() as u64).sum()
}
