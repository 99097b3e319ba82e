// SPDX-License-Identifier: Apache-2.0
//
// One lane of a wide front: frames in, 8 bytes a cycle; requests out, each with the number of the
// table that its key belongs to, which is known when the whole key is here. A request without a
// key goes to table 0.

module front_lane
  import ht_pkg::*;
#(
  parameter int unsigned FrameBeats = 512,
  parameter int unsigned Tables = 8,
  localparam int unsigned TableWidth = Tables > 1 ? $clog2(Tables) : 1
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [31:0]           ip_i,
  input  logic [15:0]           port_i,
  input  logic                  has_header_i,
  input  logic [31:0]           now_i,

  input  logic                  frame_valid_i,
  input  logic [63:0]           frame_data_i,
  input  logic [7:0]            frame_keep_i,
  input  logic                  frame_last_i,
  input  logic                  frame_bad_i,

  output logic                  valid_o,
  input  logic                  ready_i,
  output request_t              request_o,
  output client_t               client_o,
  output logic [TableWidth-1:0] table_o,
  output logic                  key_valid_o,
  input  logic                  key_ready_i,
  output logic [63:0]           key_data_o,
  output logic [7:0]            key_keep_o,
  output logic                  key_last_o,
  output logic                  val_valid_o,
  input  logic                  val_ready_i,
  output logic [63:0]           val_data_o,
  output logic [7:0]            val_keep_o,
  output logic                  val_last_o,

  output logic                  overflow_o,
  output logic                  broken_o,
  output logic                  other_o,
  output logic                  unsound_o,
  output logic                  malformed_o
);

  if (2 ** TableWidth != Tables && Tables != 1) begin : gen_check
    $error("front_lane: Tables must be a power of two");
  end

  logic in_valid, in_ready, in_last, in_sound;
  logic [63:0] in_data;
  logic [15:0] in_bytes;
  frame_buffer #(.Beats(FrameBeats)) u_frames (
    .clk_i, .rst_ni, .valid_i(frame_valid_i), .data_i(frame_data_i), .keep_i(frame_keep_i),
    .last_i(frame_last_i), .bad_i(frame_bad_i),
    .valid_o(in_valid), .ready_i(in_ready), .data_o(in_data), .last_o(in_last),
    .bytes_o(in_bytes), .is_sound_o(in_sound), .overflow_o, .broken_o
  );

  logic meta_valid, meta_ready, client_valid, client_ready, key_valid, key_ready, key_last,
        put_valid, put_ready, put_last;
  logic [63:0] key_data, put_data;
  logic [7:0]  key_keep, put_keep;
  request_t request;
  client_t  client;
  request_parser u_parser (
    .clk_i, .rst_ni, .ip_i, .port_i, .has_header_i, .now_i,
    .frame_valid_i(in_valid), .frame_ready_o(in_ready), .frame_data_i(in_data),
    .frame_last_i(in_last), .frame_bytes_i(in_bytes), .frame_sound_i(in_sound),
    .meta_valid_o(meta_valid), .meta_ready_i(meta_ready), .meta_o(request),
    .client_valid_o(client_valid), .client_ready_i(client_ready), .client_o(client),
    .key_valid_o(key_valid), .key_ready_i(key_ready), .key_data_o(key_data),
    .key_keep_o(key_keep), .key_last_o(key_last),
    .val_valid_o(put_valid), .val_ready_i(put_ready), .val_data_o(put_data),
    .val_keep_o(put_keep), .val_last_o(put_last), .other_o, .unsound_o, .malformed_o
  );

  // A cyclic sum of the key, whose remainder names its table; zeros stand behind the key's end.
  localparam logic [15:0] Polynomial = 16'h1021;
  function automatic logic [15:0] sum_up(logic [15:0] start, logic [63:0] data);
    logic [15:0] next = start;
    for (int unsigned i = 0; i < 64; i++) begin
      next = {next[14:0], 1'b0} ^ (next[15] ^ data[i] ? Polynomial : '0);
    end
    return next;
  endfunction

  logic [15:0] sum_q, key_sum;
  logic        key_room, sum_room;
  assign key_sum   = sum_up(sum_q, key_data);
  assign key_ready = key_room && sum_room;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) sum_q <= '0;
    else if (key_valid && key_ready) sum_q <= key_last ? '0 : key_sum;
  end

  logic has_meta, has_client, has_sum, has_key, take;
  logic [TableWidth-1:0] table_of_key;
  fifo #(.Width($bits(request_t)), .Depth(4)) u_metas (
    .clk_i, .rst_ni, .valid_i(meta_valid), .ready_o(meta_ready), .data_i(request),
    .valid_o(has_meta), .ready_i(take), .data_o(request_o), .level_o()
  );
  fifo #(.Width($bits(client_t)), .Depth(4)) u_clients (
    .clk_i, .rst_ni, .valid_i(client_valid), .ready_o(client_ready), .data_i(client),
    .valid_o(has_client), .ready_i(take), .data_o(client_o), .level_o()
  );
  fifo #(.Width(TableWidth), .Depth(8)) u_sums (
    .clk_i, .rst_ni, .valid_i(key_valid && key_room && key_last), .ready_o(sum_room),
    .data_i(key_sum[TableWidth-1:0]),
    .valid_o(has_sum), .ready_i(take && has_key), .data_o(table_of_key), .level_o()
  );
  fifo #(.Width(73), .Depth(64)) u_keys (
    .clk_i, .rst_ni, .valid_i(key_valid && sum_room), .ready_o(key_room),
    .data_i({key_data, key_keep, key_last}), .valid_o(key_valid_o), .ready_i(key_ready_i),
    .data_o({key_data_o, key_keep_o, key_last_o}), .level_o()
  );
  fifo #(.Width(73), .Depth(16)) u_values (
    .clk_i, .rst_ni, .valid_i(put_valid), .ready_o(put_ready),
    .data_i({put_data, put_keep, put_last}), .valid_o(val_valid_o), .ready_i(val_ready_i),
    .data_o({val_data_o, val_keep_o, val_last_o}), .level_o()
  );

  assign has_key = request_o.klen != '0;
  assign table_o = has_key ? table_of_key : '0;
  assign valid_o = has_meta && has_client && (!has_key || has_sum);
  assign take    = valid_o && ready_i;

endmodule
