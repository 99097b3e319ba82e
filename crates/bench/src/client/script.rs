//! The bytes of all requests, generated before the clock starts.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::client::arguments::{Protocol, ServerArguments};
use crate::workload::{KeySpace, Permutation, Popularity, mix64};

/// The length of the frame header of a datagram: request id, sequence number, count of datagrams,
/// reserved.
pub const FRAME_BYTES: usize = 8;

/// A sequence of requests in one buffer, sent cyclically.
pub struct Script {
    bytes: Vec<u8>,
    /// The offset of each request in `bytes`, and at the end the length of `bytes`.
    starts: Vec<usize>,
    /// The number of keys that each request reads; 0 for a set.
    keys: Vec<u16>,
}

/// Opcodes of the binary protocol.
pub mod opcode {
    /// The command `get`.
    pub const GET: u8 = 0x00;
    /// The command `set`.
    pub const SET: u8 = 0x01;
    /// The command `getq`: a get that is silent on a miss.
    pub const GET_QUIETLY: u8 = 0x09;
    /// The command `noop`, whose reply marks the end of a row of quiet requests.
    pub const NOOP: u8 = 0x0a;
}

impl Script {
    /// Generates the requests of one client thread.
    ///
    /// # Errors
    ///
    /// If the number of keys, their length or theta is invalid.
    pub fn new(arguments: &ServerArguments, thread: usize) -> anyhow::Result<Self> {
        let popularity = Popularity::new(arguments.keys, arguments.theta)?;
        let scatter = Permutation::new(arguments.keys, mix64(arguments.seed));
        let mut random = SmallRng::seed_from_u64(mix64(arguments.seed ^ (thread as u64 + 1)));
        let mut writer =
            Writer::new(arguments.protocol, arguments.key_bytes, arguments.value_bytes)?;
        let count = arguments.request_count();
        let mut script = Self { bytes: Vec::new(), starts: vec![0], keys: Vec::new() };
        for number in 0..count {
            let is_set = random.random_range(0.0..1.0) < arguments.set;
            let mut id = || scatter.apply(popularity.draw(&mut random)) as u32;
            if is_set {
                writer.set(number as u16, id(), &mut script.bytes);
                script.keys.push(0);
            } else {
                let ids: Vec<u32> = (0..arguments.multi).map(|_| id()).collect();
                writer.get(number as u16, &ids, &mut script.bytes);
                script.keys.push(arguments.multi as u16);
            }
            script.starts.push(script.bytes.len());
        }
        Ok(script)
    }

    /// The number of requests.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// The bytes of `count` requests, the first of which has index `first`.
    pub fn slice(&self, first: usize, count: usize) -> &[u8] {
        &self.bytes[self.starts[first]..self.starts[first + count]]
    }

    /// The number of keys that a request reads; 0 for a set.
    pub fn keys(&self, request: usize) -> u64 {
        u64::from(self.keys[request])
    }
}

/// Writes requests of one protocol.
pub struct Writer {
    protocol: Protocol,
    key_space: KeySpace,
    key: Vec<u8>,
    value_bytes: usize,
}

impl Writer {
    /// A writer for keys of `key_bytes` bytes and values of `value_bytes` bytes.
    ///
    /// # Errors
    ///
    /// If `key_bytes` is too short or too long for a [`KeySpace`].
    pub fn new(protocol: Protocol, key_bytes: usize, value_bytes: usize) -> anyhow::Result<Self> {
        let key_space = KeySpace::new(key_bytes)?;
        Ok(Self { protocol, key_space, key: vec![0; key_bytes], value_bytes })
    }

    /// Appends a set of key `id` to `target`; the value is the key, repeated. `number` is the
    /// request id of a datagram.
    pub fn set(&mut self, number: u16, id: u32, target: &mut Vec<u8>) {
        self.key_space.write_text(id, &mut self.key);
        match self.protocol {
            Protocol::Text => {
                target.extend_from_slice(b"set ");
                target.extend_from_slice(&self.key);
                target.extend_from_slice(format!(" 0 0 {}\r\n", self.value_bytes).as_bytes());
            }
            Protocol::Meta => {
                target.extend_from_slice(b"ms ");
                target.extend_from_slice(&self.key);
                target.extend_from_slice(format!(" {}\r\n", self.value_bytes).as_bytes());
            }
            Protocol::Binary | Protocol::Udp => {
                self.frame(number, target);
                binary_header(opcode::SET, 8, self.key.len(), self.value_bytes, target);
                target.extend_from_slice(&[0; 8]);
                target.extend_from_slice(&self.key);
            }
        }
        target.extend(self.key.iter().cycle().take(self.value_bytes));
        if matches!(self.protocol, Protocol::Text | Protocol::Meta) {
            target.extend_from_slice(b"\r\n");
        }
    }

    /// Appends a get of all `ids` to `target`. `number` is the request id of a datagram.
    pub fn get(&mut self, number: u16, ids: &[u32], target: &mut Vec<u8>) {
        let is_multi = ids.len() > 1;
        match self.protocol {
            Protocol::Text => target.extend_from_slice(b"get"),
            Protocol::Udp => self.frame(number, target),
            Protocol::Meta | Protocol::Binary => {}
        }
        for id in ids {
            self.key_space.write_text(*id, &mut self.key);
            match self.protocol {
                Protocol::Text => target.push(b' '),
                Protocol::Meta => target.extend_from_slice(b"mg "),
                Protocol::Binary | Protocol::Udp => {
                    let quiet = if is_multi { opcode::GET_QUIETLY } else { opcode::GET };
                    binary_header(quiet, 0, self.key.len(), 0, target);
                }
            }
            target.extend_from_slice(&self.key);
            if self.protocol == Protocol::Meta {
                target.extend_from_slice(if is_multi { b" v q\r\n" } else { b" v\r\n" });
            }
        }
        match self.protocol {
            Protocol::Text => target.extend_from_slice(b"\r\n"),
            Protocol::Meta if is_multi => target.extend_from_slice(b"mn\r\n"),
            Protocol::Binary if is_multi => binary_header(opcode::NOOP, 0, 0, 0, target),
            Protocol::Meta | Protocol::Binary | Protocol::Udp => {}
        }
    }

    fn frame(&self, number: u16, target: &mut Vec<u8>) {
        if self.protocol == Protocol::Udp {
            let [high, low] = number.to_be_bytes();
            target.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
        }
    }
}

fn binary_header(code: u8, extras: u8, key: usize, value: usize, target: &mut Vec<u8>) {
    target.extend_from_slice(&[0x80, code]);
    target.extend_from_slice(&(key as u16).to_be_bytes());
    target.extend_from_slice(&[extras, 0, 0, 0]);
    target.extend_from_slice(&((usize::from(extras) + key + value) as u32).to_be_bytes());
    target.extend_from_slice(&[0; 12]);
}
