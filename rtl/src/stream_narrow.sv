// SPDX-License-Identifier: Apache-2.0
//
// Splits beats of BusBytes into beats of 8 bytes, up to the last part that holds a byte of the
// item. A beat that is not an item's last is passed on whole, with any missing bytes, so that a
// wrong length can still be detected.

module stream_narrow #(
  parameter int unsigned BusBytes = 8
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  valid_i,
  output logic                  ready_o,
  input  logic [8*BusBytes-1:0] data_i,
  input  logic [BusBytes-1:0]   keep_i,
  input  logic                  last_i,
  output logic                  valid_o,
  input  logic                  ready_i,
  output logic [63:0]           data_o,
  output logic [7:0]            keep_o,
  output logic                  last_o
);

  if (BusBytes != 8 && BusBytes != 16 && BusBytes != 32 && BusBytes != 64) begin : gen_check
    $error("stream_narrow: BusBytes must be 8, 16, 32 or 64");
  end

  if (BusBytes <= 8) begin : gen_same
    assign valid_o = valid_i;
    assign ready_o = ready_i;
    assign data_o  = data_i;
    assign keep_o  = keep_i;
    assign last_o  = last_i;
  end else begin : gen_parts
    localparam int unsigned Parts = BusBytes / 8;
    localparam int unsigned PartWidth = $clog2(Parts);
    logic [PartWidth-1:0] part_q, last_part;

    always_comb begin
      last_part = PartWidth'(Parts - 1);
      if (last_i) begin
        last_part = '0;
        for (int unsigned i = 1; i < Parts; i++) begin
          if (keep_i[8*i+:8] != '0) last_part = PartWidth'(i);
        end
      end
    end

    assign valid_o = valid_i;
    assign ready_o = ready_i && part_q == last_part;
    assign data_o  = data_i[64*part_q+:64];
    assign keep_o  = keep_i[8*part_q+:8];
    assign last_o  = last_i && part_q == last_part;

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) part_q <= '0;
      else if (valid_i && ready_i) part_q <= part_q == last_part ? '0 : part_q + 1'b1;
    end
  end

endmodule
