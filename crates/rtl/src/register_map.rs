//! Addresses of the registers. Made of rtl/registers.toml.

/// The magic number "AMKV".
pub const ID: u32 = 0x00;

/// 0.2.0: major, minor and patch in a byte each.
pub const VERSION: u32 = 0x04;

/// The number of slots of a bucket.
pub const SLOTS: u32 = 0x08;

/// Bytes that a slot has of a memory line.
pub const STRIPE_BYTES: u32 = 0x0c;

/// The number of memory lines of a bucket.
pub const LINES: u32 = 0x10;

/// The longest key in bytes.
pub const KEY_BYTES: u32 = 0x14;

/// The binary logarithm of the number of buckets.
pub const BUCKET_BITS: u32 = 0x18;

/// Bit 0: a full bucket gives up a slot; bit 1: no values are stored or returned.
pub const CONTROL: u32 = 0x1c;

/// The clock in seconds, by which items end; it may be set back.
pub const TIME: u32 = 0x20;

/// Lower half of the hash's seed, which should be random and secret.
pub const SEED_LOW: u32 = 0x24;

/// Upper half of the hash's seed.
pub const SEED_HIGH: u32 = 0x28;

/// 1 when the table was cleared and lets requests in.
pub const READY: u32 = 0x2c;

/// Answered GET and GETK, quiet or not.
pub const GETS: u32 = 0x30;

/// Answered SET, quiet or not.
pub const SETS: u32 = 0x38;

/// Answered DELETE, quiet or not.
pub const DELETES: u32 = 0x40;

/// Answered requests of any other opcode.
pub const OTHERS: u32 = 0x48;

/// GETs that found their key.
pub const HITS: u32 = 0x50;

/// GETs whose key was not found.
pub const MISSES: u32 = 0x58;

/// Requests with contradictory lengths, or whose key is too long or missing.
pub const REFUSED_INVALID: u32 = 0x60;

/// SETs of a value that is too large.
pub const REFUSED_TOO_LARGE: u32 = 0x68;

/// SETs that found no slot where nothing is evicted.
pub const REFUSED_NO_MEMORY: u32 = 0x70;

/// Requests with an opcode that the table does not know.
pub const REFUSED_UNKNOWN: u32 = 0x78;

/// SETs and DELETEs with a CAS id.
pub const REFUSED_CAS: u32 = 0x80;

/// Requests that entered the critical section.
pub const ENTERED: u32 = 0x88;

/// Cycles in which a request waited for an older write of its bucket.
pub const STALL_CYCLES: u32 = 0x90;

/// The binary logarithm of the number of beats of the log of values.
pub const LOG_BITS: u32 = 0x98;

/// The position at which the log of values goes on, from 1 on since the reset, lower half.
pub const LOG_HEAD_LOW: u32 = 0x9c;

/// The same, upper half.
pub const LOG_HEAD_HIGH: u32 = 0xa0;

/// Bytes of a beat of the key and value streams.
pub const BUS_BYTES: u32 = 0xa4;

/// Frames dropped because there was no room.
pub const DROPPED_OVERFLOW: u32 = 0xa8;

/// Frames that the MAC reported as broken.
pub const DROPPED_BROKEN: u32 = 0xb0;

/// Frames for others, or from where no answer may go.
pub const DROPPED_OTHER: u32 = 0xb8;

/// Frames with a wrong checksum of IPv4 or UDP.
pub const DROPPED_UNSOUND: u32 = 0xc0;

/// Frames that are not exactly one request.
pub const DROPPED_MALFORMED: u32 = 0xc8;
