//! Packets of the binary protocol. If the first byte is odd, the rest is sent unchanged. If it is
//! even, the rest is made into packets whose lengths are right, so that the fuzzer need not guess
//! them.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// Takes a header's worth of choices and up to 60 bytes of body from `data`.
fn packet(data: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let ([opcode, extras, key, value, cas], rest) = data.split_first_chunk::<5>()?;
    let (extras, key, value) =
        (usize::from(extras % 24), usize::from(key % 8), usize::from(value % 32));
    let body = extras + key + value;
    let mut packet = vec![0; 24];
    packet[0] = 0x80;
    packet[1] = opcode % 0x26;
    packet[3] = key as u8;
    packet[4] = extras as u8;
    packet[11] = body as u8;
    packet[23] = *cas;
    let taken = body.min(rest.len());
    packet.extend_from_slice(&rest[..taken]);
    packet.resize(24 + body, 0);
    Some((packet, &rest[taken..]))
}

fuzz_target!(|data: &[u8]| {
    let [cut, rest @ ..] = data else { return };
    if cut % 2 == 1 {
        return amalgam_fuzz::check(rest, usize::from(*cut));
    }
    let mut input = Vec::new();
    let mut rest = rest;
    while let Some((packet, behind)) = packet(rest) {
        input.extend_from_slice(&packet);
        rest = behind;
    }
    amalgam_fuzz::check(&input, usize::from(*cut));
});
