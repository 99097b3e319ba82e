// SPDX-License-Identifier: Apache-2.0
//
// Reads the memory lines of the bucket that the key covers, and the line of the terms; for a sweep,
// which has no key, the lines of locators and terms; for a request that is forwarded, nothing. A
// line is requested only when there is space for its return, so the memory never has to wait.

module read_unit
  import ht_pkg::*;
#(
  parameter int unsigned StripeWords = 1,
  parameter int unsigned Lines = 4,
  parameter int unsigned LineBeats = 1,
  parameter int unsigned KeyWord = 1,
  parameter int unsigned TermsWord = 3,
  parameter int unsigned ReturnBeats = 128,
  parameter int unsigned AddressWidth = 32
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    valid_i,
  output logic                    ready_o,
  input  op_t                     op_i,

  output logic                    op_valid_o,   // to the comparators
  input  logic                    op_ready_i,
  output op_t                     op_o,

  output logic                    read_valid_o,
  input  logic                    read_ready_i,
  output logic [AddressWidth-1:0] read_address_o,
  input  logic                    beat_taken_i  // the comparators took a beat
);

  localparam int unsigned LineWidth = $clog2(Lines + 1);
  localparam int unsigned TermsLine = TermsWord / StripeWords;

  logic [LineWidth-1:0] line_q, last_key_line, next_line;
  logic                 has_credit, is_read, is_last, is_sent_q;

  // The line of the key's last word.
  assign last_key_line = op_i.meta.request.klen == '0 ? '0
                       : LineWidth'((KeyWord + (32'(op_i.meta.request.klen) - 1) / 8)
                                    / StripeWords);
  assign is_read   = !op_i.is_forwarded
                     && (op_i.meta.request.klen != '0 || op_i.meta.kind == KindDelete);
  assign next_line = line_q == last_key_line ? LineWidth'(TermsLine) : line_q + 1'b1;
  assign is_last   = line_q >= last_key_line && line_q >= LineWidth'(TermsLine);

  // The request goes on to the comparators once, before its lines.
  assign op_valid_o = valid_i && !is_sent_q;
  assign op_o       = op_i;

  assign read_valid_o   = valid_i && is_read && has_credit && is_sent_q;
  assign read_address_o = AddressWidth'((op_i.bucket * Lines + 32'(line_q)) * LineBeats);
  assign ready_o        = is_read ? read_valid_o && read_ready_i && is_last
                                  : op_ready_i && !is_sent_q;

  credits #(.Total(ReturnBeats), .Step(LineBeats)) u_credits (
    .clk_i, .rst_ni, .take_i(read_valid_o && read_ready_i), .give_back_i(beat_taken_i),
    .is_enough_o(has_credit)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      line_q    <= '0;
      is_sent_q <= 1'b0;
    end else begin
      if (op_valid_o && op_ready_i && is_read) is_sent_q <= 1'b1;
      if (read_valid_o && read_ready_i) begin
        line_q <= is_last ? '0 : next_line;
        if (is_last) is_sent_q <= 1'b0;
      end
    end
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // Beats requested and not yet taken never exceed the space for returns, and a line is requested
  // only for a request that the comparators have.
  localparam int unsigned OutWidth = $clog2(ReturnBeats + LineBeats + 1);
  logic [OutWidth-1:0] f_out_q;
  logic                f_waits_q;
  op_t                 f_op_q;
  always_ff @(posedge clk_i) f_op_q <= op_i;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      f_out_q   <= '0;
      f_waits_q <= 1'b0;
    end else begin
      f_out_q   <= f_out_q + (read_valid_o && read_ready_i ? OutWidth'(LineBeats) : '0)
                   - OutWidth'(beat_taken_i);
      f_waits_q <= valid_i && !ready_o;
    end
  end
  always_comb begin
    if (rst_ni) begin
      // Only requested beats come back, and a waiting request does not change.
      assume (!beat_taken_i || f_out_q != '0);
      if (f_waits_q) assume (valid_i && op_i == f_op_q);
      assert (f_out_q <= OutWidth'(ReturnBeats));
      assert (f_out_q + OutWidth'(u_credits.left_q) == OutWidth'(ReturnBeats));
      assert (!is_sent_q || f_waits_q);
      assert (!(read_valid_o && op_valid_o));
      assert (line_q == '0 || is_sent_q);
    end
  end
`endif

endmodule
