// SPDX-License-Identifier: Apache-2.0
//
// One of the paper's six lookup3 units: processes a 12-byte word in 6 cycles, the last one in 7.

module hash_lane
  import ht_pkg::*;
#(
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

  logic       word_valid, word_ready;
  hash_word_t word;
  fifo #(.Width($bits(hash_word_t)), .Depth(Words)) u_words (
    .clk_i, .rst_ni, .valid_i, .ready_o, .data_i(word_i),
    .valid_o(word_valid), .ready_i(word_ready), .data_o(word), .level_o()
  );

  state_t     state_q, first, added, stepped;
  logic [2:0] step_q;   // 0: idle; otherwise the steps done
  logic       is_final_q, is_done_q, is_middle_q;
  logic [2:0] rotation;

  assign word_ready = step_q == '0 && !is_done_q;
  assign first      = hash_start(word.klen, seed_i);
  assign added      = hash_add(is_middle_q ? state_q : first, word.data);
  // Mix has done its first step when `step_q` is 1, final only its closing one.
  assign rotation   = step_q == '0 ? 3'd0 : is_final_q ? step_q - 3'd1 : step_q;
  assign stepped    = hash_step(step_q == '0 ? added : state_q, step_q != '0 && is_final_q,
                                rotation);

  assign valid_o = is_done_q;
  assign hash_o  = '{primary: state_q.c, check: state_q.b[31:24]};

  always_ff @(posedge clk_i) begin
    if (step_q != '0) state_q <= stepped;
    else if (word_valid && word_ready) state_q <= word.last ? hash_close(added) : stepped;
    if (word_valid && word_ready) is_final_q <= word.last;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      step_q      <= '0;
      is_done_q   <= 1'b0;
      is_middle_q <= 1'b0;
    end else begin
      if (is_done_q && ready_i) is_done_q <= 1'b0;
      if (step_q == '0) begin
        if (word_valid && word_ready) begin
          step_q      <= 3'd1;
          is_middle_q <= !word.last;
        end
      end else if (step_q == (is_final_q ? 3'd6 : 3'd5)) begin
        step_q    <= '0;
        is_done_q <= is_final_q;
      end else begin
        step_q <= step_q + 1'b1;
      end
    end
  end

endmodule
