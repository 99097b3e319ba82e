//! Drives a simulated table through its streams: sends requests and receives answers, with
//! configurable idle cycles, back-pressure and memory timing.

use std::collections::VecDeque;

use crate::model::{Inputs, Model, Outputs, Streams};
use crate::register_map as register;
use crate::{Configuration, Memory, Request, Response};

/// Cycles without an answer after which a table counts as stuck. The slowest memory in the tests
/// answers within thousands of cycles.
const PATIENCE_CYCLES: u64 = 200_000;

/// How often the streams around the table pause: number of cycles, of 256, in which each is idle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Cycles in which no input is offered.
    pub idle: u8,
    /// Cycles in which no output is accepted.
    pub back_pressure: u8,
}

/// An answer, and the second at which its request entered the critical section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The answer itself.
    pub response: Response,
    /// Second of the table's clock when the request entered.
    pub now: u32,
}

/// Event counts since the reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Clock cycles simulated.
    pub cycles: u64,
    /// Requests that entered the critical section.
    pub entered: u64,
    /// Requests that left the table.
    pub left: u64,
    /// Cycles in which a request waited for an older write.
    pub stall_cycles: u64,
    /// Requests that had to wait.
    pub stalled: u64,
    /// Requests found in the critical section by an entering one, summed over all entries.
    pub occupancy: u64,
    /// Cycle in which the last beat of the latest key was sent.
    pub last_key_cycle: u64,
    /// Cycle in which the table sent its latest status.
    pub last_status_cycle: u64,
}

/// A stream's beat.
#[derive(Clone, Copy)]
struct Beat {
    data: u64,
    keep: u8,
    is_last: bool,
}

fn beats(bytes: &[u8]) -> impl Iterator<Item = Beat> + '_ {
    let count = bytes.len().div_ceil(8);
    bytes.chunks(8).enumerate().map(move |(place, chunk)| {
        let mut data = [0xa5; 8];
        data[..chunk.len()].copy_from_slice(chunk);
        Beat {
            data: u64::from_le_bytes(data),
            keep: (0xff_u32 >> (8 - chunk.len())) as u8,
            is_last: place + 1 == count,
        }
    })
}

/// A table under simulation.
pub struct Simulation {
    model: Model<Streams>,
    configuration: Configuration,
    inputs: Inputs,
    outputs: Outputs,
    pace: Pace,
    random: u64,
    requests: VecDeque<Request>,
    keys: VecDeque<Beat>,
    values: VecDeque<Beat>,
    /// Answers whose value has not arrived yet.
    open: VecDeque<(Answer, usize)>,
    value: Vec<u8>,
    answers: Vec<Answer>,
    was_stalled: bool,
    is_table_only: bool,
    /// The counters of events; see [`Counters`].
    pub counters: Counters,
}

impl Simulation {
    /// Creates a table and resets it, with the paper's memory and without idle cycles.
    pub fn new(configuration: Configuration) -> Self {
        let mut simulation = Self {
            model: Model::new(&configuration),
            configuration,
            inputs: Inputs { bready: 1, rready: 1, ..Inputs::default() },
            is_table_only: false,
            outputs: Outputs::default(),
            pace: Pace::default(),
            random: 0x9e37_79b9_7f4a_7c15,
            requests: VecDeque::new(),
            keys: VecDeque::new(),
            values: VecDeque::new(),
            open: VecDeque::new(),
            value: Vec::new(),
            answers: Vec::new(),
            was_stalled: false,
            counters: Counters::default(),
        };
        simulation.set_memory(Memory { burst: 0, ..Memory::FIT31 });
        simulation.inputs.mem_reset = 1;
        simulation.model.cycle(&simulation.inputs, &mut simulation.outputs);
        simulation.inputs.mem_reset = 0;
        simulation.reset();
        simulation.set_memory(Memory::FIT31);
        simulation
    }

    /// Resets the table, but not its memory, and waits until it has cleared it. What was sent and
    /// not answered is forgotten.
    pub fn reset(&mut self) {
        (self.inputs.meta_valid, self.inputs.key_valid, self.inputs.val_valid) = (0, 0, 0);
        self.requests.clear();
        self.keys.clear();
        self.values.clear();
        self.open.clear();
        self.value.clear();
        self.answers.clear();
        for is_reset in [1, 1, 0] {
            self.inputs.reset = is_reset;
            self.model.cycle(&self.inputs, &mut self.outputs);
        }
        while self.outputs.is_ready == 0 {
            self.model.cycle(&self.inputs, &mut self.outputs);
        }
        self.counters = Counters::default();
    }

    /// Sets the memory's timing.
    pub fn set_memory(&mut self, memory: Memory) {
        self.inputs.latency = memory.latency.into();
        self.inputs.burst = memory.burst.into();
        self.inputs.part = memory.burst_48ths.into();
        self.inputs.merge = memory.is_merging.into();
        self.inputs.row_cycle = memory.row_cycle.into();
        self.inputs.turn = memory.turn.into();
        self.inputs.refresh_every = memory.refresh_every.into();
        self.inputs.refresh = memory.refresh.into();
        self.inputs.jitter = memory.jitter.into();
        self.inputs.stall = memory.stall.into();
    }

    /// Sets how often streams pause; the pauses are drawn from `seed`.
    pub fn set_pace(&mut self, pace: Pace, seed: u64) {
        self.pace = pace;
        self.random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    }

    /// Sets the clock in seconds. It may go back: items that the table still has then live again.
    pub fn set_now(&mut self, now_seconds: u32) {
        self.write_register(register::TIME, now_seconds);
    }

    /// Sets the seed of the hash, its lower and its upper half. It counts only before the first
    /// request.
    pub fn set_seed(&mut self, seed: [u32; 2]) {
        self.write_register(register::SEED_LOW, seed[0]);
        self.write_register(register::SEED_HIGH, seed[1]);
    }

    /// Sets whether a SET into a full bucket evicts an item.
    pub fn set_evicts(&mut self, evicts: bool) {
        let control = self.read_register(register::CONTROL);
        self.write_register(register::CONTROL, control & !1 | u32::from(evicts));
    }

    /// Sets whether the table runs without values: none is stored or returned.
    pub fn set_table_only(&mut self, is_table_only: bool) {
        let control = self.read_register(register::CONTROL);
        self.write_register(register::CONTROL, control & !2 | u32::from(is_table_only) << 1);
        self.is_table_only = is_table_only;
    }

    /// Writes a register over AXI-Lite.
    pub fn write_register(&mut self, address: u32, data: u32) {
        (self.inputs.awvalid, self.inputs.awaddr) = (1, address);
        (self.inputs.wvalid, self.inputs.wdata) = (1, data);
        self.wait_for(|outputs| outputs.awready & outputs.wready != 0);
        (self.inputs.awvalid, self.inputs.wvalid) = (0, 0);
        self.wait_for(|outputs| outputs.bvalid != 0);
    }

    /// Reads a register over AXI-Lite.
    pub fn read_register(&mut self, address: u32) -> u32 {
        (self.inputs.arvalid, self.inputs.araddr) = (1, address);
        self.wait_for(|outputs| outputs.arready != 0);
        self.inputs.arvalid = 0;
        self.wait_for(|outputs| outputs.rvalid != 0);
        self.outputs.rdata
    }

    /// Reads a counter of 64 bits over AXI-Lite.
    pub fn read_counter(&mut self, address: u32) -> u64 {
        let low = self.read_register(address);
        u64::from(self.read_register(address + 4)) << 32 | u64::from(low)
    }

    fn wait_for(&mut self, is_there: impl Fn(&Outputs) -> bool) {
        for _ in 0..PATIENCE_CYCLES {
            self.cycle();
            if is_there(&self.outputs) {
                return;
            }
        }
        panic!("the registers do not answer");
    }

    /// Queues a request to be sent.
    pub fn send(&mut self, request: Request) {
        self.keys.extend(beats(&request.key));
        self.values.extend(beats(&request.value));
        self.requests.push_back(request);
    }

    fn rests(&mut self, of_256: u8) -> bool {
        if of_256 == 0 {
            return false;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u8 <= of_256
    }

    /// Decides what is offered and accepted in this cycle. An offered beat stays until accepted.
    fn offer(&mut self) {
        let idle = self.pace.idle;
        if self.inputs.meta_valid == 0 && !self.rests(idle) {
            self.offer_request();
        }
        if self.inputs.key_valid == 0
            && !self.rests(idle)
            && let Some(beat) = self.keys.front()
        {
            self.inputs.key_valid = 1;
            self.inputs.key_data = beat.data;
            self.inputs.key_keep = beat.keep.into();
            self.inputs.key_last = beat.is_last.into();
        }
        if self.inputs.val_valid == 0
            && !self.rests(idle)
            && let Some(beat) = self.values.front()
        {
            self.inputs.val_valid = 1;
            self.inputs.val_data = beat.data;
            self.inputs.val_keep = beat.keep.into();
            self.inputs.val_last = beat.is_last.into();
        }
        self.inputs.meta_ready = (!self.rests(self.pace.back_pressure)).into();
        self.inputs.val_ready = (!self.rests(self.pace.back_pressure)).into();
    }

    fn offer_request(&mut self) {
        let Some(request) = self.requests.front() else { return };
        self.inputs.meta_valid = 1;
        self.inputs.id = request.id;
        self.inputs.opcode = request.opcode.into();
        self.inputs.klen = request.key_bytes.into();
        self.inputs.vlen = request.value_bytes;
        self.inputs.flags = request.flags;
        self.inputs.expiry = request.expiry;
        self.inputs.has_cas = (request.cas != 0).into();
    }

    /// Simulates one cycle.
    pub fn cycle(&mut self) {
        self.offer();
        self.model.cycle(&self.inputs, &mut self.outputs);
        self.count();
        let Outputs { meta_ready, key_ready, val_ready, .. } = self.outputs;
        if self.inputs.meta_valid & meta_ready != 0 {
            self.requests.pop_front();
            self.inputs.meta_valid = 0;
        }
        if self.inputs.key_valid & key_ready != 0 {
            self.keys.pop_front();
            self.inputs.key_valid = 0;
            self.counters.last_key_cycle = self.counters.cycles;
        }
        if self.inputs.val_valid & val_ready != 0 {
            self.values.pop_front();
            self.inputs.val_valid = 0;
        }
        if self.outputs.meta_valid & self.inputs.meta_ready != 0 {
            self.take_answer();
        }
        if self.outputs.val_valid & self.inputs.val_ready != 0 {
            let kept = (self.outputs.val_keep as u8).trailing_ones() as usize;
            self.value.extend_from_slice(&self.outputs.val_data.to_le_bytes()[..kept]);
        }
        self.close_answers();
    }

    fn count(&mut self) {
        let counters = &mut self.counters;
        counters.cycles += 1;
        if self.outputs.enter != 0 {
            counters.occupancy += counters.entered - counters.left;
            counters.entered += 1;
            counters.stalled += u64::from(self.was_stalled);
        }
        if self.outputs.status != 0 {
            counters.left += 1;
            counters.last_status_cycle = counters.cycles;
        }
        self.was_stalled = self.outputs.stall != 0;
        counters.stall_cycles += u64::from(self.was_stalled);
    }

    fn take_answer(&mut self) {
        let Outputs { id, opcode, hit, status_code, vlen, flags, pointer, now, .. } = self.outputs;
        let has_value = hit != 0 && !self.is_table_only;
        let response = Response {
            id,
            opcode: opcode as u8,
            status: status_code as u16,
            pointer,
            flags,
            value: has_value.then(Vec::new),
        };
        let value_bytes = if has_value { vlen as usize } else { 0 };
        self.open.push_back((Answer { response, now }, value_bytes));
    }

    /// Matches values with answers. Values come in the answers' order, before or after them.
    fn close_answers(&mut self) {
        while let Some((_, value_bytes)) = self.open.front()
            && self.value.len() >= *value_bytes
        {
            let (mut answer, value_bytes) = self.open.pop_front().expect("it is there");
            if let Some(value) = &mut answer.response.value {
                value.extend(self.value.drain(..value_bytes));
            }
            self.answers.push(answer);
        }
    }

    /// Runs until `count` answers have arrived and all requests are sent.
    ///
    /// # Panics
    ///
    /// If no answer arrives for 200,000 cycles: the table is stuck.
    pub fn run(&mut self, count: usize) -> Vec<Answer> {
        let mut patience = PATIENCE_CYCLES;
        let mut before = self.answers.len();
        while self.answers.len() < count || !self.is_sent() {
            self.cycle();
            patience = if self.answers.len() == before { patience - 1 } else { PATIENCE_CYCLES };
            before = self.answers.len();
            assert!(patience > 0, "stuck with {before} of {count} answers");
        }
        self.take_answers()
    }

    /// Takes the answers that arrived since the last call.
    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    /// Simulates `cycles`; answers are kept for [`Self::run`] or [`Self::take_answers`].
    pub fn wait(&mut self, cycles: usize) {
        (0..cycles).for_each(|_| self.cycle());
    }

    fn is_sent(&self) -> bool {
        self.requests.is_empty() && self.keys.is_empty() && self.values.is_empty()
    }

    /// Reads a word of a slot's record directly from memory.
    pub fn word(&mut self, bucket: usize, slot: usize, word: usize) -> u64 {
        self.inputs.peek_address = self.configuration.word_address(bucket, slot, word) as u32;
        self.cycle();
        self.outputs.peek
    }

    /// Overwrites a word of a slot's record directly in memory, bypassing the table.
    pub fn poke(&mut self, bucket: usize, slot: usize, word: usize, data: u64) {
        self.inputs.peek_address = self.configuration.word_address(bucket, slot, word) as u32;
        (self.inputs.poke, self.inputs.poke_data) = (1, data);
        self.cycle();
        self.inputs.poke = 0;
    }

    /// Simulates one cycle and returns the stages' valid signals in it, one bit each as in
    /// `rtl/src/ht_top.sv`.
    pub fn probe(&mut self) -> u32 {
        self.cycle();
        self.outputs.probe
    }

    /// The position at which the log of values goes on: 1 and the beats appended since the reset.
    pub fn log_head(&mut self) -> u64 {
        let low = self.read_register(register::LOG_HEAD_LOW);
        u64::from(self.read_register(register::LOG_HEAD_HIGH)) << 32 | u64::from(low)
    }
}
