// SPDX-License-Identifier: Apache-2.0
//
// Rejoins status and value, in the order of the requests, and suppresses quiet answers: the miss of
// a quiet GET, and the success of a quiet SET or DELETE.

module post_processor
  import ht_pkg::*;
#(
  parameter int unsigned Responses = 64
) (
  input  logic      clk_i,
  input  logic      rst_ni,
  input  logic      table_only_i,

  input  logic      response_valid_i,
  output logic      response_ready_o,
  input  response_t response_i,
  input  logic      flags_valid_i,
  output logic      flags_ready_o,
  input  logic [31:0] flags_i,

  output logic      valid_o,
  input  logic      ready_i,
  output response_t response_o,
  output logic      ended_o      // a quiet answer ended here
);

  logic      is_here, is_silent, has_value, is_complete, leave;
  response_t response;

  fifo #(.Width($bits(response_t)), .Depth(Responses)) u_responses (
    .clk_i, .rst_ni, .valid_i(response_valid_i), .ready_o(response_ready_o), .data_i(response_i),
    .valid_o(is_here), .ready_i(leave), .data_o(response), .level_o()
  );

  assign is_silent   = response.quiet
      && (response.status == StatusNotFound && (response.opcode == OpGetQ
                                                || response.opcode == OpGetKQ)
          || response.status == StatusOk && !response.hit);
  assign has_value   = response.hit && !table_only_i;
  assign is_complete = is_here && (!has_value || flags_valid_i);
  assign valid_o     = is_complete && !is_silent;
  assign leave       = is_complete && (is_silent || ready_i);

  assign ended_o     = is_complete && is_silent;

  assign flags_ready_o = is_here && has_value && ready_i;
  always_comb begin
    response_o       = response;
    response_o.flags = has_value ? flags_i : '0;
  end

endmodule
