// SPDX-License-Identifier: Apache-2.0
//
// The key buffer: turns a key into the stripes that are compared with the memory lines of its
// bucket, one entry per line read, in reading order.
//
// A slot's record is Lines stripes. Its words of 8 bytes: the locator first, the key from word
// KeyWord on, the terms at word TermsWord, in front of the key or at the very end.

module key_striper
  import ht_pkg::*;
#(
  parameter int unsigned StripeWords = 1,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyWord = 1,
  parameter int unsigned TermsWord = 3,
  parameter int unsigned Stripes = 64,
  localparam int unsigned StripeWidth = 64 * StripeWords
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   valid_i,
  output logic                   ready_o,
  input  key_beat_t              key_i,
  output logic                   valid_o,
  input  logic                   ready_i,
  output logic [StripeWidth-1:0] stripe_o,
  output logic [StripeWords-1:0] mask_o,   // words that the key covers
  output logic                   last_o
);

  localparam int unsigned WordWidth = StripeWords > 1 ? $clog2(StripeWords) : 1;
  localparam int unsigned LineWidth = $clog2(Lines + 1);
  localparam int unsigned FirstLine = KeyWord / StripeWords;
  localparam int unsigned TermsLine = TermsWord / StripeWords;
  localparam logic [WordWidth-1:0] FirstWord = WordWidth'(KeyWord % StripeWords);
  localparam logic [WordWidth-1:0] LastWord = WordWidth'(StripeWords - 1);

  if (FirstLine > 1) begin : gen_check
    $error("key_striper: the key must begin in line 0 or 1");
  end

  typedef enum logic [1:0] {StHead, StKey, StTerms} state_e;
  localparam state_e Start = FirstLine == 0 ? StKey : StHead;
  state_e                       state_q;
  logic [WordWidth-1:0]         word_q;
  logic [LineWidth-1:0]         line_q;
  logic [StripeWords-1:0][63:0] stripe_q, stripe;
  logic [StripeWords-1:0]       mask_q, mask;
  logic push, push_ready, is_last, is_terms_behind;

  // The terms' line is read too, if the key does not reach it.
  assign is_terms_behind = line_q < LineWidth'(TermsLine);

  always_comb begin
    stripe = stripe_q;
    mask   = mask_q;
    if (state_q == StKey) begin
      stripe[word_q] = key_i.data;
      mask[word_q]   = 1'b1;
    end
  end

  always_comb begin
    push    = 1'b0;
    ready_o = 1'b0;
    is_last = 1'b0;
    unique case (state_q)
      StHead: push = valid_i;
      StKey: begin
        push    = valid_i && (word_q == LastWord || key_i.last);
        ready_o = push_ready || !(word_q == LastWord || key_i.last);
        is_last = key_i.last && !is_terms_behind;
      end
      default: begin
        push    = 1'b1;
        is_last = 1'b1;
      end
    endcase
  end

  fifo #(.Width(StripeWidth + StripeWords + 1), .Depth(Stripes), .InBlock(1'b1)) u_stripes (
    .clk_i, .rst_ni, .valid_i(push), .ready_o(push_ready), .data_i({stripe, mask, is_last}),
    .valid_o, .ready_i, .data_o({stripe_o, mask_o, last_o}), .level_o()
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q  <= Start;
      word_q   <= FirstWord;
      line_q   <= LineWidth'(FirstLine);
      stripe_q <= '0;
      mask_q   <= '0;
    end else begin
      if (state_q == StKey && valid_i && ready_o && !push) begin
        stripe_q <= stripe;
        mask_q   <= mask;
        word_q   <= word_q + 1'b1;
      end
      if (push && push_ready) begin
        stripe_q <= '0;
        mask_q   <= '0;
        word_q   <= '0;
        unique case (state_q)
          StHead: state_q <= StKey;
          StKey: begin
            line_q <= line_q + 1'b1;
            if (key_i.last) begin
              state_q <= is_terms_behind ? StTerms : Start;
              line_q  <= LineWidth'(FirstLine);
              if (!is_terms_behind) word_q <= FirstWord;
            end
          end
          default: begin
            state_q <= Start;
            word_q  <= FirstWord;
          end
        endcase
      end
    end
  end

endmodule
