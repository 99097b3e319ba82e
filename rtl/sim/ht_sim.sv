// SPDX-License-Identifier: Apache-2.0
//
// Simulation top: the table with a memory. Every field has a port of its own, and the streams have
// 8 bytes a beat whatever the table's bus width is.

module ht_sim
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 8,
  parameter int unsigned StripeBytes = 8,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyBytes = 16,
  parameter int unsigned HeaderBytes = 16,
  parameter bit          TermsLast = 1'b1,
  parameter int unsigned BucketBits = 6,
  parameter bit          HashRing = 1'b0,
  parameter int unsigned HashLanes = 6,
  parameter int unsigned Writers = 16,
  parameter int unsigned CounterBits = 0,
  parameter int unsigned ReturnBeats = 128,
  parameter int unsigned LogBits = 10,
  parameter int unsigned PositionBits = 48,
  parameter int unsigned BusBytes = 8
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        mem_reset_i,    // of memory and what counts its beats
  input  logic        awvalid_i,
  output logic        awready_o,
  input  logic [7:0]  awaddr_i,
  input  logic        wvalid_i,
  output logic        wready_o,
  input  logic [31:0] wdata_i,
  output logic        bvalid_o,
  input  logic        bready_i,
  input  logic        arvalid_i,
  output logic        arready_o,
  input  logic [7:0]  araddr_i,
  output logic        rvalid_o,
  input  logic        rready_i,
  output logic [31:0] rdata_o,

  input  logic        meta_valid_i,
  output logic        meta_ready_o,
  input  logic [31:0] id_i,
  input  logic [7:0]  opcode_i,
  input  logic [7:0]  klen_i,
  input  logic [31:0] vlen_i,
  input  logic [31:0] flags_i,
  input  logic [31:0] expiry_i,
  input  logic        has_cas_i,
  input  logic        key_valid_i,
  output logic        key_ready_o,
  input  logic [63:0] key_data_i,
  input  logic [7:0]  key_keep_i,
  input  logic        key_last_i,
  input  logic        val_valid_i,
  output logic        val_ready_o,
  input  logic [63:0] val_data_i,
  input  logic [7:0]  val_keep_i,
  input  logic        val_last_i,

  output logic        meta_valid_o,
  input  logic        meta_ready_i,
  output logic [31:0] id_o,
  output logic [7:0]  opcode_o,
  output logic        hit_o,
  output logic [15:0] status_code_o,
  output logic [31:0] vlen_o,
  output logic [31:0] flags_o,
  output logic [63:0] pointer_o,
  output logic [31:0] now_o,
  output logic        val_valid_o,
  input  logic        val_ready_i,
  output logic [63:0] val_data_o,
  output logic [7:0]  val_keep_o,
  output logic        val_last_o,

  output logic        is_ready_o,
  output logic        enter_o,
  output logic        stall_o,
  output logic        status_o,
  output logic [31:0] probe_o,

  input  logic [15:0] latency_i,
  input  logic [7:0]  burst_i,
  input  logic [7:0]  part_i,
  input  logic        merge_i,
  input  logic [7:0]  row_cycle_i,
  input  logic [7:0]  turn_i,
  input  logic [15:0] refresh_every_i,
  input  logic [7:0]  refresh_i,
  input  logic [7:0]  jitter_i,
  input  logic [7:0]  stall_i,
  input  logic [31:0] peek_address_i,
  output logic [63:0] peek_o,
  input  logic        poke_i,
  input  logic [63:0] poke_data_i
);

  localparam int unsigned StripeWords = StripeBytes / 8;
  localparam int unsigned BeatWords = StripeWords * SlotsPerBeat;
  localparam int unsigned LineBeats = Slots / SlotsPerBeat;
  localparam int unsigned TableBeats = (2 ** BucketBits) * Lines * LineBeats;
  localparam int unsigned Beats = TableBeats + 2 ** LogBits;

  request_t  request;
  response_t response;
  logic [9:0] probe;
  assign probe_o = 32'(probe);

  assign request  = '{id: id_i, opcode: opcode_i, klen: klen_i, vlen: vlen_i[23:0],
                      flags: flags_i, expiry: expiry_i, has_cas: has_cas_i, is_misshapen: 1'b0};
  assign id_o          = response.id;
  assign opcode_o      = response.opcode;
  assign hit_o         = response.hit;
  assign status_code_o = response.status;
  assign vlen_o        = 32'(response.vlen);
  assign flags_o       = response.flags;
  assign pointer_o     = 64'(response.pointer);
  assign now_o         = response.now;

  logic mem_valid, mem_ready, mem_return_valid, mem_return_is_value;
  memory_access_t            mem;
  logic [64*BeatWords-1:0]   mem_data, mem_return;
  logic [BeatWords-1:0]      mem_mask;

  logic key_valid, key_ready, key_last, put_valid, put_ready, put_last, got_valid, got_ready,
        got_last;
  logic [8*BusBytes-1:0] key_data, put_data, got_data;
  logic [BusBytes-1:0]   key_keep, put_keep, got_keep;
  logic wide_valid, wide_ready, wide_last;
  logic [8*BusBytes-1:0] wide_data;
  logic [BusBytes-1:0]   wide_keep;
  stream_widen #(.BusBytes(BusBytes)) u_key (
    .clk_i, .rst_ni, .valid_i(key_valid_i), .ready_o(key_ready_o), .data_i(key_data_i),
    .keep_i(key_keep_i), .last_i(key_last_i), .valid_o(wide_valid), .ready_i(wide_ready),
    .data_o(wide_data), .keep_o(wide_keep), .last_o(wide_last)
  );
  // A wide beat of a key is assembled while the previous one is split.
  if (BusBytes == 8) begin : gen_same
    assign {key_valid, key_data, key_keep} = {wide_valid, wide_data, wide_keep};
    assign {key_last, wide_ready} = {wide_last, key_ready};
  end else begin : gen_two
    fifo #(.Width(9 * BusBytes + 1), .Depth(2)) u_two (
      .clk_i, .rst_ni, .valid_i(wide_valid), .ready_o(wide_ready),
      .data_i({wide_data, wide_keep, wide_last}), .valid_o(key_valid), .ready_i(key_ready),
      .data_o({key_data, key_keep, key_last}), .level_o()
    );
  end
  stream_widen #(.BusBytes(BusBytes)) u_put (
    .clk_i, .rst_ni, .valid_i(val_valid_i), .ready_o(val_ready_o), .data_i(val_data_i),
    .keep_i(val_keep_i), .last_i(val_last_i), .valid_o(put_valid), .ready_i(put_ready),
    .data_o(put_data), .keep_o(put_keep), .last_o(put_last)
  );
  stream_narrow #(.BusBytes(BusBytes)) u_got (
    .clk_i, .rst_ni, .valid_i(got_valid), .ready_o(got_ready), .data_i(got_data),
    .keep_i(got_keep), .last_i(got_last), .valid_o(val_valid_o), .ready_i(val_ready_i),
    .data_o(val_data_o), .keep_o(val_keep_o), .last_o(val_last_o)
  );

  ht_axi #(
    .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeBytes(StripeBytes), .Lines(Lines),
    .KeyBytes(KeyBytes), .HeaderBytes(HeaderBytes), .TermsLast(TermsLast),
    .BucketBits(BucketBits), .HashRing(HashRing), .HashLanes(HashLanes), .Writers(Writers),
    .CounterBits(CounterBits), .ReturnBeats(ReturnBeats), .LogBits(LogBits),
    .PositionBits(PositionBits), .BusBytes(BusBytes)
  ) u_table (
    .clk_i, .rst_ni, .mem_rst_ni(!mem_reset_i),
    .awvalid_i, .awready_o, .awaddr_i, .wvalid_i, .wready_o, .wdata_i, .bvalid_o, .bready_i,
    .arvalid_i, .arready_o, .araddr_i, .rvalid_o, .rready_i, .rdata_o,
    .meta_valid_i, .meta_ready_o, .meta_i(request),
    .key_valid_i(key_valid), .key_ready_o(key_ready), .key_data_i(key_data),
    .key_keep_i(key_keep), .key_last_i(key_last),
    .val_valid_i(put_valid), .val_ready_o(put_ready), .val_data_i(put_data),
    .val_keep_i(put_keep), .val_last_i(put_last),
    .meta_valid_o, .meta_ready_i, .meta_o(response),
    .val_valid_o(got_valid), .val_ready_i(got_ready), .val_data_o(got_data),
    .val_keep_o(got_keep), .val_last_o(got_last),
    .mem_valid_o(mem_valid), .mem_ready_i(mem_ready), .mem_o(mem), .mem_data_o(mem_data),
    .mem_mask_o(mem_mask),
    .mem_return_valid_i(mem_return_valid), .mem_return_is_value_i(mem_return_is_value),
    .mem_return_i(mem_return),
    .drops_i('0), .time_o(),
    .is_ready_o, .enter_o, .stall_o, .status_o, .ended_o(), .probe_o(probe)
  );

  memory_model #(
    .BeatWords(BeatWords), .Beats(Beats), .Outstanding(ReturnBeats + 32),
    .BurstBeats(LineBeats), .RowBeats(Lines * LineBeats)
  ) u_model (
    .clk_i, .rst_ni(!mem_reset_i), .latency_i, .burst_i, .part_i, .merge_i, .row_cycle_i, .turn_i,
    .refresh_every_i, .refresh_i, .jitter_i, .stall_i,
    .valid_i(mem_valid), .ready_o(mem_ready), .access_i(mem), .data_i(mem_data),
    .mask_i(mem_mask), .return_valid_o(mem_return_valid),
    .return_is_value_o(mem_return_is_value), .return_o(mem_return), .is_busy_o(),
    .peek_address_i, .peek_o, .poke_i, .poke_data_i
  );

endmodule
