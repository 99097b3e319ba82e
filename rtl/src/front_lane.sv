// SPDX-License-Identifier: Apache-2.0
//
// One lane of a wide front end: turns frames, at 8 bytes a cycle, into requests. For each frame, in
// order, it emits a turn, which says whether the frame held a request and to which table the
// request's key belongs. A request follows, with its table, after all earlier turns were taken. A
// request without a key goes to table 0.

module front_lane
  import ht_pkg::*;
#(
  parameter int unsigned FrameBeats = 512,
  parameter int unsigned Frames = 64,        // received and turn not taken, at most
  parameter int unsigned Tables = 8,
  localparam int unsigned TableWidth = Tables > 1 ? $clog2(Tables) : 1
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [47:0]           mac_i,
  input  logic [31:0]           ip_i,
  input  logic [15:0]           port_i,
  input  logic                  has_header_i,
  input  logic [31:0]           now_i,

  input  logic                  frame_valid_i,
  input  logic [63:0]           frame_data_i,
  input  logic [7:0]            frame_keep_i,
  input  logic                  frame_last_i,
  input  logic                  frame_bad_i,

  output logic                  turn_valid_o,
  input  logic                  turn_ready_i,
  output logic                  turn_has_request_o,
  output logic [TableWidth-1:0] turn_table_o,

  output logic                  valid_o,
  input  logic                  ready_i,
  output request_t              request_o,
  output client_t               client_o,
  output logic [TableWidth-1:0] table_o,
  output logic                  key_valid_o,
  input  logic                  key_ready_i,
  output beat_t                 key_o,
  output logic                  val_valid_o,
  input  logic                  val_ready_i,
  output beat_t                 val_o,
  output drops_t                drops_o
);

  if (2 ** TableWidth != Tables && Tables != 1) begin : gen_check
    $error("front_lane: Tables must be a power of two");
  end

  localparam int unsigned Requests = 8;

  logic meta_valid, meta_ready, client_valid, client_ready, key_valid, key_ready, put_valid,
        put_ready;
  request_t request;
  client_t  client;
  beat_t    key, put;
  front_end #(.FrameBeats(FrameBeats)) u_front (
    .clk_i, .rst_ni, .mac_i, .ip_i, .port_i, .has_header_i, .now_i,
    .frame_valid_i, .frame_data_i, .frame_keep_i, .frame_last_i, .frame_bad_i,
    .meta_valid_o(meta_valid), .meta_ready_i(meta_ready), .meta_o(request),
    .client_valid_o(client_valid), .client_ready_i(client_ready), .client_o(client),
    .key_valid_o(key_valid), .key_ready_i(key_ready), .key_o(key),
    .val_valid_o(put_valid), .val_ready_i(put_ready), .val_o(put), .drops_o
  );

  // A cyclic sum of the zero-padded key, folded, selects the table. Without folding, there are
  // lengths where the digits of numbered keys hardly change the sum's lowest bits. The sum does not
  // wait for the end of a key that is too long for any table, since every table refuses it.
  localparam logic [15:0] Polynomial = 16'h1021;
  localparam logic [4:0]  Longest = 5'd31;   // beats before the last one summed
  function automatic logic [15:0] sum_up(logic [15:0] start, logic [63:0] data);
    logic [15:0] next = start;
    for (int unsigned i = 0; i < 64; i++) begin
      next = {next[14:0], 1'b0} ^ (next[15] ^ data[i] ? Polynomial : '0);
    end
    return next;
  endfunction

  logic [15:0] sum_q, key_sum;
  logic [4:0]  beat_q;
  logic        key_room, sum_room, is_summed_q, is_sum, take_key;
  assign key_sum   = sum_up(sum_q, key.data);
  assign key_ready = key_room && sum_room;
  assign take_key  = key_valid && key_ready;
  assign is_sum    = take_key && !is_summed_q && (key.last || beat_q == Longest);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      sum_q       <= '0;
      beat_q      <= '0;
      is_summed_q <= 1'b0;
    end else if (take_key) begin
      sum_q       <= key.last ? '0 : key_sum;
      beat_q      <= key.last ? '0 : beat_q + 1'b1;
      is_summed_q <= !key.last && (is_summed_q || is_sum);
    end
  end

  // The fate of each frame: kept or dropped by the buffer, and if kept, a request or not.
  logic is_kept, has_kept, is_request, has_outcome, outcome, has_kind, is_keyed, has_sum, turn,
        is_complete;
  logic [TableWidth-1:0] table_of_key;
  assign is_kept    = !drops_o.overflow && !drops_o.broken;
  assign is_request = client_valid && client_ready;
  fifo #(.Width(1), .Depth(Frames)) u_kept (
    .clk_i, .rst_ni, .valid_i(frame_valid_i && frame_last_i), .ready_o(), .data_i(is_kept),
    .valid_o(turn), .ready_i(turn_valid_o && turn_ready_i), .data_o(has_kept), .level_o()
  );
  fifo #(.Width(1), .Depth(Frames)) u_outcomes (
    .clk_i, .rst_ni,
    .valid_i(is_request || drops_o.other || drops_o.unsound || drops_o.malformed), .ready_o(),
    .data_i(is_request), .valid_o(has_outcome),
    .ready_i(turn_valid_o && turn_ready_i && has_kept), .data_o(outcome), .level_o()
  );
  assign turn_has_request_o = has_kept && outcome;
  assign is_complete  = has_kind && (!is_keyed || has_sum);
  assign turn_valid_o = turn && (!has_kept || (has_outcome && (!outcome || is_complete)));
  assign turn_table_o = is_keyed ? table_of_key : '0;

  logic has_meta, has_client, has_table, take, go, meta_room, kind_room;
  assign go         = turn_valid_o && turn_ready_i && turn_has_request_o;
  assign meta_ready = meta_room && kind_room;
  fifo #(.Width($bits(request_t)), .Depth(Requests)) u_metas (
    .clk_i, .rst_ni, .valid_i(meta_valid && kind_room), .ready_o(meta_room), .data_i(request),
    .valid_o(has_meta), .ready_i(take), .data_o(request_o), .level_o()
  );
  fifo #(.Width(1), .Depth(Requests)) u_kinds (
    .clk_i, .rst_ni, .valid_i(meta_valid && meta_room), .ready_o(kind_room),
    .data_i(request.klen != '0), .valid_o(has_kind), .ready_i(go), .data_o(is_keyed), .level_o()
  );
  fifo #(.Width($bits(client_t)), .Depth(Requests)) u_clients (
    .clk_i, .rst_ni, .valid_i(client_valid), .ready_o(client_ready), .data_i(client),
    .valid_o(has_client), .ready_i(take), .data_o(client_o), .level_o()
  );
  fifo #(.Width(TableWidth), .Depth(Requests)) u_sums (
    .clk_i, .rst_ni, .valid_i(is_sum), .ready_o(sum_room),
    .data_i(TableWidth'(folded(32'(key_sum), TableWidth))),
    .valid_o(has_sum), .ready_i(go && is_keyed), .data_o(table_of_key), .level_o()
  );
  // No more of them than of metas.
  fifo #(.Width(TableWidth), .Depth(Requests)) u_tables (
    .clk_i, .rst_ni, .valid_i(go), .ready_o(), .data_i(turn_table_o),
    .valid_o(has_table), .ready_i(take), .data_o(table_o), .level_o()
  );
  fifo #(.Width($bits(beat_t)), .Depth(64)) u_keys (
    .clk_i, .rst_ni, .valid_i(key_valid && sum_room), .ready_o(key_room), .data_i(key),
    .valid_o(key_valid_o), .ready_i(key_ready_i), .data_o(key_o), .level_o()
  );
  fifo #(.Width($bits(beat_t)), .Depth(16)) u_values (
    .clk_i, .rst_ni, .valid_i(put_valid), .ready_o(put_ready), .data_i(put),
    .valid_o(val_valid_o), .ready_i(val_ready_i), .data_o(val_o), .level_o()
  );

  assign valid_o = has_meta && has_client && has_table;
  assign take    = valid_o && ready_i;

endmodule
