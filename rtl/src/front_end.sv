// SPDX-License-Identifier: Apache-2.0
//
// Turns the frames of an Ethernet port (8 bytes a cycle, never stalled) into requests: meta,
// client, key and value.

module front_end
  import ht_pkg::*;
#(
  parameter int unsigned FrameBeats = 512   // of frames that wait
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [47:0] mac_i,
  input  logic [31:0] ip_i,
  input  logic [15:0] port_i,
  input  logic        has_header_i,
  input  logic [31:0] now_i,

  input  logic        frame_valid_i,
  input  logic [63:0] frame_data_i,
  input  logic [7:0]  frame_keep_i,
  input  logic        frame_last_i,
  input  logic        frame_bad_i,

  output logic        meta_valid_o,
  input  logic        meta_ready_i,
  output request_t    meta_o,
  output logic        client_valid_o,
  input  logic        client_ready_i,
  output client_t     client_o,
  output logic        key_valid_o,
  input  logic        key_ready_i,
  output beat_t       key_o,
  output logic        val_valid_o,
  input  logic        val_ready_i,
  output beat_t       val_o,
  output drops_t      drops_o
);

  logic valid, ready, last, is_sound;
  logic [63:0] data;
  logic [15:0] bytes;
  frame_buffer #(.Beats(FrameBeats)) u_frames (
    .clk_i, .rst_ni, .valid_i(frame_valid_i), .data_i(frame_data_i), .keep_i(frame_keep_i),
    .last_i(frame_last_i), .bad_i(frame_bad_i),
    .valid_o(valid), .ready_i(ready), .data_o(data), .last_o(last), .bytes_o(bytes),
    .is_sound_o(is_sound), .overflow_o(drops_o.overflow), .broken_o(drops_o.broken)
  );

  request_parser u_parser (
    .clk_i, .rst_ni, .mac_i, .ip_i, .port_i, .has_header_i, .now_i,
    .frame_valid_i(valid), .frame_ready_o(ready), .frame_data_i(data), .frame_last_i(last),
    .frame_bytes_i(bytes), .frame_sound_i(is_sound),
    .meta_valid_o, .meta_ready_i, .meta_o, .client_valid_o, .client_ready_i, .client_o,
    .key_valid_o, .key_ready_i, .key_o, .val_valid_o, .val_ready_i, .val_o,
    .other_o(drops_o.other), .unsound_o(drops_o.unsound), .malformed_o(drops_o.malformed)
  );

endmodule
