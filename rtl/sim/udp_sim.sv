// SPDX-License-Identifier: Apache-2.0
//
// The table behind its port of Ethernet, with a memory: frames in, frames out, as simulations see
// it: the words of a beat as ports of their own, as many as the widest port has.

module udp_sim #(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 4,
  parameter int unsigned StripeBytes = 48,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyBytes = 168,
  parameter int unsigned HeaderBytes = 24,
  parameter bit          TermsLast = 1'b0,
  parameter int unsigned BucketBits = 8,
  parameter bit          HashRing = 1'b1,
  parameter int unsigned Writers = 32,
  parameter int unsigned ReturnBeats = 128,
  parameter int unsigned BlockBits = 8,
  parameter int unsigned BusBytes = 8       // of the port; the same as in every configuration
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [31:0] ip_i,
  input  logic [15:0] port_i,
  input  logic        has_header_i,
  input  logic [31:0] now_i,

  input  logic        frame_valid_i,
  input  logic [63:0] data0_i,
  input  logic [63:0] data1_i,
  input  logic [63:0] data2_i,
  input  logic [63:0] data3_i,
  input  logic [63:0] data4_i,
  input  logic [63:0] data5_i,
  input  logic [63:0] data6_i,
  input  logic [63:0] data7_i,
  input  logic [63:0] frame_keep_i,
  input  logic        frame_last_i,
  input  logic        frame_bad_i,
  output logic        frame_valid_o,
  input  logic        frame_ready_i,
  output logic [63:0] data0_o,
  output logic [63:0] data1_o,
  output logic [63:0] data2_o,
  output logic [63:0] data3_o,
  output logic [63:0] data4_o,
  output logic [63:0] data5_o,
  output logic [63:0] data6_o,
  output logic [63:0] data7_o,
  output logic [63:0] frame_keep_o,
  output logic        frame_last_o,

  output logic        is_ready_o,
  output logic [31:0] overflow_o,
  output logic [31:0] broken_o,
  output logic [31:0] other_o,
  output logic [31:0] unsound_o,
  output logic [31:0] malformed_o,
  output logic [31:0] is_busy_o,   // memories

  input  logic [15:0] latency_i,
  input  logic [7:0]  burst_i,
  input  logic [7:0]  part_i,
  input  logic        merge_i,
  input  logic [7:0]  row_cycle_i,
  input  logic [7:0]  turn_i,
  input  logic [15:0] refresh_every_i,
  input  logic [7:0]  refresh_i
);

  localparam int unsigned BeatWords = StripeBytes / 8 * SlotsPerBeat;
  localparam int unsigned LineBeats = Slots / SlotsPerBeat;
  localparam int unsigned CountWidth = $clog2(LineBeats + 1);
  localparam int unsigned TableBeats = (2 ** BucketBits) * Lines * LineBeats;
  // Blocks of 1, 8 and 64 beats, and as much again in front of them.
  localparam int unsigned Beats = TableBeats + 64 + 73 * (2 ** BlockBits);

  if (BusBytes != 8) begin : gen_bus_check
    $error("udp_sim: the port has 8 bytes a cycle");
  end

  logic overflow, broken, other, unsound, malformed, is_busy;
  assign {overflow_o, broken_o, other_o} = {32'(overflow), 32'(broken), 32'(other)};
  assign {unsound_o, malformed_o, is_busy_o} = {32'(unsound), 32'(malformed), 32'(is_busy)};

  logic mem_valid, mem_ready, mem_write, mem_last, mem_is_value, mem_return_valid,
        mem_return_is_value;
  logic [CountWidth-1:0]   mem_count;
  logic [31:0]             mem_address;
  logic [64*BeatWords-1:0] mem_data, mem_return;
  logic [BeatWords-1:0]    mem_mask;

  assign {data1_o, data2_o, data3_o, data4_o, data5_o, data6_o, data7_o} = '0;
  assign frame_keep_o[63:8] = '0;

  ht_udp #(
    .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeBytes(StripeBytes), .Lines(Lines),
    .KeyBytes(KeyBytes), .HeaderBytes(HeaderBytes), .TermsLast(TermsLast),
    .BucketBits(BucketBits), .HashRing(HashRing), .Writers(Writers), .ReturnBeats(ReturnBeats),
    .BlockBits(BlockBits)
  ) u_udp (
    .clk_i, .rst_ni, .ip_i, .port_i, .has_header_i, .now_i,
    .awvalid_i(1'b0), .awready_o(), .awaddr_i('0), .wvalid_i(1'b0), .wready_o(), .wdata_i('0),
    .bvalid_o(), .bready_i(1'b1), .arvalid_i(1'b0), .arready_o(), .araddr_i('0), .rvalid_o(),
    .rready_i(1'b1), .rdata_o(),
    .frame_valid_i, .frame_data_i(data0_i), .frame_keep_i(frame_keep_i[7:0]), .frame_last_i,
    .frame_bad_i,
    .frame_valid_o, .frame_ready_i, .frame_data_o(data0_o), .frame_keep_o(frame_keep_o[7:0]),
    .frame_last_o,
    .mem_valid_o(mem_valid), .mem_ready_i(mem_ready), .mem_write_o(mem_write),
    .mem_last_o(mem_last), .mem_is_value_o(mem_is_value), .mem_count_o(mem_count),
    .mem_address_o(mem_address), .mem_data_o(mem_data), .mem_mask_o(mem_mask),
    .mem_return_valid_i(mem_return_valid), .mem_return_is_value_i(mem_return_is_value),
    .mem_return_i(mem_return),
    .is_ready_o, .overflow_o(overflow), .broken_o(broken), .other_o(other), .unsound_o(unsound),
    .malformed_o(malformed)
  );

  memory_model #(
    .BeatWords(BeatWords), .CountWidth(CountWidth), .Beats(Beats), .Outstanding(ReturnBeats + 32),
    .BurstBeats(LineBeats), .RowBeats(Lines * LineBeats)
  ) u_model (
    .clk_i, .rst_ni, .latency_i, .burst_i, .part_i, .merge_i, .row_cycle_i, .turn_i,
    .refresh_every_i, .refresh_i, .jitter_i('0), .stall_i('0),
    .valid_i(mem_valid), .ready_o(mem_ready), .write_i(mem_write), .last_i(mem_last),
    .is_value_i(mem_is_value), .count_i(mem_count), .address_i(mem_address), .data_i(mem_data),
    .mask_i(mem_mask), .return_valid_o(mem_return_valid),
    .return_is_value_o(mem_return_is_value), .return_o(mem_return), .is_busy_o(is_busy),
    .peek_address_i('0), .peek_o(), .poke_i(1'b0), .poke_data_i('0)
  );

endmodule
