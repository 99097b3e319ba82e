// SPDX-License-Identifier: Apache-2.0
//
// The hash unit as printed: several lookup3 units. Keys are distributed and hashes collected round
// robin, so hashes leave in the order of their keys.

module hash_lanes
  import ht_pkg::*;
#(
  parameter int unsigned Lanes = 6,
  parameter int unsigned Words = 32
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic [63:0] seed_i,
  input  logic       valid_i,
  output logic       ready_o,
  input  hash_word_t word_i,
  output logic       valid_o,
  input  logic       ready_i,
  output hash_t      hash_o
);

  localparam int unsigned Width = Lanes > 1 ? $clog2(Lanes) : 1;
  localparam logic [Width-1:0] Last = Width'(Lanes - 1);

  logic [Width-1:0] give_q, take_q;
  logic [Lanes-1:0] in_ready, out_valid;
  hash_t            out [Lanes];

  for (genvar i = 0; i < Lanes; i++) begin : gen_lane
    hash_lane #(.Words(Words)) u_lane (
      .clk_i, .rst_ni, .seed_i,
      .valid_i(valid_i && give_q == Width'(i)), .ready_o(in_ready[i]), .word_i,
      .valid_o(out_valid[i]), .ready_i(ready_i && take_q == Width'(i)), .hash_o(out[i])
    );
  end

  assign ready_o = in_ready[give_q];
  assign valid_o = out_valid[take_q];
  assign hash_o  = out[take_q];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      give_q <= '0;
      take_q <= '0;
    end else begin
      if (valid_i && ready_o && word_i.last) give_q <= give_q == Last ? '0 : give_q + 1'b1;
      if (valid_o && ready_i) take_q <= take_q == Last ? '0 : take_q + 1'b1;
    end
  end

endmodule
