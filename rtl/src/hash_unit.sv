// SPDX-License-Identifier: Apache-2.0
//
// Computes lookup3 of each key, in order, with the printed lanes or with the ring.

module hash_unit
  import ht_pkg::*;
#(
  parameter bit          Ring = 1'b0,
  parameter int unsigned Lanes = 6,
  parameter int unsigned KeyBytes = 16
) (
  input  logic      clk_i,
  input  logic      rst_ni,
  input  logic [63:0] seed_i,   // the same for all keys of a table
  input  logic      valid_i,
  output logic      ready_o,
  input  key_beat_t key_i,
  output logic      valid_o,
  input  logic      ready_i,
  output hash_t     hash_o
);

  // Room for the longest key twice, so that one arrives while another is hashed.
  localparam int unsigned KeyWords = (KeyBytes + 11) / 12;
  localparam int unsigned Words = 2 ** $clog2(2 * KeyWords);

  if (Lanes < 1) begin : gen_check
    $error("hash_unit: Lanes must be at least 1");
  end

  logic       word_valid, word_ready;
  hash_word_t word;
  hash_words u_words (
    .clk_i, .rst_ni, .valid_i, .ready_o, .beat_i(key_i),
    .valid_o(word_valid), .ready_i(word_ready), .word_o(word)
  );

  if (Ring) begin : gen_ring
    hash_ring #(.Words(Words)) u_ring (
      .clk_i, .rst_ni, .seed_i, .valid_i(word_valid), .ready_o(word_ready), .word_i(word),
      .valid_o, .ready_i, .hash_o
    );
  end else begin : gen_lanes
    hash_lanes #(.Lanes(Lanes), .Words(Words)) u_lanes (
      .clk_i, .rst_ni, .seed_i, .valid_i(word_valid), .ready_o(word_ready), .word_i(word),
      .valid_o, .ready_i, .hash_o
    );
  end

endmodule
