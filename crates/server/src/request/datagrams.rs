//! Requests that come as datagrams: received many at a time, answered many at a time.
//!
//! No state is kept from one datagram to the next. Off by default: a small request with a forged
//! sender address makes the server send a larger answer to a victim. An answer has at most
//! [`MAX_ANSWER_BYTES`]; in place of a longer one a client of the text protocol is told to use TCP,
//! and one of the binary protocol gets none. Requests beyond the bound on the output of a batch are
//! dropped, as datagrams may be.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use amalgam_protocol::Protocol;
use amalgam_protocol::datagram::{FRAME_HEADER_BYTES, decode_request, split_answer};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};

use crate::connections::protocol_state::ProtocolState;
use crate::net::output::Output;
use crate::net::sys::{DATAGRAMS, Datagram, receive_many};
use crate::request::slot::RequestSlot;

/// The largest request in bytes, as in memcached. Memory of the buffer beyond the end of received
/// datagrams is never touched.
const LONGEST_BYTES: usize = 64 << 10;

/// The longest answer to a datagram in bytes: as long as a request may be.
const MAX_ANSWER_BYTES: usize = LONGEST_BYTES;

/// The answer in place of one that is longer than [`MAX_ANSWER_BYTES`].
const TOO_LONG: &[u8] = b"SERVER_ERROR answer too long for UDP, use TCP\r\n";

/// Rounds of a batch of datagrams, at most: a request that others must wait for ends a round. What
/// is left after these is dropped.
const MOST_ROUNDS: usize = 256;

/// Datagrams sent by one system call.
const SENT_AT_ONCE: usize = 64;

/// One worker's handle of a datagram socket, which all workers share.
pub struct Datagrams {
    socket: OwnedFd,
    /// The wire protocol of all datagrams; None if the first byte of each tells it.
    protocol: Option<Protocol>,
    buffer: Vec<u8>,
    received: Vec<Option<Datagram>>,
    /// For each of these, bytes of its requests that need not be looked at again.
    done_bytes: Vec<usize>,
    rounds: usize,
    outputs: Vec<Vec<u8>>,
}

impl Datagrams {
    /// A handle around a worker's own descriptor of the socket, for datagrams of this protocol;
    /// None if the first byte of each tells it.
    pub fn new(socket: OwnedFd, protocol: Option<Protocol>) -> Self {
        let buffer = vec![0; DATAGRAMS * LONGEST_BYTES];
        let (received, done_bytes, outputs) = (Vec::new(), Vec::new(), Vec::new());
        Self { socket, protocol, buffer, received, done_bytes, rounds: 0, outputs }
    }

    /// The socket, for registration with epoll.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Receives the waiting datagrams, at most [`DATAGRAMS`], and appends a slot for each. Returns
    /// the number of bytes received.
    pub fn receive(&mut self, slots: &mut Vec<RequestSlot>) -> u64 {
        self.received.clear();
        if receive_many(self.socket.as_fd(), &mut self.buffer, &mut self.received).is_err() {
            // Nothing waits, or the system reports that an earlier answer could not be delivered.
            return 0;
        }
        for _ in &self.received {
            let mut output = Output::default();
            output.bytes = self.outputs.pop().unwrap_or_default();
            let protocol_state = ProtocolState { protocol: self.protocol, ..Default::default() };
            let mut slot = RequestSlot::for_datagram(protocol_state, output);
            // One byte more shows that the answer is too long.
            slot.output_limit_bytes = MAX_ANSWER_BYTES + 1;
            slots.push(slot);
        }
        self.rounds = 0;
        self.done_bytes.clear();
        self.done_bytes.resize(self.received.len(), 0);
        self.received.iter().flatten().map(|datagram| datagram.length as u64).sum()
    }

    /// The requests of a round, one input for each slot; empty for a dropped datagram.
    pub fn inputs(&self) -> impl Iterator<Item = &[u8]> {
        let parts = self.buffer.chunks_exact(LONGEST_BYTES);
        let requests = self.received.iter().zip(parts).zip(&self.done_bytes);
        requests.map(|((datagram, part), done)| {
            request(datagram, part).1.get(*done..).unwrap_or_default()
        })
    }

    /// Begins another round if requests are left, as behind a flush. Returns whether any are.
    pub fn has_more(&mut self, slots: &[RequestSlot]) -> bool {
        self.rounds += 1;
        let mut has_more = false;
        for (done, slot) in self.done_bytes.iter_mut().zip(slots) {
            let goes_on = slot.protocol_state.has_unparsed_input
                && slot.consumed > 0
                && !slot.is_stalled
                && !slot.is_full()
                && !slot.is_closing;
            has_more |= goes_on;
            *done = if goes_on { *done + slot.consumed } else { usize::MAX };
        }
        has_more && self.rounds < MOST_ROUNDS
    }

    /// Sends the answers and removes the slots. Returns the number of bytes sent.
    pub fn send(&mut self, slots: &mut Vec<RequestSlot>) -> u64 {
        for slot in slots.iter_mut() {
            let output = &mut slot.output.bytes;
            let is_too_long = output.len() > MAX_ANSWER_BYTES;
            if is_too_long || slot.is_stalled {
                output.clear();
                if is_too_long && slot.protocol_state.protocol == Some(Protocol::Text) {
                    output.extend_from_slice(TOO_LONG);
                }
            }
        }
        let mut pieces = Vec::new();
        let parts = self.buffer.chunks_exact(LONGEST_BYTES);
        for ((datagram, part), slot) in self.received.iter().zip(parts).zip(slots.iter()) {
            let Some(Datagram { sender, .. }) = datagram else { continue };
            let (id, _) = request(datagram, part);
            let answer = split_answer(id, &slot.output.bytes);
            let sender = SocketAddrAny::from(*sender);
            pieces.extend(answer.map(|(header, body)| (sender.clone(), header, body)));
        }
        let sent = pieces.chunks(SENT_AT_ONCE).map(|pieces| send_some(&self.socket, pieces)).sum();
        drop(pieces);
        for slot in slots.drain(..) {
            let mut bytes = slot.output.bytes;
            bytes.clear();
            if bytes.capacity() <= 2 * MAX_ANSWER_BYTES {
                self.outputs.push(bytes);
            }
        }
        self.outputs.truncate(DATAGRAMS);
        sent
    }
}

/// The id and bytes of a request; empty if the datagram is malformed and dropped.
fn request<'p>(datagram: &Option<Datagram>, part: &'p [u8]) -> (u16, &'p [u8]) {
    let length = datagram.map_or(0, |datagram| datagram.length);
    decode_request(&part[..length]).unwrap_or_default()
}

type Piece<'p> = (SocketAddrAny, [u8; FRAME_HEADER_BYTES], &'p [u8]);

/// Sends datagrams. Those that do not fit into the socket's buffer are lost, as datagrams may be.
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
            // The first cannot be sent; the others perhaps can.
            _ => done += 1,
        }
    }
    messages.iter().map(|message| message.bytes_sent() as u64).sum()
}
