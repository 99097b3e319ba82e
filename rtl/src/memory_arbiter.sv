// SPDX-License-Identifier: Apache-2.0
//
// One memory port for the table and the values. Older requests go first: writes of headers, then
// values, then the lines of new requests. A line is written without interruption. The port
// keeps the order in which it accepts accesses; returns say who asked.

module memory_arbiter
  import ht_pkg::*;
#(
  parameter int unsigned BeatWords = 8,
  parameter int unsigned LineBeats = 1,
  parameter int unsigned TableBeats = 4096,   // where values begin
  parameter int unsigned AddressWidth = 32,
  localparam int unsigned BeatWidth = 64 * BeatWords
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  logic                    read_valid_i,
  output logic                    read_ready_o,
  input  logic [AddressWidth-1:0] read_address_i,

  input  logic                    write_valid_i,
  output logic                    write_ready_o,
  input  logic [AddressWidth-1:0] write_address_i,
  input  logic [BeatWidth-1:0]    write_data_i,
  input  logic [BeatWords-1:0]    write_mask_i,
  input  logic                    write_last_i,

  input  logic                    value_valid_i,
  output logic                    value_ready_o,
  input  logic                    value_write_i,
  input  logic [AddressWidth-1:0] value_address_i,
  input  logic [BeatWidth-1:0]    value_data_i,
  input  logic [BeatWords-1:0]    value_mask_i,

  output logic                    mem_valid_o,
  input  logic                    mem_ready_i,
  output memory_access_t          mem_o,
  output logic [BeatWidth-1:0]    mem_data_o,
  output logic [BeatWords-1:0]    mem_mask_o      // words to be written
);

  logic is_value_picked, is_write_picked, is_inside_line_q;

  assign is_write_picked = write_valid_i || is_inside_line_q;
  assign is_value_picked = value_valid_i && !is_write_picked;

  assign mem_valid_o    = is_inside_line_q ? write_valid_i
                                           : write_valid_i || value_valid_i || read_valid_i;
  assign write_ready_o  = mem_ready_i && is_write_picked;
  assign value_ready_o  = mem_ready_i && is_value_picked;
  assign read_ready_o   = mem_ready_i && !is_write_picked && !is_value_picked;

  assign mem_o.write    = is_write_picked || (is_value_picked && value_write_i);
  assign mem_o.last     = !is_write_picked || write_last_i;
  assign mem_o.is_value = is_value_picked;
  assign mem_o.count    = is_value_picked ? 5'd1 : 5'(LineBeats);
  assign mem_o.address  = is_write_picked ? 32'(write_address_i)
                        : is_value_picked ? 32'(value_address_i + AddressWidth'(TableBeats))
                        : 32'(read_address_i);
  assign mem_data_o     = is_write_picked ? write_data_i : value_data_i;
  assign mem_mask_o     = is_write_picked ? write_mask_i : value_mask_i;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) is_inside_line_q <= 1'b0;
    else if (write_valid_i && write_ready_o) is_inside_line_q <= !write_last_i;
  end

endmodule
