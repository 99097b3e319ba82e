// SPDX-License-Identifier: Apache-2.0
//
// Preserves the order in which frames arrived. Frames were given to lanes round robin, so lanes are
// read round robin. A frame without a request is skipped; a request is entered in two queues: its
// table's, which fixes the order in which the table takes requests, and that of all answers, which
// fixes the order in which answers leave.
//
// The oldest request that no table has taken is the first of its lane and the first in the queue of
// its table, so there is no circular wait.

module sequencer #(
  parameter int unsigned Lanes = 8,
  parameter int unsigned Tables = 8,
  parameter int unsigned Picks = 32,      // requests that wait for a table
  parameter int unsigned Answers = 512,   // requests without an answer
  localparam int unsigned LaneWidth = Lanes > 1 ? $clog2(Lanes) : 1,
  localparam int unsigned TableWidth = Tables > 1 ? $clog2(Tables) : 1
) (
  input  logic                              clk_i,
  input  logic                              rst_ni,
  input  logic [Lanes-1:0]                  turn_valid_i,
  output logic [Lanes-1:0]                  turn_ready_o,
  input  logic [Lanes-1:0]                  turn_has_request_i,
  input  logic [Lanes-1:0][TableWidth-1:0]  turn_table_i,

  output logic [Tables-1:0]                 pick_valid_o,   // the lane that a table is to take from
  input  logic [Tables-1:0]                 pick_ready_i,
  output logic [Tables-1:0][LaneWidth-1:0]  pick_o,
  output logic                              order_valid_o,  // the table of the next answer
  input  logic                              order_ready_i,
  output logic [TableWidth-1:0]             order_o
);

  logic [LaneWidth-1:0]  lane_q;
  logic [TableWidth-1:0] target;
  logic [Tables-1:0]     has_pick_room;
  logic has_request, has_order_room, take;

  assign has_request = turn_has_request_i[lane_q];
  assign target      = turn_table_i[lane_q];
  assign take        = turn_valid_i[lane_q]
                       && (!has_request || (has_order_room && has_pick_room[target]));

  always_comb begin
    turn_ready_o         = '0;
    turn_ready_o[lane_q] = take;
  end

  for (genvar i = 0; i < Tables; i++) begin : gen_table
    fifo #(.Width(LaneWidth), .Depth(Picks)) u_picks (
      .clk_i, .rst_ni, .valid_i(take && has_request && target == TableWidth'(i)),
      .ready_o(has_pick_room[i]), .data_i(lane_q), .valid_o(pick_valid_o[i]),
      .ready_i(pick_ready_i[i]), .data_o(pick_o[i]), .level_o()
    );
  end
  fifo #(.Width(TableWidth), .Depth(Answers)) u_order (
    .clk_i, .rst_ni, .valid_i(take && has_request), .ready_o(has_order_room), .data_i(target),
    .valid_o(order_valid_o), .ready_i(order_ready_i), .data_o(order_o), .level_o()
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) lane_q <= '0;
    else if (take) lane_q <= 32'(lane_q) == Lanes - 1 ? '0 : lane_q + 1'b1;
  end

endmodule
