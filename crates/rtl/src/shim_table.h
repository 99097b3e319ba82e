// The ports of rtl/sim/ht_sim.sv, in the order of `Inputs` and `Outputs` in src/model.rs.

#define WIDE_INPUTS(X) X(key_data) X(val_data) X(poke_data)

#define INPUTS(X)                                                                               \
    X(mem_reset)                                                                                \
    X(awvalid) X(awaddr) X(wvalid) X(wdata) X(bready) X(arvalid) X(araddr) X(rready)            \
    X(meta_valid) X(id) X(opcode) X(klen) X(vlen) X(flags) X(expiry) X(has_cas)                 \
    X(key_valid) X(key_keep) X(key_last) X(val_valid) X(val_keep) X(val_last)                   \
    X(meta_ready) X(val_ready)                                                                  \
    X(latency) X(burst) X(part) X(merge) X(row_cycle) X(turn) X(refresh_every) X(refresh)       \
    X(jitter) X(stall)                                                                          \
    X(peek_address) X(poke)

#define WIDE_OUTPUTS(X) X(pointer) X(val_data) X(peek)

#define OUTPUTS(X)                                                                              \
    X(meta_ready) X(key_ready) X(val_ready)                                                     \
    X(meta_valid) X(id) X(opcode) X(hit) X(status_code) X(vlen) X(flags) X(now)                 \
    X(val_valid) X(val_keep) X(val_last)                                                        \
    X(is_ready) X(enter) X(stall) X(status) X(probe)                                            \
    X(awready) X(wready) X(bvalid) X(arready) X(rvalid) X(rdata)
