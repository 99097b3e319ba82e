//! The Verilated models behind one safe type.
//!
//! A model is used by one thread at a time (`&mut self`); models share nothing.

use std::ffi::c_void;

use crate::Configuration;

/// What the table sees in a cycle. Field for field the struct of `shim.cpp`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
#[expect(missing_docs, reason = "named as the ports of rtl/sim/ht_sim.sv")]
pub struct Inputs {
    pub key_data: u64,
    pub val_data: u64,
    pub poke_data: u64,
    pub reset: u32,
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
    pub turn: u32,
    pub refresh_every: u32,
    pub refresh: u32,
    pub jitter: u32,
    pub stall: u32,
    pub peek_address: u32,
    pub poke: u32,
}

/// What the table shows in a cycle. Field for field the struct of `shim.cpp`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
#[expect(missing_docs, reason = "named as the ports of rtl/sim/ht_sim.sv")]
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

/// The functions of one model.
struct Functions {
    create: unsafe extern "C" fn() -> *mut c_void,
    delete: unsafe extern "C" fn(*mut c_void),
    cycle: unsafe extern "C" fn(*mut c_void, *const Inputs, *mut Outputs),
}

macro_rules! models {
    ($($name:literal: $create:ident $delete:ident $cycle:ident;)+) => {
        // SAFETY: `shim.cpp` defines these for each configuration, with these types.
        unsafe extern "C" {
            $(fn $create() -> *mut c_void;
            fn $delete(model: *mut c_void);
            fn $cycle(model: *mut c_void, inputs: *const Inputs, outputs: *mut Outputs);)+
        }

        fn functions(name: &str) -> Functions {
            match name {
                $($name => Functions { create: $create, delete: $delete, cycle: $cycle },)+
                _ => panic!("no model was built for {name}"),
            }
        }
    };
}

models! {
    "software": amalgam_software_new amalgam_software_delete amalgam_software_cycle;
    "printed": amalgam_printed_new amalgam_printed_delete amalgam_printed_cycle;
    "ring": amalgam_ring_new amalgam_ring_delete amalgam_ring_cycle;
    "small": amalgam_small_new amalgam_small_delete amalgam_small_cycle;
}

/// A simulated table.
pub struct Model {
    functions: Functions,
    model: *mut c_void,
}

impl Model {
    /// The table of a configuration, before its reset.
    pub fn new(configuration: &Configuration) -> Self {
        let functions = functions(configuration.name);
        // SAFETY: it takes nothing and returns a model of its own, which `drop` deletes.
        let model = unsafe { (functions.create)() };
        Self { functions, model }
    }

    /// One cycle. The outputs are those before the clock rises.
    #[inline]
    pub fn cycle(&mut self, inputs: &Inputs, outputs: &mut Outputs) {
        // SAFETY: the model is alive and ours alone; both structs have the layout of the shim's.
        unsafe { (self.functions.cycle)(self.model, inputs, outputs) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: made by `new`, deleted once.
        unsafe { (self.functions.delete)(self.model) }
    }
}
