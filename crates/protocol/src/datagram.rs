//! Datagrams: each begins with a frame header of 8 bytes that carries the request's id, the
//! datagram's place among those of one message, and how many there are.
//!
//! A request must fit one datagram; others are dropped without an answer, as in memcached. An
//! answer is cut at 1400 bytes. (memcached cuts the answer for each key of a get apart and numbers
//! each from 0; here the datagrams of one answer are numbered together, as its documentation says.)

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 8;

/// Bytes of a datagram, its header included.
pub const MAX_DATAGRAM_BYTES: usize = 1400;

/// Bytes of an answer that a datagram carries.
pub const MAX_DATAGRAM_PAYLOAD_BYTES: usize = MAX_DATAGRAM_BYTES - FRAME_HEADER_BYTES;

/// The frame header in front of each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Chosen by the client; its answer repeats it.
    pub request: u16,
    /// The place of the datagram in its message, from 0.
    pub sequence: u16,
    /// How many datagrams the message has.
    pub total: u16,
    /// Reserved: sent as 0 and ignored on receipt.
    pub reserved: u16,
}

impl FrameHeader {
    /// Reads the header of `datagram`; None if it is too short for one.
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let bytes = datagram.first_chunk::<FRAME_HEADER_BYTES>()?;
        let field = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Some(Self { request: field(0), sequence: field(2), total: field(4), reserved: field(6) })
    }

    /// The header as it is sent.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let [a, b] = self.request.to_be_bytes();
        let [c, d] = self.sequence.to_be_bytes();
        let [e, f] = self.total.to_be_bytes();
        let [g, h] = self.reserved.to_be_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

/// The id and the bytes of the request in `datagram`. None if it has to be dropped because
/// it is too short or one of several.
pub fn decode_request(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let header = FrameHeader::decode(datagram)?;
    let request = &datagram[FRAME_HEADER_BYTES..];
    (header.total == 1 && !request.is_empty()).then_some((header.request, request))
}

/// Cuts an answer into datagrams: the header of each and its part of the answer, to be sent
/// together without a copy. An empty answer gives no datagram. Of an answer that would need more
/// than 65,535 of them, the first 65,535 are given.
pub fn split_answer(
    request: u16,
    answer: &[u8],
) -> impl ExactSizeIterator<Item = ([u8; FRAME_HEADER_BYTES], &[u8])> {
    let chunks = answer.chunks(MAX_DATAGRAM_PAYLOAD_BYTES);
    let total = u16::try_from(chunks.len()).unwrap_or(u16::MAX);
    (0..total).zip(chunks).map(move |(sequence, part)| {
        (FrameHeader { request, sequence, total, reserved: 0 }.encode(), part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_whole_requests_are_taken() {
        let whole = [&[1, 2, 0, 0, 0, 1, 0, 0][..], b"version\r\n"].concat();
        assert_eq!(decode_request(&whole), Some((0x0102, &b"version\r\n"[..])));
        // The sequence number is ignored, as in memcached.
        let odd = [&[0, 1, 9, 9, 0, 1, 7, 7][..], b"x"].concat();
        assert_eq!(decode_request(&odd), Some((1, &b"x"[..])));
        for dropped in [
            &[][..],
            &[0, 1, 0, 0, 0, 1, 0],
            &[0, 1, 0, 0, 0, 1, 0, 0],
            &[0, 1, 0, 0, 0, 2, 0, 0, b'x'],
            &[0, 1, 0, 0, 0, 0, 0, 0, b'x'],
            &[0, 1, 0, 0, 1, 1, 0, 0, b'x'],
        ] {
            assert_eq!(decode_request(dropped), None, "{dropped:?}");
        }
    }

    #[test]
    fn an_answer_is_cut_at_1400_bytes() {
        for (length, datagrams) in [(0, 0), (1, 1), (1392, 1), (1393, 2), (2784, 2), (2785, 3)] {
            let answer = vec![b'a'; length];
            let parts: Vec<_> = split_answer(7, &answer).collect();
            assert_eq!(parts.len(), datagrams);
            assert!(parts.iter().all(|(header, part)| {
                header.len() + part.len() <= MAX_DATAGRAM_BYTES && !part.is_empty()
            }));
        }
        let endless = vec![0; MAX_DATAGRAM_PAYLOAD_BYTES * 65_536];
        assert_eq!(split_answer(7, &endless).len(), 65_535);
    }

    proptest! {
        #[test]
        fn the_parts_make_the_answer(
            request in any::<u16>(),
            answer in prop::collection::vec(any::<u8>(), 0..6000),
        ) {
            let mut joined = Vec::new();
            let total = split_answer(request, &answer).len();
            for (sequence, (header, part)) in split_answer(request, &answer).enumerate() {
                let header = FrameHeader::decode(&header).expect("8 bytes");
                prop_assert_eq!(usize::from(header.sequence), sequence);
                prop_assert_eq!(usize::from(header.total), total);
                prop_assert_eq!((header.request, header.reserved), (request, 0));
                joined.extend_from_slice(part);
            }
            prop_assert_eq!(joined, answer);
        }

        #[test]
        fn a_header_survives_the_wire(bytes in any::<[u8; 8]>(), behind in any::<u8>()) {
            let header = FrameHeader::decode(&[&bytes[..], &[behind]].concat()).expect("8 bytes");
            prop_assert_eq!(header.encode(), bytes);
        }
    }
}
