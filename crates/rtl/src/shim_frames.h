// The ports of rtl/sim/frames_sim.sv, in the order of `FrameInputs` and `FrameOutputs` in
// src/model.rs.

#define WORDS(X) X(data0) X(data1) X(data2) X(data3) X(data4) X(data5) X(data6) X(data7)
#define WIDE_INPUTS(X) WORDS(X) X(frame_keep) X(mac)

#define INPUTS(X)                                                                               \
    X(mem_reset)                                                                                \
    X(frame_valid) X(frame_last) X(frame_bad) X(frame_ready)                                    \
    X(ip) X(port) X(has_header) X(now)                                                          \
    X(awvalid) X(awaddr) X(wvalid) X(wdata) X(arvalid) X(araddr)                                \
    X(latency) X(burst) X(part) X(merge) X(row_cycle) X(turn) X(refresh_every) X(refresh)

#define WIDE_OUTPUTS(X) WORDS(X) X(frame_keep)

#define OUTPUTS(X)                                                                              \
    X(frame_valid) X(frame_last)                                                                \
    X(is_ready) X(overflow) X(broken) X(other) X(unsound) X(malformed) X(is_busy)             \
    X(wready) X(arready) X(rvalid) X(rdata)
