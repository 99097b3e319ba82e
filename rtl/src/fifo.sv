// SPDX-License-Identifier: Apache-2.0
//
// A queue. What goes in comes out in order; the oldest is visible at once.

module fifo #(
  parameter int unsigned Width = 8,
  parameter int unsigned Depth = 4,
  localparam int unsigned LevelWidth = $clog2(Depth + 1)
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  valid_i,
  output logic                  ready_o,
  input  logic [Width-1:0]      data_i,
  output logic                  valid_o,
  input  logic                  ready_i,
  output logic [Width-1:0]      data_o,
  output logic [LevelWidth-1:0] level_o
);

  localparam int unsigned PointerWidth = Depth > 1 ? $clog2(Depth) : 1;
  localparam logic [PointerWidth-1:0] Last = PointerWidth'(Depth - 1);

  logic [Width-1:0]        store [Depth];
  logic [PointerWidth-1:0] read_q, write_q;
  logic [LevelWidth-1:0]   level_q;
  logic                    push, pop;

  assign ready_o = level_q != LevelWidth'(Depth);
  assign valid_o = level_q != '0;
  assign data_o  = store[read_q];
  assign level_o = level_q;
  assign push    = valid_i && ready_o;
  assign pop     = valid_o && ready_i;

  always_ff @(posedge clk_i) begin
    if (push) store[write_q] <= data_i;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      read_q  <= '0;
      write_q <= '0;
      level_q <= '0;
    end else begin
      if (push) write_q <= write_q == Last ? '0 : write_q + 1'b1;
      if (pop) read_q <= read_q == Last ? '0 : read_q + 1'b1;
      if (push && !pop) level_q <= level_q + 1'b1;
      if (pop && !push) level_q <= level_q - 1'b1;
    end
  end

`ifdef FORMAL
  // It begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // Order and content: an entry of the solver's choice, followed from its push to its pop.
  logic                  f_is_watched_q;
  logic [Width-1:0]      f_data_q;
  logic [LevelWidth-1:0] f_ahead_q;   // entries in front of it
  logic                  f_choice;
  // The place so many behind the oldest entry.
  function automatic logic [PointerWidth-1:0] f_after(logic [LevelWidth-1:0] count);
    logic [LevelWidth:0] place = (LevelWidth + 1)'(read_q) + (LevelWidth + 1)'(count);
    return PointerWidth'(place >= (LevelWidth + 1)'(Depth) ? place - (LevelWidth + 1)'(Depth)
                                                           : place);
  endfunction

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      f_is_watched_q <= 1'b0;
      f_data_q       <= '0;
      f_ahead_q      <= '0;
    end else if (!f_is_watched_q) begin
      if (push && f_choice) begin
        f_is_watched_q <= 1'b1;
        f_data_q       <= data_i;
        f_ahead_q      <= level_q - LevelWidth'(pop);
      end
    end else if (pop) begin
      if (f_ahead_q == '0) f_is_watched_q <= 1'b0;
      else f_ahead_q <= f_ahead_q - 1'b1;
    end
  end

  always_comb begin
    if (rst_ni) begin
      assert (level_q <= LevelWidth'(Depth));
      assert (read_q <= Last);
      assert (write_q <= Last);
      assert (f_after(level_q) == write_q);
      if (f_is_watched_q) begin
        assert (f_ahead_q < level_q);
        assert (store[f_after(f_ahead_q)] == f_data_q);
        if (f_ahead_q == '0) assert (valid_o && data_o == f_data_q);
      end
    end
  end
`endif

endmodule
