// SPDX-License-Identifier: Apache-2.0
//
// Selects the lane from which a table takes its next request. Requests are taken one at a time,
// each with its whole key and value, from the lane whose turn it is. A lane serves one table at a
// time.

module lane_arbiter
  import ht_pkg::*;
#(
  parameter int unsigned Lanes = 8,
  localparam int unsigned LaneWidth = Lanes > 1 ? $clog2(Lanes) : 1
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 pick_valid_i,
  output logic                 pick_ready_o,
  input  logic [LaneWidth-1:0] pick_i,
  input  logic [Lanes-1:0]     valid_i,      // for this table, from a free lane
  output logic [Lanes-1:0]     ready_o,
  input  request_t [Lanes-1:0] request_i,
  input  client_t [Lanes-1:0]  client_i,
  input  logic [Lanes-1:0]     key_valid_i,
  output logic [Lanes-1:0]     key_ready_o,
  input  beat_t [Lanes-1:0]    key_i,
  input  logic [Lanes-1:0]     val_valid_i,
  output logic [Lanes-1:0]     val_ready_o,
  input  beat_t [Lanes-1:0]    val_i,
  output logic [Lanes-1:0]     is_giving_o,  // the lane serves this table

  output logic                 meta_valid_o,
  input  logic                 meta_ready_i,
  output request_t             meta_o,
  output logic                 client_valid_o,
  input  logic                 client_ready_i,
  output client_t              client_o,
  output logic                 key_valid_o,
  input  logic                 key_ready_i,
  output beat_t                key_o,
  output logic                 val_valid_o,
  input  logic                 val_ready_i,
  output beat_t                val_o
);

  logic [LaneWidth-1:0] lane_q;
  logic has_key_q, has_value_q, is_here, is_idle, take;

  assign is_idle        = !has_key_q && !has_value_q;
  assign is_here        = pick_valid_i && valid_i[pick_i];
  assign meta_valid_o   = is_idle && is_here && client_ready_i;
  assign client_valid_o = is_idle && is_here && meta_ready_i;
  assign take           = client_valid_o && client_ready_i;
  assign pick_ready_o   = take;
  assign meta_o         = request_i[pick_i];
  assign client_o       = client_i[pick_i];

  assign key_valid_o = has_key_q && key_valid_i[lane_q];
  assign val_valid_o = has_value_q && val_valid_i[lane_q];
  assign key_o       = key_i[lane_q];
  assign val_o       = val_i[lane_q];

  always_comb begin
    ready_o     = '0;
    key_ready_o = '0;
    val_ready_o = '0;
    is_giving_o = '0;
    ready_o[pick_i]     = take;
    key_ready_o[lane_q] = has_key_q && key_ready_i;
    val_ready_o[lane_q] = has_value_q && val_ready_i;
    is_giving_o[lane_q] = !is_idle;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      lane_q      <= '0;
      has_key_q   <= 1'b0;
      has_value_q <= 1'b0;
    end else begin
      if (take) begin
        lane_q      <= pick_i;
        has_key_q   <= meta_o.klen != '0;
        has_value_q <= meta_o.vlen != '0;
      end
      if (key_valid_o && key_ready_i && key_o.last) has_key_q <= 1'b0;
      if (val_valid_o && val_ready_i && val_o.last) has_value_q <= 1'b0;
    end
  end

endmodule
