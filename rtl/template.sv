// SPDX-License-Identifier: Apache-2.0
//
// How the table is instantiated: copy this and connect what is in capitals. The parameters are the
// printed ones; docs/hardware.md says what each does. Streams and AXI4-Lite follow AMBA; the memory
// port is explained in docs/hardware-board.md. The structs are those of rtl/src/ht_pkg.sv.

ht_axi #(
  .Slots(8), .SlotsPerBeat(2), .StripeBytes(48), .Lines(4), .KeyBytes(168), .HeaderBytes(24),
  .TermsLast(1'b0), .BucketBits(18), .HashRing(1'b1), .Writers(32), .ReturnBeats(128),
  .ValueBytes(1024), .LogBits(21), .BusBytes(8)
) u_table (
  // The table may be reset at any time; the memory's side at power-up, and when memory is.
  .clk_i(CLOCK), .rst_ni(RESET_N), .mem_rst_ni(MEM_RESET_N),
  // Registers: AXI4-Lite, 32 bits.
  .awvalid_i(AWVALID), .awready_o(AWREADY), .awaddr_i(AWADDR),
  .wvalid_i(WVALID), .wready_o(WREADY), .wdata_i(WDATA), .bvalid_o(BVALID), .bready_i(BREADY),
  .arvalid_i(ARVALID), .arready_o(ARREADY), .araddr_i(ARADDR),
  .rvalid_o(RVALID), .rready_i(RREADY), .rdata_o(RDATA),
  // Requests: one beat of meta each, then the beats of key and value, if there are any.
  .meta_valid_i(REQUEST_VALID), .meta_ready_o(REQUEST_READY), .meta_i(REQUEST),
  .key_valid_i(KEY_VALID), .key_ready_o(KEY_READY), .key_data_i(KEY_DATA),
  .key_keep_i(KEY_KEEP), .key_last_i(KEY_LAST),
  .val_valid_i(VALUE_VALID), .val_ready_o(VALUE_READY), .val_data_i(VALUE_DATA),
  .val_keep_i(VALUE_KEEP), .val_last_i(VALUE_LAST),
  // Answers, in the order of the requests; a hit's value on its own stream.
  .meta_valid_o(ANSWER_VALID), .meta_ready_i(ANSWER_READY), .meta_o(ANSWER),
  .val_valid_o(FOUND_VALID), .val_ready_i(FOUND_READY), .val_data_o(FOUND_DATA),
  .val_keep_o(FOUND_KEEP), .val_last_o(FOUND_LAST),
  // Memory: accesses are accepted in order and returned in order; a return never waits.
  .mem_valid_o(MEM_VALID), .mem_ready_i(MEM_READY), .mem_o(MEM_ACCESS), .mem_data_o(MEM_DATA),
  .mem_mask_o(MEM_MASK),
  .mem_return_valid_i(MEM_RETURN_VALID), .mem_return_is_value_i(MEM_RETURN_IS_VALUE),
  .mem_return_i(MEM_RETURN),
  // The frames that a front end of one's own drops, for the counters; and the clock.
  .drops_i('0), .time_o(),
  // For waveforms and counters of one's own.
  .is_ready_o(), .enter_o(), .stall_o(), .status_o(), .ended_o(), .probe_o()
);
