// SPDX-License-Identifier: Apache-2.0
//
// Reserves buffer space before a read is issued: credits taken never exceed the space.

module credits #(
  parameter int unsigned Total = 16,
  parameter int unsigned Step = 4,
  localparam int unsigned Width = $clog2(Total + 1)
) (
  input  logic clk_i,
  input  logic rst_ni,
  input  logic take_i,       // takes Step credits; only while `is_enough_o`
  input  logic give_back_i,  // returns one credit
  output logic is_enough_o
);

  logic [Width-1:0] left_q;

  assign is_enough_o = left_q >= Width'(Step);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) left_q <= Width'(Total);
    else left_q <= left_q - (take_i ? Width'(Step) : '0) + Width'(give_back_i);
  end

  if (Total < Step) begin : gen_check
    $error("credits: Total must be at least Step");
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // Credits taken and not returned never exceed the total.
  logic [Width:0] f_out_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) f_out_q <= '0;
    else f_out_q <= f_out_q + (take_i ? (Width + 1)'(Step) : '0) - (Width + 1)'(give_back_i);
  end
  always_comb begin
    if (rst_ni) begin
      assume (!take_i || is_enough_o);
      assume (!give_back_i || f_out_q != '0);
      assert (f_out_q + (Width + 1)'(left_q) == (Width + 1)'(Total));
      assert (f_out_q <= (Width + 1)'(Total));
    end
  end
`endif

endmodule
