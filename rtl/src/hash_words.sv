// SPDX-License-Identifier: Apache-2.0
//
// Repacks beats of 8 bytes into words of 12 bytes. The last word of a key is padded with zeros;
// keys do not share a word.

module hash_words
  import ht_pkg::*;
(
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic       valid_i,
  output logic       ready_o,
  input  key_beat_t  beat_i,
  output logic       valid_o,
  input  logic       ready_i,
  output hash_word_t word_o
);

  logic [63:0] rest_q;          // 4 or 8 bytes that do not fill a word yet
  logic [1:0]  rest_count_q;    // of 4 bytes
  logic        is_flush_q;      // the key ended; the rest is its last word
  logic [7:0]  klen_q, sent_q;  // bytes in words that left
  logic        is_last, is_out, is_in;
  logic [7:0]  klen;

  assign klen    = is_flush_q ? klen_q : beat_i.klen;
  assign is_last = klen - sent_q <= 8'd12;
  assign is_in   = valid_i && ready_o;
  assign is_out  = valid_o && ready_i;

  assign valid_o = is_flush_q || (valid_i && (rest_count_q != '0 || beat_i.last));
  // While a key's rest leaves, the next key's first beat may come in, unless it is all of that key.
  assign ready_o = is_flush_q ? ready_i && !beat_i.last
                              : ready_i || (rest_count_q == '0 && !beat_i.last);

  assign word_o.klen = klen;
  assign word_o.last = is_last;
  always_comb begin
    unique case (rest_count_q)
      2'd0:    word_o.data = {32'b0, beat_i.data};
      2'd1:    word_o.data = {beat_i.data, rest_q[31:0]};
      default: word_o.data = {beat_i.data[31:0], rest_q};
    endcase
    if (is_flush_q) word_o.data = {64'b0, rest_q[31:0]};
  end

  always_ff @(posedge clk_i) begin
    if (is_in) begin
      rest_q <= rest_count_q == 2'd2 ? {32'b0, beat_i.data[63:32]} : beat_i.data;
      klen_q <= beat_i.klen;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      rest_count_q <= '0;
      is_flush_q   <= 1'b0;
      sent_q       <= '0;
    end else begin
      if (is_out) sent_q <= is_last ? '0 : sent_q + 8'd12;
      if (is_flush_q) begin
        if (ready_i) begin
          is_flush_q   <= 1'b0;
          rest_count_q <= is_in ? 2'd2 : 2'd0;
        end
      end else if (is_in) begin
        is_flush_q <= beat_i.last && valid_o && !is_last;
        if (beat_i.last && (!valid_o || is_last)) rest_count_q <= '0;
        else
          unique case (rest_count_q)
            2'd0:    rest_count_q <= 2'd2;
            2'd1:    rest_count_q <= 2'd0;
            default: rest_count_q <= 2'd1;
          endcase
      end
    end
  end

endmodule
