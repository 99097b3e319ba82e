//! Packets of the binary protocol: random ones, and their answers as text.

use std::fmt::Write;

use crate::answers::Ids;
use crate::commands::Generator;

/// Bytes of a packet's head.
const HEAD_BYTES: usize = 24;

/// A packet to be sent. `cas` says which of the ids seen for its key goes along.
pub struct Packet {
    opcode: u8,
    key_number: u8,
    key: String,
    extras: Vec<u8>,
    value: Vec<u8>,
    cas: Option<usize>,
    opaque: u32,
    /// How many bytes the head promises beyond, or short of, those that are there.
    lie: i64,
    /// Whether something about it is not as it should be.
    pub is_wrong: bool,
}

/// The name under which the ids of a key are kept.
fn id_name(opaque: u32) -> String {
    format!("packet {}", opaque & 0xff)
}

impl Packet {
    pub fn write(&self, ids: &Ids, target: &mut Vec<u8>) {
        let body = self.extras.len() + self.key.len() + self.value.len();
        let body = (body as i64 + self.lie).max(0) as u32;
        let cas = self.cas.map_or(0, |ago| ids.recent(&id_name(self.opaque), ago));
        target.extend_from_slice(&[0x80, self.opcode]);
        target.extend_from_slice(&(self.key.len() as u16).to_be_bytes());
        target.extend_from_slice(&[self.extras.len() as u8, 0, 0, 0]);
        target.extend_from_slice(&body.to_be_bytes());
        target.extend_from_slice(&self.opaque.to_be_bytes());
        target.extend_from_slice(&cas.to_be_bytes());
        target.extend_from_slice(&self.extras);
        target.extend_from_slice(self.key.as_bytes());
        target.extend_from_slice(&self.value);
    }

    pub fn describe(&self) -> String {
        let value = &self.value[..self.value.len().min(60)];
        format!(
            "{:#04x} key {} ({}) extras {:02x?} cas {:?} lie {} <- {} ({} bytes)",
            self.opcode,
            self.key_number,
            self.key.len(),
            self.extras,
            self.cas,
            self.lie,
            value.escape_ascii(),
            self.value.len()
        )
    }
}

/// The opcodes whose packets look alike.
const READS: &[u8] = &[0x00, 0x09, 0x0c, 0x0d];
const STORES: &[u8] = &[0x01, 0x01, 0x02, 0x03, 0x11, 0x12, 0x13];
const PASTES: &[u8] = &[0x0e, 0x0f, 0x19, 0x1a];
const DELETES: &[u8] = &[0x04, 0x14];
const TOUCHES: &[u8] = &[0x1c, 0x1d, 0x1e, 0x23, 0x24];
const FLUSHES: &[u8] = &[0x08, 0x18];
/// Those without a meaning, and of authentication, which is off.
const OTHERS: &[u8] = &[0x0a, 0x1b, 0x1f, 0x20, 0x25, 0x50, 0xff];

impl Generator {
    /// A packet, well formed more often than not.
    pub fn packet(&mut self, number: u32) -> Packet {
        let mut packet = self.well_formed();
        packet.opaque = number << 8 | u32::from(packet.key_number);
        if !self.chance(4) {
            return packet;
        }
        packet.is_wrong = true;
        match self.below(5) {
            // So is what follows an unknown opcode.
            0 if !OTHERS.contains(&packet.opcode) => packet.extras.push(7),
            1 => drop(packet.extras.pop()),
            2 => packet.key = "k".repeat(self.pick(&[0, 251, 300])),
            // What becomes of a touch's value is in docs/compatibility.md.
            3 if !TOUCHES.contains(&packet.opcode) => packet.value = b"more".to_vec(),
            // Shorter than its parts.
            4 => packet.lie = -(packet.value.len() as i64) - 1,
            _ => {}
        }
        packet
    }

    fn well_formed(&mut self) -> Packet {
        let (key_number, key) = self.numbered_key();
        let cas = self.chance(15).then(|| self.below(3));
        let mut packet = Packet {
            opcode: 0,
            key_number,
            key,
            extras: Vec::new(),
            value: Vec::new(),
            cas: None,
            opaque: 0,
            lie: 0,
            is_wrong: false,
        };
        let expiry: u32 = self.pick(&[0, 0, 0, 1000, 2_592_000, 2_000_000_000]);
        // No arithmetic: what memcached answers, spaces behind a number or none, depends on whether
        // something still holds the item. `binary_numbers.txt` has it, packet by packet.
        let kinds = [READS, STORES, PASTES, DELETES, TOUCHES, FLUSHES, OTHERS];
        let weights = [34, 64, 73, 82, 95, 96, 100];
        let roll = self.below(100);
        let kind = weights.partition_point(|weight| *weight <= roll);
        packet.opcode = self.pick(kinds[kind]);
        match kind {
            1 => {
                packet.extras = (self.bits() as u32).to_be_bytes().to_vec();
                packet.extras.extend_from_slice(&expiry.to_be_bytes());
                packet.value = self.value();
                packet.cas = cas;
            }
            2 => (packet.value, packet.cas) = (self.value(), cas),
            3 => packet.cas = cas,
            4 => packet.extras = expiry.to_be_bytes().to_vec(),
            5 => {
                packet.key.clear();
                packet.extras = vec![0; self.pick(&[0, 4])];
            }
            6 => packet.key.clear(),
            _ => {}
        }
        packet
    }
}

/// Answers as text, a line each, with symbols for ids.
pub fn normalize(ids: &mut Ids, mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let body_bytes = (word(8) as usize).min(rest.len());
        let opaque = word(12);
        let cas = u64::from(word(16)) << 32 | u64::from(word(20));
        let cas = ids.symbol(&id_name(opaque), &cas.to_string());
        let (body, behind) = rest.split_at(body_bytes);
        let shown = &body[..body.len().min(200)];
        let _ = writeln!(
            text,
            "{} opaque {opaque:#x} cas {cas} {} ({} bytes)",
            head[..8].escape_ascii(),
            shown.escape_ascii(),
            word(8)
        );
        bytes = behind;
    }
    if !bytes.is_empty() {
        let _ = writeln!(text, "{}", bytes.escape_ascii());
    }
    text
}
