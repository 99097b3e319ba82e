// SPDX-License-Identifier: Apache-2.0
//
// Joins beats of 8 bytes into beats of BusBytes: parts are collected until a beat is full or its
// item ends. Bytes after an item's end are not kept.

module stream_widen #(
  parameter int unsigned BusBytes = 8
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  valid_i,
  output logic                  ready_o,
  input  logic [63:0]           data_i,
  input  logic [7:0]            keep_i,
  input  logic                  last_i,
  output logic                  valid_o,
  input  logic                  ready_i,
  output logic [8*BusBytes-1:0] data_o,
  output logic [BusBytes-1:0]   keep_o,
  output logic                  last_o
);

  if (BusBytes != 8 && BusBytes != 16 && BusBytes != 32 && BusBytes != 64) begin : gen_check
    $error("stream_widen: BusBytes must be 8, 16, 32 or 64");
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
    logic [PartWidth-1:0]   part_q;
    logic [Parts-1:0][63:0] data_q;
    logic [Parts-1:0][7:0]  keep_q;
    logic is_full_q, last_q, take, is_full;

    assign take    = valid_i && ready_o;
    assign is_full = last_i || part_q == PartWidth'(Parts - 1);
    assign ready_o = !is_full_q || ready_i;
    assign valid_o = is_full_q;
    assign data_o  = data_q;
    assign keep_o  = keep_q;
    assign last_o  = last_q;

    always_ff @(posedge clk_i) begin
      if (take) begin
        data_q[part_q] <= data_i;
        last_q         <= last_i;
        if (part_q == '0) keep_q <= '0;
        keep_q[part_q] <= keep_i;
      end
    end

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        part_q    <= '0;
        is_full_q <= 1'b0;
      end else begin
        if (take) part_q <= is_full ? '0 : part_q + 1'b1;
        is_full_q <= (take && is_full) || (is_full_q && !ready_i);
      end
    end
  end

endmodule
