// SPDX-License-Identifier: Apache-2.0
//
// From lanes of 8 bytes a cycle to a wide port of Ethernet. A frame goes out when it is here whole,
// so it never pauses; lanes take turns.

module frame_collector #(
  parameter int unsigned BusBytes = 64,
  parameter int unsigned Lanes = 8,
  parameter int unsigned Beats = 64,   // room of a lane, in beats of the bus
  localparam int unsigned LaneWidth = Lanes > 1 ? $clog2(Lanes) : 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [Lanes-1:0]       valid_i,
  output logic [Lanes-1:0]       ready_o,
  input  logic [Lanes-1:0][63:0] data_i,
  input  logic [Lanes-1:0][7:0]  keep_i,
  input  logic [Lanes-1:0]       last_i,

  output logic                   valid_o,
  input  logic                   ready_i,
  output logic [8*BusBytes-1:0]  data_o,
  output logic [BusBytes-1:0]    keep_o,
  output logic                   last_o
);

  localparam int unsigned LevelWidth = $clog2(Beats + 1);

  logic [Lanes-1:0] is_whole, pop;
  logic [Lanes-1:0][9*BusBytes:0] beat;
  logic [LaneWidth-1:0] lane_q, lane;
  logic is_inside_q;

  for (genvar i = 0; i < Lanes; i++) begin : gen_lane
    logic valid, ready, last;
    logic [8*BusBytes-1:0] data;
    logic [BusBytes-1:0]   keep;
    logic [LevelWidth-1:0] whole_q;   // frames that are here
    stream_widen #(.BusBytes(BusBytes)) u_widen (
      .clk_i, .rst_ni, .valid_i(valid_i[i]), .ready_o(ready_o[i]), .data_i(data_i[i]),
      .keep_i(keep_i[i]), .last_i(last_i[i]), .valid_o(valid), .ready_i(ready), .data_o(data),
      .keep_o(keep), .last_o(last)
    );
    fifo #(.Width(9 * BusBytes + 1), .Depth(Beats)) u_beats (
      .clk_i, .rst_ni, .valid_i(valid), .ready_o(ready), .data_i({data, keep, last}),
      .valid_o(), .ready_i(pop[i]), .data_o(beat[i]), .level_o()
    );
    assign is_whole[i] = whole_q != '0;
    assign pop[i]      = valid_o && ready_i && lane == LaneWidth'(i);
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) whole_q <= '0;
      else whole_q <= whole_q + LevelWidth'(valid && ready && last)
                      - LevelWidth'(pop[i] && beat[i][0]);
    end
  end

  // The first behind the last one, unless that is in the midst of a frame, or offers one.
  always_comb begin
    lane    = lane_q;
    valid_o = is_inside_q;
    for (int unsigned i = 1; i <= Lanes; i++) begin
      logic [LaneWidth-1:0] next;
      next = LaneWidth'((32'(lane_q) + i) % Lanes);
      if (!valid_o && is_whole[next]) begin
        lane    = next;
        valid_o = 1'b1;
      end
    end
  end
  assign {data_o, keep_o, last_o} = beat[lane];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      lane_q      <= '0;
      is_inside_q <= 1'b0;
    end else if (valid_o) begin
      lane_q      <= lane;
      is_inside_q <= !(ready_i && last_o);
    end
  end

endmodule
