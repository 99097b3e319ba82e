//! Frames through the simulated hardware: requests of all kinds, whatever else a network brings,
//! and the pace of the wire.

#![cfg(feature = "verilated")]

use amalgam_rtl::ethernet::{Client, Dropped, Link, OWN_IP, OWN_MAC, OWN_PORT, Port, frame, open};
use amalgam_rtl::line_rate::{Load, Popularity};
use amalgam_rtl::register_map as register;
use amalgam_rtl::{Memory, Request, opcode, status};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const CLIENT: Client = Client { mac: [2, 1, 1, 1, 1, 1], ip: [10, 9, 8, 7], port: 50_000 };

/// A request's frame; with `header`, memcached's with this number in front.
fn framed(header: Option<u16>, packet: &[u8]) -> Vec<u8> {
    let header = header.map(|number| [number, 0, 1, 0].map(u16::to_be_bytes).concat());
    frame(&CLIENT, &[&header.unwrap_or_default(), packet].concat())
}

/// Opcode, status, opaque, flags, and key and value of an answer. Hits and stored items have a CAS
/// id, which no item has.
fn answer(packet: &[u8]) -> (u8, u16, u32, Option<u32>, &[u8]) {
    let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((packet[0], packet[2], packet[5]), (0x81, 0, 0));
    assert_eq!(word(8) as usize, packet.len() - 24, "the length of the body");
    let status = (word(4) & 0xffff) as u16;
    let has_cas = status == status::OK && (packet[4] == 4 || packet[1] == opcode::SET);
    assert_eq!((word(16), word(20)), (0, has_cas.into()), "the CAS id");
    let flags = (packet[4] == 4).then(|| word(24));
    (packet[1], status, word(12), flags, &packet[24 + usize::from(packet[4])..])
}

#[test]
fn requests_and_answers_cross_as_frames() {
    for has_header in [false, true] {
        let mut link = Link::new(&Port::GIGABITS_10, &Memory::DDR600, has_header);
        let value = [7; 300];
        let set = Request { flags: 0xabcd_ef01, ..Request::set(b"key", &value) };
        let quiet = |code, key: &[u8]| Request::new(code, key, &[]);
        let long = [b'l'; 168];
        let requests = [
            (Request::get(b"key"), Some((status::NOT_FOUND, None, &[][..]))),
            (set, Some((status::OK, None, &[]))),
            (Request::get(b"key"), Some((status::OK, Some(0xabcd_ef01), &value))),
            (quiet(opcode::GETQ, b"none"), None),
            (quiet(opcode::GETQ, b"key"), Some((status::OK, Some(0xabcd_ef01), &value))),
            (Request::new(opcode::SETQ, &long, b""), None),
            (Request::get(&long), Some((status::OK, Some(0), &[]))),
            (Request::set(b"big", &[1; 1025]), Some((status::TOO_LARGE, None, &[]))),
            (Request::get(&[b'l'; 169]), Some((status::INVALID, None, &[]))),
            (Request::delete(b"key"), Some((status::OK, None, &[]))),
            (Request::delete(b"key"), Some((status::NOT_FOUND, None, &[]))),
            (quiet(opcode::DELETEQ, &long), None),
            (quiet(opcode::VERSION, b""), Some((status::OK, None, b"0.2.0"))),
            (quiet(0x05, b"key"), Some((status::UNKNOWN, None, &[]))),
            (quiet(opcode::NOOP, b""), Some((status::OK, None, &[]))),
        ];
        let mut expected = Vec::new();
        for (number, (request, outcome)) in (7_u16..).zip(&requests) {
            let opaque = u32::from(number) << 16 | 0x55;
            link.send(framed(has_header.then_some(number), &request.packet(opaque)));
            if let Some((status, flags, value)) = outcome {
                expected.push((number, (request.opcode, *status, opaque, *flags, *value)));
            }
        }
        let frames = link.settle();
        assert_eq!(frames.len(), expected.len());
        for (frame, (number, expected)) in frames.iter().zip(expected) {
            let (client, mut payload) = open(frame);
            assert_eq!(client, CLIENT);
            if has_header {
                assert_eq!(payload[..8], [number, 0, 1, 0].map(u16::to_be_bytes).concat());
                payload = &payload[8..];
            }
            assert_eq!(answer(payload), expected);
        }
        assert_eq!(link.dropped, Dropped::default());
    }
}

/// As memcached does; the key of a GETK is in front of the value.
#[test]
fn a_getk_s_answer_repeats_its_key() {
    for has_header in [false, true] {
        let mut link = Link::new(&Port::GIGABITS_10, &Memory::DDR600, has_header);
        let key = |number: usize| vec![b'a' + (number % 26) as u8; 1 + number % 168];
        let value = |number: usize| vec![number as u8; number * 5 % 97];
        let mut expected = Vec::new();
        let mut ask =
            |link: &mut Link, request: Request, outcome: Option<(u16, usize, Vec<u8>)>| {
                let opaque = request.id;
                if let Some((status, key_bytes, body)) = outcome {
                    expected.push((request.opcode, status, opaque, key_bytes, body));
                }
                link.send_spaced(framed(has_header.then_some(9), &request.packet(opaque)), 400);
            };
        for number in 0..400 {
            let (key, id) = (key(number), number as u32);
            let with = |code| Request::new(code, &key, b"").with_id(id);
            let (is_miss, bytes) = (number % 3 == 0, key.len());
            // No two keys are the same.
            if is_miss {
                let missed = Some((status::NOT_FOUND, 0, Vec::new()));
                ask(&mut link, with(opcode::DELETEQ), missed);
            } else {
                ask(&mut link, Request::new(opcode::SETQ, &key, &value(number)), None);
            }
            let found = [key.clone(), value(number)].concat();
            let code = [opcode::GETK, opcode::GETKQ][number / 2 % 2];
            let outcome = match (is_miss, code) {
                (false, _) => Some((status::OK, bytes, found)),
                (true, opcode::GETK) => Some((status::NOT_FOUND, bytes, key.clone())),
                (true, _) => None,
            };
            ask(&mut link, with(code), outcome);
            // Keys that are too long are not repeated, as in memcached.
            let long = vec![b'l'; 169 + number % 100];
            let refused = Request::new(code, &long, b"").with_id(id);
            ask(&mut link, refused, Some((status::INVALID, 0, Vec::new())));
        }
        let frames = link.settle();
        assert_eq!(link.dropped, Dropped::default());
        let payloads = frames.iter().map(|frame| &open(frame).1[if has_header { 8 } else { 0 }..]);
        let found: Vec<_> = payloads
            .map(|packet| {
                let (code, status, opaque, _, body) = answer(packet);
                let key_bytes = usize::from(packet[2]) << 8 | usize::from(packet[3]);
                (code, status, opaque, key_bytes, body.to_vec())
            })
            .collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected);
        }
    }
}

/// A client that reads an id and compares it must not be told that it wrote: it would have
/// overwritten what another client wrote in between.
#[test]
fn what_compares_a_cas_id_is_refused_and_changes_nothing() {
    let mut link = Link::new(&Port::GIGABITS_10, &Memory::DDR600, false);
    let requests = [
        Request::set(b"key", b"old"),
        Request::set(b"key", b"new").with_cas(1),
        Request::set(b"key", b"new").with_cas(1 << 63),
        Request::new(opcode::SETQ, b"key", b"new").with_cas(1 << 16),
        Request::set(b"key", &[1; 1025]).with_cas(7),
        Request::delete(b"key").with_cas(1),
        Request::new(opcode::DELETEQ, b"key", b"").with_cas(1),
        Request::set(b"none", b"new").with_cas(1),
        Request::set(&[b'k'; 169], b"new").with_cas(1),
        // Nothing to compare where nothing is written.
        Request::get(b"key").with_cas(1),
        Request::get(b"none"),
    ];
    for request in &requests {
        link.send(framed(None, &request.packet(3)));
    }
    let found: Vec<_> = link
        .settle()
        .iter()
        .map(|frame| {
            let (_, status, _, _, body) = answer(open(frame).1);
            (status, body.to_vec())
        })
        .collect();
    let refused = (status::NOT_SUPPORTED, Vec::new());
    let mut expected = vec![refused; requests.len()];
    expected[0].0 = status::OK;
    expected[8].0 = status::INVALID;
    expected[9] = (status::OK, b"old".to_vec());
    expected[10].0 = status::NOT_FOUND;
    assert_eq!(found, expected);
}

/// One clock says when an item ends and whether it has: as memcached, 0 is never, up to 30 days is
/// from now, and all else is a second of the clock; -1 of the binary protocol is one far away.
#[test]
fn items_end_by_the_clock_of_the_table() {
    const DAY: u32 = 86_400;
    let start = 1_800_000_000;
    let cases = [
        (0, None),
        (1, Some(start + 1)),
        (30 * DAY, Some(start + 30 * DAY)),
        (30 * DAY + 1, Some(30 * DAY + 1)),
        (start - 1, Some(start - 1)),
        (start, Some(start)),
        (start + 7, Some(start + 7)),
        (u32::MAX, None),
    ];
    let mut link = Link::new(&Port::GIGABITS_10, &Memory::DDR600, false);
    link.set_now(start);
    let key = |place: usize| [b'a' + place as u8];
    for (place, (expiry, _)) in cases.iter().enumerate() {
        link.send(framed(None, &Request::set(&key(place), b"v").with_expiry(*expiry).packet(1)));
    }
    assert_eq!(link.settle().len(), cases.len());
    // The clock may be set back, too.
    let later = [0, 1, 6, 7, 30 * DAY - 1, 30 * DAY, 40 * DAY].map(|seconds| start + seconds);
    for now in later.into_iter().chain([start, start + 7, start - 100]) {
        link.set_now(now);
        for place in 0..cases.len() {
            link.send(framed(None, &Request::get(&key(place)).packet(place as u32)));
        }
        for (frame, (expiry, end)) in link.settle().iter().zip(cases) {
            let expected =
                if end.is_some_and(|end| now >= end) { status::NOT_FOUND } else { status::OK };
            assert_eq!(answer(open(frame).1).1, expected, "expiry {expiry}, now {now}");
        }
    }
}

/// As memcached answers them: 0x0004, and nothing happens.
#[test]
fn requests_that_do_not_have_their_opcode_s_shape_are_refused() {
    let extended = |mut packet: Vec<u8>, extras: u8| {
        packet[4] = extras;
        packet[11] += extras;
        packet.splice(24..24, vec![0; extras.into()]);
        packet
    };
    for has_header in [false, true] {
        let mut link = Link::new(&Port::GIGABITS_10, &Memory::DDR600, has_header);
        let opcodes = [
            opcode::GET,
            opcode::GETQ,
            opcode::GETK,
            opcode::GETKQ,
            opcode::DELETE,
            opcode::DELETEQ,
        ];
        let mut packets = Vec::new();
        for code in opcodes {
            let packet = Request::new(code, b"key", b"").packet(5);
            packets.extend([1, 4, 8, 20].map(|extras| extended(packet.clone(), extras)));
            packets.push(Request::new(code, b"key", b"a value").packet(5));
        }
        for code in [opcode::NOOP, opcode::VERSION] {
            packets.push(Request::new(code, b"key", b"").packet(5));
            packets.push(Request::new(code, b"", b"value").packet(5));
            packets.push(extended(Request::new(code, b"", b"").packet(5), 8));
        }
        // SETs with other extras than flags and expiry.
        let plain = Request::new(opcode::GET, b"key", b"value").packet(5);
        for extras in [0, 4, 9, 16] {
            packets.push(with(extended(plain.clone(), extras), 1, &[opcode::SET]));
        }
        let header = has_header.then_some(1);
        link.send(framed(header, &Request::set(b"key", b"value").packet(1)));
        for packet in &packets {
            link.send(framed(header, packet));
        }
        link.send(framed(header, &Request::get(b"key").packet(2)));
        let frames = link.settle();
        assert_eq!(link.dropped, Dropped::default());
        let start = if has_header { 8 } else { 0 };
        let found: Vec<_> = frames.iter().map(|frame| answer(&open(frame).1[start..])).collect();
        assert_eq!(found.len(), packets.len() + 2);
        for (found, packet) in found[1..].iter().zip(&packets) {
            assert_eq!(*found, (packet[1], status::INVALID, 5, None, &b""[..]));
        }
        let last = (opcode::GET, status::OK, 2, Some(0), &b"value"[..]);
        assert_eq!(found[found.len() - 1], last);
    }
}

/// A frame with some bytes overwritten.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// The same with the right checksum of its IPv4 header.
fn summed(frame: Vec<u8>) -> Vec<u8> {
    let mut frame = with(frame, 24, &[0, 0]);
    let words = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn whatever_is_no_request_is_dropped_whole_and_counted() {
    let mut link = Link::new(&Port::GIGABITS_10, &Memory::DDR600, true);
    let get = Request::get(b"a key of more than one beat").packet(1);
    let good = framed(Some(1), &get);
    let udp_off = |frame: Vec<u8>| with(frame, 40, &[0, 0]);
    let from = |ip: [u8; 4]| summed(with(udp_off(good.clone()), 26, &ip));
    let header = |words: [u16; 4]| [words.map(u16::to_be_bytes).concat(), get.clone()].concat();
    let other = [
        with(good.clone(), 12, &[0x86, 0xdd]),
        summed(with(good.clone(), 14, &[0x46])),
        summed(with(good.clone(), 23, &[6])),
        summed(with(good.clone(), 20, &[0x20, 0])),
        summed(with(good.clone(), 20, &[0, 5])),
        summed(with(udp_off(good.clone()), 30, &[10, 0, 0, 9])),
        with(udp_off(good.clone()), 36, &(OWN_PORT + 1).to_be_bytes()),
        // To another station, a group, all stations.
        with(good.clone(), 0, &[2, 0, 0, 0, 0, 2]),
        with(good.clone(), 0, &[3, 0, 0, 0, 0, 1]),
        with(good.clone(), 0, &[0xff; 6]),
        // From a group, all stations, ourselves.
        with(good.clone(), 6, &[1, 0, 0x5e, 0, 0, 1]),
        with(good.clone(), 6, &[0xff; 6]),
        with(good.clone(), 6, &OWN_MAC),
        from([255; 4]),
        from([224, 0, 0, 1]),
        from([239, 255, 255, 250]),
        from([240, 0, 0, 1]),
        from([127, 0, 0, 1]),
        from([0; 4]),
        from(OWN_IP),
        with(udp_off(good.clone()), 34, &[0, 0]),
        vec![0; 60],
        vec![0xff; 1514],
    ];
    let unsound = [
        with(good.clone(), 24, &[0x12, 0x34]),
        with(good.clone(), 40, &[0x12, 0x34]),
        with(good.clone(), good.len() - 1, b"?"),
    ];
    let two = [get.clone(), get.clone()].concat();
    // A datagram so long that its packet's length, in 16 bits, begins again from 0.
    let vast =
        with(udp_off(framed(Some(2), &Request::set(b"key", &[1; 40]).packet(1))), 16, &[0, 14]);
    let vast = with(with(vast, 38, &65_530_u16.to_be_bytes()), 58, &65_490_u32.to_be_bytes());
    let malformed = [
        summed(vast),
        framed(None, b""),
        framed(Some(2), &two),
        framed(Some(2), &get[..get.len() - 1]),
        framed(Some(2), &get[..23]),
        frame(&CLIENT, &header([1, 0, 2, 0])),
        frame(&CLIENT, &header([1, 1, 1, 0])),
        framed(Some(2), &with(get.clone(), 0, &[0x81])),
        framed(Some(2), &with(get.clone(), 11, &[255])),
        framed(Some(2), &with(get.clone(), 2, &[0, 28])),
        // Cut by the network: lengths that go beyond what came.
        udp_off(good.clone())[..good.len() - 8].to_vec(),
        udp_off(good.clone())[..70].to_vec(),
        good[..60].to_vec(),
        good[..20].to_vec(),
        good[..1].to_vec(),
    ];
    let expected = Dropped {
        overflow: 1,
        broken: 1,
        other: other.len() as u64,
        unsound: unsound.len() as u64,
        malformed: malformed.len() as u64,
    };
    let bad = other.into_iter().chain(unsound).chain(malformed);
    let mut sent = 1;
    link.send(framed(Some(0), &Request::set(b"a key of more than one beat", b"!").packet(0)));
    for frame in bad {
        link.send(frame);
        link.send(good.clone());
        sent += 1;
    }
    link.send_broken(good.clone());
    // A frame longer than the whole frame buffer.
    link.send(frame(&CLIENT, &vec![0; 5000]));
    link.send(good);
    let frames = link.settle();
    assert_eq!(link.dropped, expected);
    let counted = Dropped {
        overflow: link.read_counter(register::DROPPED_OVERFLOW),
        broken: link.read_counter(register::DROPPED_BROKEN),
        other: link.read_counter(register::DROPPED_OTHER),
        unsound: link.read_counter(register::DROPPED_UNSOUND),
        malformed: link.read_counter(register::DROPPED_MALFORMED),
    };
    assert_eq!(counted, expected);
    assert_eq!(frames.len(), sent + 1);
    for frame in &frames[1..] {
        assert_eq!(answer(&open(frame).1[8..]), (opcode::GET, status::OK, 1, Some(0), &b"!"[..]));
    }
}

#[test]
fn noise_and_damaged_frames_do_not_stop_it() {
    let mut link = Link::new(&Port::GIGABITS_10, &Memory::DDR600, false);
    let mut random = SmallRng::seed_from_u64(3);
    let (mut answers, mut sent) = (0, 0);
    for _ in 0..40 {
        for _ in 0..25 {
            let request = match random.random_range(0..3) {
                0 => Request::get(b"some key"),
                1 => Request::set(b"some key", &vec![7; random.random_range(0..1100)]),
                _ => Request::delete(b"some key"),
            };
            let mut frame = framed(None, &request.packet(random.random()));
            for _ in 0..random.random_range(0..3) {
                let at = random.random_range(12..frame.len());
                frame[at] = random.random();
            }
            if random.random_bool(0.2) {
                frame.truncate(random.random_range(1..frame.len()));
            }
            link.send(frame);
            sent += 1;
        }
        answers += link.settle().len();
        link.send(framed(None, &Request::new(opcode::NOOP, b"", b"").packet(0xfeed)));
        let frames = link.settle();
        let last = answer(open(frames.last().expect("it answers")).1);
        assert_eq!(last, (opcode::NOOP, status::OK, 0xfeed, None, &b""[..]));
    }
    // A damaged opcode may be a quiet one, whose answer is left out.
    let total = answers as u64 + link.dropped.total();
    assert!((sent - 20..=sent).contains(&total), "{answers} {:?}", link.dropped);
    assert!(link.dropped.unsound > 100 && link.dropped.malformed > 50);
}

#[test]
fn a_flood_to_one_key_is_answered() {
    flood(&Port::GIGABITS_10);
}

/// Requests for one key at the pace of the wire.
fn flood(port: &Port) {
    for (value_bytes, sets) in [(0, 1), (1, 2), (700, 1)] {
        let memory = if port.gigabits > 10.0 { Memory::FAST } else { Memory::DDR600 };
        let mut link = Link::new(port, &memory, false);
        let value = vec![1; value_bytes];
        for number in 0..2000 {
            let request = match number % sets {
                0 => Request::set(b"hotkey", &value),
                _ => Request::get(b"hotkey"),
            };
            link.send(framed(None, &request.packet(number)));
        }
        let frames = link.settle();
        let Dropped { overflow, .. } = link.dropped;
        assert_eq!(link.dropped, Dropped { overflow, ..Dropped::default() });
        assert_eq!(frames.len() as u64 + overflow, 2000);
        let opaques: Vec<u32> = frames.iter().map(|frame| answer(open(frame).1).2).collect();
        assert!(opaques.is_sorted());
        // A write's outcome is forwarded, so none waits for memory. Long values fill the buffers.
        assert!(overflow == 0 || value_bytes == 700 || port.gigabits > 10.0, "{overflow}");
        link.send(framed(None, &Request::get(b"hotkey").packet(9)));
        let last = link.settle();
        assert_eq!(answer(open(&last[0]).1), (opcode::GET, status::OK, 9, Some(0), &value[..]));
    }
}

#[test]
fn the_wire_is_carried() {
    for has_header in [false, true] {
        let smallest = Load { has_header, ..Load::uniform(Port::GIGABITS_10, 6, 1) };
        let rate = smallest.measure(&Memory::DDR600, 1000);
        assert!(rate.is_held() && rate.line > if has_header { 12.0 } else { 13.0 }, "{rate:?}");
        for (key_bytes, value_bytes) in [(6, 1), (25, 1), (73, 64), (168, 1), (9, 512)] {
            let load = Load::uniform(Port::GIGABITS_10, key_bytes, value_bytes);
            let load = Load { sets_percent: 50, has_header, ..load };
            let rate = load.measure(&Memory::DDR600, 1000);
            assert!(rate.is_held() && rate.utilisation < 1.0, "{load:?}: {rate:?}");
        }
    }
    // The measurement sees what is too slow: a line in ten cycles, with values.
    let slow = Memory { burst: 10, ..Memory::DDR600 };
    let load = Load { sets_percent: 50, ..Load::uniform(Port::GIGABITS_10, 25, 1) };
    assert!(!load.measure(&slow, 300).is_held());
}

/// Half of the requests are SETs, and keys have Zipf's distribution: one in seven is for the same.
fn hot_keys_are_carried(port: Port, memory: &Memory) {
    for (key_bytes, value_bytes) in [(6, 0), (6, 8), (16, 64), (25, 8)] {
        let load = Load::uniform(port, key_bytes, value_bytes);
        let load = Load { popularity: Popularity::Zipf, sets_percent: 50, ..load };
        let rate = load.measure(memory, 200 * port.gigabits as usize);
        assert!(rate.is_held(), "{} Gb/s, {load:?}: {rate:?}", port.gigabits);
    }
}

#[test]
fn the_wire_is_carried_with_hot_keys() {
    hot_keys_are_carried(Port::GIGABITS_10, &Memory::DDR600);
    let one = Load::uniform(Port::GIGABITS_10, 6, 8);
    let one = Load { popularity: Popularity::Single, sets_percent: 100, ..one };
    let rate = one.measure(&Memory::DDR600, 1000);
    assert!(rate.is_held() && rate.line > 11.0, "{rate:?}");
}

#[cfg(feature = "wide")]
#[test]
fn wide_wires_are_carried_with_hot_keys() {
    hot_keys_are_carried(Port::GIGABITS_40, &Memory::FAST);
    hot_keys_are_carried(Port::GIGABITS_100, &Memory::FAST);
}

/// 96-byte packets: with headers of Ethernet and the wire around them, keys of 6 bytes.
#[cfg(feature = "wide")]
#[test]
fn wide_wires_are_carried() {
    for port in [Port::GIGABITS_40, Port::GIGABITS_100] {
        for sets_percent in [0, 5, 50] {
            let load = Load { sets_percent, ..Load::uniform(port, 6, 1) };
            let rate = load.measure(&Memory::FAST, 2000);
            eprintln!("{} {sets_percent}: {rate:?}", port.gigabits);
            assert!(rate.is_held(), "{} Gb/s, {load:?}: {rate:?}", port.gigabits);
        }
    }
}

/// Keys and values of many lengths, with frames in between that are not requests.
#[cfg(feature = "wide")]
#[test]
fn wide_ports_answer_every_key_and_drop_the_rest() {
    for port in [Port::GIGABITS_40, Port::GIGABITS_100] {
        let mut link = Link::new(&port, &Memory::FAST, true);
        let key = |number: usize| vec![number as u8; 1 + number % 168];
        let value = |number: usize| vec![number as u8; number * 37 % 1025];
        let ask = |link: &mut Link, request: &dyn Fn(usize) -> Request| {
            for number in 0..168 {
                let frame = framed(Some(number as u16), &request(number).packet(number as u32));
                link.send(with(frame.clone(), 23, &[6]));
                link.send_broken(frame.clone());
                link.send(frame);
            }
            link.send(frame(&CLIENT, &vec![0; 3000]));
            link.settle()
        };
        let stored = ask(&mut link, &|number| Request::set(&key(number), &value(number)));
        let found = ask(&mut link, &|number| Request::get(&key(number)));
        assert_eq!((stored.len(), found.len()), (168, 168));
        for (number, (stored, found)) in stored.iter().zip(&found).enumerate() {
            let (opaque, value) = (number as u32, value(number));
            let ok = |frame| answer(&open(frame).1[8..]);
            assert_eq!(ok(stored), (opcode::SET, status::OK, opaque, None, &b""[..]));
            assert_eq!(ok(found), (opcode::GET, status::OK, opaque, Some(0), &value[..]));
        }
        // Cut where frames end, so broken.
        let (other, broken) = (2 * 168, 2 * 169);
        assert_eq!(link.dropped, Dropped { other, broken, ..Dropped::default() });
    }
}

/// Requests to all tables, some of them quiet, among frames that are not requests.
#[cfg(feature = "wide")]
#[test]
fn wide_ports_answer_in_the_order_of_the_requests() {
    use std::collections::HashMap;

    for port in [Port::GIGABITS_40, Port::GIGABITS_100] {
        let mut link = Link::new(&port, &Memory::FAST, true);
        let mut random = SmallRng::seed_from_u64(9);
        let keys: Vec<_> =
            (0..60).map(|number| vec![number; random.random_range(1..170)]).collect();
        let (mut items, mut expected) = (HashMap::new(), Vec::new());
        for opaque in 0..3000 {
            let key = &keys[random.random_range(0..keys.len())];
            let value = vec![opaque as u8; random.random_range(0..300)];
            let code = [opcode::GET, opcode::GETQ, opcode::SET, opcode::SETQ, opcode::NOOP, 0x77]
                [random.random_range(0..6)];
            let request = match code {
                opcode::SET | opcode::SETQ => Request::new(code, key, &value),
                opcode::NOOP => Request::new(code, b"", b""),
                _ => Request::new(code, key, b""),
            };
            let found = items.get(key);
            let (status, found) = match code {
                _ if key.len() > 168 && code != opcode::NOOP && code != 0x77 => {
                    (status::INVALID, None)
                }
                opcode::SET | opcode::SETQ => {
                    items.insert(key, value);
                    (status::OK, None)
                }
                opcode::GET | opcode::GETQ if found.is_none() => (status::NOT_FOUND, None),
                opcode::GET | opcode::GETQ => (status::OK, found.cloned()),
                opcode::NOOP => (status::OK, None),
                _ => (status::UNKNOWN, None),
            };
            let is_silent = (code == opcode::GETQ && status == status::NOT_FOUND)
                || (code == opcode::SETQ && status == status::OK);
            if !is_silent {
                expected.push((code, status, opaque, found));
            }
            let frame = framed(Some(opaque as u16), &request.packet(opaque));
            if random.random_bool(0.1) {
                link.send_broken(frame.clone());
                link.send(with(frame.clone(), 23, &[6]));
            }
            // Answers are longer than requests.
            let spacing = frame.len() as u64 + 300;
            link.send_spaced(frame, spacing);
        }
        let frames = link.settle();
        assert_eq!(link.dropped.overflow, 0);
        assert_eq!(frames.len(), expected.len());
        for (frame, expected) in frames.iter().zip(expected) {
            let (code, status, opaque, _, value) = answer(&open(frame).1[8..]);
            let (wanted_code, wanted_status, wanted_opaque, wanted) = expected;
            assert_eq!((code, status, opaque), (wanted_code, wanted_status, wanted_opaque));
            assert_eq!(value, wanted.unwrap_or_default());
        }
    }
}

/// The order holds even if a key is longer than a lane's whole key buffer.
#[cfg(feature = "wide")]
#[test]
fn wide_ports_outlive_floods_and_keys_that_are_too_long() {
    for port in [Port::GIGABITS_40, Port::GIGABITS_100] {
        flood(&port);
        let mut link = Link::new(&port, &Memory::FAST, false);
        let keys: Vec<usize> = (0..40).flat_map(|number| [6, 200 + 29 * number]).collect();
        for (opaque, bytes) in (0..).zip(&keys) {
            // They begin alike, so they meet at one table, which takes 8 bytes a cycle.
            let frame = framed(None, &Request::get(&vec![b'k'; *bytes]).packet(opaque));
            let spacing = 10 * frame.len() as u64;
            link.send_spaced(frame, spacing);
        }
        let frames = link.settle();
        assert_eq!(frames.len(), keys.len());
        for (frame, (opaque, bytes)) in frames.iter().zip((0..).zip(keys)) {
            let status = if bytes == 6 { status::NOT_FOUND } else { status::INVALID };
            assert_eq!(answer(open(frame).1), (opcode::GET, status, opaque, None, &b""[..]));
        }
    }
}
