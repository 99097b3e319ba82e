// SPDX-License-Identifier: Apache-2.0
//
// A first-in first-out queue in block RAM whose oldest entry is always visible: an entry in an
// empty queue is visible in the next cycle, and one may enter and one leave each cycle.
//
// The four oldest entries are in registers. Block RAM takes three cycles from its input to them. An
// entry enters only block RAM if four are ahead of it, or if others are there already; then at
// least three are in registers, so they never run empty before it arrives.

module deep_fifo #(
  parameter int unsigned Width = 8,
  parameter int unsigned DepthBits = 8   // the queue holds 2^DepthBits entries; at least 3
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               valid_i,   // never when the queue is full
  input  logic [Width-1:0]   data_i,
  output logic               valid_o,
  input  logic               ready_i,
  output logic [Width-1:0]   data_o,
  output logic [DepthBits:0] level_o
);

  logic [Width-1:0]   store [2**DepthBits];
  logic [Width-1:0]   head_q [4];                  // entry i is in register i modulo 4
  logic [DepthBits:0] read_q, fetch_q, write_q;    // the oldest, the first not fetched, the next
  logic [Width-1:0]   fetched_q;
  logic [1:0]         place_q;                     // the register of what was fetched
  logic               has_fetched_q;
  logic [DepthBits:0] ahead;                       // in registers or on their way there: 0 to 4
  logic               is_direct, is_fetched;

  assign ahead      = fetch_q - read_q;
  assign is_direct  = valid_i && fetch_q == write_q && !ahead[2];
  assign is_fetched = fetch_q != write_q && !ahead[2];
  assign valid_o    = ahead != '0;
  assign data_o     = head_q[read_q[1:0]];
  assign level_o    = write_q - read_q;

  always_ff @(posedge clk_i) begin
    if (valid_i) store[write_q[DepthBits-1:0]] <= data_i;
    if (is_fetched) fetched_q <= store[fetch_q[DepthBits-1:0]];
    place_q <= fetch_q[1:0];
    if (has_fetched_q) head_q[place_q] <= fetched_q;
    if (is_direct) head_q[fetch_q[1:0]] <= data_i;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      read_q        <= '0;
      fetch_q       <= '0;
      write_q       <= '0;
      has_fetched_q <= 1'b0;
    end else begin
      if (valid_i) write_q <= write_q + 1'b1;
      if (valid_o && ready_i) read_q <= read_q + 1'b1;
      if (is_direct || is_fetched) fetch_q <= fetch_q + 1'b1;
      has_fetched_q <= is_fetched;
    end
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // Order and content: an entry chosen by the solver is followed from its push to its pop.
  logic               f_is_watched_q, f_choice;
  logic [Width-1:0]   f_data_q;
  logic [DepthBits:0] f_index_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      f_is_watched_q <= 1'b0;
      f_data_q       <= '0;
      f_index_q      <= '0;
    end else if (!f_is_watched_q) begin
      f_is_watched_q <= valid_i && f_choice;
      f_data_q       <= data_i;
      f_index_q      <= write_q;
    end else if (valid_o && ready_i && read_q == f_index_q) begin
      f_is_watched_q <= 1'b0;
    end
  end

  logic [DepthBits:0] f_behind, f_place;
  assign f_behind = write_q - fetch_q;
  assign f_place  = f_index_q - read_q;
  always_comb begin
    if (rst_ni) begin
      assume (!valid_i || !level_o[DepthBits]);
      assert (!level_o[DepthBits] || level_o[DepthBits-1:0] == '0);
      assert (ahead <= (DepthBits + 1)'(4));
      assert (ahead <= level_o);
      // The oldest entry is visible whenever there is one.
      assert (valid_o == (level_o != '0));
      assert (f_behind == '0 || ahead >= (DepthBits + 1)'(3));
      assert (!has_fetched_q || ahead >= (DepthBits + 1)'(3));
      assert (!has_fetched_q || place_q == 2'(fetch_q - 1'b1));
      if (f_is_watched_q) begin
        assert (f_place < level_o);
        if (f_place >= ahead) assert (store[f_index_q[DepthBits-1:0]] == f_data_q);
        else if (has_fetched_q && f_place == ahead - 1'b1) assert (fetched_q == f_data_q);
        else assert (head_q[f_index_q[1:0]] == f_data_q);
        if (f_place == '0) assert (data_o == f_data_q);
      end
    end
  end
`endif

endmodule
