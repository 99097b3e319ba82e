//! Frames between nodes and from clients: the same packets however the bytes arrive, each of which
//! is encoded as it was received, in memory that is proportional to the bytes.
#![no_main]

use amalgam_cluster::wire::{FrameReader, FrameSource, Packet, WireError, encode_frame};
use amalgam_fuzz::memory;
use libfuzzer_sys::fuzz_target;

/// Memory of the decoded packets of one byte: a list of empty lists takes most.
const FACTOR: usize = 96;

type Frames = (Vec<(u64, Packet)>, Option<WireError>);

fn read<'d>(source: Option<FrameSource>, pieces: impl Iterator<Item = &'d [u8]>) -> Frames {
    let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
    for piece in pieces {
        reader.feed(piece);
        loop {
            let next = match source {
                Some(source) => reader.next_frame_of(source),
                None => reader.next_frame(),
            };
            match next {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// Frames with right lengths, of the pieces that the first byte of each measures.
fn framed(mut rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let [length, behind @ ..] = rest {
        let (packet, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        bytes.extend_from_slice(&(packet.len() as u32 + 8).to_le_bytes());
        bytes.extend_from_slice(&u64::from(*length).to_le_bytes());
        bytes.extend_from_slice(packet);
        rest = behind;
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let [choice, cut, rest @ ..] = data else { return };
    let bytes = if choice & 1 == 0 { framed(rest) } else { rest.to_vec() };
    let source = match choice >> 1 & 3 {
        0 => None,
        1 => Some(FrameSource::Client),
        _ => Some(FrameSource::Node),
    };
    let most = FACTOR * bytes.len() + 4096;
    let whole = memory::within(most, || read(source, std::iter::once(&bytes[..])));
    for size in [1, usize::from(*cut) + 1] {
        let parts = read(source, bytes.chunks(size));
        assert_eq!(parts.0, whole.0);
        assert_eq!(parts.1.is_some(), whole.1.is_some());
    }
    let mut again = Vec::new();
    for (number, packet) in &whole.0 {
        // Printing must not panic.
        let _ = format!("{packet:?}");
        encode_frame(*number, packet, &mut again).expect("it was short enough to arrive");
    }
    assert_eq!(again, bytes[..again.len()], "decoding inverts encoding");
});
