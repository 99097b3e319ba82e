// SPDX-License-Identifier: Apache-2.0
//
// The table with its registers, for a design to instantiate; rtl/template.sv is an example.

module ht_axi
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 8,
  parameter int unsigned StripeBytes = 8,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyBytes = 16,
  parameter int unsigned HeaderBytes = 16,
  parameter bit          TermsLast = 1'b1,
  parameter int unsigned BucketBits = 10,
  parameter bit          HashRing = 1'b0,
  parameter int unsigned HashLanes = 6,
  parameter int unsigned Writers = 16,
  parameter int unsigned CounterBits = 0,
  parameter int unsigned ReturnBeats = 128,
  parameter int unsigned ValueBytes = 1024,
  parameter int unsigned LogBits = 16,
  parameter int unsigned PositionBits = 48,
  parameter int unsigned BusBytes = 8,      // of key and value streams
  localparam int unsigned BeatWords = StripeBytes / 8 * SlotsPerBeat
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    mem_rst_ni,   // of the memory's side, at power-up

  input  logic                    awvalid_i,
  output logic                    awready_o,
  input  logic [7:0]              awaddr_i,
  input  logic                    wvalid_i,
  output logic                    wready_o,
  input  logic [31:0]             wdata_i,
  output logic                    bvalid_o,
  input  logic                    bready_i,
  input  logic                    arvalid_i,
  output logic                    arready_o,
  input  logic [7:0]              araddr_i,
  output logic                    rvalid_o,
  input  logic                    rready_i,
  output logic [31:0]             rdata_o,

  input  logic                    meta_valid_i,
  output logic                    meta_ready_o,
  input  request_t                meta_i,
  input  logic                    key_valid_i,
  output logic                    key_ready_o,
  input  logic [8*BusBytes-1:0]   key_data_i,
  input  logic [BusBytes-1:0]     key_keep_i,
  input  logic                    key_last_i,
  input  logic                    val_valid_i,
  output logic                    val_ready_o,
  input  logic [8*BusBytes-1:0]   val_data_i,
  input  logic [BusBytes-1:0]     val_keep_i,
  input  logic                    val_last_i,

  output logic                    meta_valid_o,
  input  logic                    meta_ready_i,
  output response_t               meta_o,
  output logic                    val_valid_o,
  input  logic                    val_ready_i,
  output logic [8*BusBytes-1:0]   val_data_o,
  output logic [BusBytes-1:0]     val_keep_o,
  output logic                    val_last_o,

  output logic                    mem_valid_o,
  input  logic                    mem_ready_i,
  output memory_access_t          mem_o,
  output logic [64*BeatWords-1:0] mem_data_o,
  output logic [BeatWords-1:0]    mem_mask_o,
  input  logic                    mem_return_valid_i,
  input  logic                    mem_return_is_value_i,
  input  logic [64*BeatWords-1:0] mem_return_i,

  input  drops_t                  drops_i,      // frames dropped in front of it, to be counted
  output logic [31:0]             time_o,       // the clock in seconds
  output logic                    is_ready_o,
  output logic                    enter_o,
  output logic                    stall_o,
  output logic                    status_o,
  output logic                    ended_o,
  output logic [9:0]              probe_o
);

  logic [31:0] control;
  logic [63:0] seed;
  logic [47:0] head;
  logic        is_begun_q;   // a request has come
  response_t   answer;
  logic is_get, is_set, is_delete;

  // Inside, keys and values move 8 bytes a cycle, whatever the bus width is.
  logic  key_valid, key_ready, put_valid, put_ready, got_valid, got_ready;
  beat_t key, put, got;
  stream_narrow #(.BusBytes(BusBytes)) u_key (
    .clk_i, .rst_ni, .valid_i(key_valid_i), .ready_o(key_ready_o), .data_i(key_data_i),
    .keep_i(key_keep_i), .last_i(key_last_i), .valid_o(key_valid), .ready_i(key_ready),
    .data_o(key.data), .keep_o(key.keep), .last_o(key.last)
  );
  stream_narrow #(.BusBytes(BusBytes)) u_put (
    .clk_i, .rst_ni, .valid_i(val_valid_i), .ready_o(val_ready_o), .data_i(val_data_i),
    .keep_i(val_keep_i), .last_i(val_last_i), .valid_o(put_valid), .ready_i(put_ready),
    .data_o(put.data), .keep_o(put.keep), .last_o(put.last)
  );
  stream_widen #(.BusBytes(BusBytes)) u_got (
    .clk_i, .rst_ni, .valid_i(got_valid), .ready_o(got_ready), .data_i(got.data),
    .keep_i(got.keep), .last_i(got.last), .valid_o(val_valid_o), .ready_i(val_ready_i),
    .data_o(val_data_o), .keep_o(val_keep_o), .last_o(val_last_o)
  );

  ht_top #(
    .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeBytes(StripeBytes), .Lines(Lines),
    .KeyBytes(KeyBytes), .HeaderBytes(HeaderBytes), .TermsLast(TermsLast),
    .BucketBits(BucketBits), .HashRing(HashRing), .HashLanes(HashLanes), .Writers(Writers),
    .CounterBits(CounterBits), .ReturnBeats(ReturnBeats), .ValueBytes(ValueBytes),
    .LogBits(LogBits), .PositionBits(PositionBits)
  ) u_top (
    .clk_i, .rst_ni, .mem_rst_ni, .now_i(time_o), .seed_i(seed), .evict_i(control[0]),
    .table_only_i(control[1]),
    .meta_valid_i, .meta_ready_o, .meta_i,
    .key_valid_i(key_valid), .key_ready_o(key_ready), .key_i(key),
    .val_valid_i(put_valid), .val_ready_o(put_ready), .val_i(put),
    .meta_valid_o, .meta_ready_i, .meta_o,
    .val_valid_o(got_valid), .val_ready_i(got_ready), .val_o(got),
    .mem_valid_o, .mem_ready_i, .mem_o, .mem_data_o, .mem_mask_o, .mem_return_valid_i,
    .mem_return_is_value_i, .mem_return_i,
    .is_ready_o, .enter_o, .stall_o, .status_o, .answer_o(answer), .ended_o, .probe_o,
    .head_o(head)
  );

  assign is_get    = answer.opcode == OpGet || answer.opcode == OpGetQ || answer.opcode == OpGetK
                     || answer.opcode == OpGetKQ;
  assign is_set    = answer.opcode == OpSet || answer.opcode == OpSetQ;
  assign is_delete = answer.opcode == OpDelete || answer.opcode == OpDeleteQ;

  // Items that were stored under another seed would never be found again.
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) is_begun_q <= 1'b0;
    else if (meta_valid_i && meta_ready_o) is_begun_q <= 1'b1;
  end

  ht_registers u_registers (
    .clk_i, .rst_ni,
    .slots_i(Slots), .stripe_bytes_i(StripeBytes), .lines_i(Lines), .key_bytes_i(KeyBytes),
    .bucket_bits_i(BucketBits), .control_o(control), .time_o,
    .seed_low_o(seed[31:0]), .seed_high_o(seed[63:32]), .is_early_i(!is_begun_q),
    .ready_i(32'(is_ready_o)),
    .gets_i(status_o && is_get), .sets_i(status_o && is_set),
    .deletes_i(status_o && is_delete),
    .others_i(status_o && !is_get && !is_set && !is_delete),
    .hits_i(status_o && is_get && answer.status == StatusOk),
    .misses_i(status_o && is_get && answer.status == StatusNotFound),
    .refused_invalid_i(status_o && answer.status == StatusInvalid),
    .refused_too_large_i(status_o && answer.status == StatusTooLarge),
    .refused_no_memory_i(status_o && answer.status == StatusNoMemory),
    .refused_unknown_i(status_o && answer.status == StatusUnknown),
    .refused_cas_i(status_o && answer.status == StatusNotSupported),
    .entered_i(enter_o), .stall_cycles_i(stall_o),
    .log_bits_i(LogBits), .log_head_low_i(head[31:0]), .log_head_high_i(32'(head[47:32])),
    .bus_bytes_i(BusBytes),
    .dropped_overflow_i(drops_i.overflow), .dropped_broken_i(drops_i.broken),
    .dropped_other_i(drops_i.other), .dropped_unsound_i(drops_i.unsound),
    .dropped_malformed_i(drops_i.malformed),
    .awvalid_i, .awready_o, .awaddr_i, .wvalid_i, .wready_o, .wdata_i, .bvalid_o, .bready_i,
    .arvalid_i, .arready_o, .araddr_i, .rvalid_o, .rready_i, .rdata_o
  );

endmodule
