// SPDX-License-Identifier: Apache-2.0
//
// Distributes the frames of a wide Ethernet port to lanes of 8 bytes a cycle, round robin. It never
// makes the port wait: a frame for which its lane has no room is dropped whole, and a frame above
// the maximum length is cut and marked broken. A lane holds at most `Frames` frames whose turn has
// not been taken.

module frame_spreader #(
  parameter int unsigned BusBytes = 64,
  parameter int unsigned Lanes = 8,
  parameter int unsigned Beats = 64,          // buffer of a lane, in beats of the bus
  parameter int unsigned Frames = 64,         // in a lane until their turn was taken
  parameter int unsigned LongestBytes = 1518,
  localparam int unsigned LaneWidth = Lanes > 1 ? $clog2(Lanes) : 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   valid_i,
  input  logic [8*BusBytes-1:0]  data_i,
  input  logic [BusBytes-1:0]    keep_i,
  input  logic                   last_i,
  input  logic                   bad_i,

  output logic [Lanes-1:0]       valid_o,     // always taken
  output logic [Lanes-1:0][63:0] data_o,
  output logic [Lanes-1:0][7:0]  keep_o,
  output logic [Lanes-1:0]       last_o,
  output logic [Lanes-1:0]       bad_o,
  input  logic [Lanes-1:0]       turn_i,      // the turn of the lane's oldest frame was taken
  output logic                   overflow_o   // a frame was dropped for lack of space
);

  localparam int unsigned LongestBeats = (LongestBytes + BusBytes - 1) / BusBytes;
  localparam int unsigned LevelWidth = $clog2(Beats + 1);
  localparam int unsigned FrameWidth = $clog2(Frames + 1);
  localparam int unsigned Width = 9 * BusBytes + 2;

  if (Beats < 2 * LongestBeats) begin : gen_check
    $error("frame_spreader: Beats must be room for two frames");
  end

  logic [LaneWidth-1:0]         lane_q;
  logic [$clog2(LongestBeats+1)-1:0] count_q;
  logic is_lost_q, is_cut_q, is_lost, is_cut, is_full;
  logic [Lanes-1:0][LevelWidth-1:0] level;
  logic [Lanes-1:0][FrameWidth-1:0] inside_q;   // frames of each lane

  assign is_full = level[lane_q] > LevelWidth'(Beats - LongestBeats)
                   || inside_q[lane_q] == FrameWidth'(Frames);
  assign is_lost = count_q == '0 ? is_full : is_lost_q;
  assign is_cut  = 32'(count_q) == LongestBeats - 1 && !last_i;
  assign overflow_o = valid_i && last_i && is_lost;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      lane_q    <= '0;
      count_q   <= '0;
      is_lost_q <= 1'b0;
      is_cut_q  <= 1'b0;
    end else if (valid_i) begin
      is_lost_q <= is_lost;
      is_cut_q  <= !last_i && (is_cut_q || is_cut);
      if (last_i) count_q <= '0;
      else if (32'(count_q) != LongestBeats) count_q <= count_q + 1'b1;
      if (last_i && !is_lost) lane_q <= 32'(lane_q) == Lanes - 1 ? '0 : lane_q + 1'b1;
    end
  end

  for (genvar i = 0; i < Lanes; i++) begin : gen_lane
    logic valid, ready, last, bad, is_mine;
    logic [8*BusBytes-1:0] data;
    logic [BusBytes-1:0]   keep;
    assign is_mine = valid_i && lane_q == LaneWidth'(i) && !is_lost;
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) inside_q[i] <= '0;
      else inside_q[i] <= inside_q[i] + FrameWidth'(is_mine && last_i) - FrameWidth'(turn_i[i]);
    end
    fifo #(.Width(Width), .Depth(Beats), .InBlock(1'b1)) u_beats (
      .clk_i, .rst_ni, .valid_i(is_mine && !is_cut_q), .ready_o(),
      .data_i({data_i, last_i ? keep_i : '1, last_i || is_cut, bad_i || is_cut}),
      .valid_o(valid), .ready_i(ready), .data_o({data, keep, last, bad}), .level_o(level[i])
    );
    stream_narrow #(.BusBytes(BusBytes)) u_narrow (
      .clk_i, .rst_ni, .valid_i(valid), .ready_o(ready), .data_i(data), .keep_i(keep),
      .last_i(last), .valid_o(valid_o[i]), .ready_i(1'b1), .data_o(data_o[i]),
      .keep_o(keep_o[i]), .last_o(last_o[i])
    );
    assign bad_o[i] = bad;
  end

endmodule
