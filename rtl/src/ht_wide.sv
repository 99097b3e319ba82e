// SPDX-License-Identifier: Apache-2.0
//
// For 40 and 100 Gb/s: several copies of the stages of `ht_udp` behind one wide Ethernet port.
// Lanes take frames round robin; a sum of the key selects the table, and each table has a hash
// ring, a critical section, a memory and a formatter of its own:
//
//   frames -> spreader -> lanes (frame buffer, parser) -> lane_arbiter -> tables -> formatters
//                           |                                ^                      |
//                           +--------- sequencer ------------+--- order ---+        |
//                                                                          v        |
//   frames <---------------------------------------------------------- collector <--+
//
// Requests enter the tables and answers leave in the order in which frames came in, as if there
// were one table. Each table has its own memory bank; the collector restores the order of
// the answers.

module ht_wide
  import ht_pkg::*;
#(
  parameter int unsigned BusBytes = 64,
  parameter int unsigned Lanes = 8,
  parameter int unsigned Tables = 8,
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 2,
  parameter int unsigned StripeBytes = 48,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyBytes = 168,
  parameter int unsigned HeaderBytes = 24,
  parameter bit          TermsLast = 1'b0,
  parameter int unsigned BucketBits = 18,     // of each table
  parameter bit          HashRing = 1'b1,
  parameter int unsigned Writers = 32,
  parameter int unsigned CounterBits = 10,    // of a table's hashed conflict counters
  parameter int unsigned ReturnBeats = 128,
  parameter int unsigned ValueBytes = 1024,
  parameter int unsigned LogBits = 16,
  parameter int unsigned FrameBeats = 512,    // of frames that wait in a lane
  parameter int unsigned Clients = 128,       // requests in a table
  parameter int unsigned Frames = 64,         // in a lane
  parameter int unsigned Answers = 512,       // requests in all tables
  localparam int unsigned BeatWords = StripeBytes / 8 * SlotsPerBeat,
  localparam int unsigned LaneWidth = Lanes > 1 ? $clog2(Lanes) : 1,
  localparam int unsigned TableWidth = Tables > 1 ? $clog2(Tables) : 1
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    mem_rst_ni,   // of the memory's side, at power-up
  input  logic [47:0]             mac_i,
  input  logic [31:0]             ip_i,
  input  logic [15:0]             port_i,
  input  logic                    has_header_i,
  input  logic [31:0]             now_i,          // the clock in seconds
  input  logic [63:0]             seed_i,         // of the hash; stays as it is
  input  logic                    evict_i,

  input  logic                    frame_valid_i,
  input  logic [8*BusBytes-1:0]   frame_data_i,
  input  logic [BusBytes-1:0]     frame_keep_i,
  input  logic                    frame_last_i,
  input  logic                    frame_bad_i,
  output logic                    frame_valid_o,
  input  logic                    frame_ready_i,
  output logic [8*BusBytes-1:0]   frame_data_o,
  output logic [BusBytes-1:0]     frame_keep_o,
  output logic                    frame_last_o,

  output logic [Tables-1:0]                   mem_valid_o,
  input  logic [Tables-1:0]                   mem_ready_i,
  output memory_access_t [Tables-1:0]         mem_o,
  output logic [Tables-1:0][64*BeatWords-1:0] mem_data_o,
  output logic [Tables-1:0][BeatWords-1:0]    mem_mask_o,
  input  logic [Tables-1:0]                   mem_return_valid_i,
  input  logic [Tables-1:0]                   mem_return_is_value_i,
  input  logic [Tables-1:0][64*BeatWords-1:0] mem_return_i,

  output logic                    is_ready_o,
  // Frames dropped in this cycle; the spreader drops a frame if its lane has no room.
  output logic                    spreader_overflow_o,
  output drops_t [Lanes-1:0]      drops_o
);

  logic [Lanes-1:0]       in_valid, in_last, in_bad;
  logic [Lanes-1:0][63:0] in_data;
  logic [Lanes-1:0][7:0]  in_keep;
  logic [Lanes-1:0]       turn_valid, turn_ready;
  frame_spreader #(
    .BusBytes(BusBytes), .Lanes(Lanes), .Beats(4096 / BusBytes), .Frames(Frames)
  ) u_spreader (
    .clk_i, .rst_ni, .valid_i(frame_valid_i), .data_i(frame_data_i), .keep_i(frame_keep_i),
    .last_i(frame_last_i), .bad_i(frame_bad_i), .valid_o(in_valid), .data_o(in_data),
    .keep_o(in_keep), .last_o(in_last), .bad_o(in_bad), .turn_i(turn_valid & turn_ready),
    .overflow_o(spreader_overflow_o)
  );

  logic [Lanes-1:0]                 has_request, take_request, is_free, turn_has_request;
  request_t [Lanes-1:0]             request;
  client_t [Lanes-1:0]              client;
  logic [Lanes-1:0][TableWidth-1:0] target, turn_table;
  logic [Lanes-1:0]                 key_valid, key_ready, put_valid, put_ready;
  beat_t [Lanes-1:0]                key, put;
  for (genvar i = 0; i < Lanes; i++) begin : gen_lane
    front_lane #(.FrameBeats(FrameBeats), .Frames(Frames), .Tables(Tables)) u_lane (
      .clk_i, .rst_ni, .mac_i, .ip_i, .port_i, .has_header_i, .now_i,
      .frame_valid_i(in_valid[i]), .frame_data_i(in_data[i]), .frame_keep_i(in_keep[i]),
      .frame_last_i(in_last[i]), .frame_bad_i(in_bad[i]),
      .turn_valid_o(turn_valid[i]), .turn_ready_i(turn_ready[i]),
      .turn_has_request_o(turn_has_request[i]), .turn_table_o(turn_table[i]),
      .valid_o(has_request[i]), .ready_i(take_request[i]), .request_o(request[i]),
      .client_o(client[i]), .table_o(target[i]),
      .key_valid_o(key_valid[i]), .key_ready_i(key_ready[i]), .key_o(key[i]),
      .val_valid_o(put_valid[i]), .val_ready_i(put_ready[i]), .val_o(put[i]),
      .drops_o(drops_o[i])
    );
  end

  logic [Tables-1:0] pick_valid, pick_ready;
  logic [Tables-1:0][LaneWidth-1:0] pick;
  logic order_valid, order_ready;
  logic [TableWidth-1:0] order;
  sequencer #(.Lanes(Lanes), .Tables(Tables), .Answers(Answers)) u_sequencer (
    .clk_i, .rst_ni, .turn_valid_i(turn_valid), .turn_ready_o(turn_ready),
    .turn_has_request_i(turn_has_request), .turn_table_i(turn_table),
    .pick_valid_o(pick_valid), .pick_ready_i(pick_ready), .pick_o(pick),
    .order_valid_o(order_valid), .order_ready_i(order_ready), .order_o(order)
  );

  // Requests of each table to each lane, and their union for the lanes.
  logic [Tables-1:0][Lanes-1:0] is_wanted, take, take_key, take_put, is_giving;
  always_comb begin
    take_request = '0;
    key_ready    = '0;
    put_ready    = '0;
    is_free      = '1;
    for (int unsigned i = 0; i < Tables; i++) begin
      take_request |= take[i];
      key_ready    |= take_key[i];
      put_ready    |= take_put[i];
      is_free      &= ~is_giving[i];
    end
    for (int unsigned i = 0; i < Tables; i++) begin
      for (int unsigned j = 0; j < Lanes; j++) begin
        is_wanted[i][j] = has_request[j] && is_free[j] && 32'(target[j]) == i;
      end
    end
  end

  logic [Tables-1:0]       is_ready, begun, ended, out_valid, out_ready, out_last;
  logic [Tables-1:0][63:0] out_data;
  logic [Tables-1:0][7:0]  out_keep;
  assign is_ready_o = &is_ready;
  for (genvar i = 0; i < Tables; i++) begin : gen_table
    logic meta_valid, meta_ready, client_valid, client_ready, key_in_valid, key_in_ready, key_room,
          put_in_valid, put_in_ready, answer_valid, answer_ready, got_valid, got_ready;
    beat_t     key_in, put_in, got;
    request_t  meta;
    client_t   asker;
    response_t answer;
    lane_arbiter #(.Lanes(Lanes)) u_lane_arbiter (
      .clk_i, .rst_ni, .pick_valid_i(pick_valid[i]), .pick_ready_o(pick_ready[i]),
      .pick_i(pick[i]), .valid_i(is_wanted[i]), .ready_o(take[i]), .request_i(request),
      .client_i(client), .key_valid_i(key_valid), .key_ready_o(take_key[i]), .key_i(key),
      .val_valid_i(put_valid), .val_ready_o(take_put[i]), .val_i(put),
      .is_giving_o(is_giving[i]),
      .meta_valid_o(meta_valid), .meta_ready_i(meta_ready), .meta_o(meta),
      .client_valid_o(client_valid), .client_ready_i(client_ready), .client_o(asker),
      .key_valid_o(key_in_valid), .key_ready_i(key_in_ready && key_room), .key_o(key_in),
      .val_valid_o(put_in_valid), .val_ready_i(put_in_ready), .val_o(put_in)
    );
    ht_top #(
      .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeBytes(StripeBytes), .Lines(Lines),
      .KeyBytes(KeyBytes), .HeaderBytes(HeaderBytes), .TermsLast(TermsLast),
      .BucketBits(BucketBits), .HashRing(HashRing), .Writers(Writers),
      .CounterBits(CounterBits), .ReturnBeats(ReturnBeats), .ValueBytes(ValueBytes),
      .LogBits(LogBits)
    ) u_table (
      .clk_i, .rst_ni, .mem_rst_ni, .now_i, .seed_i, .evict_i, .table_only_i(1'b0),
      .meta_valid_i(meta_valid), .meta_ready_o(meta_ready), .meta_i(meta),
      .key_valid_i(key_in_valid && key_room), .key_ready_o(key_in_ready), .key_i(key_in),
      .val_valid_i(put_in_valid), .val_ready_o(put_in_ready), .val_i(put_in),
      .meta_valid_o(answer_valid), .meta_ready_i(answer_ready), .meta_o(answer),
      .val_valid_o(got_valid), .val_ready_i(got_ready), .val_o(got),
      .mem_valid_o(mem_valid_o[i]), .mem_ready_i(mem_ready_i[i]), .mem_o(mem_o[i]),
      .mem_data_o(mem_data_o[i]), .mem_mask_o(mem_mask_o[i]),
      .mem_return_valid_i(mem_return_valid_i[i]),
      .mem_return_is_value_i(mem_return_is_value_i[i]), .mem_return_i(mem_return_i[i]),
      .is_ready_o(is_ready[i]), .enter_o(), .stall_o(), .status_o(), .answer_o(),
      .ended_o(ended[i]), .probe_o(), .head_o()
    );
    assign begun[i] = answer_valid && answer_ready;
    response_formatter #(.Clients(Clients)) u_formatter (
      .clk_i, .rst_ni, .mac_i, .ip_i, .port_i, .has_header_i,
      .client_valid_i(client_valid), .client_ready_o(client_ready), .client_i(asker),
      .ended_i(ended[i]),
      .key_valid_i(key_in_valid && key_in_ready), .key_ready_o(key_room), .key_i(key_in),
      .meta_valid_i(answer_valid), .meta_ready_o(answer_ready), .meta_i(answer),
      .val_valid_i(got_valid), .val_ready_o(got_ready), .val_i(got),
      .frame_valid_o(out_valid[i]), .frame_ready_i(out_ready[i]), .frame_data_o(out_data[i]),
      .frame_keep_o(out_keep[i]), .frame_last_o(out_last[i])
    );
  end

  frame_collector #(
    .BusBytes(BusBytes), .Tables(Tables), .Beats(4096 / BusBytes), .Answers(Answers)
  ) u_collector (
    .clk_i, .rst_ni, .order_valid_i(order_valid), .order_ready_o(order_ready), .order_i(order),
    .begun_i(begun), .ended_i(ended), .valid_i(out_valid), .ready_o(out_ready),
    .data_i(out_data), .keep_i(out_keep), .last_i(out_last),
    .valid_o(frame_valid_o), .ready_i(frame_ready_i), .data_o(frame_data_o),
    .keep_o(frame_keep_o), .last_o(frame_last_o)
  );

endmodule
