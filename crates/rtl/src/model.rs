//! Wraps the Verilated models in one safe type.
//!
//! Thread safety: a model is used by one thread at a time (`&mut self`); models share no state
//! but the generators that their initial state is drawn from, which `shim.cpp` locks.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;

use crate::Configuration;

/// The table's inputs in a cycle. The fields must match `shim_table.h`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Inputs {
    pub key_data: u64,
    pub val_data: u64,
    pub poke_data: u64,
    pub reset: u32,
    pub mem_reset: u32,
    pub awvalid: u32,
    pub awaddr: u32,
    pub wvalid: u32,
    pub wdata: u32,
    pub bready: u32,
    pub arvalid: u32,
    pub araddr: u32,
    pub rready: u32,
    pub meta_valid: u32,
    pub id: u32,
    pub opcode: u32,
    pub klen: u32,
    pub vlen: u32,
    pub flags: u32,
    pub expiry: u32,
    pub has_cas: u32,
    pub key_valid: u32,
    pub key_keep: u32,
    pub key_last: u32,
    pub val_valid: u32,
    pub val_keep: u32,
    pub val_last: u32,
    pub meta_ready: u32,
    pub val_ready: u32,
    pub latency: u32,
    pub burst: u32,
    pub part: u32,
    pub merge: u32,
    pub row_cycle: u32,
    pub turn: u32,
    pub refresh_every: u32,
    pub refresh: u32,
    pub jitter: u32,
    pub stall: u32,
    pub peek_address: u32,
    pub poke: u32,
}

/// The table's outputs in a cycle. The fields must match `shim_table.h`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Outputs {
    pub pointer: u64,
    pub val_data: u64,
    pub peek: u64,
    pub meta_ready: u32,
    pub key_ready: u32,
    pub val_ready: u32,
    pub meta_valid: u32,
    pub id: u32,
    pub opcode: u32,
    pub hit: u32,
    pub status_code: u32,
    pub vlen: u32,
    pub flags: u32,
    pub now: u32,
    pub val_valid: u32,
    pub val_keep: u32,
    pub val_last: u32,
    pub is_ready: u32,
    pub enter: u32,
    pub stall: u32,
    pub status: u32,
    pub probe: u32,
    pub awready: u32,
    pub wready: u32,
    pub bvalid: u32,
    pub arready: u32,
    pub rvalid: u32,
    pub rdata: u32,
}

/// The Ethernet port's inputs in a cycle. The fields must match `shim_frames.h`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct FrameInputs {
    pub frame_data: [u64; 8],
    pub frame_keep: u64,
    pub mac: u64,
    pub reset: u32,
    pub mem_reset: u32,
    pub frame_valid: u32,
    pub frame_last: u32,
    pub frame_bad: u32,
    pub frame_ready: u32,
    pub ip: u32,
    pub port: u32,
    pub has_header: u32,
    pub now: u32,
    pub awvalid: u32,
    pub awaddr: u32,
    pub wvalid: u32,
    pub wdata: u32,
    pub arvalid: u32,
    pub araddr: u32,
    pub latency: u32,
    pub burst: u32,
    pub part: u32,
    pub merge: u32,
    pub row_cycle: u32,
    pub turn: u32,
    pub refresh_every: u32,
    pub refresh: u32,
}

/// The Ethernet port's outputs in a cycle. The fields must match `shim_frames.h`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct FrameOutputs {
    pub frame_data: [u64; 8],
    pub frame_keep: u64,
    pub frame_valid: u32,
    pub frame_last: u32,
    pub is_ready: u32,
    pub overflow: u32,
    pub broken: u32,
    pub other: u32,
    pub unsound: u32,
    pub malformed: u32,
    pub is_busy: u32,
    pub wready: u32,
    pub arready: u32,
    pub rvalid: u32,
    pub rdata: u32,
}

/// The input and output structs of a kind of model. Sealed, because `new` relies on their layout.
pub trait Ports: sealed::Ports {
    /// See [`Inputs`], [`FrameInputs`].
    type Inputs;
    /// See [`Outputs`], [`FrameOutputs`].
    type Outputs;
}

/// The table's streams.
pub struct Streams;
/// The Ethernet port.
pub struct Frames;

impl Ports for Streams {
    type Inputs = Inputs;
    type Outputs = Outputs;
}

impl Ports for Frames {
    type Inputs = FrameInputs;
    type Outputs = FrameOutputs;
}

mod sealed {
    pub trait Ports {
        fn functions(name: &str) -> super::Functions;
    }
}

/// The functions of one model.
pub struct Functions {
    create: unsafe extern "C" fn(u32) -> *mut c_void,
    delete: unsafe extern "C" fn(*mut c_void),
    cycle: unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void),
}

macro_rules! models {
    (
        $ports:ident:
        $($(#[$when:meta])? $name:literal: $create:ident $delete:ident $cycle:ident;)+
    ) => {
        // SAFETY: `shim.cpp` defines these for each configuration; `cycle` takes the structs of
        // these ports.
        unsafe extern "C" {
            $($(#[$when])? fn $create(seed: u32) -> *mut c_void;
            $(#[$when])? fn $delete(model: *mut c_void);
            $(#[$when])?
            fn $cycle(model: *mut c_void, inputs: *const c_void, outputs: *mut c_void);)+
        }

        impl sealed::Ports for $ports {
            fn functions(name: &str) -> Functions {
                match name {
                    $($(#[$when])?
                    $name => Functions { create: $create, delete: $delete, cycle: $cycle },)+
                    _ => panic!("no model of these ports was built for {name}"),
                }
            }
        }
    };
}

models! {
    Streams:
    "software": amalgam_software_new amalgam_software_delete amalgam_software_cycle;
    "paper": amalgam_paper_new amalgam_paper_delete amalgam_paper_cycle;
    "half_lines": amalgam_half_lines_new amalgam_half_lines_delete amalgam_half_lines_cycle;
    "small": amalgam_small_new amalgam_small_delete amalgam_small_cycle;
    "counted": amalgam_counted_new amalgam_counted_delete amalgam_counted_cycle;
    #[cfg(feature = "full")]
    "full": amalgam_full_new amalgam_full_delete amalgam_full_cycle;
}

models! {
    Frames:
    "10g": amalgam_10g_new amalgam_10g_delete amalgam_10g_cycle;
    #[cfg(feature = "wide")]
    "40g": amalgam_40g_new amalgam_40g_delete amalgam_40g_cycle;
    #[cfg(feature = "wide")]
    "100g": amalgam_100g_new amalgam_100g_delete amalgam_100g_cycle;
}

/// The seed of the next model's initial state: a number of the environment variable
/// `AMALGAM_SEED`, or 1, and how many models this thread has had. A test thus repeats itself.
fn power_on_seed() -> u32 {
    thread_local!(static MODELS: Cell<u32> = const { Cell::new(0) });
    let models = MODELS.replace(MODELS.get().wrapping_add(1));
    let seed = std::env::var("AMALGAM_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    (seed.unwrap_or(1) as u32).wrapping_mul(0x9e37_79b9).wrapping_add(models) | 1 << 31
}

/// Simulated hardware with these ports.
pub struct Model<P: Ports> {
    functions: Functions,
    model: *mut c_void,
    ports: PhantomData<P>,
}

impl<P: Ports> Model<P> {
    /// Creates the hardware of a configuration, before its reset. What no reset sets begins at
    /// random.
    pub fn new(configuration: &Configuration) -> Self {
        let functions = P::functions(configuration.name);
        // SAFETY: `create` returns a new model, which `drop` deletes.
        let model = unsafe { (functions.create)(power_on_seed()) };
        Self { functions, model, ports: PhantomData }
    }

    /// Simulates one cycle. The outputs are sampled before the rising clock edge.
    #[inline]
    pub fn cycle(&mut self, inputs: &P::Inputs, outputs: &mut P::Outputs) {
        let (inputs, outputs) = (std::ptr::from_ref(inputs), std::ptr::from_mut(outputs));
        // SAFETY: the model is alive and exclusively borrowed, and was created for these ports, so
        // both structs have the layout that its shim expects.
        unsafe { (self.functions.cycle)(self.model, inputs.cast(), outputs.cast()) }
    }
}

impl<P: Ports> Drop for Model<P> {
    fn drop(&mut self) {
        // SAFETY: the model was created by `new` and is deleted only here.
        unsafe { (self.functions.delete)(self.model) }
    }
}
