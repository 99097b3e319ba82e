// The simulated table as plain functions. Compiled once for each configuration, with MODEL, HEADER
// and NAME(x) from the build script. The structs are those of src/model.rs.

#include <cstdint>
#include "verilated.h"
#include HEADER

#define INPUTS(X)                                                                               \
    X(awvalid) X(awaddr) X(wvalid) X(wdata) X(bready) X(arvalid) X(araddr) X(rready)            \
    X(meta_valid) X(id) X(opcode) X(klen) X(vlen) X(flags) X(expiry)                            \
    X(key_valid) X(key_keep) X(key_last) X(val_valid) X(val_keep) X(val_last)                   \
    X(meta_ready) X(val_ready)                                                                  \
    X(latency) X(burst) X(turn) X(refresh_every) X(refresh) X(jitter) X(stall)                  \
    X(peek_address) X(poke)

#define OUTPUTS(X)                                                                              \
    X(meta_ready) X(key_ready) X(val_ready)                                                     \
    X(meta_valid) X(id) X(opcode) X(hit) X(status_code) X(vlen) X(flags) X(now)                 \
    X(val_valid) X(val_keep) X(val_last)                                                        \
    X(is_ready) X(enter) X(stall) X(status) X(probe)                                     \
    X(awready) X(wready) X(bvalid) X(arready) X(rvalid) X(rdata)

#define FIELD(name) uint32_t name;

struct Inputs {
    uint64_t key_data, val_data, poke_data;
    uint32_t reset;
    INPUTS(FIELD)
};

struct Outputs {
    uint64_t pointer, val_data, peek;
    OUTPUTS(FIELD)
};

extern "C" {

void *NAME(new)() { return new MODEL; }

void NAME(delete)(void *model) { delete static_cast<MODEL *>(model); }

// One cycle: what the outputs are before the clock rises, and then it rises.
void NAME(cycle)(void *opaque, const Inputs *in, Outputs *out) {
    MODEL *model = static_cast<MODEL *>(opaque);
    model->rst_ni = !in->reset;
    model->key_data_i = in->key_data;
    model->val_data_i = in->val_data;
    model->poke_data_i = in->poke_data;
#define SET(name) model->name##_i = in->name;
    INPUTS(SET)
    model->clk_i = 0;
    model->eval();
    out->pointer = model->pointer_o;
    out->val_data = model->val_data_o;
    out->peek = model->peek_o;
#define GET(name) out->name = model->name##_o;
    OUTPUTS(GET)
    model->clk_i = 1;
    model->eval();
}

}

double sc_time_stamp() __attribute__((weak));
double sc_time_stamp() { return 0; }
