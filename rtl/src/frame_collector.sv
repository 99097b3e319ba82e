// SPDX-License-Identifier: Apache-2.0
//
// Merges the answers of tables, at 8 bytes a cycle each, into a wide Ethernet port in the order of
// the requests. The result of each request, a frame or nothing, is kept until its turn. A frame is
// sent only once it is complete, so it never pauses.

module frame_collector #(
  parameter int unsigned BusBytes = 64,
  parameter int unsigned Tables = 8,
  parameter int unsigned Beats = 64,      // buffer of a table, in beats of the bus
  parameter int unsigned Answers = 512,   // answers outstanding, at most
  localparam int unsigned TableWidth = Tables > 1 ? $clog2(Tables) : 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                    order_valid_i,  // the table of the next answer
  output logic                    order_ready_o,
  input  logic [TableWidth-1:0]   order_i,
  input  logic [Tables-1:0]       begun_i,        // a frame for the next request will come
  input  logic [Tables-1:0]       ended_i,        // the next request gets no answer
  input  logic [Tables-1:0]       valid_i,
  output logic [Tables-1:0]       ready_o,
  input  logic [Tables-1:0][63:0] data_i,
  input  logic [Tables-1:0][7:0]  keep_i,
  input  logic [Tables-1:0]       last_i,

  output logic                    valid_o,
  input  logic                    ready_i,
  output logic [8*BusBytes-1:0]   data_o,
  output logic [BusBytes-1:0]     keep_o,
  output logic                    last_o
);

  localparam int unsigned LevelWidth = $clog2(Beats + 1);

  logic [Tables-1:0] has_outcome, has_answer, is_whole, pop;
  logic [Tables-1:0][9*BusBytes:0] beat;
  logic is_passed;

  for (genvar i = 0; i < Tables; i++) begin : gen_table
    logic valid, ready, last, is_mine;
    logic [8*BusBytes-1:0] data;
    logic [BusBytes-1:0]   keep;
    logic [LevelWidth-1:0] whole_q;   // complete frames
    logic [1:0]            ends_q;    // frame ends inside the queue
    assign is_mine = order_valid_i && order_i == TableWidth'(i);
    // At most as many as answers in `order_i`.
    fifo #(.Width(1), .Depth(Answers)) u_outcomes (
      .clk_i, .rst_ni, .valid_i(begun_i[i] || ended_i[i]), .ready_o(), .data_i(begun_i[i]),
      .valid_o(has_outcome[i]), .ready_i(order_ready_o && is_mine), .data_o(has_answer[i]),
      .level_o()
    );
    stream_widen #(.BusBytes(BusBytes)) u_widen (
      .clk_i, .rst_ni, .valid_i(valid_i[i]), .ready_o(ready_o[i]), .data_i(data_i[i]),
      .keep_i(keep_i[i]), .last_i(last_i[i]), .valid_o(valid), .ready_i(ready), .data_o(data),
      .keep_o(keep), .last_o(last)
    );
    fifo #(.Width(9 * BusBytes + 1), .Depth(Beats), .InBlock(1'b1)) u_beats (
      .clk_i, .rst_ni, .valid_i(valid), .ready_o(ready), .data_i({data, keep, last}),
      .valid_o(), .ready_i(pop[i]), .data_o(beat[i]), .level_o()
    );
    assign is_whole[i] = whole_q != '0;
    assign pop[i]      = valid_o && ready_i && is_mine;
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        whole_q <= '0;
        ends_q  <= '0;
      end else begin
        ends_q  <= {ends_q[0], valid && ready && last};
        whole_q <= whole_q + LevelWidth'(ends_q[1]) - LevelWidth'(pop[i] && beat[i][0]);
      end
    end
  end

  assign valid_o   = order_valid_i && has_outcome[order_i] && has_answer[order_i]
                     && is_whole[order_i];
  assign is_passed = order_valid_i && has_outcome[order_i] && !has_answer[order_i];
  assign order_ready_o = is_passed || (valid_o && ready_i && last_o);
  assign {data_o, keep_o, last_o} = beat[order_i];

endmodule
