//! Requests and answers as the hardware's streams carry them.

/// memcached's binary opcodes that the table knows.
pub mod opcode {
    #![expect(missing_docs, reason = "named as in memcached's binary protocol")]
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const DELETE: u8 = 0x04;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const SETQ: u8 = 0x11;
    pub const DELETEQ: u8 = 0x14;
}

/// memcached's binary status codes that the table answers.
pub mod status {
    #![expect(missing_docs, reason = "named as in memcached's binary protocol")]
    pub const OK: u16 = 0x0000;
    pub const NOT_FOUND: u16 = 0x0001;
    pub const TOO_LARGE: u16 = 0x0003;
    pub const INVALID: u16 = 0x0004;
    pub const UNKNOWN: u16 = 0x0081;
    pub const NO_MEMORY: u16 = 0x0082;
    pub const NOT_SUPPORTED: u16 = 0x0083;
}

/// A request. Its stated lengths may differ from those of its key and value, to test bad input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The id that the answer repeats.
    pub id: u32,
    /// The opcode of the binary protocol; see [`opcode`].
    pub opcode: u8,
    /// The length of the key in bytes, as the request states it.
    pub key_bytes: u8,
    /// The length of the value in bytes, as the request states it in 24 bits.
    pub value_bytes: u32,
    /// The client's flags.
    pub flags: u32,
    /// Second at which the item expires; 0 means never.
    pub expiry: u32,
    /// CAS id that the item must have; 0: none. Items have none, so SET and DELETE are refused.
    pub cas: u64,
    /// Bytes sent in the key stream.
    pub key: Vec<u8>,
    /// Bytes sent in the value stream.
    pub value: Vec<u8>,
}

impl Request {
    /// Creates a request whose stated lengths are correct.
    pub fn new(opcode: u8, key: &[u8], value: &[u8]) -> Self {
        Self {
            id: 0,
            opcode,
            key_bytes: key.len() as u8,
            value_bytes: value.len() as u32,
            flags: 0,
            expiry: 0,
            cas: 0,
            key: key.to_vec(),
            value: value.to_vec(),
        }
    }

    /// Creates a GET.
    pub fn get(key: &[u8]) -> Self {
        Self::new(opcode::GET, key, &[])
    }

    /// Creates a SET of an item that never expires.
    pub fn set(key: &[u8], value: &[u8]) -> Self {
        Self::new(opcode::SET, key, value)
    }

    /// Creates a DELETE.
    pub fn delete(key: &[u8]) -> Self {
        Self::new(opcode::DELETE, key, &[])
    }

    /// Encodes the request in memcached's binary protocol, with this opaque field.
    pub fn packet(&self, opaque: u32) -> Vec<u8> {
        let extras = match self.opcode {
            opcode::SET | opcode::SETQ => [self.flags, self.expiry].map(u32::to_be_bytes).concat(),
            _ => Vec::new(),
        };
        let body = (extras.len() + self.key.len() + self.value.len()) as u32;
        let mut packet = vec![0x80, self.opcode];
        packet.extend((self.key.len() as u16).to_be_bytes());
        packet.extend([extras.len() as u8, 0, 0, 0]);
        packet.extend([body, opaque].map(u32::to_be_bytes).concat());
        packet.extend(self.cas.to_be_bytes());
        [packet, extras, self.key.clone(), self.value.clone()].concat()
    }

    /// Returns the request with this id.
    pub fn with_id(self, id: u32) -> Self {
        Self { id, ..self }
    }

    /// Returns the request with this CAS id.
    pub fn with_cas(self, cas: u64) -> Self {
        Self { cas, ..self }
    }

    /// Returns the request with this expiry.
    pub fn with_expiry(self, expiry: u32) -> Self {
        Self { expiry, ..self }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The id of the request.
    pub id: u32,
    /// The opcode of the request.
    pub opcode: u8,
    /// The status code of the binary protocol; see [`status`].
    pub status: u16,
    /// Byte address of the value in the value memory; 0 if the answer refers to no value.
    pub pointer: u64,
    /// Flags of the item found.
    pub flags: u32,
    /// The value that a GET found; None otherwise.
    pub value: Option<Vec<u8>>,
}
