// The ports of rtl/sim/udp_sim.sv, in the order of `FrameInputs` and `FrameOutputs` in
// src/model.rs.

#define WIDE_INPUTS(X) X(frame_data)

#define INPUTS(X)                                                                               \
    X(frame_valid) X(frame_keep) X(frame_last) X(frame_bad) X(frame_ready)                      \
    X(ip) X(port) X(has_header) X(now)                                                          \
    X(latency) X(burst) X(part) X(merge) X(row_cycle) X(turn) X(refresh_every) X(refresh)

#define WIDE_OUTPUTS(X) X(frame_data)

#define OUTPUTS(X)                                                                              \
    X(frame_valid) X(frame_keep) X(frame_last)                                                  \
    X(is_ready) X(overflow) X(broken) X(other) X(unsound) X(malformed) X(is_busy)
