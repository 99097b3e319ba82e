//! Properties that hold for any input: parsing does not panic, makes progress, and yields the same
//! steps however the bytes are cut.

mod common;

use amalgam_protocol::{Limits, MAX_LINE_BYTES, Protocol, Step};
use common::Connection;
use proptest::prelude::*;

/// Pieces that requests are made of, so that random input gets beyond the first byte.
const WORDS: &[&[u8]] = &[
    b"get ",
    b"gets ",
    b"set ",
    b"add ",
    b"cas ",
    b"append ",
    b"incr ",
    b"decr ",
    b"delete ",
    b"touch ",
    b"gat ",
    b"gats ",
    b"replace ",
    b"prepend ",
    b"stats ",
    b"version",
    b"quit",
    b"verbosity ",
    b"flush_all ",
    b"noreply",
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"  ",
    b"a ",
    b"key ",
    b"0 ",
    b"1 ",
    b"3 ",
    b"-1 ",
    b"9999999999 ",
    b"18446744073709551615 ",
    b"abc\r\n",
    b"x\r\n",
];

/// A packet of the binary protocol whose lengths may lie.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![9 => 0_u8..0x26, 1 => any::<u8>()];
    let extras = prop::sample::select(&[0_usize, 0, 4, 8, 8, 20, 3][..]);
    let key = prop_oneof![9 => 0_usize..4, 1 => 249_usize..252];
    let lies = prop::collection::vec(any::<u8>(), 4);
    let lie =
        prop_oneof![9 => Just(None), 1 => (lies, any::<prop::sample::Index>()).prop_map(Some)];
    (opcode, extras, key, 0_usize..30, any::<u8>(), lie).prop_map(
        |(opcode, extras, key, value, filler, lie)| {
            let mut packet = vec![0; 24];
            packet[0] = 0x80;
            packet[1] = opcode;
            packet[2..4].copy_from_slice(&(key as u16).to_be_bytes());
            packet[4] = extras as u8;
            let body = extras + key + value;
            packet[8..12].copy_from_slice(&(body as u32).to_be_bytes());
            packet[12] = filler;
            packet.resize(24 + body, filler % 3);
            if let Some((bytes, at)) = lie {
                let at = at.index(20);
                packet[at..at + 4].copy_from_slice(&bytes);
            }
            packet
        },
    )
}

fn input() -> impl Strategy<Value = Vec<u8>> {
    let packets = prop::collection::vec(packet(), 1..8).prop_map(|packets| packets.concat());
    prop_oneof![lines(), packets]
}

fn lines() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(WORDS).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => prop::collection::vec(Just(b'k'), 0..300),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

/// Lines that may close a connection depending on how they arrive (see the crate's head).
fn has_endless_line(input: &[u8]) -> bool {
    input.first() != Some(&0x80)
        && input.split(|byte| *byte == b'\n').any(|line| line.len() > MAX_LINE_BYTES)
}

fn small_limits() -> Limits {
    Limits { max_item_bytes: 1000, ..Limits::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_the_same_answers(
        input in input(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        prop_assume!(!has_endless_line(&input));
        let mut whole = Connection::new(small_limits());
        let expected = whole.feed(&input);
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        places.push(0);
        places.push(input.len());
        places.sort_unstable();
        let mut cut = Connection::new(small_limits());
        let pieces = places.windows(2).map(|pair| &input[pair[0]..pair[1]]);
        let answer: Vec<u8> = pieces.flat_map(|piece| cut.feed(piece)).collect();
        prop_assert_eq!(answer.escape_ascii().to_string(), expected.escape_ascii().to_string());
        prop_assert_eq!(cut.is_closed, whole.is_closed);
    }

    #[test]
    fn a_step_uses_some_of_what_it_was_given(input in input(), is_binary in any::<bool>()) {
        let protocol = if is_binary { Protocol::Binary } else { Protocol::Text };
        match protocol.parse(&input, &small_limits()) {
            Step::Incomplete { at_least } => prop_assert!(at_least > input.len()),
            Step::Request { used, .. } | Step::Refused { used, .. } => {
                prop_assert!((1..=input.len()).contains(&used));
            }
        }
    }

    #[test]
    fn a_step_depends_only_on_its_bytes(input in input(), behind in input()) {
        let protocol = Protocol::detect(*input.first().unwrap_or(&b'g'));
        let limits = small_limits();
        if let Step::Request { used, request } = protocol.parse(&input, &limits) {
            let longer = [&input[..used], &behind].concat();
            let Step::Request { used: again, request: same } = protocol.parse(&longer, &limits)
            else { panic!("no request any more") };
            prop_assert_eq!(used, again);
            prop_assert_eq!(
                std::mem::discriminant(&request),
                std::mem::discriminant(&same)
            );
        }
    }
}
