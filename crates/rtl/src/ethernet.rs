//! Simulates the hardware behind an Ethernet port: frames go in and come out at wire speed, with
//! time between them for preamble, frame check sequence and inter-frame gap.

use std::collections::VecDeque;

use crate::model::{FrameInputs, FrameOutputs, Frames, Model};
use crate::register_map as register;
use crate::{Configuration, GIGABITS_10, GIGABITS_40, GIGABITS_100, Memory};

/// An Ethernet port and the hardware behind it.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Configuration of the hardware.
    pub configuration: Configuration,
    /// Clock frequency of the hardware.
    pub megahertz: f64,
    /// Speed of the wire in Gb/s, in each direction.
    pub gigabits: f64,
}

impl Port {
    /// A port of 10 Gb/s as the paper has it: 64 bits at 156.25 MHz.
    pub const GIGABITS_10: Self =
        Self { configuration: GIGABITS_10, megahertz: 156.25, gigabits: 10.0 };
    /// A port of 40 Gb/s: 256 bits at 200 MHz. It needs the feature `wide`.
    pub const GIGABITS_40: Self =
        Self { configuration: GIGABITS_40, megahertz: 200.0, gigabits: 40.0 };
    /// A port of 100 Gb/s: 512 bits at 322 MHz. It needs the feature `wide`.
    pub const GIGABITS_100: Self =
        Self { configuration: GIGABITS_100, megahertz: 322.265_625, gigabits: 100.0 };

    /// Bytes that the wire carries per clock cycle.
    pub fn wire_bytes(&self) -> f64 {
        self.gigabits * 1000.0 / 8.0 / self.megahertz
    }
}

/// Bytes of overhead per frame on the wire: preamble, frame check sequence and gap.
pub const WIRE_BYTES: u64 = 24;
/// Minimum length of a frame in bytes; a shorter one is padded.
pub const SHORTEST_FRAME: usize = 60;
/// The hardware's IPv4 address.
pub const OWN_IP: [u8; 4] = [10, 0, 0, 1];
/// The hardware's UDP port.
pub const OWN_PORT: u16 = 11211;

/// Cycles without output after which no further answers are expected.
const PATIENCE_CYCLES: u64 = 2_000;

/// The client that a frame comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's Ethernet address.
    pub mac: [u8; 6],
    /// The client's IPv4 address.
    pub ip: [u8; 4],
    /// The client's UDP port.
    pub port: u16,
}

/// The hardware's Ethernet address.
pub const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HEADERS_BYTES: usize = 42;

/// The Internet checksum's sum: ones' complement addition of 16-bit words.
fn ones_sum(bytes: &[u8]) -> u16 {
    let pair = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(pair).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The pseudo-header that a UDP checksum covers together with the datagram.
fn pseudo_header(from: [u8; 4], to: [u8; 4], udp_bytes: u16) -> Vec<u8> {
    [&from[..], &to, &[0, 17], &udp_bytes.to_be_bytes()].concat()
}

/// Builds a frame with a UDP datagram from `client` to the hardware.
pub fn frame(client: &Client, payload: &[u8]) -> Vec<u8> {
    let udp_bytes = 8 + payload.len() as u16;
    let mut udp = [client.port, OWN_PORT, udp_bytes, 0].map(u16::to_be_bytes).concat();
    udp.extend(payload);
    let sum = !ones_sum(&[pseudo_header(client.ip, OWN_IP, udp_bytes), udp.clone()].concat());
    udp[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    let ip_bytes = (20 + udp_bytes).to_be_bytes();
    let mut ip = vec![0x45, 0, ip_bytes[0], ip_bytes[1], 0, 0, 0x40, 0, 64, 17, 0, 0];
    ip.extend([client.ip, OWN_IP].concat());
    let sum = !ones_sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [&OWN_MAC[..], &client.mac, &[8, 0], &ip, &udp].concat();
    frame.resize(frame.len().max(SHORTEST_FRAME), 0);
    frame
}

/// Checks a frame sent by the hardware; returns its receiver and the datagram's payload.
///
/// # Panics
///
/// If an address, a length or a checksum is wrong.
pub fn open(frame: &[u8]) -> (Client, &[u8]) {
    assert_eq!(frame[6..12], OWN_MAC);
    assert_eq!(frame[12..15], [8, 0, 0x45]);
    assert_eq!(ones_sum(&frame[14..34]), 0xffff, "IPv4 checksum");
    assert_eq!([&frame[26..30], &frame[34..36]], [&OWN_IP[..], &OWN_PORT.to_be_bytes()]);
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    assert_eq!([word(16), word(38) + 20], [(frame.len() - 14) as u16; 2], "lengths");
    assert_eq!(word(40), 0, "UDP checksum");
    let mac = frame[..6].try_into().expect("six bytes");
    let ip = frame[30..34].try_into().expect("four bytes");
    (Client { mac, ip, port: word(36) }, &frame[HEADERS_BYTES..])
}

/// Number of frames that the hardware dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The frame buffer was full.
    pub overflow: u64,
    /// The MAC reported a wrong frame check sequence.
    pub broken: u64,
    /// The protocol, address or port is not the hardware's, it is a fragment, or no station can be
    /// answered at its source.
    pub other: u64,
    /// The IPv4 or UDP checksum is wrong.
    pub unsound: u64,
    /// The datagram is not exactly one request.
    pub malformed: u64,
}

impl Dropped {
    /// The sum over all causes.
    pub fn total(&self) -> u64 {
        self.overflow + self.broken + self.other + self.unsound + self.malformed
    }
}

/// A frame that waits to be sent.
struct Waiting {
    frame: Vec<u8>,
    /// Bytes of the wire until the next frame may begin.
    spacing: u64,
    is_broken: bool,
}

/// One direction of the wire. Times are in bytes on the wire since the start.
struct Wire {
    bytes_a_cycle: f64,
    free_at: f64,
}

impl Wire {
    fn is_free(&self, cycle: u64) -> bool {
        self.bytes_a_cycle * cycle as f64 >= self.free_at
    }

    /// Begins a frame. The unused fraction of a cycle is carried over to the next frame.
    fn begin(&mut self, cycle: u64, spacing: u64) {
        let earliest = self.bytes_a_cycle * (cycle as f64 - 1.0);
        self.free_at = self.free_at.max(earliest) + spacing as f64;
    }
}

/// The simulated hardware together with both directions of its wire.
pub struct Link {
    model: Model<Frames>,
    inputs: FrameInputs,
    outputs: FrameOutputs,
    waiting: VecDeque<Waiting>,
    /// Bytes already sent of the first waiting frame.
    sent: usize,
    received: Vec<u8>,
    frames: Vec<Vec<u8>>,
    wires: [Wire; 2],
    bus_bytes: usize,
    has_registers: bool,
    /// When the frame that is being received began.
    began: u64,
    /// Frames dropped since the reset.
    pub dropped: Dropped,
    /// Cycles since the reset.
    pub cycles: u64,
    /// Cycles in which a memory was busy, summed over all memories.
    pub busy_cycles: u64,
}

impl Link {
    /// Creates the hardware with this memory and resets it. With `has_header`, each request is
    /// preceded by memcached's 8-byte UDP header.
    pub fn new(port: &Port, memory: &Memory, has_header: bool) -> Self {
        let inputs = FrameInputs {
            mac: OWN_MAC.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte)),
            ip: u32::from_be_bytes(OWN_IP),
            port: OWN_PORT.into(),
            has_header: has_header.into(),
            latency: memory.latency.into(),
            burst: memory.burst.into(),
            part: memory.burst_48ths.into(),
            merge: memory.is_merging.into(),
            row_cycle: memory.row_cycle.into(),
            turn: memory.turn.into(),
            refresh_every: memory.refresh_every.into(),
            refresh: memory.refresh.into(),
            ..FrameInputs::default()
        };
        let mut link = Self {
            model: Model::new(&port.configuration),
            inputs,
            outputs: FrameOutputs::default(),
            waiting: VecDeque::new(),
            sent: 0,
            received: Vec::new(),
            frames: Vec::new(),
            wires: [(); 2].map(|()| Wire { bytes_a_cycle: port.wire_bytes(), free_at: 0.0 }),
            bus_bytes: port.configuration.bus_bytes,
            has_registers: port.configuration.tables == 1,
            began: 0,
            dropped: Dropped::default(),
            cycles: 0,
            busy_cycles: 0,
        };
        for is_reset in [1, 1, 0] {
            (link.inputs.reset, link.inputs.mem_reset) = (is_reset, is_reset);
            link.model.cycle(&link.inputs, &mut link.outputs);
        }
        while link.outputs.is_ready == 0 {
            link.model.cycle(&link.inputs, &mut link.outputs);
        }
        link
    }

    /// Sends a frame as soon as the wire is free.
    pub fn send(&mut self, frame: Vec<u8>) {
        let spacing = frame.len() as u64 + WIRE_BYTES;
        self.send_spaced(frame, spacing);
    }

    /// Sends a frame; the next one begins at least `spacing` bytes on the wire later.
    pub fn send_spaced(&mut self, frame: Vec<u8>, spacing: u64) {
        self.waiting.push_back(Waiting { frame, spacing, is_broken: false });
    }

    /// Sends a frame that the MAC reports as broken.
    pub fn send_broken(&mut self, frame: Vec<u8>) {
        let spacing = frame.len() as u64 + WIRE_BYTES;
        self.waiting.push_back(Waiting { frame, spacing, is_broken: true });
    }

    /// Number of frames that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the frames received since the last call.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }

    /// Runs until every frame is sent and the output has been idle for `PATIENCE_CYCLES`; returns
    /// the frames received.
    pub fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut quiet = 0;
        while quiet < PATIENCE_CYCLES {
            let before = self.frames.len();
            self.cycle();
            let is_moving = !self.waiting.is_empty() || self.frames.len() > before;
            quiet = if is_moving { 0 } else { quiet + 1 };
        }
        self.take_frames()
    }

    /// Sets the clock in seconds: a register of a single table, an input of several.
    pub fn set_now(&mut self, now_seconds: u32) {
        self.inputs.now = now_seconds;
        if self.has_registers {
            self.write_register(register::TIME, now_seconds);
        }
    }

    /// Writes a register of a single table.
    pub fn write_register(&mut self, address: u32, data: u32) {
        (self.inputs.awvalid, self.inputs.awaddr) = (1, address);
        (self.inputs.wvalid, self.inputs.wdata) = (1, data);
        self.wait_for(|outputs| outputs.wready != 0);
        (self.inputs.awvalid, self.inputs.wvalid) = (0, 0);
        self.cycle();
    }

    /// Reads a counter of 64 bits of a single table.
    pub fn read_counter(&mut self, address: u32) -> u64 {
        let [low, high] = [address, address + 4].map(|address| {
            (self.inputs.arvalid, self.inputs.araddr) = (1, address);
            self.wait_for(|outputs| outputs.arready != 0);
            self.inputs.arvalid = 0;
            self.wait_for(|outputs| outputs.rvalid != 0);
            u64::from(self.outputs.rdata)
        });
        high << 32 | low
    }

    fn wait_for(&mut self, is_there: impl Fn(&FrameOutputs) -> bool) {
        for _ in 0..PATIENCE_CYCLES {
            self.cycle();
            if is_there(&self.outputs) {
                return;
            }
        }
        panic!("the registers do not answer; several tables have none");
    }

    /// Simulates one cycle.
    pub fn cycle(&mut self) {
        self.offer();
        let is_inside = !self.received.is_empty();
        self.inputs.frame_ready = (is_inside || self.wires[1].is_free(self.cycles)).into();
        self.model.cycle(&self.inputs, &mut self.outputs);
        self.count();
        if self.outputs.frame_valid & self.inputs.frame_ready != 0 {
            self.take();
        }
        self.cycles += 1;
    }

    /// Offers the next beat of a frame. The port cannot refuse it.
    fn offer(&mut self) {
        self.inputs.frame_valid = 0;
        let Some(first) = self.waiting.front() else { return };
        if self.sent == 0 {
            if !self.wires[0].is_free(self.cycles) {
                return;
            }
            self.wires[0].begin(self.cycles, first.spacing);
        }
        let rest = &first.frame[self.sent..];
        let count = rest.len().min(self.bus_bytes);
        for (word, bytes) in self.inputs.frame_data.iter_mut().zip(rest[..count].chunks(8)) {
            let mut data = [0; 8];
            data[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(data);
        }
        self.inputs.frame_valid = 1;
        self.inputs.frame_keep = u64::MAX >> (64 - count);
        self.inputs.frame_last = (rest.len() == count).into();
        self.inputs.frame_bad = first.is_broken.into();
        self.sent += count;
        if self.sent == first.frame.len() {
            self.waiting.pop_front();
            self.sent = 0;
        }
    }

    fn count(&mut self) {
        let outputs = &self.outputs;
        self.dropped.overflow += u64::from(outputs.overflow);
        self.dropped.broken += u64::from(outputs.broken);
        self.dropped.other += u64::from(outputs.other);
        self.dropped.unsound += u64::from(outputs.unsound);
        self.dropped.malformed += u64::from(outputs.malformed);
        self.busy_cycles += u64::from(outputs.is_busy);
    }

    fn take(&mut self) {
        if self.received.is_empty() {
            self.began = self.cycles;
        }
        let kept = self.outputs.frame_keep.trailing_ones() as usize;
        let bytes = self.outputs.frame_data.iter().flat_map(|word| word.to_le_bytes());
        self.received.extend(bytes.take(kept));
        if self.outputs.frame_last != 0 {
            let bytes = self.received.len().max(SHORTEST_FRAME) as u64;
            self.wires[1].begin(self.began, bytes + WIRE_BYTES);
            self.frames.push(std::mem::take(&mut self.received));
        }
    }
}
