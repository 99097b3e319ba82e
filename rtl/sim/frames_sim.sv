// SPDX-License-Identifier: Apache-2.0
//
// Simulation top: tables behind an Ethernet port, each with a memory. Frames go in and come out;
// each word of a beat has a port of its own, as many as the widest port has. One table is `ht_udp`,
// several are `ht_wide`.

module frames_sim
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 2,
  parameter int unsigned StripeBytes = 48,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyBytes = 168,
  parameter int unsigned HeaderBytes = 24,
  parameter bit          TermsLast = 1'b0,
  parameter int unsigned BucketBits = 8,
  parameter bit          HashRing = 1'b1,
  parameter int unsigned Writers = 32,
  parameter int unsigned CounterBits = 10,  // of several tables
  parameter int unsigned ReturnBeats = 128,
  parameter int unsigned LogBits = 10,
  parameter int unsigned BusBytes = 8,
  parameter int unsigned Tables = 1         // and number of lanes
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        mem_reset_i,    // of memory and what counts its beats
  input  logic [47:0] mac_i,
  input  logic [31:0] ip_i,
  input  logic [15:0] port_i,
  input  logic        has_header_i,
  input  logic [31:0] now_i,          // of several tables, which have no registers
  input  logic        awvalid_i,      // AXI4-Lite of one table, whose answers are always taken
  input  logic [7:0]  awaddr_i,
  input  logic        wvalid_i,
  input  logic [31:0] wdata_i,
  input  logic        arvalid_i,
  input  logic [7:0]  araddr_i,
  output logic        wready_o,
  output logic        arready_o,
  output logic        rvalid_o,
  output logic [31:0] rdata_o,

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
  localparam int unsigned TableBeats = (2 ** BucketBits) * Lines * LineBeats;
  localparam int unsigned Beats = TableBeats + 2 ** LogBits;

  logic                spreader_overflow;
  drops_t [Tables-1:0] drops;
  logic [Tables-1:0]   is_busy;
  assign is_busy_o = $countones(is_busy);
  always_comb begin
    overflow_o  = 32'(spreader_overflow);
    broken_o    = '0;
    other_o     = '0;
    unsound_o   = '0;
    malformed_o = '0;
    for (int unsigned i = 0; i < Tables; i++) begin
      overflow_o  += 32'(drops[i].overflow);
      broken_o    += 32'(drops[i].broken);
      other_o     += 32'(drops[i].other);
      unsound_o   += 32'(drops[i].unsound);
      malformed_o += 32'(drops[i].malformed);
    end
  end

  logic [511:0] data_in, data_out;
  logic [63:0]  keep_out;
  assign data_in = {data7_i, data6_i, data5_i, data4_i, data3_i, data2_i, data1_i, data0_i};
  assign {data7_o, data6_o, data5_o, data4_o, data3_o, data2_o, data1_o, data0_o} = data_out;
  assign frame_keep_o = keep_out;
  if (BusBytes < 64) begin : gen_narrow
    assign data_out[511:8*BusBytes] = '0;
    assign keep_out[63:BusBytes]    = '0;
  end

  logic [Tables-1:0] mem_valid, mem_ready, mem_return_valid, mem_return_is_value;
  memory_access_t [Tables-1:0]         mem;
  logic [Tables-1:0][64*BeatWords-1:0] mem_data, mem_return;
  logic [Tables-1:0][BeatWords-1:0]    mem_mask;

  if (Tables == 1) begin : gen_one
    if (BusBytes != 8) begin : gen_bus_check
      $error("frames_sim: the port of one table has 8 bytes a cycle");
    end
    assign spreader_overflow = 1'b0;
    ht_udp #(
      .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeBytes(StripeBytes), .Lines(Lines),
      .KeyBytes(KeyBytes), .HeaderBytes(HeaderBytes), .TermsLast(TermsLast),
      .BucketBits(BucketBits), .HashRing(HashRing), .Writers(Writers), .ReturnBeats(ReturnBeats),
      .LogBits(LogBits)
    ) u_udp (
      .clk_i, .rst_ni, .mem_rst_ni(!mem_reset_i), .mac_i, .ip_i, .port_i, .has_header_i,
      .awvalid_i, .awready_o(), .awaddr_i, .wvalid_i, .wready_o, .wdata_i, .bvalid_o(),
      .bready_i(1'b1), .arvalid_i, .arready_o, .araddr_i, .rvalid_o, .rready_i(1'b1), .rdata_o,
      .frame_valid_i, .frame_data_i(data_in[63:0]), .frame_keep_i(frame_keep_i[7:0]), .frame_last_i,
      .frame_bad_i,
      .frame_valid_o, .frame_ready_i, .frame_data_o(data_out[63:0]), .frame_keep_o(keep_out[7:0]),
      .frame_last_o,
      .mem_valid_o(mem_valid), .mem_ready_i(mem_ready), .mem_o(mem), .mem_data_o(mem_data),
      .mem_mask_o(mem_mask),
      .mem_return_valid_i(mem_return_valid), .mem_return_is_value_i(mem_return_is_value),
      .mem_return_i(mem_return),
      .is_ready_o, .drops_o(drops[0])
    );
  end else begin : gen_several
    assign {wready_o, arready_o, rvalid_o, rdata_o} = '0;
    ht_wide #(
      .BusBytes(BusBytes), .Lanes(Tables), .Tables(Tables), .Slots(Slots),
      .SlotsPerBeat(SlotsPerBeat), .StripeBytes(StripeBytes), .Lines(Lines), .KeyBytes(KeyBytes),
      .HeaderBytes(HeaderBytes), .TermsLast(TermsLast), .BucketBits(BucketBits),
      .HashRing(HashRing), .Writers(Writers), .CounterBits(CounterBits), .ReturnBeats(ReturnBeats),
      .LogBits(LogBits)
    ) u_wide (
      .clk_i, .rst_ni, .mem_rst_ni(!mem_reset_i), .mac_i, .ip_i, .port_i, .has_header_i, .now_i,
      .seed_i('0), .evict_i(1'b1),
      .frame_valid_i, .frame_data_i(data_in[8*BusBytes-1:0]),
      .frame_keep_i(frame_keep_i[BusBytes-1:0]), .frame_last_i, .frame_bad_i,
      .frame_valid_o, .frame_ready_i, .frame_data_o(data_out[8*BusBytes-1:0]),
      .frame_keep_o(keep_out[BusBytes-1:0]), .frame_last_o,
      .mem_valid_o(mem_valid), .mem_ready_i(mem_ready), .mem_o(mem), .mem_data_o(mem_data),
      .mem_mask_o(mem_mask),
      .mem_return_valid_i(mem_return_valid), .mem_return_is_value_i(mem_return_is_value),
      .mem_return_i(mem_return),
      .is_ready_o, .spreader_overflow_o(spreader_overflow), .drops_o(drops)
    );
  end

  for (genvar i = 0; i < Tables; i++) begin : gen_memory
    memory_model #(
      .BeatWords(BeatWords), .Beats(Beats), .Outstanding(ReturnBeats + 32),
      .BurstBeats(LineBeats), .RowBeats(Lines * LineBeats)
    ) u_model (
      .clk_i, .rst_ni(!mem_reset_i), .latency_i, .burst_i, .part_i, .merge_i, .row_cycle_i, .turn_i,
      .refresh_every_i, .refresh_i, .jitter_i('0), .stall_i('0),
      .valid_i(mem_valid[i]), .ready_o(mem_ready[i]), .access_i(mem[i]),
      .data_i(mem_data[i]), .mask_i(mem_mask[i]),
      .return_valid_o(mem_return_valid[i]), .return_is_value_o(mem_return_is_value[i]),
      .return_o(mem_return[i]), .is_busy_o(is_busy[i]),
      .peek_address_i('0), .peek_o(), .poke_i(1'b0), .poke_data_i('0)
    );
  end

endmodule
