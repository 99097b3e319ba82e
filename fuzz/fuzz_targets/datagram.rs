//! Datagram frames: a request is decoded and run, and an answer is split and joined again.
#![no_main]

use amalgam_protocol::datagram::{FrameHeader, MAX_DATAGRAM_BYTES, decode_request, split_answer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((request, bytes)) = decode_request(data) {
        let header = FrameHeader::decode(data).expect("was decoded");
        assert_eq!((header.request, header.total), (request, 1));
        assert_eq!(bytes, &data[8..]);
        amalgam_fuzz::check(bytes, bytes.len());
    }
    let answer = data.repeat(40);
    let total = split_answer(7, &answer).len();
    let mut joined = Vec::new();
    for (sequence, (header, part)) in split_answer(7, &answer).enumerate() {
        assert!(header.len() + part.len() <= MAX_DATAGRAM_BYTES);
        let header = FrameHeader::decode(&header).expect("whole");
        assert_eq!((usize::from(header.sequence), usize::from(header.total)), (sequence, total));
        joined.extend_from_slice(part);
    }
    assert_eq!(joined, answer);
});
