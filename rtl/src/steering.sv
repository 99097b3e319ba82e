// SPDX-License-Identifier: Apache-2.0
//
// What a table takes of the lanes: one request after the other, each with its whole key and value,
// of whichever lane offers one for this table, in turns. A lane gives to one table at a time.
// Requests of one lane keep their order at a table; those of two lanes have none, as datagrams
// have none.

module steering
  import ht_pkg::*;
#(
  parameter int unsigned Lanes = 8,
  localparam int unsigned LaneWidth = Lanes > 1 ? $clog2(Lanes) : 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [Lanes-1:0]       valid_i,      // for this table, of a lane that is free
  output logic [Lanes-1:0]       ready_o,
  input  request_t [Lanes-1:0]   request_i,
  input  client_t [Lanes-1:0]    client_i,
  input  logic [Lanes-1:0]       key_valid_i,
  output logic [Lanes-1:0]       key_ready_o,
  input  logic [Lanes-1:0][72:0] key_i,        // data, keep, last
  input  logic [Lanes-1:0]       val_valid_i,
  output logic [Lanes-1:0]       val_ready_o,
  input  logic [Lanes-1:0][72:0] val_i,
  output logic [Lanes-1:0]       is_giving_o,  // the lane gives to this table

  output logic                   meta_valid_o,
  input  logic                   meta_ready_i,
  output request_t               meta_o,
  output logic                   client_valid_o,
  input  logic                   client_ready_i,
  output client_t                client_o,
  output logic                   key_valid_o,
  input  logic                   key_ready_i,
  output logic [72:0]            key_o,
  output logic                   val_valid_o,
  input  logic                   val_ready_i,
  output logic [72:0]            val_o
);

  logic [LaneWidth-1:0] lane_q, picked;
  logic has_key_q, has_value_q, is_any, is_idle, take;

  // The first behind the last one that was picked.
  always_comb begin
    picked = lane_q;
    is_any = 1'b0;
    for (int unsigned i = 1; i <= Lanes; i++) begin
      logic [LaneWidth-1:0] lane;
      lane = LaneWidth'((32'(lane_q) + i) % Lanes);
      if (!is_any && valid_i[lane]) begin
        picked = lane;
        is_any = 1'b1;
      end
    end
  end

  assign is_idle        = !has_key_q && !has_value_q;
  assign meta_valid_o   = is_idle && is_any && client_ready_i;
  assign client_valid_o = is_idle && is_any && meta_ready_i;
  assign take           = client_valid_o && client_ready_i;
  assign meta_o         = request_i[picked];
  assign client_o       = client_i[picked];

  assign key_valid_o = has_key_q && key_valid_i[lane_q];
  assign val_valid_o = has_value_q && val_valid_i[lane_q];
  assign key_o       = key_i[lane_q];
  assign val_o       = val_i[lane_q];

  always_comb begin
    ready_o     = '0;
    key_ready_o = '0;
    val_ready_o = '0;
    is_giving_o = '0;
    ready_o[picked]     = take;
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
        lane_q      <= picked;
        has_key_q   <= meta_o.klen != '0;
        has_value_q <= meta_o.vlen != '0;
      end
      if (key_valid_o && key_ready_i && key_o[0]) has_key_q <= 1'b0;
      if (val_valid_o && val_ready_i && val_o[0]) has_value_q <= 1'b0;
    end
  end

endmodule
