// The simulated hardware as plain functions. Compiled once for each configuration, with MODEL,
// HEADER, PORTS and NAME(x) from the build script. The structs are those of src/model.rs.

#include <cstdint>
#include <mutex>
#include "verilated.h"
#include HEADER
#include PORTS

#define WIDE(name) uint64_t name;
#define FIELD(name) uint32_t name;

struct Inputs {
    WIDE_INPUTS(WIDE)
    uint32_t reset;
    INPUTS(FIELD)
};

struct Outputs {
    WIDE_OUTPUTS(WIDE)
    OUTPUTS(FIELD)
};

// Verilator draws all initial state from generators that every new seed starts anew.
inline std::mutex amalgam_rtl_power_on;

extern "C" {

// State that no reset sets is drawn from `seed`, which is not 0.
void *NAME(new)(uint32_t seed) {
    std::lock_guard<std::mutex> guard(amalgam_rtl_power_on);
    auto *context = new VerilatedContext;
    context->randReset(2);
    context->randSeed(static_cast<int>(seed));
    return new MODEL(context);
}

void NAME(delete)(void *opaque) {
    std::lock_guard<std::mutex> guard(amalgam_rtl_power_on);
    auto *model = static_cast<MODEL *>(opaque);
    VerilatedContext *context = model->contextp();
    delete model;
    delete context;
    Verilated::threadContextp(nullptr);
}

// One cycle: what the outputs are before the clock rises, and then it rises.
void NAME(cycle)(void *opaque, const Inputs *in, Outputs *out) {
    MODEL *model = static_cast<MODEL *>(opaque);
    model->rst_ni = !in->reset;
#define SET(name) model->name##_i = in->name;
    WIDE_INPUTS(SET)
    INPUTS(SET)
    model->clk_i = 0;
    model->eval();
#define GET(name) out->name = model->name##_o;
    WIDE_OUTPUTS(GET)
    OUTPUTS(GET)
    model->clk_i = 1;
    model->eval();
}

}

double sc_time_stamp() __attribute__((weak));
double sc_time_stamp() { return 0; }
